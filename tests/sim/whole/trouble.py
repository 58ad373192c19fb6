"""Carries out the scheduled faults and actions of operators."""

import errno
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random

from pixy.cluster import CancelPlan, RebalancePlan
from pixy.cluster.state.metadata import METADATA_GROUP
from tests.sim.kit.faults import Fault
from tests.sim.whole.cluster import Cluster
from tests.sim.whole.faults import FaultKind
from tests.sim.whole.machine import Machine
from tests.sim.whole.mover import Mover
from tests.sim.whole.operator import Operator
from tests.sim.whole.swarm import DAY_MS
from tests.sim.world import DIRECTORY

_NEAR = (
    ("create", ".journal"),
    ("rename", "identity"),
    ("rename", ".checkpoint"),
    ("rename", ".checkpoint"),
    ("sync", ".checkpoint.part"),
    ("unlink", ".checkpoint"),
    ("unlink", ".journal"),
    ("unlink", ".log"),
    ("create", ".log"),
)
"""Operations that create what others rely on, or remove what must be elsewhere by then."""
_REPLICAS_MAX = 3
_PHASES = ("before", "middle", "after")
_CLOCK_STEPS_MS = (-3_600_000, -5_000, 5_000, 90_000, 3_600_000)
_DRIFT_S = 0.2
_DRIFT_STEPS = 20
_LATE_STEP_S = 0.7
_LATEST_STEP = 4
_LATE_STEPS = 20
"""Steps in which a way becomes slow, and those for which it is so."""
_LATE_S = 0.9 * _LATE_STEP_S
"""Nothing overtakes what was sent before."""
_LATE_TURNS = 3
_LATE_TURN_S = 2.0
_JUMP_MS = 10 * DAY_MS
_DRIFTS_MS = (-180_000, -20_000, -4000, 4000, 20_000, 180_000)
"""Steps of a clock that drifts, `_DRIFT_STEPS` of them: by a minute and a half to an hour."""


