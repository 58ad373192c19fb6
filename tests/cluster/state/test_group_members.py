"""Members of a consumer group and owners of partitions: changes, and messages."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.cluster.state.group_members import (
    NO_MEMBERS,
    GroupMember,
    MemberId,
    Membership,
    Process,
    TopicOwners,
    member_id_of,
    member_message,
    membership_of,
    membership_record,
    partitions_of,
    target_message,
    target_of,
)
from pixy.proto import state_pb2 as pb

ONE, TWO, THREE = MemberId(1, 1, 1), MemberId(2, 1, 1), MemberId(3, 7, 2)
MEMBER = GroupMember("client", ("topic",))
A, B = b"a", b"b"


def members(*ids: MemberId) -> Membership:
    membership = NO_MEMBERS
    for member_id in ids:
        membership = membership.joined(member_id, MEMBER)
    return membership


def owners(membership: Membership, topic_id: bytes = A) -> list[int]:
    """Nodes that own the partitions of a topic, 0 for none."""
    topic = membership.topics.get(topic_id)
    return [] if topic is None else [owner.node_id if owner else 0 for owner in topic.owners]


def epochs(membership: Membership, topic_id: bytes = A) -> tuple[int, ...]:
    return membership.topics[topic_id].epochs


def test_free_partitions_go_to_their_targets_at_once_and_the_others_when_they_are_released() -> None:
    first = members(ONE, TWO).with_target({A: (ONE, ONE, None)})
    assert (owners(first), epochs(first), first.settled) == ([1, 1, 0], (1, 1, 0), True)
    second = first.with_target({A: (ONE, TWO, TWO)})
    assert (owners(second), epochs(second)) == ([1, 1, 2], (1, 1, 2))
    third = second.released(ONE, {A: [0, 1, 2, 9], B: [0]})
    assert (owners(third), epochs(third)) == ([1, 2, 2], (1, 3, 2))
    assert [each.generation for each in (first, second, third)] == [3, 4, 5]


def test_nothing_changes_without_a_change() -> None:
    settled = members(ONE, TWO).with_target({A: (ONE, TWO)})
    assert settled.joined(ONE, MEMBER) is settled
    assert settled.without([THREE]) is settled
    assert settled.released(ONE, {A: [0, 1]}) is settled
    assert settled.forgotten([B]) is settled


def test_the_partitions_of_who_goes_go_to_their_targets() -> None:
    moving = members(ONE, TWO, THREE).with_target({A: (ONE, ONE, TWO), B: (ONE,)})
    moving = moving.with_target({A: (TWO, ONE, TWO), B: (ONE,)})
    left = moving.without([ONE])
    assert (owners(left), owners(left, B), left.settled) == ([2, 0, 2], [], False)
    assert left.topics[A].targets == (TWO, None, TWO)
    assert left.owner(A, 0) == TWO
    assert left.owner(A, 1) is left.owner(A, 3) is left.owner(B, 0) is None


def test_a_target_that_goes_leaves_the_partition_with_its_owner() -> None:
    moving = members(ONE, TWO).with_target({A: (ONE, ONE)}).with_target({A: (ONE, TWO)})
    left = moving.without([TWO])
    assert (owners(left), left.topics[A].targets) == ([1, 1], (ONE, None))
    assert epochs(left) == epochs(moving)


def test_a_topic_that_nobody_is_to_own_goes_with_its_last_owner() -> None:
    owned = members(ONE, TWO).with_target({A: (ONE, TWO)}).with_target({})
    assert (owners(owned), owned.topics[A].targets) == ([1, 2], (None, None))
    owned = owned.released(ONE, {A: [0]})
    assert owners(owned) == [0, 2]
    assert owned.released(TWO, {A: [1]}).topics == {}


def test_a_topic_that_grows_keeps_its_owners_and_epochs() -> None:
    owned = members(ONE).with_target({A: (ONE,)}).with_target({A: (ONE, ONE, ONE)})
    assert (owners(owned), epochs(owned)) == ([1, 1, 1], (1, 2, 2))


def test_offsets_that_are_set_give_the_owners_another_epoch() -> None:
    owned = members(ONE, TWO).with_target({A: (ONE, TWO)})
    after = owned.with_offsets_set({A: [1, 5], B: [0]})
    assert (epochs(after), after.generation, owners(after)) == ((1, 2), owned.generation, [1, 2])
    assert [after.is_based_on(A, 1, TWO, epoch) for epoch in (1, 2, 3)] == [False, True, False]
    assert not after.is_based_on(A, 1, ONE, 2)
    assert not after.is_based_on(A, 2, TWO, 2)
    assert not after.is_based_on(B, 0, TWO, 2)


IDS = st.sampled_from([ONE, TWO, THREE])
TARGETS = st.dictionaries(
    st.sampled_from([A, B]), st.lists(st.none() | IDS, max_size=4).map(tuple), max_size=2
)
CHANGES: st.SearchStrategy[Callable[[Membership], Membership]] = st.one_of(
    IDS.map(lambda member_id: lambda group: group.joined(member_id, MEMBER)),
    st.sets(IDS).map(lambda gone: lambda group: group.without(gone)),
    TARGETS.map(lambda target: lambda group: group.with_target(_present(target, group))),
    st.tuples(IDS, st.sets(st.integers(0, 4))).map(
        lambda each: lambda group: group.released(each[0], {A: each[1], B: each[1]})
    ),
    st.sets(st.integers(0, 4)).map(lambda each: lambda group: group.with_offsets_set({A: each})),
    st.sampled_from([A, B]).map(lambda topic_id: lambda group: group.forgotten([topic_id])),
)


def _present(
    target: dict[bytes, tuple[MemberId | None, ...]], group: Membership
) -> dict[bytes, tuple[MemberId | None, ...]]:
    """A target without those that are no members."""
    return {
        topic_id: tuple([each if each in group.members else None for each in of])
        for topic_id, of in target.items()
    }


@pytest.mark.slow
@given(st.lists(CHANGES, max_size=20))
def test_a_partition_goes_on_only_from_an_owner_that_gave_it_up(
    changes: list[Callable[[Membership], Membership]],
) -> None:
    membership = NO_MEMBERS
    for change in changes:
        before, membership = membership, change(membership)
        membership.check_invariants()
        assert membership.generation in (before.generation, before.generation + 1)
        for topic_id, topic in membership.topics.items():
            earlier = before.topics.get(topic_id, TopicOwners((), (), ()))
            for number, (owner, epoch) in enumerate(zip(topic.owners, topic.epochs, strict=True)):
                had = earlier.owners[number] if number < len(earlier.owners) else None
                if owner != had and owner is not None:
                    assert epoch == membership.epoch > before.epoch
                    assert had is None or owner == earlier.targets[number]
        if membership.members:
            record = membership_record(membership, ())
            assert record is not None
            assert membership_of(pb.GroupMembers.FromString(record.SerializeToString())) == membership


def test_a_record_has_no_forgotten_topics_and_none_is_made_without_members() -> None:
    owned = members(ONE, TWO).with_target({A: (ONE, TWO), B: (TWO,)})
    record = membership_record(owned, {A})
    assert record is not None
    assert membership_of(record) == owned.forgotten([A])
    assert membership_record(NO_MEMBERS, ()) is None


def test_targets_members_and_releases_are_read_as_they_were_written() -> None:
    target = {A: (ONE, None, TWO, ONE), B: ()}
    message = pb.GroupTarget.FromString(target_message("group", 7, target).SerializeToString())
    assert (message.group, message.generation, target_of(message)) == ("group", 7, target)
    member = member_message(THREE, GroupMember("client", ("a", "b")))
    assert (member_id_of(member.id), member.client_id, list(member.topics)) == (THREE, "client", ["a", "b"])
    assert THREE.process == Process(3, 7)
    release = pb.ReleasePartitions(topics=[pb.TopicPartitions(topic_id=A, partitions=[3, 1])])
    assert partitions_of(release) == {A: {1, 3}}
