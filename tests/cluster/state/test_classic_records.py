"""Groups of Kafka's classic protocol in the state machine of consumer groups: what is stored of
them, whose commits are taken, and that members of two kinds exclude each other.
"""

from typing import Any

import pytest

from pixy.classic_groups import StoredClassicGroup, StoredClassicMember
from pixy.cluster.state.classic_records import classic_bytes, classic_group_of, classic_record
from pixy.cluster.state.exported_state import export_records
from pixy.cluster.state.groups import GroupsState
from pixy.errors import (
    FailedPrecondition,
    HeldByOtherProtocol,
    OwnedElsewhere,
    ResourceExhausted,
    UnknownGroup,
)
from pixy.proto.state_pb2 import (
    ClassicCommitter,
    CommitOffsets,
    CommittedOffset,
    DeleteOffsets,
    ExpireGroups,
    ForgetTopics,
    GroupMember,
    GroupsCommand,
    JoinGroup,
    LeaveGroup,
    MemberId,
    SetClassicGroup,
)
from pixy.records import OffsetCommit

TERM = 7


def member(member_id: str = "a-1", **changes: Any) -> StoredClassicMember:
    stored = StoredClassicMember(member_id, None, "a", "127.0.0.1", 10_000, 60_000, b"topics", b"all")
    return stored._replace(**changes)


def group(*members: StoredClassicMember, generation: int = 1) -> StoredClassicGroup:
    return StoredClassicGroup(generation, "consumer", "range", "a-1" if members else "", True, members)


def storing(stored: StoredClassicGroup, **changes: int) -> bytes:
    command = SetClassicGroup(group="g", record=classic_record(stored), term=TERM, timestamp_ms=5)
    for name, value in changes.items():
        setattr(command, name, value)
    return GroupsCommand(set_classic_group=command).SerializeToString()


def commit(by: ClassicCommitter | None = None, partition: int = 0, *, client: bool = False) -> bytes:
    offset = CommittedOffset(
        topic="t", topic_id=b"t", partition=partition, offset=9, metadata="OK", foreign=True
    )
    command = CommitOffsets(group="g", offsets=[offset], classic=by, set=client, timestamp_ms=5)
    return GroupsCommand(commit_offsets=command).SerializeToString()


def own_member() -> bytes:
    of = GroupMember(id=MemberId(node_id=1, incarnation=1, number=1), client_id="own", topics=["t"])
    return GroupsCommand(join_group=JoinGroup(group="g", member=of)).SerializeToString()


def deleting(**changes: Any) -> bytes:
    return GroupsCommand(delete_offsets=DeleteOffsets(group="g", **changes)).SerializeToString()


def with_group(*members: StoredClassicMember) -> GroupsState:
    state = GroupsState()
    assert state.apply(storing(group(*members)), TERM) is None
    return state


@pytest.mark.parametrize("of", [group(), group(member(), member("b-1", instance_id="one", assignment=b""))])
def test_a_group_as_a_message(of: StoredClassicGroup) -> None:
    assert classic_group_of(classic_record(of)) == of


def test_a_group_is_stored_in_the_term_of_its_coordinator_alone() -> None:
    state = with_group(member())
    assert state.classic("g") == group(member())
    assert isinstance(state.apply(storing(group(generation=2)), TERM + 1), FailedPrecondition)
    assert isinstance(
        state.apply(GroupsCommand(set_classic_group=SetClassicGroup()).SerializeToString(), TERM),
        FailedPrecondition,
    )
    assert state.classic("g") == group(member())
    assert state.has_members("g")
    assert not state.has_members("h")


def test_a_group_goes_through_a_checkpoint() -> None:
    state = with_group(member(), member("b-1", instance_id="one"))
    state.apply(commit(ClassicCommitter(member_id="a-1", generation=1)))
    copy = GroupsState()
    copy.restore(list(state.snapshot()))
    assert copy.classic("g") == state.classic("g")
    assert [each.acks for each in copy.committed("g", b"t").values()] == [""]
    assert copy.offset_bytes == state.offset_bytes > classic_bytes(state.classic("g"))


def test_an_empty_group_goes_through_a_checkpoint_when_its_topics_are_gone() -> None:
    state = with_group()
    state.apply(commit())
    state.apply(GroupsCommand(forget_topics=ForgetTopics(topic_ids=[b"t"])).SerializeToString())
    copy = GroupsState()
    copy.restore(list(state.snapshot()))
    assert copy.classic("g") == group()


def test_a_group_leaves_with_a_backup_without_its_members() -> None:
    state = with_group(member())
    exported = {each.key: each.value for each in export_records({"groups-0": state.snapshot()})}
    copy = GroupsState()
    copy.restore(exported.items())
    assert copy.classic("g") == StoredClassicGroup(1, "consumer", "", "", False, ())
    assert not copy.classic_groups()


@pytest.mark.parametrize(
    ("by", "is_taken"),
    [
        (ClassicCommitter(member_id="a-1", generation=1), True),
        (ClassicCommitter(member_id="a-1", generation=2), False),
        (ClassicCommitter(member_id="b-1", generation=1), False),
        (None, False),
    ],
)
def test_commits_to_a_group_with_members(by: ClassicCommitter | None, is_taken: bool) -> None:
    state = with_group(member())
    result = state.apply(commit(by))
    assert result is None if is_taken else isinstance(result, OwnedElsewhere)
    assert bool(state.committed("g", b"t")) == is_taken


