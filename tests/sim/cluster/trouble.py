"""Carries out the scheduled faults and operator actions."""

import errno
from collections.abc import Callable
from random import Random

from pixy.raft import ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState
from tests.sim.cluster.cluster import Cluster
from tests.sim.cluster.faults import FaultKind
from tests.sim.cluster.figure_8 import Figure8
from tests.sim.cluster.machine import Machine
from tests.sim.disk import SimulatedDisk
from tests.sim.kit.durable import DurableJournal
from tests.sim.kit.failure import require
from tests.sim.kit.faults import Fault

_NEAR = (
    ("create", ".journal"),
    ("rename", ".checkpoint"),
    ("rename", ".checkpoint"),
    ("sync", ".checkpoint.part"),
    ("unlink", ".checkpoint"),
    ("unlink", ".journal"),
    ("unlink", ".log"),
    ("create", ".log"),
)
"""Operations that create what others rely on, or remove what must be elsewhere by then."""
_PHASES = ("before", "middle", "after")
_FLUSHES_OF_A_BACKUP = 30


class Trouble:
    """Faults of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._scene = cluster.scene
        # Only one: the two others must be a quorum.
        self._has_older_self = False
        self._actions: dict[FaultKind, Callable[[Random], None]] = {
            FaultKind.CRASH: self._crash_some,
            FaultKind.CRASH_LEADER: self._crash_leader,
            FaultKind.CRASH_AT: self._crash_at,
            FaultKind.CRASH_NEAR: self._crash_near,
            FaultKind.CRASH_ALL: self._crash_all,
            FaultKind.STOP: self._stop,
            FaultKind.SPLIT: self._split,
            FaultKind.ONE_WAY: self._one_way,
            FaultKind.ISOLATE_LEADER: self._isolate_leader,
            FaultKind.FIGURE_8: self._figure_8,
            FaultKind.STORM: self._storm,
            FaultKind.SLOW_DISK: self._slow_disk,
            FaultKind.FULL_DISK: self._full_disk,
            FaultKind.FAILING_DISK: self._failing_disk,
            FaultKind.FAILING_READ: self._failing_read,
            FaultKind.TRANSFER: self._transfer,
            FaultKind.MEMBERSHIP: self._change_members,
            FaultKind.BURST: self._burst,
            FaultKind.LAGGARD: self._laggard,
            FaultKind.OLDER_SELF: self._older_self,
        }

    def happen(self, fault: Fault[FaultKind]) -> None:
        """Carry out a fault."""
        self._scene.note(f"*** {fault.kind.text} ({fault.number})")
        self._scene.counts[fault.kind.text] += 1
        self._actions[fault.kind](Random(fault.seed))

    # --- choices ----------------------------------------------------------------------------------

    def _machine(self, rng: Random) -> Machine:
        return rng.choice(list(self._cluster.machines.values()))

    def _raft_group(self, rng: Random) -> int:
        return rng.choice(self._cluster.swarm.layout.all)

    def _leader(self, rng: Random) -> Machine:
        return self._cluster.leader(self._raft_group(rng)) or self._machine(rng)

    # --- crashes ----------------------------------------------------------------------------------

    def _crash(self, machine: Machine, rng: Random) -> None:
        machine.end(power=rng.random() < 0.7)
        self._start_later(machine, rng)

    def _start_later(self, machine: Machine, rng: Random) -> None:
        self._scene.loop.outside(rng.choice((0.01, 0.2, 1.0, 3.0)) * rng.random(), machine.start)

    def _crash_some(self, rng: Random) -> None:
        self._crash(self._machine(rng), rng)

    def _crash_leader(self, rng: Random) -> None:
        self._crash(self._leader(rng), rng)

    def _crash_at(self, rng: Random) -> None:
        disk = self._leader(rng).disk
        disk.die_at = disk.operations + rng.randint(1, 12)
        disk.die_phase = rng.choice(_PHASES)

    def _crash_near(self, rng: Random) -> None:
        disk = self._machine(rng).disk
        disk.die_near = rng.choice(_NEAR)
        disk.die_phase = rng.choice(_PHASES)

    def _crash_all(self, rng: Random) -> None:
        for machine in self._cluster.machines.values():
            if rng.random() < 0.9:
                self._crash(machine, rng)

    def _stop(self, rng: Random) -> None:
        self._machine(rng).stop()

    # --- disks ------------------------------------------------------------------------------------

    def _slow_disk(self, rng: Random) -> None:
        machine = self._leader(rng) if rng.random() < 0.6 else self._machine(rng)
        machine.slow_s = rng.choice((0.05, 0.3, 3.0))
        self._scene.loop.outside(rng.choice((0.5, 3.0)), setattr, machine, "slow_s", 0.0)

    def _full_disk(self, rng: Random) -> None:
        machine = self._leader(rng) if rng.random() < 0.5 else self._machine(rng)
        machine.disk.room = rng.choice((0, 0, 300, 2000, 5000))

        def make_room() -> None:
            machine.disk.room = None

        self._scene.loop.outside(rng.choice((0.5, 2.0, 4.0)), make_room)

    def _failing_disk(self, rng: Random) -> None:
        disk = self._machine(rng).disk
        disk.fail_at = disk.operations + rng.randint(1, 30)
        disk.fail_errno = rng.choice((errno.EIO, errno.EIO, errno.ENOSPC))

    def _failing_read(self, rng: Random) -> None:
        machine = self._machine(rng)
        machine.fails_reads, disk = True, machine.disk
        disk.fail_read_at = disk.reads + rng.randint(1, 10)

    # --- the network ------------------------------------------------------------------------------

    def _split(self, rng: Random) -> None:
        self._cluster.network.split({self._machine(rng).id}, rng.uniform(0.2, 4.0))

    def _one_way(self, rng: Random) -> None:
        one, other = rng.sample(list(self._cluster.machines), 2)
        ways = [(one, other)]
        if rng.random() < 0.5:
            ways = [(one, each) for each in self._cluster.machines if each != one]
        self._cluster.network.cut(ways, rng.uniform(0.2, 4.0))

    def _isolate_leader(self, rng: Random) -> None:
        """Requests go on at the leader, and fill its tail."""
        leader = self._leader(rng)
        self._cluster.network.split({leader.id}, rng.uniform(0.3, 4.0))
        self._ask(leader, rng.choice((0, 3, 12)), rng)

    def _figure_8(self, rng: Random) -> None:
        Figure8(self._cluster, self._raft_group(rng), rng).begin()

    def _storm(self, rng: Random) -> None:
        self._cluster.network.storm(
            rng.uniform(0.5, 4.0),
            lost=rng.choice((0.0, 0.1, 0.4)),
            twice=rng.choice((0.0, 0.3)),
            late=rng.choice((0.0, 0.3)),
        )

    # --- operators and clients --------------------------------------------------------------------

    def _ask(self, machine: Machine, count: int, rng: Random) -> None:
        for _ in range(count):
            if machine in self._cluster.running():
                self._cluster.requests.send_any(machine, rng)

    def _burst(self, rng: Random) -> None:
        machine = self._leader(rng) if rng.random() < 0.5 else self._machine(rng)
        raft_group = rng.choice(self._cluster.swarm.layout.partitions)
        for _ in range(rng.choice((10, 30))):
            if machine in self._cluster.running():
                self._cluster.requests.append(machine, raft_group, rng)

    def _laggard(self, rng: Random) -> None:
        """The journals of the others go on until they have no entries for it."""
        machine, duration = self._machine(rng), rng.uniform(2.0, 5.0)
        self._cluster.network.split({machine.id}, duration)
        machine.dies_installing = rng.random() < 0.5
        others = [each for each in self._cluster.machines.values() if each is not machine]
        for step in range(30):
            self._scene.loop.outside(duration * step / 30, self._ask_soon, others, rng)

    def _ask_soon(self, machines: list[Machine], rng: Random) -> None:
        self._ask(rng.choice(machines), 3, rng)

    def _transfer(self, rng: Random) -> None:
        raft_group = self._raft_group(rng)
        leader = self._cluster.leader(raft_group)
        if leader is None or leader.member is None or leader.life is None:
            return
        others = [each for each in self._voters(leader, raft_group) if each != leader.id]
        if others:
            leader.life.run(leader.member.transfer, raft_group, rng.choice(others))

    def _voters(self, leader: Machine, raft_group: int) -> list[int]:
        return list(self._conf_state(leader, raft_group).voters)

    def _conf_state(self, leader: Machine, raft_group: int) -> ConfState:
        assert leader.member is not None
        return leader.member.groups[raft_group].storage.conf_state

    def _change_members(self, rng: Random) -> None:
        """One step: add, promote, remove or demote a node, or replace one by another in a joint
        configuration.
        """
        raft_group = self._raft_group(rng)
        leader = self._cluster.leader(raft_group)
        if leader is None or leader.member is None or leader.life is None:
            return
        state = self._conf_state(leader, raft_group)
        change = ConfChangeV2() if state.voters_outgoing else _change(state, leader.id, rng)
        self._scene.note(f"{leader.id}   proposes for {raft_group}: {change}")
        leader.life.run(leader.member.change_members, raft_group, change)

    def leave_joint(self) -> None:
        """Leave every joint configuration that is not left by itself."""
        for raft_group in self._cluster.swarm.layout.all:
            leader = self._cluster.leader(raft_group)
            if leader is None or leader.member is None or leader.life is None:
                continue
            state = self._conf_state(leader, raft_group)
            node = leader.member.groups[raft_group].node
            decided = node is not None and node.raft.pending_conf_index <= node.raft.log.applied
            if state.voters_outgoing and not state.auto_leave and decided:
                leader.life.run(leader.member.change_members, raft_group, ConfChangeV2())

    # --- older selves -----------------------------------------------------------------------------

    def _older_self(self, rng: Random) -> None:
        """A node is put back from a backup: all others refuse it."""
        machine = self._machine(rng)
        if self._has_older_self:
            return
        disk, durable = machine.disk.crashed(Random(rng.random())), machine.durable.copy()
        self._scene.loop.outside(rng.uniform(1.0, 5.0), self._put_back, machine, disk, durable)

    def _put_back(self, machine: Machine, disk: SimulatedDisk, durable: DurableJournal) -> None:
        others = [each for each in self._cluster.machines.values() if each is not machine]
        newer = all(_is_known(each, machine, durable) for each in others)
        if self._scene.healed or self._has_older_self:
            return
        if not newer:
            self._scene.loop.outside(0.5, self._put_back, machine, disk, durable)
            return
        self._scene.note(f"{machine.id} is put back from a backup")
        self._has_older_self = True
        machine.end(power=True)
        machine.put_back(disk, durable)
        machine.start()
        self._scene.loop.outside(2.0, self._retire, machine, machine.lives)

    def _retire(self, machine: Machine, first: int) -> None:
        require(machine.admitted < first, f"node {machine.id} is an older self, and was let in")
        self._scene.counts["older selves retired"] += 1
        machine.retired = True
        machine.end(power=False)


def _is_known(peer: Machine, machine: Machine, durable: DurableJournal) -> bool:
    """True if a peer has seen more flushes of a node than its backup has, and is about to write."""
    return peer.flushes.get(machine.id, 0) > durable.flush_number + _FLUSHES_OF_A_BACKUP


def _change(state: ConfState, leader: int, rng: Random) -> ConfChangeV2:
    kinds = ConfChangeType
    absent = [each for each in (1, 2, 3) if each not in state.voters + state.learners]
    others = [each for each in state.voters if each != leader]
    singles: list[ConfChangeSingle] = []
    if absent:
        singles.append(ConfChangeSingle(kinds.ADD_LEARNER_NODE, rng.choice(absent)))
    elif state.learners:
        singles.append(ConfChangeSingle(kinds.ADD_NODE, rng.choice(state.learners)))
        if len(others) > 1 or (others and rng.random() < 0.3):
            singles.append(ConfChangeSingle(kinds.ADD_LEARNER_NODE, rng.choice(others)))
    elif len(state.voters) == 3:
        away = rng.choice((kinds.REMOVE_NODE, kinds.ADD_LEARNER_NODE))
        singles.append(ConfChangeSingle(away, leader if rng.random() < 0.2 else rng.choice(others)))
    return ConfChangeV2(tuple(singles), rng.choice(list(ConfChangeTransition)))
