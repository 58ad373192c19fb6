"""The simulated cluster: machines, the network between them, requests of clients, and the checks of
all of these.
"""

from collections.abc import Iterator
from functools import partial
from random import Random

from pixy.cluster.log.replica import PartitionReplica
from pixy.errors import CorruptData
from pixy.multiraft.raft_group import RaftGroup
from pixy.raft import Message, StateType
from pixy.storage import Checkpoint, CheckpointId, read_checkpoint
from tests.fakes.clock import FakeClock
from tests.sim.cluster.checks import Checks
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.member import LogMember, Member, Outside, state_name
from tests.sim.cluster.network import Network
from tests.sim.cluster.packets import SnapshotReport
from tests.sim.cluster.requests import Request, Requests
from tests.sim.cluster.segments import durable_segments
from tests.sim.cluster.swarm import NODES, Focus, draw_swarm
from tests.sim.kit.lives import Life, LivesLoop
from tests.sim.kit.rest_audit import TICK_S
from tests.sim.kit.scene import Scene
from tests.sim.world import DIRECTORY

_FETCH_S = (0.001, 0.05, 0.05, 1.0)
_DAY_MS = 86_400_000
_OFFER_S = 2.0
_ROT = 0.3
"""Share of the runs in which segments rot."""
_ROT_S = (0.2, 1.5)


