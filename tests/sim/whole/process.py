"""A process of the daemon in the simulation: a node with its backend and peers, and its consumer
groups above these.
"""

from dataclasses import replace
from random import Random

from pixy.backend import EmbeddedBackend
from pixy.cluster import Node, NodeOptions
from pixy.cluster.log.cluster_options import ClusterOptions
from pixy.config import ProxyConfig
from pixy.peers import Address, PeerOptions, Peers
from pixy.proxy import Proxy
from tests.sim.kit.lives import Life
from tests.sim.kit.scene import Scene
from tests.sim.whole.machine import Machine
from tests.sim.whole.network import SimulatedNetwork
from tests.sim.whole.swarm import Swarm
from tests.sim.world import DIRECTORY

PEER_PORT = 19094
REPLACE_AFTER_S = 4.0
_CLUSTER = "default"


class WholeProcess:
    """A process; see `DaemonProcess`.

    Args:
        scene, swarm, network: see there.
        machine: where it runs.
        life: when it runs.
    """

    def __init__(
        self, scene: Scene, swarm: Swarm, network: SimulatedNetwork, machine: Machine, life: Life
    ) -> None:
        rng = Random(f"{scene.seed} machine {machine.number}, process {life.number}")
        sizes, formation = swarm.sizes_of(machine.number), swarm.formation
        address = Address(machine.host, PEER_PORT)
        # Everybody has the same list but the node that begins alone, as long as it has its disk.
        is_told = machine.number > 1 or formation.listed > 1 or machine.emptied
        listed = max(2, formation.listed) if is_told else 0
        join = [Address(f"127.0.0.{number}", PEER_PORT) for number in range(1, listed + 1)]
        options = NodeOptions(
            DIRECTORY,
            sizes.journal,
            sizes.storage,
            rng.randbytes,
            machine.worker,
            writer_pace=sizes.pace,
            cluster=ClusterOptions(
                _CLUSTER, tuple(sorted(join)), str(address), f"{machine.host}:19091", look_s=0.0
            ),
        )
        peer_options = PeerOptions(
            address,
            secrets=lambda: (swarm.secret,) if swarm.secret else (),
            mutual_tls=not swarm.secret,
            queue_bytes=sizes.queue_bytes,
        )
        if swarm.moving:
            options = replace(options, cluster=replace(options.cluster, replace_after_s=REPLACE_AFTER_S))
        self._peers = Peers(network.of(machine.host, life), peer_options, rng, scene.fail)
        self.node = Node(machine.disk, machine.clock, options, machine.fault, self._peers.channel)
        if machine.noted_ms is not None:
            self.node.time.resume(machine.noted_ms)
        self._drain_s = swarm.consuming.drain_s
        self.backend = EmbeddedBackend(self.node, drain_s=self._drain_s)
        self.proxy = Proxy(
            _CLUSTER,
            ProxyConfig(auto_create_topics=False, consumer=swarm.consuming.options),
            self.backend,
            client_id=f"{machine.host}, process {life.number}",
            clock=machine.clock,
            rng=rng,
            on_fault=scene.fail,
        )
        self.consumers = self.proxy._consumers

    async def start(self) -> None:
        await self._peers.start()
        await self.backend.start()

    async def stop(self) -> None:
        await self.consumers.drain(self._drain_s)
        await self.backend.stop()
        await self._peers.stop()
