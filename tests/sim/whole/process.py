"""A process of the daemon in the simulation: a node with its backend, and nothing above these."""

from random import Random

from pixy.backend import EmbeddedBackend
from pixy.cluster import Node, NodeOptions
from tests.sim.cluster.lives import Life
from tests.sim.cluster.scene import Scene
from tests.sim.whole.machine import Machine
from tests.sim.whole.network import SimulatedNetwork
from tests.sim.whole.swarm import Swarm
from tests.sim.world import DIRECTORY

__all__ = ["WholeProcess"]


class WholeProcess:
    """A process; see `Process`.

    Args:
        scene, swarm, network: see there.
        machine: where it runs.
        life: when it runs.
    """

    def __init__(
        self, scene: Scene, swarm: Swarm, network: SimulatedNetwork, machine: Machine, life: Life
    ) -> None:
        rng = Random(f"{scene.seed} machine {machine.number}, process {life.number}")
        sizes = swarm.sizes
        options = NodeOptions(
            DIRECTORY, sizes.journal, sizes.storage, rng.randbytes, machine.worker, writer_pace=sizes.pace
        )
        self.node = Node(machine.disk, machine.clock, options, machine.fault)
        self.backend = EmbeddedBackend(self.node)

    async def start(self) -> None:
        await self.backend.start()

    async def stop(self) -> None:
        await self.backend.stop()
