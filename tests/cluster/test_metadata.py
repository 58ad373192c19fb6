"""The state machine of topics: results of each command, ids that are never reused, checkpoints."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.cluster.metadata import FIRST_PARTITION_GROUP, DeletedTopic, MetadataState, Topic, check_partitions
from pixy.errors import InvalidArgument, InvalidTopic, PixyError, TopicExists, UnknownTopic
from pixy.proto.state_pb2 import AlterTopic, CreateTopic, DeleteTopic, InitCluster, MetadataCommand


def create(name: str, partitions: int = 1, topic_id: bytes = b"id", **config: str) -> bytes:
    command = CreateTopic(name=name, topic_id=topic_id, partitions=partitions, config=config)
    return MetadataCommand(create_topic=command).SerializeToString()


def alter(name: str, partitions: int = 0, unset: Sequence[str] = (), **config: str) -> bytes:
    command = AlterTopic(name=name, partitions=partitions, set_config=config, unset_config=unset)
    return MetadataCommand(alter_topic=command).SerializeToString()


def delete(name: str) -> bytes:
    return MetadataCommand(delete_topic=DeleteTopic(name=name)).SerializeToString()


def init(groups_count: int) -> bytes:
    return MetadataCommand(init_cluster=InitCluster(groups_count=groups_count)).SerializeToString()


def test_topics_get_consecutive_raft_groups() -> None:
    state = MetadataState()
    first, second = state.apply(create("a", 2, b"1", x="y")), state.apply(create("b", 3, b"2"))
    assert first == Topic("a", b"1", 1, {"x": "y"}, (FIRST_PARTITION_GROUP, FIRST_PARTITION_GROUP + 1))
    assert second == Topic("b", b"2", 1, {}, (1002, 1003, 1004))
    assert state.topics == {"a": first, "b": second}
    assert state.next_raft_group == 1005


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (create("a"), TopicExists),
        (create("no/slash"), InvalidTopic),
        (create(".."), InvalidTopic),
        (create("b", 0), InvalidArgument),
        (create("b", 10_001), InvalidArgument),
        (alter("a", 1), InvalidArgument),
        (alter("a", 10_001), InvalidArgument),
        (alter("a", -1), InvalidArgument),
        (alter("b", 3), UnknownTopic),
        (delete("b"), UnknownTopic),
    ],
)
def test_a_refused_command_changes_nothing_and_says_why(command: bytes, error: type[Exception]) -> None:
    state = MetadataState()
    state.apply(create("a", 2))
    before = list(state.snapshot())
    assert type(state.apply(command)) is error
    assert list(state.snapshot()) == before


def test_the_number_of_state_groups_is_set_once() -> None:
    state = MetadataState()
    assert state.apply(init(3)) is None
    state.apply(init(5))
    assert state.groups_count == 3


def test_an_unknown_command_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="unknown metadata command None"):
        MetadataState().apply(b"")


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 5)), max_size=20))
def test_a_snapshot_restores_an_equal_state(commands: list[tuple[str, int]]) -> None:
    state = MetadataState()
    state.apply(init(2))
    for name, partitions in commands:
        state.apply(create(name, partitions, retention="1"))
    records = list(state.snapshot())
    restored = MetadataState()
    restored.apply(create("gone"))
    restored.restore(iter(records))
    assert restored.topics == state.topics
    assert (restored.groups_count, restored.next_raft_group) == (2, state.next_raft_group)
    assert list(restored.snapshot()) == records


def test_a_snapshot_shows_the_state_of_its_moment() -> None:
    state = MetadataState()
    state.apply(create("a"))
    records = state.snapshot()
    state.apply(create("b"))
    restored = MetadataState()
    restored.restore(records)
    assert (list(restored.topics), restored.next_raft_group) == (["a"], 1001)


# --- changes and deletions ------------------------------------------------------------------------


def applied(state: MetadataState, command: bytes) -> Topic:
    topic = state.apply(command)
    assert isinstance(topic, Topic)
    return topic


def test_added_partitions_get_new_raft_groups_after_the_present_ones() -> None:
    state = MetadataState()
    first = applied(state, create("a", 2))
    state.apply(create("b"))
    grown = applied(state, alter("a", 4))
    assert grown.raft_groups == (*first.raft_groups, 1003, 1004)
    assert (grown.topic_id, grown.version, state.next_raft_group) == (first.topic_id, 2, 1005)
    assert state.topics["a"] is grown
    assert first.raft_groups == (1000, 1001)


def test_a_topic_grows_up_to_the_highest_number() -> None:
    state = MetadataState()
    state.apply(create("a"))
    assert len(applied(state, alter("a", 10_000)).raft_groups) == 10_000
    assert isinstance(state.apply(alter("a", 10_001)), InvalidArgument)


def test_options_are_set_replaced_and_unset_independently() -> None:
    state = MetadataState()
    state.apply(create("a", x="1", y="2"))
    topic = applied(state, alter("a", unset=["y", "z"], x="3", w="4"))
    assert topic.config == {"x": "3", "w": "4"}
    assert applied(state, alter("a", unset=["x"], x="5")).config == {"x": "5", "w": "4"}


def test_an_alteration_without_a_change_keeps_the_version() -> None:
    state = MetadataState()
    first = applied(state, create("a", 2, x="1"))
    for command in (alter("a"), alter("a", 2), alter("a", x="1"), alter("a", unset=["y"])):
        assert state.apply(command) is first
    assert first.version == 1
    assert applied(state, alter("a", x="2")).version == 2
    assert applied(state, alter("a", x="1")).version == 3


def test_a_topic_keeps_its_version_over_a_checkpoint() -> None:
    state, restored = MetadataState(), MetadataState()
    state.apply(create("a"))
    state.apply(create("b"))
    state.apply(alter("b", 2))
    restored.restore(state.snapshot())
    assert [topic.version for topic in restored.topics.values()] == [1, 2]


def test_a_deleted_topic_is_returned_and_its_raft_groups_are_never_reused() -> None:
    state = MetadataState()
    first = applied(state, create("a", 2, b"first"))
    assert state.apply(delete("a")) == DeletedTopic(first)
    assert state.topics == {}
    assert applied(state, create("a", 2, b"second")).raft_groups == (1002, 1003)
    restored = MetadataState()
    state.apply(delete("a"))
    restored.restore(state.snapshot())
    assert applied(restored, create("a")).raft_groups == (1004,)


@pytest.mark.parametrize("count", [-1, 0, 10_001])
def test_a_number_of_partitions_out_of_range_is_refused(count: int) -> None:
    with pytest.raises(InvalidArgument, match=f"{count} partitions; 1 to 10000 are allowed"):
        check_partitions(count)
    check_partitions(1)
    check_partitions(10_000)


@given(
    st.lists(
        st.one_of(
            st.builds(create, st.sampled_from("ab"), st.integers(0, 4)),
            st.builds(alter, st.sampled_from("ab"), st.integers(0, 9)),
            st.builds(delete, st.sampled_from("ab")),
        ),
        max_size=25,
    )
)
def test_no_raft_group_is_assigned_twice_and_replicas_agree(commands: list[bytes]) -> None:
    state, given_out = MetadataState(), dict[int, tuple[str, int]]()
    for number, command in enumerate(commands):
        result = state.apply(command)
        other = MetadataState()
        other.restore(state.snapshot())
        assert (other.topics, other.next_raft_group) == (state.topics, state.next_raft_group)
        if isinstance(result, PixyError | DeletedTopic) or result is None:
            continue
        for at, raft_group in enumerate(result.raft_groups):
            owner = (result.name, at)
            assert given_out.setdefault(raft_group, owner) == owner, number
            assert FIRST_PARTITION_GROUP <= raft_group < state.next_raft_group