def test_commits_of_an_earlier_coordinator_are_refused() -> None:
    state = with_group(member())
    for by in (ClassicCommitter(member_id="a-1", generation=1, term=TERM), ClassicCommitter(term=TERM)):
        assert isinstance(state.apply(commit(by), TERM + 1), OwnedElsewhere)
    assert state.committed("g", b"t") == {}
    assert state.apply(commit(ClassicCommitter(member_id="a-1", generation=1, term=TERM)), TERM) is None
    state.apply(storing(group()), TERM)
    assert isinstance(state.apply(commit(ClassicCommitter(term=TERM)), TERM + 1), OwnedElsewhere)
    assert state.apply(commit(ClassicCommitter(term=TERM)), TERM) is None


def test_a_member_of_a_group_that_is_gone_commits_nothing() -> None:
    by = ClassicCommitter(member_id="a-1", generation=1)
    assert isinstance(GroupsState().apply(commit(by)), OwnedElsewhere)
    assert isinstance(with_group().apply(commit(by)), OwnedElsewhere)


def test_anybody_commits_to_an_empty_group() -> None:
    state = with_group()
    assert state.apply(commit()) is None
    (stored,) = state.committed("g", b"t").values()
    assert (stored, stored.acks) == (OffsetCommit(9, "OK"), "")


def test_pixys_own_commit_has_acks_again() -> None:
    state = GroupsState()
    state.apply(commit())
    offset = CommittedOffset(topic="t", topic_id=b"t", offset=10, metadata="A")
    state.apply(GroupsCommand(commit_offsets=CommitOffsets(group="g", offsets=[offset])).SerializeToString())
    (stored,) = state.committed("g", b"t").values()
    assert (stored, stored.acks) == (OffsetCommit(10, "A"), "A")


def test_nobody_sets_offsets_under_classic_members() -> None:
    state = with_group(member())
    refusal = state.apply(commit(client=True))
    assert isinstance(refusal, HeldByOtherProtocol)
    assert str(refusal) == "Kafka clients are members of consumer group g: a"
    state.apply(storing(group()), TERM)
    assert state.apply(commit(client=True)) is None


def test_members_of_two_kinds_exclude_each_other() -> None:
    state = with_group(member())
    assert isinstance(state.apply(own_member()), HeldByOtherProtocol)
    assert not state.membership("g").members
    state.apply(storing(group()), TERM)
    state.apply(own_member())
    assert state.membership("g").members
    assert isinstance(state.apply(storing(group(member(), generation=2)), TERM), HeldByOtherProtocol)
    leaving = LeaveGroup(group="g", member=MemberId(node_id=1, incarnation=1, number=1))
    state.apply(GroupsCommand(leave_group=leaving).SerializeToString())
    assert state.apply(storing(group(member(), generation=2)), TERM) is None


def test_the_memory_of_members_counts() -> None:
    large = group(member(metadata=bytes(5000)))
    state = GroupsState()
    assert isinstance(state.apply(storing(large, max_offset_bytes=5000), TERM), ResourceExhausted)
    assert state.classic("g") is None
    state.apply(storing(large, max_offset_bytes=50_000), TERM)
    assert state.offset_bytes == classic_bytes(large) > 5000
    state.apply(storing(group()), TERM)
    assert state.offset_bytes == 0


def test_the_number_of_groups_is_limited() -> None:
    state = GroupsState()
    state.apply(commit())
    other = SetClassicGroup(group="h", record=classic_record(group()), term=TERM, max_groups=1)
    result = state.apply(GroupsCommand(set_classic_group=other).SerializeToString(), TERM)
    assert isinstance(result, ResourceExhausted)


@pytest.mark.parametrize("has_members", [False, True])
def test_a_group_expires_without_members(has_members: bool) -> None:
    state = with_group(*[member()][: int(has_members)])
    state.apply(commit(ClassicCommitter(member_id="a-1", generation=1) if has_members else None))
    expiry = ExpireGroups(groups=["g"], before_ms=6)
    state.apply(GroupsCommand(expire_groups=expiry).SerializeToString())
    assert (state.classic("g") is not None) == has_members
    assert bool(state.committed("g", b"t")) == has_members
    assert bool(state.offset_bytes) == has_members


def test_a_group_is_deleted_without_members() -> None:
    state = with_group(member())
    state.apply(commit(ClassicCommitter(member_id="a-1", generation=1)))
    for command in (deleting(), deleting(topic="t", topic_id=b"t")):
        refusal = state.apply(command)
        assert isinstance(refusal, FailedPrecondition)
        assert str(refusal).endswith(": a")
    state.apply(storing(group()), TERM)
    assert state.apply(deleting()) is None
    assert state.classic("g") is None
    assert state.offset_bytes == 0
    assert isinstance(state.apply(deleting()), UnknownGroup)


def test_a_group_without_offsets_is_deleted_too() -> None:
    state = with_group()
    assert isinstance(state.apply(deleting(topic="t", topic_id=b"t")), UnknownGroup)
    assert state.apply(deleting()) is None
    assert state.classic("g") is None


def test_offsets_of_some_partitions_are_removed() -> None:
    state = with_group(member())
    for partition in range(3):
        state.apply(commit(ClassicCommitter(member_id="a-1", generation=1), partition))
    before = state.offset_bytes
    assert state.apply(deleting(topic="t", topic_id=b"t", partitions=[0, 2, 5])) is None
    assert state.committed("g", b"t").keys() == {1}
    assert state.offset_bytes < before
    assert isinstance(state.apply(deleting(topic="t", topic_id=b"t", partitions=[0])), UnknownGroup)
    assert state.apply(deleting(topic="t", topic_id=b"t", partitions=[1])) is None
    assert not state.has_offsets("g")
    assert state.offset_bytes == classic_bytes(state.classic("g"))
