"""The coordinator of consumer groups on one node: `group_decisions` decides, this module
proposes.

It acts for the groups whose state group this node leads, or has alone. Changes of one iteration of
the event loop make one target for each group, and one command for each state group.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

import structlog

from pixy.cluster.consumer_groups.group_decisions import needed_target, why_ended
from pixy.cluster.consumer_groups.group_sessions import Sessions
from pixy.cluster.log import StateReplica
from pixy.cluster.replicas import StateGroups
from pixy.cluster.state import GroupsChanged, GroupsState, Membership, Owners, Process, Topic, target_message
from pixy.errors import PixyError
from pixy.proto.state_pb2 import ExpelProcess, GroupsCommand, SetTargets

log = structlog.get_logger(__name__)

Propose = Callable[[StateReplica, bytes, Callable[[Any], None]], None]
"""Proposes a command to a state group; the function gets its result."""

_RETRY_S = 0.3
"""Pause after a proposal that has failed."""
_GROUPS_PER_ITERATION = 50
_PARTITIONS_PER_ITERATION = 2000
_STEPS_PER_ITERATION = 500
_EXPELLED_PER_COMMAND = 200


class GroupCoordinator:
    """Coordinator of one node.

    Args:
        groups: the state groups, and metadata.
        own: this process.
        propose: see `Propose`.
        heard_at: loop times at which other nodes were last heard of, None for never.
        starts: incarnations with which other nodes have come.
    """

    def __init__(
        self,
        groups: StateGroups,
        own: Process,
        propose: Propose,
        heard_at: Callable[[], Mapping[int, float | None]],
        starts: Callable[[], Mapping[int, int]],
    ) -> None:
        self._groups = groups
        self._own = own
        self._propose = propose
        self._heard_at = heard_at
        self._starts = starts
        self._loop = asyncio.get_running_loop()
        self._sessions = Sessions()
        self._ticked_at = self._loop.time()
        # Groups that may need a target, in the order in which that was noticed.
        self._due: dict[str, None] = {}
        # The target that is looked for, in more than one iteration of the loop.
        self._search: _TargetSearch | None = None
        # Groups with a target, and processes with an expulsion from a state group, on the way.
        self._proposed: set[str] = set()
        self._expelling: set[tuple[int, Process]] = set()
        # Processes of which the log has that they are put out. Invariant: after a tick, of those
        # that have members.
        self._told: set[Process] = set()
        self._handle: asyncio.Handle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._stopped = False

    def stop(self) -> None:
        """Propose nothing more."""
        self._stopped = True
        for handle in (self._handle, self._retry):
            if handle is not None:
                handle.cancel()

    # --- events -----------------------------------------------------------------------------------

    def changed(self, names: Iterable[str]) -> None:
        """Members or owners of groups have changed."""
        for name in names:
            if self._decides(name) and not self._groups.offsets_of(name).membership(name).settled:
                self._look_at(name)

    def topic_changed(self, topic: str) -> None:
        """A topic is new, was deleted, or has other partitions."""
        for replica in self._groups.groups:
            if replica.group.decides:
                self._look_at(*_machine(replica).subscribers(topic))

    def tick(self) -> None:
        """Look at leaderships and other nodes: at the start, and ten times a second if there are
        other nodes.
        """
        now = self._loop.time()
        self._sessions.tick(now - self._ticked_at, self._heard_at())
        self._ticked_at = now
        if self._told:
            self._told &= {process for each in self._groups.groups for process in _machine(each).processes()}
        for replica in self._groups.groups:
            group, machine = replica.group, _machine(replica)
            if self._sessions.lead(group.raft_group, group.term if group.decides else None):
                for process in machine.processes():
                    self._look_at(*machine.groups_of(process))
            if group.decides and not self._stopped:
                self._expel_ended(replica, machine)

    # --- expulsions -------------------------------------------------------------------------------

    def _expel_ended(self, replica: StateReplica, machine: GroupsState) -> None:
        raft_group, starts = replica.group.raft_group, self._starts()
        for process in list(machine.processes()):
            term = 0
            if (raft_group, process) in self._expelling:
                continue
            reason = why_ended(process, self._own, self._groups.metadata.nodes, starts)
            if not reason and self._is_silent(raft_group, process):
                # The next leader may hear of it.
                reason, term = "it is silent", replica.group.term
            if not reason and self._leaves_late(raft_group, machine, process):
                reason = "its node was removed, and it does not leave them"
            if reason:
                names = list(islice(machine.groups_of(process), _EXPELLED_PER_COMMAND))
                self._expel(replica, process, names, term, reason)

    def given_up(self, raft_group: int, process: Process, newest_member: int) -> None:
        """A process has given up its members in a state group, up to a number; it asks again until
        it knows that they are put out.
        """
        for replica in self._groups.groups:
            if replica.group.raft_group == raft_group and replica.group.decides:
                names = list(_machine(replica).groups_of(process))
                for at in range(0, len(names), _EXPELLED_PER_COMMAND):
                    command = ExpelProcess(
                        node_id=process.node_id,
                        incarnation=process.incarnation,
                        groups=names[at : at + _EXPELLED_PER_COMMAND],
                        newest_member=newest_member,
                    )
                    payload = GroupsCommand(expel_process=command).SerializeToString()
                    self._propose(replica, payload, lambda _: None)

    def _is_silent(self, raft_group: int, process: Process) -> bool:
        other = process.node_id != self._own.node_id
        return other and self._sessions.has_expired(raft_group, process.node_id)

    def _leaves_late(self, raft_group: int, machine: GroupsState, process: Process) -> bool:
        node = self._groups.metadata.nodes.get(process.node_id)
        if node is None or not node.removed:
            return False
        return self._sessions.leaves_late(raft_group, process.node_id, len(machine.groups_of(process)))

    def _expel(
        self, replica: StateReplica, process: Process, names: Iterable[str], term: int, reason: str
    ) -> None:
        if process not in self._told:
            self._told.add(process)
            log.info("members of a node are put out of consumer groups", node=process.node_id, reason=reason)
        key = (replica.group.raft_group, process)
        self._expelling.add(key)
        command = ExpelProcess(
            node_id=process.node_id,
            incarnation=process.incarnation,
            groups=names,
            term=term,
        )
        payload = GroupsCommand(expel_process=command).SerializeToString()
        self._propose(replica, payload, partial(self._expelled, key))

    def _expelled(self, key: tuple[int, Process], result: object) -> None:
        self._expelling.discard(key)
        if isinstance(result, PixyError):
            self._try_again()
        else:
            self._loop.call_soon(self.tick)

    # --- targets ----------------------------------------------------------------------------------

    def _look_at(self, *names: str) -> None:
        self._due |= dict.fromkeys(names)
        if (self._due or self._search) and self._handle is None and not self._stopped:
            self._handle = self._loop.call_soon(self._decide)

    def _decide(self) -> None:
        """Propose the targets of some of the groups that are due."""
        self._handle = None
        targets: dict[StateReplica, SetTargets] = {}
        partitions, steps = 0, _STEPS_PER_ITERATION
        # A group that is due again meanwhile stays due until this target is answered.
        going = self._search.name if self._search else None
        free = (name for name in self._due if name not in self._proposed and name != going)
        due = iter(list(islice(free, _GROUPS_PER_ITERATION)))
        while partitions <= _PARTITIONS_PER_ITERATION:
            search = self._search or self._next_search(due)
            if search is None:
                break
            steps = search.run(steps)
            if not search.is_over:
                self._search = search
                break
            self._search = None
            if search.target is not None:
                message = target_message(search.name, search.generation, search.target)
                targets.setdefault(search.replica, SetTargets()).targets.append(message)
                partitions += sum(map(len, search.target.values()))
        for replica, command in targets.items():
            names = [message.group for message in command.targets]
            self._proposed.update(names)
            payload = GroupsCommand(set_targets=command).SerializeToString()
            self._propose(replica, payload, partial(self._answered, names))
        if self._search or any(name not in self._proposed for name in self._due):
            self._look_at()

    def _next_search(self, names: Iterator[str]) -> "_TargetSearch | None":
        """Begin to look for the target of the next group, if it is decided here and now."""
        for name in names:
            del self._due[name]
            replica = self._groups.group_of(name)
            membership, raft_group = _machine(replica).membership(name), replica.group.raft_group
            if replica.group.decides and not any(
                (raft_group, member_id.process) in self._expelling for member_id in membership.members
            ):
                return _TargetSearch(name, replica, membership, self._groups.metadata.topics)
        return None

    def _answered(self, names: Collection[str], result: object) -> None:
        self._proposed.difference_update(names)
        taken = result.groups if isinstance(result, GroupsChanged) else ()
        self._due |= dict.fromkeys(name for name in names if name not in taken)
        if isinstance(result, PixyError):
            self._try_again()
        else:
            # Also at those that have changed meanwhile.
            self._look_at()

    # --- parts ------------------------------------------------------------------------------------

    def _decides(self, name: str) -> bool:
        return self._groups.group_of(name).group.decides

    def _try_again(self) -> None:
        if self._retry is None and not self._stopped:
            self._retry = self._loop.call_later(_RETRY_S, self._tried_again)

    def _tried_again(self) -> None:
        self._retry = None
        self.tick()
        self._look_at()


class _TargetSearch:
    """The search for the target of one group as it is when it begins: the target of one that has
    changed since has no effect, and the group is due again.

    Attributes:
        name, replica, generation: the group, its state group, and its generation.
        is_over: the target has been found.
        target: None if the group has it.
    """

    __slots__ = ("_steps", "generation", "is_over", "name", "replica", "target")

    def __init__(
        self, name: str, replica: StateReplica, membership: Membership, topics: Mapping[str, Topic]
    ) -> None:
        self.name = name
        self.replica = replica
        self.generation = membership.generation
        self.is_over = False
        self.target: dict[bytes, Owners] | None = None
        self._steps = needed_target(membership, topics)

    def run(self, steps: int) -> int:
        """Go on for some steps; returns how many are left."""
        while steps and not self.is_over:
            steps -= 1
            try:
                next(self._steps)
            except StopIteration as end:
                self.is_over, self.target = True, end.value
        return steps


def _machine(replica: StateReplica) -> GroupsState:
    assert isinstance(replica.machine, GroupsState)
    return replica.machine
