"""The members of consumer groups in this process.

Each one looks at what the node has applied (`group_membership`): soon after every change of its
group or of a topic that it subscribes to, some groups in one iteration of the event loop.

A member that nobody is there for, because its join has ended without an answer or was given up,
leaves as soon as this node sees it.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence

import structlog

from pixy.aio.retries import Backoff
from pixy.aio.tasks import Tasks
from pixy.backend.embedded.group_leases import GroupLeases
from pixy.backend.embedded.group_membership import GroupMembership, MemberCallbacks, MemberEnvironment
from pixy.cluster import MemberId, Node, Process, StateReplica
from pixy.errors import PixyError
from pixy.proto import state_pb2 as pb

log = structlog.get_logger(__name__)

_COST_PER_ITERATION = 500
_COST_OF_GROUP = 10
"""Cost of the groups that are looked at together, at which no further one is; a topic of a member
costs 1.
"""
_RETRY_S = 0.2
_RETRY_MAX_S = 5.0
_GROUPS_PER_COMMAND = 200
_STOP_S = 2.0
"""Longest wait for the members to leave at the stop: later ones are put out by the coordinator."""


class LocalMembers:
    """Members of one node.

    Args:
        node: this node.
        tasks: runs their work.
        drain_s: time for the acks of partitions that are revoked.

    Attributes:
        group_left: called with the name of a group that has no member here any more.
    """

    def __init__(self, node: Node, tasks: Tasks, drain_s: float) -> None:
        self._node = node
        self._tasks = tasks
        # Number of the newest member.
        self._newest = 0
        self._leases = GroupLeases(node, tasks, self._fell_behind)
        self._environment = MemberEnvironment(
            node, tasks, self._leases, drain_s, self._new_id, self._depart, self._left
        )
        self._members: dict[str, list[GroupMembership]] = {}
        self.group_left: Callable[[str], None] = lambda _: None
        self._departing: dict[MemberId, asyncio.Task[None]] = {}
        # Groups to look at, in the order of their changes.
        self._due: dict[str, None] = {}
        self._handle: asyncio.Handle | None = None

    async def join(
        self, group: str, client_id: str, topics: Sequence[str], callbacks: MemberCallbacks
    ) -> GroupMembership:
        """As `Backend.join_consumer_group`."""
        member = GroupMembership(self._environment, group, client_id, topics, callbacks)
        self._members.setdefault(group, []).append(member)
        self._leases.hold(group)
        try:
            await member.join()
        except BaseException:
            member.end()
            raise
        return member

    def of(self, group: str) -> Sequence[GroupMembership]:
        """The members of a consumer group here."""
        return self._members.get(group, ())

    async def stop(self) -> None:
        """Put all members of this process out of their groups, within a bound."""
        self._leases.stop()
        for member in [member for found in self._members.values() for member in found]:
            member.end()
        going = [
            self._tasks.spawn(self._leave_all(some), f"leave {len(some)} consumer groups")
            for state in self._node.state_groups.groups_states()
            for some in _pieces(list(state.groups_of(self.process)), _GROUPS_PER_COMMAND)
        ]
        if going:
            await asyncio.wait(going, timeout=_STOP_S)

    async def _leave_all(self, groups: Sequence[str]) -> None:
        """Leave groups of one state group."""
        command = pb.ExpelProcess(**self.process._asdict(), groups=groups)
        payload = pb.GroupsCommand(expel_process=command).SerializeToString()
        try:
            await self._node.commands.change_group(groups[0], payload)
        except PixyError as error:
            log.warning("cannot leave consumer groups", count=len(groups), reason=str(error))

    # --- changes ----------------------------------------------------------------------------------

    def groups_changed(self, names: Collection[str]) -> None:
        """Consumer groups have changed.

        Members hear of it before anybody gets an answer that depends on it.
        """
        self._due |= dict.fromkeys(name for name in names if self._is_concerned(name))
        self._look()

    def groups_replaced(self) -> None:
        """All consumer groups may have changed."""
        self._look_at(self._members)

    def nodes_changed(self) -> None:
        """A node is new, or has left the cluster."""
        if self._node.has_left:
            # It need not hear of what becomes of its members.
            self._look_at(self._members)

    def topic_changed(self, topic: str) -> None:
        """A topic is new, has other partitions, or was deleted."""
        for state in self._node.state_groups.groups_states():
            self._look_at(name for name in state.subscribers(topic) if name in self._members)

    def _fell_behind(self, replica: StateReplica) -> None:
        """This node does not apply the entries of a state group; called again while it does not."""
        for name, members in list(self._members.items()):
            if self._node.state_groups.group_of(name) is replica:
                for member in list(members):
                    member.give_up()
        self._tasks.spawn(self._give_up(replica, self._newest), f"give up members of {replica.name}")

    async def _give_up(self, replica: StateReplica, newest: int) -> None:
        try:
            await self._node.give_up_members(replica, newest)
        except PixyError as error:
            log.warning("cannot give up members yet", group=replica.name, reason=str(error))

    def _is_concerned(self, name: str) -> bool:
        state = self._node.state_groups.offsets_of(name)
        return name in self._members or name in state.groups_of(self.process)

    def _look_at(self, names: Iterable[str]) -> None:
        self._due |= dict.fromkeys(names)
        if self._due and self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        cost = 0
        while self._due and cost < _COST_PER_ITERATION:
            name = next(iter(self._due))
            del self._due[name]
            for member in list(self._members.get(name, ())):
                member.look()
                cost += len(member.topics)
            self._leave_abandoned(name)
            cost += _COST_OF_GROUP
        self._look_at(())

    # --- members ----------------------------------------------------------------------------------

    @property
    def process(self) -> Process:
        """This process."""
        return Process(self._node.node_id, self._node.incarnation)

    def _new_id(self) -> MemberId:
        self._newest += 1
        return MemberId(*self.process, self._newest)

    def _left(self, member: GroupMembership) -> None:
        found = self._members[member.group]
        found.remove(member)
        if not found:
            del self._members[member.group]
            self.group_left(member.group)
        self._leases.drop(member.group)

    def _leave_abandoned(self, name: str) -> None:
        """Have members leave that nobody is there for."""
        present = {member.member_id for member in self._members.get(name, ())}
        for member_id in self._node.state_groups.offsets_of(name).membership(name).members:
            if member_id.process == self.process and member_id not in present:
                self._depart(name, member_id)

    def _depart(self, group: str, member_id: MemberId) -> "asyncio.Task[None]":
        task = self._departing.get(member_id)
        if task is None:
            task = self._departing[member_id] = self._tasks.spawn(
                self._leave(group, member_id), f"leave consumer group {group}"
            )
        return task

    async def _leave(self, group: str, member_id: MemberId) -> None:
        command = pb.LeaveGroup(group=group, member=pb.MemberId(**member_id._asdict()))
        payload = pb.GroupsCommand(leave_group=command).SerializeToString()
        backoff = Backoff(_RETRY_S, _RETRY_MAX_S)
        try:
            while True:
                try:
                    await self._node.commands.change_group(group, payload)
                except PixyError as error:
                    log.warning("cannot leave a consumer group, trying again", group=group, reason=str(error))
                    await asyncio.sleep(backoff.grow())
                else:
                    return
        finally:
            del self._departing[member_id]


def _pieces(names: Sequence[str], size: int) -> list[Sequence[str]]:
    return [names[at : at + size] for at in range(0, len(names), size)]
