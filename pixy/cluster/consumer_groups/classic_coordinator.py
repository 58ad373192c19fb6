"""The coordinator of groups of Kafka's classic protocol on one node: `pixy.classic_groups` decides,
this module keeps time, stores, and answers.

It acts for the groups whose state group this node leads, or has alone. A group is in memory while
it has members, or somebody is about to be one. Those with members are loaded when the leadership
begins, because their timers run whether anybody asks or not, the others by a request: each after a
read that shows everything that earlier leaders have stored. They end with the leadership. A group
of which something could not be stored ends too: its parked requests are answered, and the next one
loads it again. What is stored carries the term of the leadership, so nothing of an earlier
coordinator is taken any more.

Time passes by ticks, of which each counts a few tenths of a second at most, as in `group_sessions`:
nobody is put out for a pause of this process.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, Protocol

from pixy.aio.futures import resolve
from pixy.aio.steps import in_steps
from pixy.aio.tasks import Tasks
from pixy.classic_groups import (
    ClassicGroup,
    ClassicOptions,
    GroupCode,
    GroupJoin,
    GroupSync,
    Joined,
    LeavingMember,
    StoredClassicGroup,
    Synced,
)
from pixy.cluster.log import StateReplica
from pixy.cluster.replicas import StateGroups
from pixy.cluster.state import CLASSIC_LEVEL, ClusterLimits, GroupsState, classic_record
from pixy.errors import (
    FailedPrecondition,
    HeldByOtherProtocol,
    MessageTooLarge,
    PixyError,
    ResourceExhausted,
)
from pixy.faults import report_to_loop
from pixy.proto.state_pb2 import GroupsCommand, SetClassicGroup

_TICK_S = 0.1
_TICK_MAX_S = 0.3
"""Longest time that one tick counts."""
_CONFIRM_S = 5.0
_CLIENT_NAME_MAX = 200
"""Characters of a client's name in the ids of its members."""
_GROUP_NAME_MAX = 255


class ClassicNode(Protocol):
    """The node of a coordinator."""

    state_groups: StateGroups

    async def confirm(self, replicas: Sequence[StateReplica], timeout: float) -> None:
        """As `Node`."""

    def now_ms(self) -> int:
        """As `Node`."""


class NotServed(Exception):
    """A request that is answered by a code alone.

    Args:
        code: the answer.
    """

    def __init__(self, code: GroupCode) -> None:
        super().__init__(code)
        self.code = code


class _LedGroup:
    """A group in memory.

    Attributes:
        group: the machine.
        replica, term: its state group, and the leadership that it was loaded in.
        due_ms: when it is looked at, no later than its deadline.
    """

    __slots__ = ("due_ms", "group", "replica", "term")

    def __init__(self, group: ClassicGroup, replica: StateReplica, term: int) -> None:
        self.group = group
        self.replica = replica
        self.term = term
        self.due_ms = inf


