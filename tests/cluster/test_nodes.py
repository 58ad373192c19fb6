"""The table of nodes: identities, starts, and feature levels."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.cluster.nodes import LIMITS_LEVEL, NodeInfo, NodeTable, node_record
from pixy.errors import FailedPrecondition, NotFound, PixyError
from pixy.proposal_id import INCARNATION_JUMP_MAX
from pixy.proto.state_pb2 import NodeRecord, RegisterNode, StartNode

FIRST = NodeRecord(node_id=1, secret=b"s1", incarnation=1, process=b"p1", version="1.0")


def register(secret: bytes, incarnation: int = 1, **fields: object) -> RegisterNode:
    return RegisterNode(secret=secret, incarnation=incarnation, **fields)  # type: ignore[arg-type]  # any field


def start(node_id: int, incarnation: int, process: bytes = b"p", **fields: object) -> StartNode:
    secret = {"secret": b"s%d" % node_id} | fields
    return StartNode(node_id=node_id, incarnation=incarnation, process=process, **secret)  # type: ignore[arg-type]  # any field


@pytest.fixture
def table() -> NodeTable:
    made = NodeTable()
    made.add_first(FIRST)
    assert made.register(register(b"s2")) == 2
    return made


def test_nodes_get_ascending_ids_in_the_order_of_their_commands(table: NodeTable) -> None:
    fields = {"address": "h:1", "grpc_address": "h:2", "rack": "r", "version": "2.0", "process": b"p"}
    assert table.register(register(b"s3", 4, feature_level=1, **fields)) == 3
    assert table.nodes[3] == NodeInfo(3, b"s3", "h:1", "h:2", "r", 4, "2.0", process=b"p", feature_level=1)
    assert (table.registered(), table.next_node_id) == ([1, 2, 3], 4)


def test_a_node_that_asks_again_keeps_its_id(table: NodeTable) -> None:
    before = table.nodes
    assert table.register(register(b"s2", 1, address="new:1")) == 2
    assert table.nodes is before
    assert table.register(register(b"s2", 2, address="new:1")) == 2
    assert (table.nodes[2].address, table.nodes[2].incarnation) == ("new:1", 2)
    assert before[2].address == ""


def test_a_newer_start_replaces_addresses_and_release(table: NodeTable) -> None:
    command = start(1, 2, b"p2", address="h:1", grpc_address="h:2", rack="r", version="2.0")
    assert table.start(command) is None
    assert table.nodes[1] == NodeInfo(1, b"s1", "h:1", "h:2", "r", 2, "2.0", process=b"p2", feature_level=1)


def test_a_start_that_is_sent_again_changes_nothing(table: NodeTable) -> None:
    table.start(start(1, 5, b"p5", address="h:1"))
    before = table.nodes
    assert table.start(start(1, 5, b"p5", address="h:1")) is None
    assert table.nodes is before


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (start(1, 5, b"other"), "comes with start 5, but has been here with start 5: its data directory is"),
        (start(1, 4, b"p5"), "comes with start 4, but has been here with start 5"),
        (start(1, 6, b"p6", secret=b"stolen"), "node 1 comes with another secret"),
        (start(1, 6, b"p6", secret=b""), "node 1 comes with another secret"),
        (start(3, 1), "node 3 is unknown in this cluster"),
    ],
)
def test_an_older_self_and_a_stranger_are_refused(table: NodeTable, command: StartNode, reason: str) -> None:
    table.start(start(1, 5, b"p5"))
    before = table.nodes
    refusal = table.start(command)
    assert isinstance(refusal, FailedPrecondition)
    assert reason in str(refusal)
    assert table.nodes is before


@pytest.mark.parametrize("level", [LIMITS_LEVEL - 1, LIMITS_LEVEL])
@pytest.mark.parametrize("incarnation", [INCARNATION_JUMP_MAX + 2, 2**32 - 1])
@pytest.mark.parametrize("how", ["start", "start of the first", "register"])
def test_a_start_that_no_node_gets_to_is_refused_once_all_nodes_know_that(
    how: str, incarnation: int, level: int
) -> None:
    """Nodes of earlier releases take it, and all nodes have the same state."""
    table = NodeTable()
    table.add_first(NodeRecord(node_id=1, secret=b"s1", incarnation=1, feature_level=level))
    assert table.register(register(b"s2", 1, feature_level=level)) == 2
    result: object
    if how == "register":
        result = table.register(register(b"s2", incarnation, feature_level=level))
    else:
        result = table.start(start(1 if how == "start of the first" else 2, incarnation, feature_level=level))
    assert isinstance(result, FailedPrecondition) == (level >= LIMITS_LEVEL)
    newest = max(node.incarnation for node in table.nodes.values())
    assert newest == (1 if level >= LIMITS_LEVEL else incarnation)


def test_a_node_may_have_started_often_while_nobody_heard_of_it(table: NodeTable) -> None:
    assert table.start(start(1, 2, b"p", feature_level=LIMITS_LEVEL)) is None
    assert table.start(start(2, 2, b"p", feature_level=LIMITS_LEVEL)) is None
    assert table.feature_level == LIMITS_LEVEL
    assert table.start(start(2, 2 + INCARNATION_JUMP_MAX, b"p", feature_level=LIMITS_LEVEL)) is None


def test_a_node_without_a_secret_gets_one_with_its_next_start() -> None:
    table = NodeTable()
    assert table.start(start(1, 3, secret=b"")) is None
    assert table.start(start(1, 4, secret=b"new")) is None
    assert isinstance(table.start(start(1, 5, secret=b"")), FailedPrecondition)
    assert table.nodes[1].secret == b"new"


def test_a_node_that_has_left_never_comes_back(table: NodeTable) -> None:
    node = table.leaving(2)
    assert isinstance(node, NodeInfo)
    gone = table.remove(node, lost=True)
    assert (table.registered(), table.nodes[2]) == ([1], replace(node, removed=True, lost=True))
    for refusal in (table.register(register(b"s2", 9)), table.start(start(2, 9))):
        assert isinstance(refusal, FailedPrecondition)
        assert "node 2 has left the cluster" in str(refusal)
    assert table.register(register(b"s3")) == 3
    assert table.leaving(2) is gone


def test_a_removed_node_starts_while_its_groups_need_it_and_stays_removed(table: NodeTable) -> None:
    table.remove(table.nodes[2], lost=False)
    assert table.start(start(2, 9)) is None
    assert (table.nodes[2].incarnation, table.nodes[2].removed, table.registered()) == (9, True, [1])
    assert isinstance(table.register(register(b"s2", 10)), FailedPrecondition)


def test_a_node_that_is_unknown_or_the_last_one_cannot_leave(table: NodeTable) -> None:
    unknown = table.leaving(7)
    assert isinstance(unknown, NotFound)
    assert str(unknown) == "no node 7; nodes are 1, 2"
    table.remove(table.nodes[1], lost=False)
    assert isinstance(table.leaving(2), FailedPrecondition)
    assert isinstance(NodeTable().leaving(1), FailedPrecondition)


# --- feature level --------------------------------------------------------------------------------


def test_the_cluster_has_the_lowest_feature_level_of_its_nodes(table: NodeTable) -> None:
    assert NodeTable().feature_level == 0
    assert table.feature_level == 1
    table.start(start(1, 2, feature_level=3))
    assert table.feature_level == 1
    table.start(start(2, 2, feature_level=2))
    assert table.feature_level == 2
    table.remove(table.nodes[2], lost=False)
    assert table.feature_level == 3


def test_a_release_below_the_feature_level_is_refused(table: NodeTable) -> None:
    table.start(start(1, 2, feature_level=3))
    table.start(start(2, 2, feature_level=2))
    commands: list[Callable[[], int | PixyError | None]] = [
        lambda: table.register(register(b"s3", version="old")),
        lambda: table.register(register(b"s2", 9, version="old")),
        lambda: table.start(start(1, 3, version="old")),
    ]
    before = table.nodes
    for command in commands:
        refusal = command()
        assert isinstance(refusal, FailedPrecondition)
        assert "release old has feature level 1, the cluster has 2" in str(refusal)
    assert table.nodes is before
    assert table.register(register(b"s3", feature_level=2)) == 3


# --- checkpoints ----------------------------------------------------------------------------------


@pytest.mark.slow
@given(
    st.builds(
        NodeInfo,
        st.integers(1, 2**31 - 1),
        st.binary(),
        *[st.text()] * 3,
        st.integers(0, 2**32 - 1),
        st.text(),
        st.booleans(),
        st.binary(),
        st.integers(1, 9),
        st.booleans(),
    )
)
def test_a_node_survives_a_checkpoint(node: NodeInfo) -> None:
    table = NodeTable()
    table.restore(NodeRecord.FromString(node_record(node).SerializeToString()))
    assert (table.nodes, table.next_node_id) == ({node.node_id: node}, max(2, node.node_id + 1))
