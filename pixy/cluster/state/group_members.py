"""Members of a consumer group, and the owners of its partitions: values of the state machines
`groups-n`.

Pure, and never changed in place: each change makes another `Membership`.

    change        members        owners of partitions
    ------------  -------------  ----------------------------------------------------------------
    join          one more, or   as before
                  other topics
    without       fewer          its partitions go to their targets, or to nobody
    with_target   as before      free partitions go to their targets; the others when their owners
                                 release them
    released      as before      the partitions go to their targets, or to nobody

So a partition has one owner at a time, and goes on only when its owner has given it up, has left or
is put out. Each owner has the partition under another epoch, and so has one whose offsets were set:
what it commits names the epoch, and is refused under a later one.

The road not taken: Kafka's protocol of joins, syncs and heartbeats (KIP-848 included). There
members are remote, and have to be told; here each of them applies the same entries.
"""

from collections.abc import Collection, Iterable, Mapping
from sys import intern
from typing import NamedTuple

from pixy.entry_ids import INDEX_MAX
from pixy.proto import state_pb2 as pb


class Process(NamedTuple):
    """One start of a node."""

    node_id: int
    incarnation: int


class MemberId(NamedTuple):
    """A member of a consumer group; never used again."""

    node_id: int
    incarnation: int
    number: int

    @property
    def process(self) -> Process:
        """The process that has the member."""
        return Process(self.node_id, self.incarnation)


class GroupMember(NamedTuple):
    """Name and subscribed topics of a member; the topics are ascending."""

    client_id: str
    topics: tuple[str, ...]


Owners = tuple[MemberId | None, ...]
"""Members by partition; None: nobody."""

Partitions = Mapping[bytes, Collection[int]]
"""Partitions by topic id."""


class TopicOwners(NamedTuple):
    """Owners and targets of a topic's partitions, and the epochs of the owners.

    Invariant: they are equally long.
    """

    owners: Owners
    targets: Owners
    epochs: tuple[int, ...]

    def changed(self, owners: Owners, targets: Owners, epoch: int) -> "TopicOwners | None":
        """The topic with other owners, which are as many; new ones have this epoch. None if nobody
        owns a partition, and nobody is to.
        """
        if not any(owners) and not any(targets):
            return None
        epochs = self.epochs
        if owners != self.owners:
            epochs = tuple(
                [
                    kept if owner == before else epoch
                    for owner, before, kept in zip(owners, self.owners, epochs, strict=True)
                ]
            )
        return TopicOwners(owners, targets, epochs)


