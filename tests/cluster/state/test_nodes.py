"""The table of nodes: identities, starts, and feature levels."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.cluster.state.nodes import LIMITS_LEVEL, NODES_MAX, WAITING_MAX, NodeInfo, NodeTable, node_record
from pixy.entry_ids import INCARNATION_JUMP_MAX
from pixy.errors import FailedPrecondition, NotFound, PixyError, ResourceExhausted
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
    assert (table.registered, table.next_node_id) == ([1, 2, 3], 4)


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


def test_the_largest_limit_of_messages_that_a_node_ever_had_is_kept(table: NodeTable) -> None:
    sizes = [(2, 5000), (1, 3000), (2, 1000), (2, 2**40)]
    largest = []
    for incarnation, (node_id, size) in enumerate(sizes, 5):
        assert table.start(start(node_id, incarnation, max_message_bytes=size)) is None
        assert table.nodes[node_id].max_message_bytes == min(size, 1 << 30)
        largest.append(table.largest_message_bytes)
    # None can be above 1 GiB.
    assert largest == [5000, 5000, 5000, 1 << 30]
    table.start(start(2, 9))
    assert (table.nodes[2].max_message_bytes, table.largest_message_bytes) == (0, 1 << 30)


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
    assert (table.registered, table.nodes[2]) == ([1], replace(node, removed=True, lost=True))
    for refusal in (table.register(register(b"s2", 9)), table.start(start(2, 9))):
        assert isinstance(refusal, FailedPrecondition)
        assert "node 2 has left the cluster" in str(refusal)
    assert table.register(register(b"s3")) == 3
    assert table.leaving(2) is gone


def test_a_removed_node_starts_while_its_groups_need_it_and_stays_removed(table: NodeTable) -> None:
    table.remove(table.nodes[2], lost=False)
    assert table.start(start(2, 9)) is None
    assert (table.nodes[2].incarnation, table.nodes[2].removed, table.registered) == (9, True, [1])
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


# --- first starts ---------------------------------------------------------------------------------


def new_table() -> NodeTable:
    """A cluster of node 1 alone, in which nodes count from their first start on."""
    made = NodeTable()
    made.add_first(NodeRecord(node_id=1, secret=b"s1", incarnation=1, feature_level=LIMITS_LEVEL))
    return made


def join(table: NodeTable, secret: bytes) -> int | PixyError:
    return table.register(register(secret, 0, feature_level=LIMITS_LEVEL))


def test_a_node_counts_from_its_first_start_on() -> None:
    table = new_table()
    assert [join(table, b"s2"), join(table, b"s3"), join(table, b"s2")] == [2, 3, 2]
    assert (table.registered, table.started, table.waiting()) == ([1, 2, 3], [1], [2, 3])
    assert table.start(start(3, 1, feature_level=LIMITS_LEVEL)) is None
    assert (table.started, table.waiting()) == ([1, 3], [2])
    table.remove(table.nodes[2], lost=True)
    assert (table.registered, table.started, table.waiting()) == ([1, 3], [1, 3], [])


def test_with_an_earlier_release_a_node_counts_as_soon_as_it_has_joined() -> None:
    table = new_table()
    table.add_first(replace_level(FIRST, LIMITS_LEVEL - 1))
    for number in range(2, 2 * WAITING_MAX):
        assert join(table, b"s%d" % number) == number
    assert (table.started, table.waiting()) == (table.registered, [])


def replace_level(record: NodeRecord, level: int) -> NodeRecord:
    changed = NodeRecord.FromString(record.SerializeToString())
    changed.feature_level = level
    return changed


def test_nodes_that_have_not_started_are_limited_in_number() -> None:
    table = new_table()
    for number in range(2, 2 + WAITING_MAX):
        assert join(table, b"s%d" % number) == number
    before = table.nodes
    refusal = join(table, b"one more")
    assert isinstance(refusal, ResourceExhausted)
    assert str(refusal) == "8 nodes have joined and not started yet, 8 are allowed"
    assert table.nodes is before
    assert join(table, b"s5") == 5, "it is no new one"
    table.start(start(5, 1, feature_level=LIMITS_LEVEL))
    assert join(table, b"one more") == 2 + WAITING_MAX


def test_a_cluster_has_at_most_a_hundred_nodes() -> None:
    table = new_table()
    for number in range(2, NODES_MAX + 1):
        assert join(table, b"s%d" % number) == number
        assert table.start(start(number, 1, feature_level=LIMITS_LEVEL)) is None
    refusal = join(table, b"one more")
    assert isinstance(refusal, ResourceExhausted)
    assert str(refusal) == "the cluster has 100 nodes, 100 are allowed"
    table.remove(table.nodes[7], lost=False)
    assert join(table, b"one more") == NODES_MAX + 1


def test_few_nodes_that_were_given_up_before_they_had_started_are_remembered() -> None:
    table = new_table()
    for number in range(2, 3 * NODES_MAX):
        assert join(table, b"s%d" % number) == number
        table.remove(table.nodes[number], lost=True)
    assert len(table.nodes) <= NODES_MAX + 2
    assert isinstance(join(table, b"s%d" % (3 * NODES_MAX - 1)), FailedPrecondition)
    assert join(table, b"new") == 3 * NODES_MAX


def test_the_only_node_that_has_started_cannot_leave() -> None:
    table = new_table()
    assert join(table, b"s2") == 2
    refusal = table.leaving(1)
    assert isinstance(refusal, FailedPrecondition)
    assert isinstance(table.leaving(2), NodeInfo)


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
        st.integers(0, 1 << 30),
        st.integers(0, 1 << 30),
        st.booleans(),
    )
)
def test_a_node_survives_a_checkpoint(node: NodeInfo) -> None:
    table = NodeTable()
    table.restore(NodeRecord.FromString(node_record(node).SerializeToString()))
    assert (table.nodes, table.next_node_id) == ({node.node_id: node}, max(2, node.node_id + 1))
