"""The simulated cluster: machines, the network between them, clients, and the checks of these."""

from collections.abc import Iterator, Sequence

from pixy.cluster import Process
from pixy.cluster.state.metadata import METADATA_GROUP
from pixy.multiraft.raft_group import RaftGroup
from pixy.raft import StateType
from pixy.records import TopicPartition
from tests.sim.kit.failure import require
from tests.sim.kit.lives import Life, LivesLoop
from tests.sim.kit.scene import Scene
from tests.sim.whole.audits import Audits
from tests.sim.whole.calls import Calls
from tests.sim.whole.clients import Clients
from tests.sim.whole.group_audit import GroupAudit
from tests.sim.whole.group_clients import GroupClients
from tests.sim.whole.machine import Machine
from tests.sim.whole.network import SimulatedNetwork
from tests.sim.whole.process import WholeProcess
from tests.sim.whole.producers import Producers
from tests.sim.whole.shown_offsets import ShownOffsets
from tests.sim.whole.sinks import Sinks
from tests.sim.whole.swarm import Focus, draw_swarm, moving, still
from tests.sim.whole.watches import Watches, groups_of

_HIGH_WATER_BYTES = 64 << 10
_MOVING = 0.25
"""Share of the seeds in which partitions move."""
_WAITING = 0.03
"""Probability that a client calls nodes that wait for others, too."""