class Membership(NamedTuple):
    """Members of one consumer group, and the owners of its partitions.

    Attributes:
        generation: number of changes of members, targets and owners.
        epoch: the newest epoch of a partition. Invariant: ascending.
        settled: True if the targets are those of the present members.
        topics: owners by topic id. Invariant: all of them are in `members`.
    """

    generation: int = 0
    epoch: int = 0
    settled: bool = True
    members: Mapping[MemberId, GroupMember] = {}
    topics: Mapping[bytes, TopicOwners] = {}

    def owner(self, topic_id: bytes, partition: int) -> MemberId | None:
        """The member that owns a partition, None if there is none."""
        topic = self.topics.get(topic_id)
        return topic.owners[partition] if topic is not None and 0 <= partition < len(topic.owners) else None

    def is_based_on(self, topic_id: bytes, partition: int, member: MemberId, epoch: int) -> bool:
        """True if a member owns a partition under this epoch."""
        topic = self.topics.get(topic_id)
        return (
            topic is not None
            and 0 <= partition < len(topic.owners)
            and topic.owners[partition] == member
            and topic.epochs[partition] == epoch
        )

    # --- changes ----------------------------------------------------------------------------------

    def joined(self, member_id: MemberId, member: GroupMember) -> "Membership":
        """A member is new, or subscribes to other topics."""
        if self.members.get(member_id) == member:
            return self
        return self._replace(
            generation=self.generation + 1, settled=False, members={**self.members, member_id: member}
        )

    def without(self, gone: Collection[MemberId]) -> "Membership":
        """Members have left or were put out."""
        left = {member_id: member for member_id, member in self.members.items() if member_id not in gone}
        if len(left) == len(self.members):
            return self

        owners = {}
        for topic_id, of in self.topics.items():
            targets = tuple([None if target in gone else target for target in of.targets])
            pairs = zip(of.owners, targets, strict=True)
            owners[topic_id] = tuple([target if owner in gone else owner for owner, target in pairs]), targets
        return self._changed(self.topics, owners)._replace(settled=False, members=left)

    def with_target(self, target: Mapping[bytes, Owners]) -> "Membership":
        """The partitions of these topics are to have these owners, all others nobody."""
        present, owners = {}, {}
        for topic_id in dict.fromkeys([*self.topics, *target]):
            wanted = target.get(topic_id, ())
            of = present[topic_id] = _long(self.topics.get(topic_id, _NO_OWNERS), len(wanted))
            targets = _filled(wanted, len(of.owners))
            pairs = zip(of.owners, targets, strict=True)
            owners[topic_id] = tuple([owner or aim for owner, aim in pairs]), targets
        return self._changed(present, owners)._replace(settled=True)

    def released(self, member_id: MemberId, partitions: Partitions) -> "Membership":
        """A member gives up those of these partitions that it owns and that have another target."""
        owners = {}
        for topic_id, numbers in partitions.items():
            of = self.topics.get(topic_id, _NO_OWNERS)
            going = [
                each
                for each in numbers
                if each < len(of.owners) and of.owners[each] == member_id != of.targets[each]
            ]
            if going:
                left = list(of.owners)
                for each in going:
                    left[each] = of.targets[each]
                owners[topic_id] = tuple(left), of.targets
        return self._changed(self.topics, owners) if owners else self

    def with_offsets_set(self, partitions: Partitions) -> "Membership":
        """Offsets of partitions were set: their owners have them under another epoch."""
        topics = dict(self.topics)
        for topic_id, numbers in partitions.items():
            topic = topics.get(topic_id)
            if topic is not None:
                epochs = list(topic.epochs)
                for each in numbers:
                    if 0 <= each < len(epochs):
                        epochs[each] = self.epoch + 1
                topics[topic_id] = topic._replace(epochs=tuple(epochs))
        return self._replace(epoch=self.epoch + 1, topics=topics)

    def forgotten(self, topic_ids: Collection[bytes]) -> "Membership":
        """Topics were deleted."""
        if self.topics.keys().isdisjoint(topic_ids):
            return self
        return self._replace(
            topics={topic_id: of for topic_id, of in self.topics.items() if topic_id not in topic_ids}
        )

    def _changed(
        self, topics: Mapping[bytes, TopicOwners], owners: Mapping[bytes, tuple[Owners, Owners]]
    ) -> "Membership":
        """The next generation: some of these topics have other owners and targets."""
        epoch = self.epoch + 1
        changed: dict[bytes, TopicOwners] = {}
        for topic_id, of in topics.items():
            after = of.changed(*owners[topic_id], epoch) if topic_id in owners else of
            if after is not None:
                changed[topic_id] = after
        return self._replace(generation=self.generation + 1, epoch=epoch, topics=changed)

    # --- invariants -------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Assert what holds after every change."""
        for owners, targets, epochs in self.topics.values():
            assert len(owners) == len(targets) == len(epochs)
            assert any(owners) or any(targets), "nobody owns a partition of it, and nobody is to"
            for owner, target, epoch in zip(owners, targets, epochs, strict=True):
                assert owner is None or owner in self.members, f"{owner} owns a partition and is no member"
                assert target is None or target in self.members, f"{target} is a target and no member"
                assert owner is not None or target is None, "nobody owns what has a target"
                assert epoch <= self.epoch


NO_MEMBERS = Membership()
"""Membership of a consumer group without members."""

_NO_OWNERS = TopicOwners((), (), ())


def _filled(owners: Owners, length: int) -> Owners:
    return (*owners, *(None,) * (length - len(owners)))


