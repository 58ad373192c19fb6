"""The state machine of committed offsets: commits, checkpoints, where a consumer group belongs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.cluster.groups import GroupsState, groups_index
from pixy.proto.state_pb2 import CommitOffsets, CommittedOffset, GroupsCommand
from pixy.records import OffsetCommit
from tests.cluster.nodes import commit_command

COMMITS = st.lists(
    st.tuples(
        st.integers(0, 100), st.sampled_from(["g", "h", "\0"]), st.sampled_from("abc"), st.integers(0, 3)
    ),
    max_size=30,
)


def test_a_commit_replaces_what_it_names_and_nothing_else() -> None:
    state = GroupsState()
    for offset, group, topic, partition in [
        (1, "g", "a", 0),
        (2, "g", "a", 1),
        (3, "h", "a", 0),
        (4, "g", "a", 0),
    ]:
        assert state.apply(commit_command(offset, group, topic, partition)) is None
    assert state.committed("g", "a") == {0: OffsetCommit(4, "m4"), 1: OffsetCommit(2, "m2")}
    assert state.committed("h", "a") == {0: OffsetCommit(3, "m3")}
    assert state.committed("g", "b") == state.committed("x", "a") == {}


def test_one_commit_may_name_many_partitions() -> None:
    offsets = [CommittedOffset(topic="a", partition=number, offset=number * 10) for number in range(5)]
    state = GroupsState()
    state.apply(GroupsCommand(commit_offsets=CommitOffsets(group="g", offsets=offsets)).SerializeToString())
    assert state.committed("g", "a") == {number: OffsetCommit(number * 10) for number in range(5)}


def test_an_offset_may_go_back() -> None:
    state = GroupsState()
    state.apply(commit_command(9, "g", "a", 0, timestamp_ms=100))
    state.apply(commit_command(3, "g", "a", 0, timestamp_ms=50))
    assert state.committed("g", "a") == {0: OffsetCommit(3, "m3")}


def test_an_unknown_command_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="groups command None is not known"):
        GroupsState().apply(b"")


@given(COMMITS)
def test_a_snapshot_restores_an_equal_state(commits: list[tuple[int, str, str, int]]) -> None:
    state = GroupsState()
    for at, (offset, group, topic, partition) in enumerate(commits):
        state.apply(commit_command(offset, group, topic, partition, at))
    records = list(state.snapshot())
    assert len({key for key, _ in records}) == len(records)
    restored = GroupsState()
    restored.apply(commit_command(1, "gone", "a", 0))
    restored.restore(iter(records))
    assert restored._offsets == state._offsets
    assert list(restored.snapshot()) == records


def test_a_snapshot_shows_the_state_of_its_moment() -> None:
    state = GroupsState()
    state.apply(commit_command(1, "g", "a", 0))
    records = state.snapshot()
    state.apply(commit_command(2, "g", "a", 0))
    state.apply(commit_command(3, "h", "a", 0))
    restored = GroupsState()
    restored.restore(records)
    assert (restored.committed("g", "a"), restored.committed("h", "a")) == ({0: OffsetCommit(1, "m1")}, {})


@given(st.text(), st.integers(1, 50))
def test_a_consumer_group_belongs_to_one_state_group(name: str, count: int) -> None:
    assert 0 <= groups_index(name, count) < count
    assert groups_index(name, 1) == 0


def test_where_a_consumer_group_belongs_never_changes() -> None:
    assert [groups_index(name, 16) for name in ("orders", "bills", "")] == [10, 15, 0]
