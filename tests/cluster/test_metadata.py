"""The state machine of topics: what each command gives, ids that are never used again, checkpoints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.cluster.metadata import FIRST_PARTITION_GROUP, MetadataState, Topic
from pixy.errors import InvalidArgument, InvalidTopic, TopicExists
from pixy.proto.state_pb2 import CreateTopic, InitCluster, MetadataCommand


def create(name: str, partitions: int = 1, topic_id: bytes = b"id", **config: str) -> bytes:
    command = CreateTopic(name=name, topic_id=topic_id, partitions=partitions, config=config)
    return MetadataCommand(create_topic=command).SerializeToString()


def init(groups_count: int) -> bytes:
    return MetadataCommand(init_cluster=InitCluster(groups_count=groups_count)).SerializeToString()


def test_topics_get_raft_groups_one_after_the_other() -> None:
    state = MetadataState()
    first, second = state.apply(create("a", 2, b"1", x="y")), state.apply(create("b", 3, b"2"))
    assert first == Topic("a", b"1", 0, {"x": "y"}, (FIRST_PARTITION_GROUP, FIRST_PARTITION_GROUP + 1))
    assert second == Topic("b", b"2", 0, {}, (1002, 1003, 1004))
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
    ],
)
def test_a_refused_command_changes_nothing_and_says_why(command: bytes, error: type[Exception]) -> None:
    state = MetadataState()
    state.apply(create("a"))
    before = list(state.snapshot())
    assert type(state.apply(command)) is error
    assert list(state.snapshot()) == before


def test_the_number_of_state_groups_is_set_once() -> None:
    state = MetadataState()
    assert state.apply(init(3)) is None
    state.apply(init(5))
    assert state.groups_count == 3


def test_an_unknown_command_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="metadata command None is not known"):
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