class Cluster:
    """Machines, clients and checks of one run.

    Args:
        seed: determines everything.
        loop: its event loop, which runs.
        prints: print every event.
        focus: changes what the seed chooses. Without one partitions move in a quarter of the seeds.

    Attributes:
        swarm: what the seed has chosen.
        jump_ms: the error of all wall clocks since they have jumped, 0 before.
    """

    def __init__(
        self, seed: int, loop: LivesLoop, *, prints: bool = False, focus: Focus | None = None
    ) -> None:
        self.scene = Scene(seed, loop, prints=prints)
        swarm = draw_swarm(self.scene.random("swarm"))
        moves = self.scene.random("moves").random() < _MOVING
        self.swarm = (focus or (moving if moves else still))(swarm)
        self._rng = self.scene.random("cluster")
        self.machines: dict[int, Machine] = {}
        self.jump_ms = 0
        self.network = SimulatedNetwork(self.scene, self.swarm.weather)
        consuming = self.swarm.consuming
        self.group_audit = GroupAudit(
            self.scene, consuming.groups, self._lease_left, is_strict=consuming.rests > 0
        )
        self.watches = Watches(self.scene, self.machines, self.group_audit)
        self.audits = Audits(self.scene, self.swarm.habits.passing_topics)
        self.calls = Calls(self.scene)
        self.clients = Clients(self.scene, self.calls, self.audits, self.swarm.habits, self.serving)
        self.group_clients = GroupClients(
            self.scene, self.calls, self.audits, self.group_audit, consuming, self.serving
        )
        self.shown_offsets = ShownOffsets(self.scene, self.calls, self.audits, consuming, self.serving)
        topics = self.swarm.habits.stable_topics
        self.sinks = Sinks(self.scene, self.calls, self.audits, self.swarm.writing, topics, self.serving)
        self.producers = Producers(
            self.scene, self.calls, self.audits, self.swarm.producing, topics, self.serving
        )
        loop.before_turns(self.watches.turn)

    # --- machines ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the first machines, each a bit later."""
        formation = self.swarm.formation
        for number in range(1, formation.listed + 1):
            machine = self.add(number)
            self.network.turn_on(machine.host)
            delay = self._rng.random() * formation.late_s
            self.scene.loop.outside(delay, self.switch_on, machine)
        self._check_queues()

    def _check_queues(self) -> None:
        """Bytes for a peer that does not read are bounded."""
        queues = [self.swarm.sizes_of(number).queue_bytes for number in self.machines]
        allowed = max([*queues, _HIGH_WATER_BYTES])
        for transport in self.network.transports:
            require(
                transport.buffered <= allowed + transport.largest,
                f"{transport.buffered} bytes wait from {transport.local_host} to {transport.remote_host}",
            )
        self.scene.loop.outside(0.1, self._check_queues)

    def add(self, number: int) -> Machine:
        """A new machine, which is off."""
        machine = self.machines[number] = Machine(
            number, self.scene, self._make, self._ended, interleaves=self.swarm.sizes_of(number).interleaves
        )
        machine.on_pause = self._paused
        error_ms = self._rng.choice((-1, 0, 1)) * self.swarm.clocks_apart_ms
        machine.clock.set_wall(round(error_ms * self._rng.random()))
        if self.jump_ms:
            machine.clock.set_wall(self.jump_ms)
        if number == self.swarm.days_off:
            machine.clock.set_wall(self.scene.random("days off").choice(self.swarm.clock_errors_ms))
        return machine

    def switch_on(self, machine: Machine) -> None:
        """Start the machine, and a process on it, unless one runs or it is down for good."""
        if machine.life is None and not machine.retired and not machine.broken:
            self.network.turn_on(machine.host)
            machine.start()

    def _make(self, machine: Machine, life: Life) -> WholeProcess:
        return WholeProcess(self.scene, self.swarm, self.network, machine, life)

    def _lease_left(self, process: Process, group: str) -> float:
        there = [
            each for each in self.ordinary() if each.node is not None and each.node.node_id == process.node_id
        ]
        for machine in there:
            is_over = machine.stopping or len(there) > 1
            if machine.identity_of_process == process and not is_over:
                assert machine.process is not None
                lease = machine.process.backend._members._leases.of(group)
                return lease.until - machine.clock.monotonic()
        return 0.0

    def _paused(self, machine: Machine, duration_s: float) -> None:
        process = None if machine.stranger else machine.identity_of_process
        if process is not None:
            self.group_audit.paused(process, self.scene.now + duration_s)

    def _ended(self, machine: Machine, life: Life, power: bool) -> None:
        process = None if machine.stranger else machine.identity_of_process
        if process is not None:
            self.group_audit.ended(process)
        self.network.ended(machine.host, life, power=power)
        self.watches.ended(machine)
        self.calls.ended(life)

    def ordinary(self) -> list[Machine]:
        """Machines of the cluster."""
        return [each for each in self.machines.values() if not each.stranger]

    def serving(self) -> list[Machine]:
        """Machines whose node takes calls, now and then also those that wait for others."""
        serving = [each for each in self.ordinary() if each.serving and not each.stopping]
        ready = [each for each in serving if each.ready]
        return serving if self._rng.random() < _WAITING else ready

    # --- leaders ----------------------------------------------------------------------------------

    def raft_groups(self) -> Sequence[int]:
        """Raft groups that some node has."""
        found: dict[int, None] = {}
        for machine in self.ordinary():
            found.update(dict.fromkeys(groups_of(machine)))
        return sorted(found)

    def running_groups(self) -> Iterator[tuple[int, RaftGroup]]:
        """Raft groups of all nodes that run, each with the id of its node."""
        for machine in self.ordinary():
            if machine.life is not None and not machine.life.paused and machine.node is not None:
                for group in groups_of(machine).values():
                    yield machine.node.node_id, group

    def leader(self, raft_group: int = METADATA_GROUP) -> Machine | None:
        """The leader of a raft group, of the newest term; None if nobody leads."""
        found: Machine | None = None
        newest = 0
        for machine in self.ordinary():
            group = groups_of(machine).get(raft_group)
            raft = None if group is None or group.node is None else group.node.raft
            if raft is not None and raft.state is StateType.LEADER and raft.term > newest:
                found, newest = machine, raft.term
        return found

    def describe(self, raft_group: int) -> str:
        """A raft group on all nodes, for a reader."""
        lines = []
        for machine in self.machines.values():
            group = groups_of(machine).get(raft_group)
            if group is None:
                lines.append(f"  {machine} has nothing of it")
                continue
            line = f"  {machine}: start {group.storage.start}, applied {group.applied_index}, last {group.storage.last_index()}"
            if group.node is not None:
                raft = group.node.raft
                line += f", {raft.state.name} of {raft.lead} in term {raft.term}, {raft.log}, {raft.tracker.config}"
                if raft.state is StateType.LEADER:
                    line += "".join(f", {peer}: {at}" for peer, at in raft.tracker.progress.items())
            lines.append(line)
        return "\n".join(["", *lines])

    def partitions(self) -> list[TopicPartition]:
        """Partitions of all topics, as the leader of the metadata knows them."""
        machine = self.leader()
        if machine is None or machine.node is None:
            return []
        return [
            TopicPartition(name, number)
            for name, topic in machine.node.metadata.topics.items()
            for number in range(len(topic.raft_groups))
        ]