class Trouble:
    """Faults of one cluster.

    Args:
        cluster, operator: see there.
    """

    def __init__(self, cluster: Cluster, operator: Operator) -> None:
        self._cluster = cluster
        self._operator = operator
        self._mover = Mover(cluster)
        self._scene = cluster.scene
        # The faults by which the clocks of machines drift, by the numbers of these.
        self._drifting: dict[int, float] = {}
        self._actions: dict[FaultKind, Callable[[Random], None]] = {
            FaultKind.CRASH: lambda rng: self._crash(self._machine(rng), rng),
            FaultKind.CRASH_LEADER: lambda rng: self._crash(self._leader(rng), rng),
            FaultKind.CRASH_AT: self._crash_at,
            FaultKind.CRASH_NEAR: self._crash_near,
            FaultKind.CRASH_ALL: self._crash_all,
            FaultKind.CRASH_STARTS: self._crash_starts,
            FaultKind.STOP: lambda rng: self._machine(rng).stop(),
            FaultKind.PAUSE: self._pause,
            FaultKind.SPLIT: self._split,
            FaultKind.ONE_WAY: self._one_way,
            FaultKind.ONE_LINK: self._one_link,
            FaultKind.ISOLATE_LEADER: self._isolate_leader,
            FaultKind.STORM: self._storm,
            FaultKind.SLOW_LINK: self._slow_link,
            FaultKind.RESET: self._reset,
            FaultKind.DAMAGE: self._damage,
            FaultKind.SLOW_DISK: self._slow_disk,
            FaultKind.STALLED_DISK: self._stalled_disk,
            FaultKind.FULL_DISK: self._full_disk,
            FaultKind.FAILING_DISK: self._failing_disk,
            FaultKind.FAILING_READ: self._failing_read,
            FaultKind.CLOCK: self._clock,
            FaultKind.DRIFT: self._drift,
            FaultKind.JUMP: self._jump,
            FaultKind.BURST: self._burst,
            FaultKind.LAGGARD: self._laggard,
            FaultKind.JOIN: lambda _: self._operator.add(),
            FaultKind.REMOVE: self._remove,
            FaultKind.OLDER_SELF: self._older_self,
            FaultKind.TWIN: self._twin,
            FaultKind.LOST_DISK: self._lose_disk,
            FaultKind.DAMAGED_FLUSH: self._damage_flush,
            FaultKind.MOVE: self._move,
            FaultKind.DRAIN: self._drain,
            FaultKind.REBALANCE: lambda rng: self._mover.begin_planned(RebalancePlan(), rng),
            FaultKind.CANCEL: self._cancel,
            FaultKind.REPLICATION: self._replication,
            FaultKind.LATE_METADATA: self._late_metadata,
            FaultKind.LATE_ENDS: self._late_ends,
        }

    def happen(self, fault: Fault[FaultKind]) -> None:
        """Carry out a fault."""
        self._scene.note(f"*** {fault.kind.text} ({fault.number})")
        self._scene.counts[fault.kind.text] += 1
        self._actions[fault.kind](Random(fault.seed))

    # --- choices ----------------------------------------------------------------------------------

    def _machine(self, rng: Random) -> Machine:
        return rng.choice(list(self._cluster.ordinary()))

    def _leader(self, rng: Random) -> Machine:
        """The leader of some raft group, often of the metadata."""
        groups = self._cluster.raft_groups()
        raft_group = METADATA_GROUP if not groups or rng.random() < 0.4 else rng.choice(groups)
        return self._cluster.leader(raft_group) or self._machine(rng)

    def _some(self, rng: Random, leader: float) -> Machine:
        """A leader with a probability, else any machine."""
        return self._leader(rng) if rng.random() < leader else self._machine(rng)

    def _others(self, machine: Machine) -> list[Machine]:
        return [each for each in self._cluster.ordinary() if each is not machine]

    # --- processes --------------------------------------------------------------------------------

    def _crash(self, machine: Machine, rng: Random) -> None:
        machine.end(power=rng.random() < 0.7)
        delay = rng.choice((0.01, 0.2, 1.0, 3.0)) * rng.random()
        self._scene.loop.outside(delay, self._cluster.switch_on, machine)

    def _crash_at(self, rng: Random) -> None:
        disk = self._leader(rng).disk
        disk.die_at = disk.operations + rng.randint(1, 12)
        disk.die_phase = rng.choice(_PHASES)

    def _crash_near(self, rng: Random) -> None:
        disk = self._machine(rng).disk
        disk.die_near = rng.choice(_NEAR)
        disk.die_phase = rng.choice(_PHASES)

    def _end_near(self, machine: Machine, operation: tuple[str, str]) -> None:
        if not self._scene.healed:
            machine.disk.die_near, machine.disk.die_phase = operation, "before"

    def _crash_all(self, rng: Random) -> None:
        for machine in self._cluster.ordinary():
            if machine.lives and rng.random() < 0.9:
                self._crash(machine, rng)

    def _crash_starts(self, rng: Random) -> None:
        for machine in self._cluster.ordinary():
            if machine.lives:
                machine.crashed_starts = [
                    (rng.choice((3, 15, 60)) * rng.randint(1, 4), rng.choice(_PHASES))
                    for _ in range(rng.choice((1, 1, 2, 3)))
                ]
                self._crash(machine, rng)

    def _pause(self, rng: Random) -> None:
        self._some(rng, 0.6).pause(rng.choice((0.3, 1.0, 3.0, 10.0)) * rng.uniform(0.5, 1.0))

    # --- disks and clocks -------------------------------------------------------------------------

    def _slow_disk(self, rng: Random) -> None:
        self._slow_down(self._some(rng, 0.6), rng.choice((0.05, 0.3)), rng.choice((0.5, 3.0)))

    def _stalled_disk(self, rng: Random) -> None:
        self._slow_down(self._some(rng, 0.6), rng.choice((3.0, 30.0)), rng.choice((3.0, 6.0)))

    def _slow_down(self, machine: Machine, slow_s: float, duration_s: float) -> None:
        machine.slow_s = slow_s

        def end() -> None:
            if not machine.broken:
                machine.slow_s = 0.0

        self._scene.loop.outside(duration_s, end)

    def _full_disk(self, rng: Random) -> None:
        machine = self._some(rng, 0.5)
        machine.limit_room(rng.choice((0, 0, 300, 2000, 5000)))
        self._scene.loop.outside(rng.choice((0.5, 2.0, 4.0)), machine.limit_room, None)

    def _failing_disk(self, rng: Random) -> None:
        disk = self._some(rng, 0.5).disk
        disk.fail_at = disk.operations + rng.randint(1, 30)
        disk.fail_errno = rng.choice((errno.EIO, errno.EIO, errno.ENOSPC))

    def _failing_read(self, rng: Random) -> None:
        machine = self._machine(rng)
        machine.fails_reads, disk = True, machine.disk
        disk.fail_read_at = disk.reads + rng.randint(1, 10)

    def _clock(self, rng: Random) -> None:
        machine = self._machine(rng)
        if self._cluster.swarm.days_off:
            self._be_right(self._others(machine))
            machine.clock.set_wall(rng.choice(self._cluster.swarm.clock_errors_ms))
        else:
            machine.clock.step_wall(rng.choice(_CLOCK_STEPS_MS))

    def _be_right(self, machines: Sequence[Machine]) -> None:
        """Set clocks right: one is off by days at a time, so that a majority agrees."""
        for each in machines:
            self._drifting.pop(each.number, None)
            each.clock.set_wall(0)

    def _drift(self, rng: Random) -> None:
        machine, fault = self._machine(rng), rng.random()
        step_ms = rng.choice(_DRIFTS_MS)
        if self._cluster.swarm.days_off:
            self._be_right(self._others(machine))
        self._drifting[machine.number] = fault
        self._drift_on(machine, fault, step_ms, _DRIFT_STEPS)

    def _drift_on(self, machine: Machine, fault: float, step_ms: int, steps: int) -> None:
        if self._drifting.get(machine.number) == fault and steps:
            machine.clock.step_wall(step_ms)
            self._scene.loop.outside(_DRIFT_S, self._drift_on, machine, fault, step_ms, steps - 1)

    def _jump(self, _: Random) -> None:
        """The common time server is wrong, also for machines that come later."""
        self._cluster.jump_ms = _JUMP_MS
        for machine in self._cluster.machines.values():
            machine.clock.set_wall(_JUMP_MS)

    # --- the network ------------------------------------------------------------------------------

    def _ways(self, one: Machine, others: list[Machine]) -> list[tuple[str, str]]:
        there = [(one.host, other.host) for other in others]
        return [*there, *[way[::-1] for way in there]]

    def _split(self, rng: Random) -> None:
        machine = self._machine(rng)
        self._cluster.network.cut(self._ways(machine, self._others(machine)), rng.uniform(0.2, 6.0))

    def _one_way(self, rng: Random) -> None:
        """Deaf or mute, towards one or all."""
        machine = self._some(rng, 0.5)
        others = self._others(machine)
        if not others:
            return
        if rng.random() < 0.4:
            others = [rng.choice(others)]
        ways = [(machine.host, other.host) for other in others]
        if rng.random() < 0.5:
            ways = [way[::-1] for way in ways]
        self._cluster.network.cut(ways, rng.uniform(0.2, 6.0))

    def _one_link(self, rng: Random) -> None:
        machine = self._some(rng, 0.5)
        others = self._others(machine)
        if others:
            self._cluster.network.cut(self._ways(machine, [rng.choice(others)]), rng.uniform(0.5, 6.0))

    def _isolate_leader(self, rng: Random) -> None:
        """Calls go on at the leader, or at nodes that it is not cut off from."""
        leader = self._leader(rng)
        others = self._others(leader)
        count = len(others)
        cut = rng.sample(others, rng.choice((count, count, max(0, count - 1), min(2, count))))
        self._cluster.network.cut(self._ways(leader, cut), rng.uniform(0.3, 5.0))
        asked = rng.choice([each for each in self._cluster.ordinary() if each is leader or each not in cut])
        self._cluster.clients.burst(asked, rng.choice((0, 3, 12)), rng)

    def _storm(self, rng: Random) -> None:
        weather = replace(
            self._cluster.network.weather,
            delays_s=rng.choice(((0.001, 0.05), (0.05, 0.15))),
            lost=rng.choice((0.0, 0.05, 0.2)),
            again_s=rng.choice((0.3, 1.0)),
        )
        self._cluster.network.storm(rng.uniform(0.5, 4.0), weather)

    def _slow_link(self, rng: Random) -> None:
        machine = self._machine(rng)
        others = self._others(machine)
        weather = replace(self._cluster.network.weather, bytes_per_s=rng.choice((3000.0, 30_000.0)))
        if others:
            ways = self._ways(machine, [rng.choice(others)])
            self._cluster.network.slow_down(ways, rng.uniform(1.0, 5.0), weather)

    def _reset(self, rng: Random) -> None:
        machine = self._machine(rng)
        for other in self._others(machine):
            if rng.random() < 0.7:
                self._cluster.network.reset_connections(machine.host, other.host)

    def _damage(self, rng: Random) -> None:
        weather = replace(self._cluster.network.weather, damaged=rng.choice((0.002, 0.02)))
        self._cluster.network.storm(rng.uniform(0.5, 3.0), weather)

    # --- clients ----------------------------------------------------------------------------------

    def _burst(self, rng: Random) -> None:
        self._cluster.clients.burst(self._some(rng, 0.5), rng.choice((10, 30)), rng)

    def _laggard(self, rng: Random) -> None:
        """The journals of the others go on until they have no entries for it; it may end while it
        takes up what it has missed.
        """
        machine, duration = self._machine(rng), rng.uniform(2.0, 6.0)
        if rng.random() < 0.5:
            self._scene.loop.outside(duration, self._end_near, machine, ("rename", ".checkpoint"))
        others = self._others(machine)
        self._cluster.network.cut(self._ways(machine, others), duration)
        for step in range(20 if others else 0):
            self._scene.loop.outside(duration * step / 20, self._burst_soon, others, rng)

    def _burst_soon(self, machines: list[Machine], rng: Random) -> None:
        self._cluster.clients.burst(rng.choice(machines), 3, rng)

    # --- nodes that are gone, or are not what they were -------------------------------------------

    def _remove(self, rng: Random) -> None:
        machine = self._operator.spare(rng)
        if machine is not None:
            self._operator.remove(machine)

    def _move(self, rng: Random) -> None:
        for _ in range(rng.choice((1, 3, 10))):
            self._mover.move(rng)

    def _cancel(self, rng: Random) -> None:
        """Take back the moves of an operator, at once or when some have ended."""
        self._scene.loop.outside(rng.choice((0.0, 0.5, 2.0)), self._mover.begin_planned, CancelPlan(), rng)

    def _replication(self, rng: Random) -> None:
        """A topic gets as many replicas as there may be nodes for."""
        machine = self._some(rng, 0.3)
        if machine.node is not None and machine.ready:
            least, nodes = self._operator.least_replication(), len(machine.node.metadata.started)
            if nodes >= least:
                self._cluster.clients.set_replication(machine, rng.randint(least, min(nodes, _REPLICAS_MAX)))

    def _late_metadata(self, rng: Random) -> None:
        """Metadata comes to a node seconds late, while partitions move that it has."""
        pair = self._metadata_and_another(rng)
        if pair is not None:
            metadata, machine = pair
            self._be_late(metadata, machine)
            self._in_turns(partial(self._mover.move_behind, metadata, machine, rng))

    def _late_ends(self, rng: Random) -> None:
        """A node is heard seconds late by metadata, while partitions move that it leads."""
        pair = self._metadata_and_another(rng)
        if pair is not None:
            metadata, machine = pair
            # A leader reads metadata once in its term, which it could not do then.
            self._mover.move_to_and_fro(metadata, machine, rng, once=True)
            move = partial(self._mover.move_to_and_fro, metadata, machine, rng, once=False)
            self._scene.loop.outside(_LATE_TURN_S, self._be_late, machine, metadata)
            self._scene.loop.outside(_LATE_TURN_S, self._in_turns, move)

    def _metadata_and_another(self, rng: Random) -> tuple[Machine, Machine] | None:
        """The leader of metadata, and another machine whose node is ready."""
        metadata = self._cluster.leader()
        others = [each for each in self._cluster.ordinary() if each is not metadata and each.ready]
        return None if metadata is None or not others else (metadata, rng.choice(others))

    def _in_turns(self, move: Callable[[], None]) -> None:
        for turn in range(_LATE_TURNS):
            begin_s = (_LATEST_STEP + 1) * _LATE_STEP_S + turn * _LATE_TURN_S
            self._scene.loop.outside(begin_s, move)

    def _be_late(self, sender: Machine, receiver: Machine) -> None:
        """Delay what one machine sends to another, more and more: a gap that is too long would end
        the connection.
        """
        for step in range(1, _LATE_STEPS + 1):
            late_s = min(step, _LATEST_STEP) * _LATE_STEP_S
            self._scene.loop.outside(step * _LATE_STEP_S, self._delay, sender, receiver, late_s)

    def _delay(self, sender: Machine, receiver: Machine, late_s: float) -> None:
        if not self._scene.healed:
            weather = replace(self._cluster.network.weather, delays_s=(late_s, late_s))
            self._cluster.network.slow_down([(sender.host, receiver.host)], _LATE_S, weather)

    def _drain(self, rng: Random) -> None:
        machine = self._machine(rng)
        if machine.node is not None and machine.ready:
            self._operator.drain(machine.node.node_id, rng.uniform(1.0, 8.0))

    def _lose_disk(self, rng: Random) -> None:
        machine = self._operator.spare(rng)
        if machine is not None:
            self._operator.lose_disk(machine)

    def _older_self(self, rng: Random) -> None:
        """A node is put back from a backup."""
        machine = self._operator.spare(rng)
        if machine is not None:
            disk = machine.disk.crashed(Random(rng.random()))
            durable = None if machine.durable is None else machine.durable.copy()
            self._scene.loop.outside(rng.uniform(0.2, 5.0), self._operator.put_back, machine, disk, durable)

    def _twin(self, rng: Random) -> None:
        """The directory of a node that runs is copied to another machine."""
        machine = self._operator.spare(rng)
        if machine is not None:
            disk = machine.disk.crashed(Random(rng.random()))
            self._scene.loop.outside(
                rng.choice((0.0, 2.0)) * rng.random(), self._operator.twin, machine, disk
            )
            if rng.random() < 0.5:
                self._scene.loop.outside(rng.uniform(0.0, 3.0), self._crash, machine, rng)

    def _damage_flush(self, rng: Random) -> None:
        """A bit of the newest flush of a node is flipped while it is down."""
        machine = self._operator.spare(rng)
        if machine is None:
            return
        machine.end(power=False)
        disk = machine.disk
        files = [path for path in disk.files() if path.parent == DIRECTORY / "journal"]
        path = max(files, key=lambda path: (disk.last_durable_write(path) > 0, path.name))
        disk.flip(path, disk.last_durable_write(path) + rng.randrange(40), rng.randrange(8))
        machine.put_back(disk, None)
        self._operator.look_after(machine)
        self._scene.loop.outside(rng.random(), self._cluster.switch_on, machine)
