"""The state machine of topics: results of each command, ids that are never reused, checkpoints."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.cluster.state.metadata import DeletedTopic, LeftNode, MetadataState, check_partitions
from pixy.cluster.state.nodes import PRODUCERS_LEVEL
from pixy.cluster.state.topic import Topic
from pixy.errors import (
    DataDirectoryError,
    FailedPrecondition,
    InvalidArgument,
    InvalidTopic,
    NotFound,
    TopicExists,
    UnknownTopic,
)
from pixy.multiraft.raft_group import FIRST_PARTITION_GROUP
from pixy.proto.state_pb2 import (
    AllocateProducerIds,
    AlterTopic,
    ClusterRecord,
    CreateTopic,
    DeleteTopic,
    ForgetNode,
    InitCluster,
    MetadataCommand,
    NodeRecord,
    RegisterNode,
    RemoveNode,
    StartNode,
    TopicRecord,
)


def create(name: str, partitions: int = 1, topic_id: bytes = b"id", **config: str) -> bytes:
    command = CreateTopic(name=name, topic_id=topic_id, partitions=partitions, config=config)
    return MetadataCommand(create_topic=command).SerializeToString()


def alter(
    name: str, partitions: int = 0, unset: Sequence[str] = (), *, seen: int | None = None, **config: str
) -> bytes:
    command = AlterTopic(
        name=name, partitions=partitions, set_config=config, unset_config=unset, alterations=seen
    )
    return MetadataCommand(alter_topic=command).SerializeToString()


def delete(name: str) -> bytes:
    return MetadataCommand(delete_topic=DeleteTopic(name=name)).SerializeToString()


def init(groups_count: int) -> bytes:
    return MetadataCommand(init_cluster=InitCluster(groups_count=groups_count)).SerializeToString()


def register(secret: bytes) -> bytes:
    return MetadataCommand(register_node=RegisterNode(secret=secret, incarnation=1)).SerializeToString()


def start(node_id: int, secret: bytes, incarnation: int = 2, feature_level: int = 0) -> bytes:
    command = StartNode(
        node_id=node_id,
        secret=secret,
        incarnation=incarnation,
        feature_level=feature_level,
        address=f"{incarnation}:1",
    )
    return MetadataCommand(start_node=command).SerializeToString()


def remove(node_id: int, staying: Sequence[int] = ()) -> bytes:
    return MetadataCommand(remove_node=RemoveNode(node_id=node_id, staying=staying)).SerializeToString()


def forget(node_id: int) -> bytes:
    return MetadataCommand(forget_node=ForgetNode(node_id=node_id)).SerializeToString()


def cluster_of(nodes: int) -> MetadataState:
    state = MetadataState()
    first = NodeRecord(node_id=1, secret=b"s1", incarnation=1)
    command = MetadataCommand(init_cluster=InitCluster(groups_count=2, first_node=first))
    state.apply(command.SerializeToString())
    for node_id in range(2, nodes + 1):
        assert state.apply(register(b"s%d" % node_id)) == node_id
    return state


def restored_of(state: MetadataState) -> MetadataState:
    restored = MetadataState()
    restored.restore(state.snapshot())
    return restored


def test_topics_get_consecutive_raft_groups() -> None:
    state = MetadataState()
    first, second = state.apply(create("a", 2, b"1", x="y")), state.apply(create("b", 3, b"2"))
    assert first == Topic(
        "a", b"1", 1, {"x": "y"}, (FIRST_PARTITION_GROUP, FIRST_PARTITION_GROUP + 1), ((1,),) * 2
    )
    assert second == Topic("b", b"2", 1, {}, (1002, 1003, 1004), ((1,),) * 3)
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
        (remove(2), NotFound),
        (forget(2), NotFound),
        (start(2, b"s"), FailedPrecondition),
        (register(b""), FailedPrecondition),
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


def test_an_unknown_command_is_that_of_a_newer_release() -> None:
    with pytest.raises(DataDirectoryError, match=r"group metadata has a command .* a newer release wrote it"):
        MetadataState().apply(b"\xfa\x07\x01x")


@pytest.mark.slow
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
    state.apply(alter("b", 2, seen=0))
    restored.restore(state.snapshot())
    assert [(topic.version, topic.alterations) for topic in restored.topics.values()] == [(1, 0), (2, 1)]


@pytest.mark.parametrize("change", [{"x": "2"}, {"partitions": 3}, {"unset": ["x"]}], ids=str)
@pytest.mark.parametrize("between", [{"x": "1"}, {"x": "3"}, {"partitions": 2}], ids=str)
def test_a_topic_that_was_altered_since_it_was_seen_stays(
    between: dict[str, Any], change: dict[str, Any]
) -> None:
    """The command may come long after it was given up, and what came between may change nothing."""
    state = MetadataState()
    seen = applied(state, create("a", x="1")).alterations
    altered = applied(state, alter("a", **between, seen=seen))
    refused = state.apply(alter("a", **change, seen=seen))
    assert isinstance(refused, FailedPrecondition)
    assert state.topics["a"] is altered
    assert isinstance(state.apply(alter("a", **change, seen=altered.alterations)), Topic)


def test_an_alteration_that_was_carried_out_already_succeeds() -> None:
    state = MetadataState()
    seen = applied(state, create("a", x="1")).alterations
    first = applied(state, alter("a", x="2", seen=seen))
    again = applied(state, alter("a", x="2", seen=seen))
    assert (again.config, again.version) == (first.config, first.version) == ({"x": "2"}, 2)


def test_a_command_for_a_topic_that_was_deleted_leaves_the_next_one_of_its_name() -> None:
    state = MetadataState()
    state.apply(create("a", topic_id=b"first"))
    late = [
        MetadataCommand(delete_topic=DeleteTopic(name="a", topic_id=b"first")),
        MetadataCommand(alter_topic=AlterTopic(name="a", topic_id=b"first", partitions=9)),
    ]
    state.apply(delete("a"))
    again = applied(state, create("a", topic_id=b"second"))
    for command in late:
        refused = state.apply(command.SerializeToString())
        assert isinstance(refused, UnknownTopic)
        assert str(refused) == "topic a was deleted meanwhile, and made anew"
    assert state.topics["a"] == again
    its_own = MetadataCommand(delete_topic=DeleteTopic(name="a", topic_id=b"second"))
    assert state.apply(its_own.SerializeToString()) == DeletedTopic(again)


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


@pytest.mark.slow
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
        if not isinstance(result, Topic):
            continue
        for at, raft_group in enumerate(result.raft_groups):
            owner = (result.name, at)
            assert given_out.setdefault(raft_group, owner) == owner, number
            assert FIRST_PARTITION_GROUP <= raft_group < state.next_raft_group


# --- nodes and replicas ---------------------------------------------------------------------------


def test_a_cluster_begins_with_the_node_that_makes_it() -> None:
    state = cluster_of(1)
    assert (list(state.nodes), state.registered, state.feature_level) == ([1], [1], 1)
    assert (state.nodes[1].secret, state.nodes[1].incarnation) == (b"s1", 1)
    again = InitCluster(groups_count=3, first_node=NodeRecord(node_id=1, secret=b"other"))
    state.apply(MetadataCommand(init_cluster=again).SerializeToString())
    assert (state.groups_count, state.nodes[1].secret) == (2, b"s1")


def test_data_of_a_release_without_nodes_belongs_to_node_1() -> None:
    state = MetadataState()
    state.apply(init(1))
    assert (state.nodes, state.registered, state.feature_level) == ({}, [1], 0)
    record = TopicRecord(name="old", topic_id=b"o", raft_groups=[1000, 1001])
    cluster = ClusterRecord(groups_count=1, next_raft_group=1002)
    state.restore([(b"cluster", cluster.SerializeToString()), (b"topic/old", record.SerializeToString())])
    assert state.topics["old"].replicas == ((1,), (1,))
    assert state.apply(start(1, b"s1")) is None
    assert (state.nodes[1].secret, state.nodes[1].address, state.feature_level) == (b"s1", "2:1", 1)
    assert state.apply(register(b"s2")) == 2


def test_replicas_are_spread_over_the_nodes_that_are_registered() -> None:
    state = cluster_of(3)
    topic = applied(state, create("a", 4))
    assert topic.replicas == ((1, 2, 3), (2, 1, 3), (3, 1, 2), (1, 2, 3))
    assert applied(state, create("b", 2, replication="1")).replicas == ((2,), (3,))
    assert applied(state, alter("a", 5)).replicas == (*topic.replicas, (2, 1, 3))


def test_a_topic_keeps_its_replicas_when_nodes_come_and_is_named() -> None:
    state = cluster_of(1)
    before = applied(state, create("a", 2))
    applied(state, create("single", replication="1"))
    assert state.under_replicated() == []
    state.apply(register(b"s2"))
    assert state.topics["a"] is before
    assert state.under_replicated() == ["a"]
    assert applied(state, alter("a", 3)).replicas == ((1,), (1,), (2, 1))
    applied(state, create("b"))
    assert state.under_replicated() == ["a"]
    state.apply(register(b"s3"))
    assert state.under_replicated() == ["a", "b"]


@pytest.mark.parametrize("leave", [remove, forget])
def test_a_node_that_leaves_loses_its_replicas_and_its_id(leave: Callable[[int], bytes]) -> None:
    state = cluster_of(3)
    first, second = applied(state, create("a", 2)), applied(state, create("b", 2, replication="1"))
    assert second.replicas == ((3,), (1,))
    left = state.apply(leave(2))
    assert isinstance(left, LeftNode)
    assert (left.node.node_id, left.node.removed) == (2, True)
    founders = dict(enumerate(first.replicas))
    assert left.topics == (replace(first, replicas=((1, 3), (1, 3)), founders=founders),)
    assert state.topics == {"a": left.topics[0], "b": second}
    assert (state.registered, state.apply(leave(2))) == ([1, 3], None)
    assert isinstance(state.apply(register(b"s2")), FailedPrecondition)
    assert state.apply(register(b"s4")) == 4
    assert applied(state, create("c", 3)).replicas == ((4, 1, 3), (3, 4, 1), (1, 4, 3))


def test_blocks_of_producer_ids_follow_each_other() -> None:
    state = cluster_of(2)
    for node_id in (1, 2):
        state.apply(start(node_id, b"s%d" % node_id, 2, feature_level=PRODUCERS_LEVEL))
    command = MetadataCommand(allocate_producer_ids=AllocateProducerIds(count=1000)).SerializeToString()
    assert [state.apply(command) for _ in range(3)] == [0, 1000, 2000]
    assert restored_of(state).apply(command) == 3000


def test_no_producer_ids_are_given_while_a_node_would_not_know_producers() -> None:
    state = cluster_of(2)
    state.apply(start(1, b"s1", 2, feature_level=PRODUCERS_LEVEL))
    state.apply(start(2, b"s2", 2, feature_level=PRODUCERS_LEVEL - 1))
    command = MetadataCommand(allocate_producer_ids=AllocateProducerIds(count=1000)).SerializeToString()
    assert isinstance(state.apply(command), FailedPrecondition)
    assert state.next_producer_id == 0


def test_a_node_with_the_only_replica_can_only_be_forgotten() -> None:
    state = cluster_of(2)
    topic = applied(state, create("a", 3, replication="1"))
    assert topic.replicas == ((1,), (2,), (1,))
    refusal = state.apply(remove(2))
    assert isinstance(refusal, FailedPrecondition)
    assert "node 2 has the only replica of partition 1 of topic a" in str(refusal)
    left = state.apply(forget(2))
    assert left == LeftNode(state.nodes[2], ())
    assert (state.topics["a"], state.under_replicated()) == (topic, ["a"])


def test_a_removed_node_may_start_until_it_is_forgotten() -> None:
    state = cluster_of(3)
    state.apply(remove(2))
    assert state.apply(start(2, b"s2", 9)) is None
    assert state.registered == [1, 3]
    left = state.apply(forget(2))
    assert left == LeftNode(state.nodes[2], ())
    assert state.nodes[2].lost
    assert isinstance(state.apply(start(2, b"s2", 10)), FailedPrecondition)
    assert (state.apply(forget(2)), state.apply(remove(2))) == (None, None)


@pytest.mark.parametrize("leave", [remove, forget])
@pytest.mark.parametrize("again", [(1,), ()])
def test_a_node_stays_if_one_has_left_that_was_to_stay(
    leave: Callable[[int], bytes], again: Sequence[int]
) -> None:
    state = cluster_of(3)
    state.apply(leave(2))
    refusal = state.apply(remove(3, staying=[1, 2]))
    assert isinstance(refusal, FailedPrecondition)
    assert "node 2 has left since it was checked" in str(refusal)
    assert state.registered == [1, 3]
    # Asked again, or by a release that does not say who stays.
    assert isinstance(state.apply(remove(3, staying=again)), LeftNode)


@pytest.mark.parametrize("leave", [remove, forget])
def test_the_last_node_cannot_leave(leave: Callable[[int], bytes]) -> None:
    state = cluster_of(2)
    assert isinstance(state.apply(leave(1)), LeftNode)
    refusal = state.apply(leave(2))
    assert isinstance(refusal, FailedPrecondition)
    assert "node 2 is the only node" in str(refusal)


@pytest.mark.slow
@given(
    st.lists(
        st.one_of(
            st.builds(create, st.sampled_from("abc"), st.integers(1, 4)),
            st.builds(alter, st.sampled_from("abc"), st.integers(0, 9)),
            st.builds(delete, st.sampled_from("abc")),
            st.builds(register, st.sampled_from([b"s2", b"s3", b"s4", b"s5", b"s6"])),
            st.builds(start, st.integers(1, 4), st.sampled_from([b"s1", b"s2", b"s3"]), st.integers(1, 4)),
            st.builds(remove, st.integers(1, 5)),
            st.builds(forget, st.integers(1, 5)),
        ),
        max_size=25,
    )
)
def test_a_node_that_restores_a_snapshot_decides_as_all_others(commands: list[bytes]) -> None:
    state = cluster_of(1)
    ids: dict[bytes, int] = {}
    for command in commands:
        other = restored_of(state)
        assert list(other.snapshot()) == list(state.snapshot())
        result, expected = state.apply(command), other.apply(command)
        assert (type(result), str(result)) == (type(expected), str(expected))
        assert list(other.snapshot()) == list(state.snapshot())
        assert state.registered
        for node in state.nodes.values():
            assert ids.setdefault(node.secret, node.node_id) == node.node_id
        for topic in state.topics.values():
            assert len(topic.replicas) == len(topic.raft_groups)
            for replicas in topic.replicas:
                assert len(set(replicas)) == len(replicas) > 0
                assert len(replicas) == 1 or set(replicas) <= set(state.registered)
