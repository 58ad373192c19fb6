"""Moves of partitions in metadata: who has not seen a partition as it is changes nothing, and
replicas change when a move ends.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.cluster.state.metadata import LeftNode, MetadataResult, MetadataState
from pixy.cluster.state.nodes import MOVES_LEVEL
from pixy.cluster.state.partition_moves import MovesChanged, partition_move
from pixy.cluster.state.topic import Move, Topic
from pixy.errors import FailedPrecondition, NotFound
from pixy.proto.state_pb2 import (
    AlterTopic,
    BeginMoves,
    ClusterRecord,
    CreateTopic,
    DeleteTopic,
    DrainNode,
    EndMoves,
    ForgetNode,
    InitCluster,
    MetadataCommand,
    MoveReason,
    NodeRecord,
    PartitionMove,
    PartitionPlacement,
    RegisterNode,
    RemoveNode,
    ReplicaSet,
    StartNode,
    TopicRecord,
)

MOVE, REMOVE = MoveReason.MOVE_REASON_MOVE, MoveReason.MOVE_REASON_REMOVE
ID = b"i" * 16


def run(state: MetadataState, **command: object) -> MetadataResult:
    return state.apply(MetadataCommand(**command).SerializeToString())  # type: ignore[arg-type]  # any command


def cluster_of(nodes: int, level: int = MOVES_LEVEL) -> MetadataState:
    state = MetadataState()
    first = NodeRecord(node_id=1, secret=b"s1", incarnation=1, feature_level=level)
    run(state, init_cluster=InitCluster(groups_count=2, first_node=first))
    for node_id in range(2, nodes + 1):
        secret = b"s%d" % node_id
        assert run(state, register_node=RegisterNode(secret=secret, feature_level=level)) == node_id
        start = StartNode(node_id=node_id, secret=secret, incarnation=1, feature_level=level)
        assert run(state, start_node=start) is None
    return state


def create(state: MetadataState, name: str = "t", partitions: int = 1, replication: int = 3) -> Topic:
    config = {"replication": str(replication)}
    command = CreateTopic(name=name, topic_id=name.encode() * 16, partitions=partitions, config=config)
    topic = run(state, create_topic=command)
    assert isinstance(topic, Topic)
    return topic


def begin(state: MetadataState, *moves: PartitionMove) -> MovesChanged:
    result = run(state, begin_moves=BeginMoves(reason=MOVE, moves=moves))
    assert isinstance(result, MovesChanged)
    return result


def end(state: MetadataState, *moves: PartitionMove) -> MovesChanged:
    result = run(state, end_moves=EndMoves(moves=moves))
    assert isinstance(result, MovesChanged)
    return result


def moved(state: MetadataState, target: Sequence[int], number: int = 0, name: str = "t") -> Topic:
    """A topic of which a partition has begun to move."""
    [topic], refused = begin(state, partition_move(state.topics[name], number, target))
    assert not refused
    return topic


def restored_of(state: MetadataState) -> MetadataState:
    restored = MetadataState()
    restored.restore(list(state.snapshot()))
    return restored


# --- a move ---------------------------------------------------------------------------------------


def test_replicas_change_when_a_move_ends() -> None:
    state = cluster_of(4)
    before = create(state)
    assert before.replicas == ((1, 2, 3),)
    topic = moved(state, (4, 2, 3))
    assert state.topics["t"] is topic
    assert topic == replace(before, moves={0: Move(1, MOVE, (4, 2, 3))})
    assert topic.placed == ((4, 2, 3),)
    assert [topic.is_placed_on(0, node_id) for node_id in range(1, 6)] == [True] * 4 + [False]
    ended = end(state, partition_move(topic, 0, (4, 2, 3)))
    assert ended == MovesChanged((state.topics["t"],), ())
    assert state.topics["t"] == replace(before, replicas=((4, 2, 3),), placements={0: 1})
    assert state.topics["t"].placement(0) == 1


def test_a_move_goes_to_other_nodes_when_it_is_under_way() -> None:
    state = cluster_of(5)
    create(state)
    first = moved(state, (1, 2, 4))
    second = moved(state, (1, 2, 5))
    assert second.moves == {0: Move(2, MOVE, (1, 2, 5))}
    assert end(state, partition_move(first, 0, (1, 2, 4))).topics == ()
    assert end(state, partition_move(second, 0, (1, 2, 5))).topics == (state.topics["t"],)
    assert state.topics["t"].replicas == ((1, 2, 5),)


def test_a_move_that_is_taken_back_is_under_way_until_it_ends() -> None:
    state = cluster_of(4)
    before = create(state)
    moved(state, (1, 2, 4))
    back = moved(state, (1, 2, 3))
    assert back.moves == {0: Move(2, MOVE, (1, 2, 3))}
    end(state, partition_move(back, 0, (1, 2, 3)))
    assert state.topics["t"] == before


def test_the_nodes_that_a_partition_was_made_on_are_known_until_it_has_moved() -> None:
    """A founder that opens its replica after losses is not the majority of those that are left."""
    state = cluster_of(4)
    before = create(state)
    for node_id, left in ((2, (1, 3)), (3, (1,))):
        run(state, forget_node=ForgetNode(node_id=node_id))
        assert state.topics["t"] == replace(before, replicas=(left,), founders={0: (1, 2, 3)})
    assert restored_of(state).topics == state.topics
    end(state, partition_move(moved(state, (1, 4)), 0, (1, 4)))
    assert state.topics["t"] == replace(before, replicas=((1, 4),), placements={0: 1})
    run(state, forget_node=ForgetNode(node_id=4))
    assert state.topics["t"] == replace(before, replicas=((1,),), placements={0: 1})


def test_a_move_to_the_same_nodes_in_another_order_is_no_other_placement() -> None:
    """A node that was down since the topic was made is a founder of the partition."""
    state = cluster_of(3)
    before = create(state)
    end(state, partition_move(moved(state, (3, 1, 2)), 0, (3, 1, 2)))
    assert state.topics["t"] == replace(before, replicas=((3, 1, 2),))


def test_the_late_end_of_a_move_to_the_same_nodes_ends_nothing() -> None:
    state = cluster_of(4)
    create(state)
    late = partition_move(moved(state, (1, 2, 4)), 0, (1, 2, 4))
    moved(state, (1, 2, 3))
    topic = moved(state, (1, 2, 4))
    assert end(state, late).topics == ()
    assert state.topics["t"] is topic


OTHERS: list[Callable[[PartitionMove], object]] = [
    lambda move: move.MergeFrom(PartitionMove(topic="other")),
    lambda move: move.MergeFrom(PartitionMove(topic_id=b"o" * 16)),
    lambda move: move.MergeFrom(PartitionMove(raft_group=1)),
    lambda move: move.MergeFrom(PartitionMove(partition=1)),
    lambda move: move.MergeFrom(PartitionMove(partition=-1)),
    lambda move: move.MergeFrom(PartitionMove(placement=7)),
    lambda move: move.MergeFrom(PartitionMove(plan=7)),
    lambda move: move.target.append(1),
    lambda move: move.target.append(9),
    lambda move: move.target.clear(),
]


@pytest.mark.parametrize("number", range(len(OTHERS)))
@pytest.mark.parametrize("is_end", [False, True])
def test_a_partition_that_is_not_as_it_was_seen_stays(number: int, *, is_end: bool) -> None:
    state = cluster_of(4)
    create(state)
    if is_end:
        moved(state, (1, 2, 4))
    wrong, before = partition_move(state.topics["t"], 0, (1, 2, 4)), list(state.snapshot())
    OTHERS[number](wrong)
    topics, refused = (end if is_end else begin)(state, wrong)
    assert topics == ()
    assert len(refused) == 1
    assert list(state.snapshot()) == before


def test_a_plan_with_the_view_of_before_a_move_changes_nothing() -> None:
    state = cluster_of(4)
    before = create(state)
    end(state, partition_move(moved(state, (1, 2, 4)), 0, (1, 2, 4)))
    [refused] = begin(state, partition_move(before, 0, (1, 3, 4))).refused
    assert refused == "partition 0 of topic t: it has moved, or begun to move, meanwhile"
    assert state.topics["t"].replicas == ((1, 2, 4),)


def test_a_partition_moves_where_it_is_by_no_command() -> None:
    state = cluster_of(3)
    topic = create(state)
    [refused] = begin(state, partition_move(topic, 0, (1, 2, 3))).refused
    assert refused == "partition 0 of topic t: it is on nodes [1, 2, 3]"


def test_partitions_of_a_command_are_judged_one_by_one() -> None:
    state = cluster_of(4)
    first, second = create(state, "a", 3), create(state, "b")
    topics, refused = begin(
        state,
        partition_move(first, 0, (1, 2, 4)),
        partition_move(first, 1, (1, 9)),
        partition_move(second, 0, (4,)),
        partition_move(first, 0, (1, 4)),
        partition_move(first, 2, (4,)),
    )
    assert [(topic.name, {*topic.moves}) for topic in topics] == [("a", {0, 2}), ("b", {0})]
    assert list(refused) == [
        "partition 1 of topic a: node 9 has no replicas: it has left, or not started",
        "partition 0 of topic a: it is there twice",
    ]
    assert {move.plan for topic in topics for move in topic.moves.values()} == {1}
    assert moved(state, (1, 2, 3), name="b").moves[0].plan == 2


def test_a_move_stays_when_its_topic_gets_partitions() -> None:
    state = cluster_of(4)
    create(state)
    topic = moved(state, (1, 2, 4))
    grown = run(state, alter_topic=AlterTopic(name="t", partitions=2))
    assert isinstance(grown, Topic)
    assert (grown.moves, len(grown.replicas)) == (topic.moves, 2)


@pytest.mark.parametrize("level", [1, MOVES_LEVEL - 1])
def test_nothing_moves_while_a_node_would_not_know_it(level: int) -> None:
    state = cluster_of(2, level)
    topic = create(state, replication=1)
    before = list(state.snapshot())
    target = partition_move(topic, 0, (2,))
    for command in (
        {"begin_moves": BeginMoves(moves=[target])},
        {"end_moves": EndMoves(moves=[target])},
        {"drain_node": DrainNode(node_id=2, draining=True)},
    ):
        assert isinstance(run(state, **command), FailedPrecondition)
    assert list(state.snapshot()) == before


# --- nodes that leave -----------------------------------------------------------------------------


def test_a_node_that_leaves_keeps_its_replicas_until_their_moves_have_ended() -> None:
    state = cluster_of(3)
    before = create(state, partitions=2)
    assert before.replicas == ((1, 2, 3), (2, 1, 3))
    left = run(state, remove_node=RemoveNode(node_id=2, moves_replicas=True))
    moves = {0: Move(1, REMOVE, (1, 3)), 1: Move(1, REMOVE, (1, 3))}
    topic = replace(before, moves=moves)
    assert left == LeftNode(state.nodes[2], (topic,))
    assert state.topics["t"] == topic
    end(state, partition_move(topic, 1, (1, 3)))
    assert state.topics["t"].replicas == ((1, 2, 3), (1, 3))


def test_a_node_that_leaves_gets_none_of_the_replicas_that_were_to_come() -> None:
    state = cluster_of(3)
    create(state, replication=1)
    assert moved(state, (2, 3)).moves[0].target == (2, 3)
    run(state, remove_node=RemoveNode(node_id=2, moves_replicas=True))
    assert state.topics["t"].moves == {0: Move(2, REMOVE, (3,))}
    run(state, remove_node=RemoveNode(node_id=3, moves_replicas=True))
    assert state.topics["t"].moves == {0: Move(3, REMOVE, (1,))}
    assert state.topics["t"].replicas == ((1,),)


def test_a_node_with_the_only_replica_stays_until_that_has_moved() -> None:
    state = cluster_of(2)
    create(state, replication=1)
    topic, leave = moved(state, (2,)), RemoveNode(node_id=1, moves_replicas=True)
    assert isinstance(run(state, remove_node=leave), FailedPrecondition)
    end(state, partition_move(topic, 0, (2,)))
    assert isinstance(run(state, remove_node=leave), LeftNode)
    assert state.topics["t"].moves == {}


def test_a_lost_node_is_in_no_replicas_and_no_target() -> None:
    state = cluster_of(4)
    alone = create(state, "alone", 4, replication=1)
    create(state, partitions=3, replication=2)
    assert state.topics["t"].replicas == ((1, 2), (3, 4), (2, 1))
    moved(state, (1, 4), 0)
    moved(state, (4,), 2)
    left = run(state, forget_node=ForgetNode(node_id=4))
    assert isinstance(left, LeftNode)
    [topic] = left.topics
    assert topic.replicas == ((1, 2), (3,), (2, 1))
    assert {number: move.target for number, move in topic.moves.items()} == {0: (1,), 2: (2, 1)}
    assert state.topics["alone"] is alone


def test_a_node_leaves_its_replicas_at_once_where_a_node_would_not_know_moves() -> None:
    state = cluster_of(3)
    before = create(state)
    left = run(state, remove_node=RemoveNode(node_id=2))
    assert left == LeftNode(state.nodes[2], (replace(before, replicas=((1, 3),), founders={0: (1, 2, 3)}),))


def test_a_removed_node_gets_no_replicas_by_a_move() -> None:
    state = cluster_of(4)
    topic = create(state)
    run(state, remove_node=RemoveNode(node_id=4, moves_replicas=True))
    assert begin(state, partition_move(topic, 0, (1, 2, 4))).topics == ()


# --- nodes that are drained -----------------------------------------------------------------------


def test_a_node_that_is_drained_gets_no_new_replicas() -> None:
    state = cluster_of(3)
    assert run(state, drain_node=DrainNode(node_id=1, draining=True)) is None
    assert state.nodes[1].draining
    assert create(state, partitions=2).replicas == ((2, 3), (3, 2))
    start = StartNode(node_id=1, secret=b"s1", incarnation=2, feature_level=MOVES_LEVEL)
    assert run(state, start_node=start) is None
    assert restored_of(state).nodes[1].draining
    run(state, drain_node=DrainNode(node_id=1))
    assert create(state, "u", 3).replicas == ((1, 2, 3), (2, 1, 3), (3, 1, 2))


def test_a_topic_has_its_replicas_somewhere_if_all_nodes_are_drained() -> None:
    state = cluster_of(1)
    run(state, drain_node=DrainNode(node_id=1, draining=True))
    assert create(state).replicas == ((1,),)


def test_only_a_node_of_the_cluster_can_be_drained() -> None:
    state = cluster_of(3)
    run(state, remove_node=RemoveNode(node_id=3, moves_replicas=True))
    for node_id in (3, 4):
        refusal = run(state, drain_node=DrainNode(node_id=node_id, draining=True))
        assert isinstance(refusal, NotFound)
        assert str(refusal) == f"no node {node_id} that stays; nodes are 1, 2"


def test_new_topics_are_placed_by_the_end_of_moves() -> None:
    state = cluster_of(3)
    create(state, "a", 6, replication=1)
    begin(state, *[partition_move(state.topics["a"], number, (3,)) for number in (0, 1, 3, 4)])
    assert state.topics["a"].replicas == ((1,), (2,), (3,)) * 2
    assert create(state, "b", 2, replication=1).replicas == ((1,), (2,))


# --- checkpoints ----------------------------------------------------------------------------------


def test_moves_survive_a_checkpoint() -> None:
    state = cluster_of(4)
    create(state, partitions=3)
    end(state, partition_move(moved(state, (1, 2, 4), 2), 2, (1, 2, 4)))
    moved(state, (4, 2), 2)
    moved(state, (1, 4), 0)
    restored = restored_of(state)
    assert restored.topics == state.topics
    assert (restored.next_plan, list(restored.snapshot())) == (4, list(state.snapshot()))


@pytest.mark.parametrize(
    "wrong",
    [
        PartitionPlacement(partition=1, placement=1),
        PartitionPlacement(partition=-1, placement=1),
        PartitionPlacement(placement=2**60),
        PartitionPlacement(plan=1, target=[1, 1]),
        PartitionPlacement(plan=1, target=[2]),
        PartitionPlacement(plan=1, target=[0]),
        PartitionPlacement(plan=0, target=[1]),
        PartitionPlacement(plan=2, target=[1]),
    ],
    ids=str,
)
def test_moves_to_which_no_commands_lead_are_refused(wrong: PartitionPlacement) -> None:
    record = TopicRecord(name="t", topic_id=ID, raft_groups=[1000], replica_set=[0], placements=[wrong])
    record.replica_sets.append(ReplicaSet(node_ids=[1]))
    cluster = ClusterRecord(groups_count=1, next_raft_group=1001, next_node_id=2, next_plan=2)
    with pytest.raises(ValueError, match=r"topic t"):
        MetadataState().restore(
            [(b"cluster", cluster.SerializeToString()), (b"topic/t", record.SerializeToString())]
        )


NODES = st.lists(st.integers(1, 5), min_size=1, max_size=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.sampled_from("ab"), st.integers(1, 3)),
        st.tuples(st.just("delete"), st.sampled_from("ab")),
        st.tuples(st.just("begin"), st.sampled_from("ab"), st.integers(0, 3), NODES),
        st.tuples(st.just("end"), st.sampled_from("ab"), st.integers(0, 3)),
        st.tuples(st.just("remove"), st.integers(1, 5), st.booleans()),
        st.tuples(st.just("forget"), st.integers(1, 5)),
        st.tuples(st.just("drain"), st.integers(1, 5), st.booleans()),
    ),
    max_size=30,
)


def step(state: MetadataState, what: str, *parts: object) -> None:
    match what, parts:
        case "create", (str(name), int(partitions)):
            run(
                state, create_topic=CreateTopic(name=name, topic_id=name.encode() * 16, partitions=partitions)
            )
        case "delete", (str(name),):
            run(state, delete_topic=DeleteTopic(name=name))
        case (("begin" | "end"), (str(name), int(number), *rest)):
            topic = state.topics.get(name)
            if topic is None or number >= len(topic.replicas):
                return
            if what == "begin":
                begin(state, partition_move(topic, number, rest[0]))  # type: ignore[arg-type]  # a list of ids
            elif number in topic.moves:
                end(state, partition_move(topic, number, topic.moves[number].target))
        case "remove", (int(node_id), bool(moves)):
            run(state, remove_node=RemoveNode(node_id=node_id, moves_replicas=moves))
        case "forget", (int(node_id),):
            run(state, forget_node=ForgetNode(node_id=node_id))
        case "drain", (int(node_id), bool(draining)):
            run(state, drain_node=DrainNode(node_id=node_id, draining=draining))


@pytest.mark.slow
@given(STEPS)
def test_whatever_the_commands_replicas_are_distinct_counted_and_restored(steps: list[tuple[str]]) -> None:
    state = cluster_of(5)
    for each in steps:
        before = {topic.topic_id: topic.replicas for topic in state.topics.values()}
        step(state, *each)
        placed = list(chain.from_iterable(topic.placed for topic in state.topics.values()))
        counted = Counter(chain.from_iterable(placed))
        assert +state._counts.replicas == counted
        assert +state._counts.leaders == Counter([nodes[0] for nodes in placed])
        for topic in state.topics.values():
            for nodes in (*topic.replicas, *topic.placed):
                assert len({*nodes}) == len(nodes) > 0
            if each[0] in ("begin", "drain"):
                assert topic.replicas == before[topic.topic_id]
        assert list(restored_of(state).snapshot()) == list(state.snapshot())