def _long(topic: TopicOwners, length: int) -> TopicOwners:
    """A topic with at least so many partitions."""
    more = length - len(topic.owners)
    if more <= 0:
        return topic
    nobody = (None,) * more
    return TopicOwners((*topic.owners, *nobody), (*topic.targets, *nobody), (*topic.epochs, *(0,) * more))


# --- messages -------------------------------------------------------------------------------------


def member_id_of(message: pb.MemberId) -> MemberId:
    """The id of a member in a message."""
    return MemberId(message.node_id, message.incarnation, message.number)


def member_message(member_id: MemberId, member: GroupMember) -> pb.GroupMember:
    """A member as a message."""
    return pb.GroupMember(
        id=pb.MemberId(**member_id._asdict()), client_id=member.client_id, topics=member.topics
    )


def partitions_of(message: pb.ReleasePartitions) -> Partitions:
    """The partitions that are released, by topic id."""
    return {topic.topic_id: frozenset(topic.partitions) for topic in message.topics}


def target_message(group: str, generation: int, target: Mapping[bytes, Owners]) -> pb.GroupTarget:
    """The target of a consumer group as a message."""
    numbers: dict[MemberId, int] = {}
    topics = [
        pb.TopicTarget(topic_id=topic_id, owners=_numbers(owners, numbers))
        for topic_id, owners in target.items()
    ]
    members = [pb.MemberId(**member_id._asdict()) for member_id in numbers]
    return pb.GroupTarget(group=group, generation=generation, members=members, topics=topics)


def target_of(message: pb.GroupTarget, present: Collection[MemberId] = ()) -> dict[bytes, Owners]:
    """The target in a message: owners by topic id and partition; nobody where the message names a
    member that it does not have.

    Args:
        present: members whose ids are taken in place of equal ones.
    """
    ids = dict(zip(present, present, strict=True))
    named = [member_id_of(each) for each in message.members]
    members = dict(enumerate([ids.get(each, each) for each in named], start=1))
    return {topic.topic_id: tuple(map(members.get, topic.owners)) for topic in message.topics}


def membership_record(membership: Membership, forgotten: Collection[bytes]) -> pb.GroupMembers | None:
    """A membership as a message, without the topics that are forgotten; None without members."""
    if not membership.members:
        return None
    numbers = {member_id: number for number, member_id in enumerate(membership.members, start=1)}
    return pb.GroupMembers(
        generation=membership.generation,
        epoch=membership.epoch,
        settled=membership.settled,
        members=[member_message(*each) for each in membership.members.items()],
        topics=[
            pb.TopicOwners(
                topic_id=topic_id,
                owners=_numbers(of.owners, numbers),
                targets=_numbers(of.targets, numbers),
                epochs=of.epochs,
            )
            for topic_id, of in membership.topics.items()
            if topic_id not in forgotten
        ],
    )


def membership_of(message: pb.GroupMembers) -> Membership:
    """The membership in a message.

    Raises:
        IndexError, ValueError: no commands lead to it.
    """
    if max(message.generation, message.epoch) > INDEX_MAX:
        raise ValueError(f"generation {message.generation} and epoch {message.epoch} of a group")
    if any(not len(each.owners) == len(each.targets) == len(each.epochs) for each in message.topics):
        raise ValueError("owners, targets and epochs of another number of partitions")
    members = {
        member_id_of(each.id): GroupMember(intern(each.client_id), tuple(map(intern, each.topics)))
        for each in message.members
    }
    ids = [None, *members]
    topics = {
        topic.topic_id: TopicOwners(
            tuple([ids[each] for each in topic.owners]),
            tuple([ids[each] for each in topic.targets]),
            tuple(topic.epochs),
        )
        for topic in message.topics
    }
    return Membership(message.generation, message.epoch, message.settled, members, topics)


def _numbers(owners: Iterable[MemberId | None], numbers: dict[MemberId, int]) -> list[int]:
    """Numbers of members from 1 on, 0 for None; new ones are added."""
    return [0 if owner is None else numbers.setdefault(owner, len(numbers) + 1) for owner in owners]
