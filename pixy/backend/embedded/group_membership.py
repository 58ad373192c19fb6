"""One member of a consumer group in this process.

The node applies every change of the group, and the member looks at what has become of it:

    in the applied state                        then
    ------------------------------------------  --------------------------------------------------
    it owns other partitions than it was told   the assignment callback is called
    a partition of it has another target        the revocation callback is called, then the
                                                partition is released
    a partition of it has another epoch than    offsets were set elsewhere: the callback for that
    it was told                                 is called
    its node was removed from the cluster       the acks of all its partitions are committed, and it
                                                leaves
    it is not a member any more                 it owns nothing, and joins anew, unless its node was
                                                removed

A member whose node does not apply entries is given up, and joins anew when its node does.

The epochs that it was told are what its commits are based on: a commit that begins before the
member hears of offsets set elsewhere is refused.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import NamedTuple

import structlog

from pixy.aio.retries import Backoff
from pixy.aio.tasks import Tasks
from pixy.backend.embedded.group_leases import GroupLeases
from pixy.backend.protocol import Assignment, OffsetsChanged, Revocation
from pixy.cluster import (
    LEASE_S,
    GroupMember,
    GroupsState,
    MemberId,
    Membership,
    Node,
    member_message,
)
from pixy.errors import PixyError, Unavailable
from pixy.proto import state_pb2 as pb

log = structlog.get_logger(__name__)

REMOVED = "this node was removed from the cluster"

_RETRY_S = 0.1
_RETRY_MAX_S = 2.0
_LEAVE_S = 2.0
"""Longest wait for a leave: it goes on in the background."""

_Owned = Mapping[bytes, Mapping[int, int]]
"""Epochs of owned partitions, by topic id."""


class MemberCallbacks(NamedTuple):
    """The callbacks of `Backend.join_consumer_group`."""

    on_assignment: Assignment
    on_revocation: Revocation | None = None
    on_offsets_set: OffsetsChanged | None = None


class MemberEnvironment(NamedTuple):
    """Dependencies of all members of a node.

    Attributes:
        node: the node.
        tasks: runs their work.
        leases: of their consumer groups.
        drain_s: time for the acks of partitions that are revoked.
        new_id: makes the id of a member.
        depart: has a member leave a group, in a task that ends when it has left.
        left: called when a member does not need its group any more.
    """

    node: Node
    tasks: Tasks
    leases: GroupLeases
    drain_s: float
    new_id: Callable[[], MemberId]
    depart: Callable[[str, MemberId], "asyncio.Task[None]"]
    left: Callable[["GroupMembership"], None]


class GroupMembership:
    """A `ConsumerMembership`.

    Args:
        environment: of all members of the node.
        group, client_id, topics: the group, the name of the member, and its subscribed topics.
        callbacks: of the member.

    Attributes:
        topics: as given, or as subscribed last.
        lease: see `ConsumerMembership`.
        member_id: its id; None while it is no member, nor about to be one.
    """

    __slots__ = (
        "_assignment",
        "_environment",
        "_going",
        "_is_leaving",
        "_joined",
        "_joining",
        "_left",
        "_must_tell",
        "_on_assignment",
        "_on_offsets_set",
        "_on_revocation",
        "_setting",
        "_told",
        "_topic_ids",
        "_undecided",
        "_work",
        "client_id",
        "group",
        "lease",
        "member_id",
        "topics",
    )

    def __init__(
        self,
        environment: MemberEnvironment,
        group: str,
        client_id: str,
        topics: Sequence[str],
        callbacks: MemberCallbacks,
    ) -> None:
        self.group = group
        self.client_id = client_id
        self._environment = environment
        self.topics = tuple(topics)
        self._on_assignment, self._on_revocation, self._on_offsets_set = callbacks
        self.lease = environment.leases.of(group)
        self.member_id: MemberId | None = None
        self._joined = False
        self._left = False
        # Its node was removed: it hands over what it has.
        self._is_leaving = False
        # One join at a time.
        self._joining = asyncio.Lock()
        # What it was told: its partitions with their epochs, and the last assignment.
        self._told: dict[bytes, dict[int, int]] = {}
        self._assignment: dict[str, list[int]] | None = None
        self._topic_ids: dict[str, bytes] = {}
        # Partitions whose offsets this process is about to set, and how often.
        self._setting: Counter[tuple[bytes, int]] = Counter()
        # A revocation has ended: an assignment has to follow.
        self._must_tell = False
        # Number of revocations that have ended and whose partitions may yet stay.
        self._undecided = 0
        # Partitions that are being revoked.
        self._going: dict[tuple[bytes, int], None] = {}
        self._work: dict[asyncio.Task[None], None] = {}

    # --- calls ------------------------------------------------------------------------------------

    async def join(self) -> None:
        """Become a member.

        Raises:
            PixyError: it is none.
        """
        async with self._joining:
            await self._join()

    async def subscribe(self, topics: Sequence[str]) -> None:
        """As `ConsumerMembership`."""
        self.topics = tuple(topics)
        if not self._left:
            await self.join()

    async def leave(self) -> None:
        """As `ConsumerMembership`. Goes on in the background if that takes long."""
        if self._left:
            return
        member_id = self.end()
        if member_id is not None:
            await asyncio.wait({self._environment.depart(self.group, member_id)}, timeout=_LEAVE_S)

    def end(self) -> MemberId | None:
        """Tell the member nothing more; returns its id, if it has to leave."""
        if not self._left:
            self._left = True
            self._stop_work()
            self._environment.left(self)
        return self.member_id

    def epoch_of(self, topic_id: bytes, partition: int) -> int | None:
        """The epoch of a partition as the member was told, None if it does not own it."""
        return self._told.get(topic_id, {}).get(partition)

    def begin_set(self, partitions: Iterable[tuple[bytes, int]]) -> None:
        """This process is about to set offsets: the member is not told of it."""
        self._setting.update(partitions)

    def end_set(self, partitions: Collection[tuple[bytes, int]], epoch: int | None) -> None:
        """The end of that.

        Args:
            epoch: that of the partitions from then on; None: it is not known if they are set.
        """
        for topic_id, number in partitions:
            told = self._told.get(topic_id, {})
            if epoch is not None and number in told:
                told[number] = epoch
        self._setting -= Counter(partitions)
        self.look()

    # --- joining ----------------------------------------------------------------------------------

    async def _join(self) -> None:
        environment, node = self._environment, self._environment.node
        if node.has_left:
            raise Unavailable(f"{REMOVED}: consume at another one")
        replica = node.state_groups.group_of(self.group)
        await node.confirm([replica], LEASE_S)
        if (held := self._state.why_held(self.group)) is not None:
            raise held  # without an entry: it is asked again and again
        if node.disk_stalls:
            # It would not learn of its partitions.
            raise Unavailable("the disk of this node stalls: consume at another one")
        member_id = self.member_id or environment.new_id()
        began = node.monotonic()
        command = pb.JoinGroup(
            group=self.group,
            member=member_message(member_id, GroupMember(self.client_id, self.topics)),
            timestamp_ms=node.now_ms(),
        )
        node.commands.limits.limit_group(command)
        self.member_id = member_id
        try:
            await node.commands.change_group(
                self.group, pb.GroupsCommand(join_group=command).SerializeToString()
            )
        except (PixyError, asyncio.CancelledError):
            if not self._joined:
                # It may become a member yet, which nobody would be there for.
                self.member_id = None
                environment.depart(self.group, member_id)
            raise
        environment.leases.confirmed(self.group, began)
        if self.member_id == member_id:
            self._joined = True
            self.look()

    def give_up(self) -> None:
        """Own nothing more, because this node is behind, and join anew once it is not."""
        if self._joined and not self._left:
            log.warning("behind the group, leaving it for now", group=self.group, client=self.client_id)
            self._start_over()

    def _put_out(self) -> None:
        if not self._is_leaving:
            log.warning("put out of a consumer group, joining anew", group=self.group, client=self.client_id)
        self._start_over()

    def _start_over(self) -> None:
        self.member_id, self._joined = None, False
        self._stop_work()
        self._told, self._assignment, self._must_tell = {}, None, False
        self._on_assignment({})
        if not self._is_leaving:
            self._spawn(self._join_anew(), "join")

    async def _join_anew(self) -> None:
        backoff, failing = Backoff(_RETRY_S, _RETRY_MAX_S), ""
        while True:
            async with self._joining:
                if self._joined:
                    return
                try:
                    await self._join()
                except PixyError as error:
                    if failing != (failing := str(error)):
                        log.warning(
                            "cannot join a consumer group, trying again", group=self.group, reason=failing
                        )
                else:
                    return
            await asyncio.sleep(backoff.grow())

    def _spawn(self, work: Coroutine[object, object, None], what: str) -> None:
        task = self._environment.tasks.spawn(work, f"{what} {self.group}")
        self._work[task] = None
        task.add_done_callback(self._work.pop)

    def _stop_work(self) -> None:
        self._going = {}
        for task in list(self._work):
            task.cancel()

    # --- what has become of it --------------------------------------------------------------------

    def look(self) -> None:
        """The group may have changed, or its topics."""
        if not self._joined or self._left or self.member_id is None:
            return
        membership = self._state.membership(self.group)
        member = membership.members.get(self.member_id)
        if member is None:
            self._put_out()
            return
        if self._environment.node.has_left:
            if not self._is_leaving:
                self._is_leaving = True
                self._spawn(self._hand_over(self.member_id), "hand over")
            return
        topics = self._environment.node.metadata.topics
        topic_ids = {name: topics[name].topic_id for name in member.topics if name in topics}
        if self._assignment is not None or membership.settled:
            if not self._undecided:
                self._tell(membership, member.topics, topic_ids)
            self._tell_of_sets(membership)
        self._revoke(membership, {topic_id: name for name, topic_id in topic_ids.items()})

    @property
    def _state(self) -> GroupsState:
        return self._environment.node.state_groups.offsets_of(self.group)

    def _tell(self, membership: Membership, topics: Sequence[str], topic_ids: Mapping[str, bytes]) -> None:
        """Call the assignment callback, if there is something new."""
        owned = self._owned(membership, topic_ids)
        assignment = _by_name(owned, topics, topic_ids)
        same = {topic_id: each.keys() for topic_id, each in owned.items()} == {
            topic_id: each.keys() for topic_id, each in self._told.items()
        }
        if same and not self._must_tell and (assignment == self._assignment or not membership.settled):
            return
        replaced = {
            topic_id
            for name, topic_id in topic_ids.items()
            if self._topic_ids.get(name, topic_id) != topic_id and self._topic_ids[name] in self._told
        }
        if not replaced.isdisjoint(owned):
            # The partitions of a deleted topic go before those of one with its name come.
            kept = {topic_id: each for topic_id, each in owned.items() if topic_id not in replaced}
            self._on_assignment(_by_name(kept, topics, topic_ids))
        before, self._told = self._told, {}
        for topic_id, each in owned.items():
            told = before.get(topic_id, {})
            self._told[topic_id] = {number: told.get(number, epoch) for number, epoch in each.items()}
        self._topic_ids, self._must_tell = dict(topic_ids), False
        self._assignment = assignment
        self._on_assignment(assignment)

    def _owned(self, membership: Membership, topic_ids: Mapping[str, bytes]) -> _Owned:
        """Owned partitions of topics that this node knows."""
        topics = self._environment.node.metadata.topics
        found = {}
        for name, topic_id in topic_ids.items():
            of = membership.topics.get(topic_id)
            if of is not None and self.member_id in of.owners:
                count = len(topics[name].raft_groups)
                found[topic_id] = {
                    number: of.epochs[number]
                    for number, owner in enumerate(of.owners[:count])
                    if owner == self.member_id
                }
        return found

    def _tell_of_sets(self, membership: Membership) -> None:
        """Call the callback for offsets that were set elsewhere."""
        changed: dict[str, list[int]] = {}
        for name, topic_id in self._topic_ids.items():
            told, of = self._told.get(topic_id, {}), membership.topics.get(topic_id)
            if of is None:
                continue
            for number, epoch in told.items():
                mine = of.owners[number] == self.member_id
                if mine and of.epochs[number] != epoch and not self._setting[topic_id, number]:
                    told[number] = of.epochs[number]
                    changed.setdefault(name, []).append(number)
        if changed and self._on_offsets_set is not None:
            self._on_offsets_set(changed)

    # --- partitions that go -----------------------------------------------------------------------

    def _revoke(self, membership: Membership, names: Mapping[bytes, str]) -> None:
        """Begin to give up the partitions that have another target."""
        going: dict[bytes, set[int]] = {}
        for topic_id, of in membership.topics.items():
            if of.owners != of.targets:
                moving = {
                    number
                    for number, (owner, target) in enumerate(zip(of.owners, of.targets, strict=True))
                    if owner == self.member_id != target and (topic_id, number) not in self._going
                }
                if moving:
                    going[topic_id] = moving
        if going:
            self._going |= {
                (topic_id, number): None for topic_id, numbers in going.items() for number in numbers
            }
            # What is of no subscribed topic was not offered.
            offered = {names[topic_id]: sorted(each) for topic_id, each in going.items() if topic_id in names}
            self._spawn(self._give_up(going, offered, self._going), "revoke partitions of")

    async def _give_up(
        self,
        going: Mapping[bytes, Collection[int]],
        offered: Mapping[str, Collection[int]],
        under_way: dict[tuple[bytes, int], None],
    ) -> None:
        try:
            if offered and self._on_revocation is not None:
                await self._on_revocation(self._environment.drain_s, offered)
            self._undecided += 1
            try:
                await self._release(going)
            finally:
                self._undecided -= 1
        finally:
            for topic_id, numbers in going.items():
                for number in numbers:
                    under_way.pop((topic_id, number), None)
        # Also if they stay: then the revocation is over without a loss.
        self._must_tell = self._must_tell or bool(offered)
        self.look()

    async def _hand_over(self, member_id: MemberId) -> None:
        """Commit the acks of everything that it has, accept no more, and leave."""
        if self._on_revocation is not None:
            # Clients ack elsewhere what they have.
            await self._on_revocation(0.0, self._assignment or {})
        await self._environment.depart(self.group, member_id)

    async def _release(self, going: Mapping[bytes, Collection[int]]) -> None:
        """Release what still has another target."""
        backoff, failing = Backoff(_RETRY_S, _RETRY_MAX_S), False
        while self.member_id is not None:
            membership = self._state.membership(self.group)
            topics = []
            for topic_id, numbers in going.items():
                of = membership.topics.get(topic_id)
                left = [
                    number
                    for number in sorted(numbers)
                    if of is not None and of.owners[number] == self.member_id != of.targets[number]
                ]
                if left:
                    topics.append(pb.TopicPartitions(topic_id=topic_id, partitions=left))
            if not topics:
                return
            member_id = pb.MemberId(**self.member_id._asdict())
            command = pb.ReleasePartitions(group=self.group, member=member_id, topics=topics)
            payload = pb.GroupsCommand(release_partitions=command).SerializeToString()
            try:
                await self._environment.node.commands.change_group(self.group, payload)
            except PixyError as error:
                if not failing:
                    failing = True
                    log.warning("cannot release partitions yet", group=self.group, reason=str(error))
                await asyncio.sleep(backoff.grow())


def _by_name(owned: _Owned, topics: Sequence[str], topic_ids: Mapping[str, bytes]) -> dict[str, list[int]]:
    """Owned partitions of subscribed topics, by name."""
    return {name: sorted(owned.get(topic_ids.get(name, b""), ())) for name in topics}