class Cluster:
    """Three machines.

    Args:
        seed: determines everything.
        loop: its event loop, which runs.
        prints: print every event.
        focus: changes what the seed chooses.

    Attributes:
        swarm: what the seed has chosen.
    """

    def __init__(
        self, seed: int, loop: LivesLoop, *, prints: bool = False, focus: Focus | None = None
    ) -> None:
        self.scene = Scene(seed, loop, prints=prints)
        swarm = draw_swarm(self.scene.random("swarm"))
        self.swarm = swarm if focus is None else focus(swarm)
        self._rng = self.scene.random("cluster")
        self._rot_rng = self.scene.random("rot")
        self.machines: dict[int, Machine] = {}
        self.checks = Checks(self.scene, self.machines, self.swarm.layout)
        self.requests = Requests(self.scene, self.checks, self.swarm.layout, self.swarm.quiet_from_s)
        self.network = Network(
            self.scene,
            self.machines,
            self.swarm.weather,
            self.checks.sending,
            encodes=self.swarm.encodes,
        )
        self._clocks = {node_id: self._clock(node_id) for node_id in NODES}
        for node_id in NODES:
            interleaves = self.swarm.sizes_of(node_id).interleaves
            machine = Machine(node_id, self.scene, self._make, self._ended, interleaves=interleaves)
            machine.durable.on_reset = partial(self.checks.check_reset, machine)
            self.machines[node_id] = machine
        loop.before_turns(self.checks.turn)

    def _clock(self, node_id: int) -> FakeClock:
        clock = FakeClock(monotonic=0.0)
        clock.follow(self.scene.loop)
        if node_id == self.swarm.days_off:
            clock.set_wall(self.scene.random("days off").choice((-10, -1, 1, 10)) * _DAY_MS)
        return clock

    # --- machines ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start every machine, and their clocks."""
        for machine in self.machines.values():
            machine.start()
            self._tick(machine)
            self._offer_again(machine)
        self._begin_rot()

    def _make(self, machine: Machine, life: Life) -> Member:
        scene = self.scene
        outside = Outside(
            machine.disk,
            self._clocks[machine.id],
            machine.worker,
            scene.random(f"node {machine.id}, process {life.number}"),
            partial(self.network.send, machine),
            partial(self._fetch, machine, life),
            machine.copying,
            lambda: machine.has_rotted,
            partial(self.checks.recovered, machine),
            partial(self.checks.applying, machine),
            machine.fault,
        )
        return LogMember(machine.id, self.swarm.layout, self.swarm.sizes_of(machine.id), outside)

    def _ended(self, machine: Machine) -> None:
        self.network.ended(machine)
        for request in list(self.requests.open):
            if not request.life.alive:
                del self.requests.open[request]

    def _tick(self, machine: Machine) -> None:
        if machine.life is not None and machine.member is not None:
            machine.life.run(machine.member.tick)
        self.scene.loop.outside(TICK_S * self._rng.uniform(0.9, 1.1), self._tick, machine)

    def _offer_again(self, machine: Machine) -> None:
        """Replicas that wait for a copy are offered one again, as `SnapshotServing` does later."""
        if machine.life is not None and isinstance(machine.member, LogMember):
            machine.life.run(machine.member.offer_again)
        self.scene.loop.outside(_OFFER_S, self._offer_again, machine)

    def _begin_rot(self) -> None:
        """Have segments rot in some runs."""
        if self._rot_rng.random() < _ROT or self.swarm.rotten > 1:
            self.scene.loop.outside(self._rot_rng.uniform(*_ROT_S), self._rot)

    def _rot(self) -> None:
        """Let a bit of a segment rot, of few nodes at a time and while all have its records;
        consumers read what is damaged now and then.
        """
        rng, machines = self._rot_rng, list(self.machines.values())
        self.scene.loop.outside(rng.uniform(*_ROT_S), self._rot)
        machine, raft_group = rng.choice(machines), rng.choice(self.swarm.layout.partitions)
        rotten = [each for each in machines if each.is_rotten(raft_group)]
        for each in rotten:
            if isinstance(each.member, LogMember) and each.life is not None and each.online:
                each.life.run(each.member.read_all, raft_group)
        if rotten or self.scene.healed or not all(each.online and not each.retired for each in machines):
            return
        replicas = [each.member.replica(raft_group) for each in machines if each.member is not None]
        ends = [
            each.log.end_offset for each in replicas if isinstance(each, PartitionReplica) and each.is_well
        ]
        others = [each for each in machines if each is not machine]
        for each in (machine, *others[: self.swarm.rotten - 1]) if len(ends) == len(machines) else ():
            paths = durable_segments(each.disk, self.swarm.layout.name(raft_group), min(ends))
            if paths:
                path = rng.choice(paths)
                self.scene.note(f"{each.id}   a bit of {path.name} rots")
                self.scene.counts["segments damaged"] += 1
                each.rot(raft_group, path, rng)

    def probe(self) -> None:
        """Look at the disk of some machine, now and then."""
        rng = self._rng
        machine = rng.choice(list(self.machines.values()))
        if not machine.retired:
            self.checks.probe(machine, Random(rng.random()))
        self.scene.loop.outside(rng.uniform(0.2, 3.0), self.probe)

    def running(self) -> list[Machine]:
        """Machines whose node takes requests."""
        return [each for each in self.machines.values() if each.online and not each.stopping]

    def running_groups(self) -> Iterator[tuple[int, RaftGroup]]:
        """Raft groups of all nodes that run, each with the id of its node."""
        for machine in self.machines.values():
            if machine.member is not None and machine.online:
                for group in machine.member.groups.values():
                    yield machine.id, group

    def leader(self, raft_group: int) -> Machine | None:
        """The leader of a raft group, of the newest term; None if nobody leads."""
        found: Machine | None = None
        newest = 0
        for machine in self.running():
            assert machine.member is not None
            node = machine.member.groups[raft_group].node
            if node is not None and node.raft.state is StateType.LEADER and node.raft.term > newest:
                found, newest = machine, node.raft.term
        return found

    def unsettled(self) -> Iterator[str]:
        """Everything that is not as it should be in a cluster at rest."""
        for raft_group in self.swarm.layout.all:
            leader = self.leader(raft_group)
            if leader is None:
                yield f"raft group {raft_group} has no leader: {self.describe(raft_group)}"
                continue
            assert leader.member is not None
            state = leader.member.groups[raft_group].storage.conf_state
            if state.voters_outgoing and not self._is_excused(leader, raft_group):
                yield f"raft group {raft_group} is in a joint configuration: {self.describe(raft_group)}"
            for node_id in (*state.voters, *state.learners):
                machine = self.machines[node_id]
                if machine.retired:
                    continue
                assert machine.member is not None
                applied = machine.member.groups[raft_group].applied_index
                last = self.checks.histories[raft_group].last
                if applied < last and not self._is_excused(machine, raft_group):
                    yield f"node {node_id}, raft group {raft_group}: applied {applied} of {last}: {self.describe(raft_group)}"
        yield from self._damaged()
        for request in self.requests.open:
            if not self._is_excused(request.machine, request.raft_group) and not self._lacks_room(request):
                yield f"no answer to: {request}: {self.describe(request.raft_group)}"

    def _damaged(self) -> Iterator[str]:
        for machine in self.machines.values():
            for raft_group in self.swarm.layout.partitions if not machine.retired else ():
                replica = None if machine.member is None else machine.member.replica(raft_group)
                fault = replica.fault if isinstance(replica, PartitionReplica) else None
                if fault is not None or machine.is_rotten(raft_group):
                    yield f"node {machine.id}, raft group {raft_group}: is damaged: {fault}"

    def _is_excused(self, machine: Machine, raft_group: int) -> bool:
        """True if a node cannot know of the last entries: it is no member."""
        leader = self.leader(raft_group)
        if leader is None or leader.member is None or machine.member is None:
            return False
        state = leader.member.groups[raft_group].storage.conf_state
        if machine.id not in (*state.voters, *state.learners, *state.voters_outgoing):
            self.scene.counts["waits of no member"] += 1
            return True
        return False

    def _lacks_room(self, request: Request) -> bool:
        """True if the leader of a partition has entries that it can neither commit nor replace, as
        it is no member of their group any more: what they take of its room, all partitions lack.
        """
        leader = self.leader(request.raft_group)
        if leader is None or leader.member is None or not leader.member.waits_for_room(request.raft_group):
            return False
        groups = leader.member.groups
        if any(group.has_tail and self._is_excused(leader, each) for each, group in groups.items()):
            self.scene.counts["waits for room of no member"] += 1
            return True
        return False

    def describe(self, raft_group: int) -> str:
        """A raft group on all nodes."""
        lines = []
        for machine in self.machines.values():
            if machine.member is None or raft_group not in machine.member.groups:
                lines.append(f"  node {machine.id} is down")
                continue
            group = machine.member.groups[raft_group]
            line = f"  node {machine.id}: start {group.storage.start}, applied {group.applied}, last {group.storage.last_index()}"
            if group.node is not None:
                raft = group.node.raft
                line += f", {raft.state.name} of {raft.lead} in term {raft.term}, {raft.log}, {raft.tracker.config}"
                if raft.state is StateType.LEADER:
                    line += "".join(
                        f", {peer}: {progress}" for peer, progress in raft.tracker.progress.items()
                    )
            lines.append(line)
        return "\n".join(["", *lines])

    # --- snapshots --------------------------------------------------------------------------------

    def _fetch(self, machine: Machine, life: Life, group: RaftGroup, message: Message) -> None:
        """Bring the checkpoint that a snapshot stands for to a follower, or fail."""
        self.scene.note(f"{machine.id}   fetches a snapshot of {group.raft_group} from {message.sender}")
        delay = self._rng.random() * self._rng.choice(_FETCH_S)
        self.scene.loop.outside(delay, self._fetched, machine, life, group.raft_group, message)

    def _fetched(self, machine: Machine, life: Life, raft_group: int, message: Message) -> None:
        if not life.alive or machine.member is None or message.snapshot is None:
            return
        member = machine.member
        checkpoint = self._checkpoint(self.machines[message.sender], raft_group, message)
        if checkpoint is None:
            self.scene.counts["snapshots not fetched"] += 1
            life.run(member.snapshot_failed, raft_group, message.snapshot)
        else:
            self.scene.counts["snapshots fetched"] += 1
            machine.installing()
            life.run(member.install, raft_group, checkpoint)
        report = SnapshotReport(raft_group, failed=checkpoint is None)
        life.run(self.network.send, machine, message.sender, report)

    def _checkpoint(self, leader: Machine, raft_group: int, message: Message) -> Checkpoint | None:
        """The checkpoint of a snapshot, if its node is there and still has it."""
        snapshot = message.snapshot
        assert snapshot is not None
        if not leader.online or self.network.is_cut(leader.id, message.to):
            return None
        id = CheckpointId(snapshot.term, snapshot.index)
        path = DIRECTORY / "state" / state_name(raft_group) / id.file_name
        try:
            return Checkpoint(id, read_checkpoint(leader.disk, path))
        except (OSError, CorruptData):
            return None