class ClassicCoordinator:
    """Coordinator of one node.

    Args:
        node: this node.
        propose: as for `GroupCoordinator`.
        limits: of the cluster.
        options: limits and times of groups.
        random_bytes: source of ids.
    """

    def __init__(
        self,
        node: ClassicNode,
        propose: Callable[[StateReplica, bytes, Callable[[Any], None]], None],
        limits: ClusterLimits,
        options: ClassicOptions,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._node = node
        self._propose = propose
        self._limits = limits
        self._options = options
        self._random_bytes = random_bytes
        self._loop = asyncio.get_running_loop()
        self._groups: dict[str, _LedGroup] = {}
        # Terms in which a state group was read after everything that was stored before, by raft
        # group.
        self._confirmed: dict[int, int] = {}
        # Groups by the time at which they are looked at. Invariant: each with a finite `due_ms` is
        # in it with that.
        self._due: list[tuple[float, str]] = []
        self._tasks = Tasks(report_to_loop)
        # Raft groups whose consumer groups are being loaded.
        self._loading: set[int] = set()
        self._tickets = count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        # The time of the groups, and the loop's time at which it was that.
        self._ticked_ms = 0.0
        self._ticked_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._draining = self._stopped = False

    def begin_drain(self) -> None:
        """Keep no member waiting any more, and let none come: the next coordinator goes on with
        what is stored. Offsets are still taken, and members may leave.
        """
        self._draining = True
        for name in list(self._groups):
            self._close(name, GroupCode.COORDINATOR_NOT_AVAILABLE)

    async def stop(self) -> None:
        """Answer what waits, and be the coordinator of nothing any more."""
        self._stopped = True
        for name in list(self._groups):
            self._close(name, GroupCode.NOT_COORDINATOR)
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.cancel_all()

    def look(self) -> None:
        """Load the groups of new leaderships: at the start, and ten times a second if there are
        other nodes.
        """
        if self._stopped or self._draining or not self._is_known:
            return
        for replica in self._node.state_groups.groups:
            raft_group = replica.group.raft_group
            is_known = self._confirmed.get(raft_group) == _term(replica) or raft_group in self._loading
            if replica.group.decides and not is_known and _state(replica).classic_groups():
                self._loading.add(raft_group)
                self._tasks.spawn(self._load(replica), f"load classic groups of {replica.name}")

    async def _load(self, replica: StateReplica) -> None:
        try:
            term = await self._confirm(replica)
            async for name in in_steps(list(_state(replica).classic_groups())):
                if self._confirmed.get(replica.group.raft_group) == term == _term(replica):
                    self._find(name, replica, term)
        except NotServed:
            pass  # looked at again
        finally:
            self._loading.discard(replica.group.raft_group)

    # --- requests ---------------------------------------------------------------------------------

    async def join(self, name: str, join: GroupJoin) -> Joined:
        """JoinGroup; the answer may take as long as the rebalance."""
        try:
            led = await self._serve(name)
            machine = _state(led.replica)
            if machine.membership(name).members:
                raise NotServed(GroupCode.INCONSISTENT_GROUP_PROTOCOL)
            if name not in self._groups and len(self._groups) >= self._limits.config.max_groups:
                raise NotServed(GroupCode.GROUP_MAX_SIZE_REACHED)
        except NotServed as refusal:
            return Joined(refusal.code, join.member_id)
        answer = self._ticket(name, led, lambda ticket: led.group.join(ticket, join, self._now_ms()))
        joined: Joined = await answer
        return joined

    async def sync(self, name: str, sync: GroupSync) -> Synced:
        """SyncGroup; the answer may take until the leader has assigned."""
        try:
            led = await self._serve(name)
        except NotServed as refusal:
            return Synced(refusal.code)
        answer = self._ticket(name, led, lambda ticket: led.group.sync(ticket, sync, self._now_ms()))
        synced: Synced = await answer
        return synced

    async def heartbeat(
        self, name: str, member_id: str, instance_id: str | None, generation: int
    ) -> GroupCode:
        """Heartbeat."""
        try:
            led = await self._serve(name)
        except NotServed as refusal:
            return refusal.code
        return led.group.heartbeat(member_id, instance_id, generation, self._now_ms())

    async def leave(
        self, name: str, leaving: Sequence[LeavingMember]
    ) -> tuple[GroupCode, Sequence[GroupCode]]:
        """LeaveGroup: a code for all, and one for each member."""
        try:
            led = await self._lead(name)
        except NotServed as refusal:
            return refusal.code, [refusal.code] * len(leaving)
        codes = led.group.leave(leaving, self._now_ms())
        self._look(name, led)
        return GroupCode.NONE, codes

    async def group(self, name: str) -> ClassicGroup:
        """A group that this node coordinates, to be asked before the caller suspends again.

        Raises:
            NotServed: this node does not coordinate it.
        """
        return (await self._lead(name)).group

    def is_joined(self, name: str) -> bool:
        """True if a group has members, or is about to have some."""
        led = self._groups.get(name)
        return led is not None and led.group.is_held

    def known(self, name: str) -> ClassicGroup | None:
        """A group in memory, None if it is not."""
        led = self._groups.get(name)
        return None if led is None else led.group

    def names_of(self, replica: StateReplica) -> Sequence[str]:
        """Groups of a state group in memory."""
        return [name for name, led in self._groups.items() if led.replica is replica]

    def term_of(self, name: str) -> int:
        """The term of the leadership under which a group is coordinated here, for its commits."""
        return _term(self._node.state_groups.group_of(name))

    def now_ms(self) -> float:
        """The time of the groups."""
        return self._now_ms()

    def deleted(self, name: str) -> None:
        """A group was deleted."""
        self._close(name, GroupCode.NOT_COORDINATOR)

    # --- groups -----------------------------------------------------------------------------------

    async def _serve(self, name: str) -> _LedGroup:
        """The group for a member that stays."""
        if self._draining:
            raise NotServed(GroupCode.COORDINATOR_NOT_AVAILABLE)
        return await self._lead(name)

    async def _lead(self, name: str) -> _LedGroup:
        """The group, loaded if need be."""
        if not 0 < len(name) <= _GROUP_NAME_MAX:
            raise NotServed(GroupCode.INVALID_GROUP_ID)
        groups = self._node.state_groups
        if self._stopped or not self._is_known:
            raise NotServed(GroupCode.COORDINATOR_NOT_AVAILABLE)
        replica = groups.group_of(name)
        return self._find(name, replica, await self._confirm(replica))

    @property
    def _is_known(self) -> bool:
        """True if every node knows the command."""
        groups = self._node.state_groups
        return groups.is_lone or groups.feature_level >= CLASSIC_LEVEL

    async def _confirm(self, replica: StateReplica) -> int:
        """The term in which this node leads a state group, and knows everything before."""
        group = replica.group
        while True:
            if self._stopped or not group.decides:
                raise NotServed(GroupCode.NOT_COORDINATOR)
            term = _term(replica)
            if self._confirmed.get(group.raft_group) == term:
                return term
            self._lose(replica)
            try:
                await self._node.confirm([replica], _CONFIRM_S)
            except PixyError:
                raise NotServed(GroupCode.COORDINATOR_LOAD_IN_PROGRESS) from None
            if _term(replica) == term:
                self._confirmed[group.raft_group] = term

    def _lose(self, replica: StateReplica) -> None:
        """A leadership has ended."""
        if self._confirmed.pop(replica.group.raft_group, None) is not None:
            for name in self.names_of(replica):
                self._close(name, GroupCode.NOT_COORDINATOR)

    def _find(self, name: str, replica: StateReplica, term: int) -> _LedGroup:
        """A group of a state group that is led in a term, loaded if need be."""
        led = self._groups.get(name)
        if led is None:
            stored = _state(replica).classic(name)
            group = ClassicGroup(self._options, self._new_id, stored, self._now_ms())
            led = _LedGroup(group, replica, term)
            if not group.is_idle:
                self._keep(name, led)
        return led

    def _keep(self, name: str, led: _LedGroup) -> None:
        self._groups[name] = led
        if self._timer is None and not self._stopped:
            self._ticked_at = self._loop.time()
            self._timer = self._loop.call_later(_TICK_S, self._tick)
        self._look(name, led)

    def _new_id(self, client: str) -> str:
        return f"{client[:_CLIENT_NAME_MAX]}-{self._random_bytes(16).hex()}"

    def _ticket(self, name: str, led: _LedGroup, ask: Callable[[int], None]) -> "asyncio.Future[Any]":
        """Ask a group for something that it answers by a ticket."""
        ticket = next(self._tickets)
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[ticket] = answer
        answer.add_done_callback(lambda _: self._waiting.pop(ticket, None))
        ask(ticket)
        if name not in self._groups and not led.group.is_idle:
            self._keep(name, led)
        else:
            self._look(name, led)
        return answer

    def _look(self, name: str, led: _LedGroup) -> None:
        """A group may have outputs, another deadline, or nothing more to do."""
        output = led.group.take()
        for ticket, answer in output.answers:
            waiting = self._waiting.pop(ticket, None)
            if waiting is not None:
                resolve(waiting, answer)
        for number, stored in output.writes:
            if self._groups.get(name) is led:
                self._store(name, led, number, stored)
        if self._groups.get(name) is not led:
            return
        if led.group.is_idle:
            del self._groups[name]
            return
        deadline_ms = led.group.deadline_ms
        if deadline_ms < led.due_ms:
            led.due_ms = deadline_ms
            heappush(self._due, (deadline_ms, name))

    def _close(self, name: str, code: GroupCode) -> None:
        led = self._groups.pop(name, None)
        if led is not None:
            led.group.close(code)
            self._look(name, led)

    # --- storing ----------------------------------------------------------------------------------

    def _store(self, name: str, led: _LedGroup, number: int, stored: StoredClassicGroup) -> None:
        envelope = GroupsCommand()
        command: SetClassicGroup = envelope.set_classic_group
        command.group, command.timestamp_ms, command.term = name, self._node.now_ms(), led.term
        command.record.CopyFrom(classic_record(stored))
        self._limits.limit_group(command)
        payload = envelope.SerializeToString()
        self._propose(led.replica, payload, partial(self._stored, name, led, number))

    def _stored(self, name: str, led: _LedGroup, number: int, result: object) -> None:
        if self._groups.get(name) is not led:
            return
        if isinstance(result, PixyError):
            self._close(name, _why_not_stored(result))
        else:
            led.group.written(number, self._now_ms())
            self._look(name, led)

    # --- time -------------------------------------------------------------------------------------

    def _now_ms(self) -> float:
        if self._timer is None:
            return self._ticked_ms
        return self._ticked_ms + min(self._loop.time() - self._ticked_at, _TICK_MAX_S) * 1000

    def _tick(self) -> None:
        self._ticked_ms, self._ticked_at = self._now_ms(), self._loop.time()
        for replica in self._node.state_groups.groups:
            term = self._confirmed.get(replica.group.raft_group)
            if term is not None and (term != _term(replica) or not replica.group.decides):
                self._lose(replica)
        while self._due and self._due[0][0] <= self._ticked_ms:
            due_ms, name = heappop(self._due)
            due = self._groups.get(name)
            if due is not None and due.due_ms == due_ms:
                due.due_ms = inf
                due.group.advance(self._ticked_ms)
                self._look(name, due)
        self._timer = self._loop.call_later(_TICK_S, self._tick) if self._groups else None


def _why_not_stored(error: PixyError) -> GroupCode:
    match error:
        case HeldByOtherProtocol():
            return GroupCode.INCONSISTENT_GROUP_PROTOCOL
        case FailedPrecondition():
            return GroupCode.NOT_COORDINATOR
        case ResourceExhausted():
            return GroupCode.GROUP_MAX_SIZE_REACHED
        case MessageTooLarge():
            return GroupCode.UNKNOWN_SERVER_ERROR
        case _:
            return GroupCode.COORDINATOR_NOT_AVAILABLE


def _term(replica: StateReplica) -> int:
    """The term of a leadership; 0 of a node that has the group alone, whose term begins with its
    first entry.
    """
    return replica.group.term if replica.group.has_peers else 0


def _state(replica: StateReplica) -> GroupsState:
    assert isinstance(replica.machine, GroupsState)
    return replica.machine
