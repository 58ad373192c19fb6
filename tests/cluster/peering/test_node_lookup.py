"""The table of nodes, read where it can be and asked for where it cannot."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pixy.cluster.peering.node_lookup import NodeLookup
from pixy.cluster.peering.peer_messages import PeerMethod
from pixy.cluster.state.nodes import NODES_MAX, NodeInfo, node_record
from pixy.errors import Unavailable
from pixy.proto.node_calls_pb2 import NodesResponse
from tests.cluster.peering.test_cluster_nodes import Bench, hello, node
from tests.fakes.waiting import settle


class Lookup:
    """Questions of node 1, which is connected to node 2.

    Attributes:
        is_readable: metadata can be read.
        answer: of node 2.
        asked: number of questions to it.
    """

    def __init__(self, *registered: NodeInfo) -> None:
        self.bench = Bench(*registered).connected(2)
        self.members = self.bench.members
        self.is_readable = False
        self.answer: bytes | None = None
        self.asked = self.reads = 0
        self.lookup = NodeLookup(self.members, self._call, self._confirm)

    async def _call(self, node_id: int, method: int, payload: bytes, timeout: float) -> bytes:
        assert (node_id, method) == (2, PeerMethod.NODES)
        self.asked += 1
        await asyncio.sleep(0)
        if self.answer is None:
            raise Unavailable("it is gone")
        return self.answer

    async def _confirm(self) -> bool:
        self.reads += 1
        await asyncio.sleep(0)
        return self.is_readable

    async def tick(self) -> None:
        self.lookup.tick()
        await settle()

    @property
    def dialled(self) -> set[int]:
        return {each.node_id for each in self.members}


def answer_of(nodes: Sequence[NodeInfo]) -> bytes:
    return NodesResponse(nodes=map(node_record, nodes)).SerializeToString()


def many(count: int) -> list[NodeInfo]:
    return [replace(node(number), secret=bytes(16)) for number in range(1, count + 1)]


async def test_a_node_that_can_read_metadata_asks_nobody_for_a_node_that_it_does_not_know() -> None:
    each = Lookup(node(1), node(2))
    each.is_readable, each.answer = True, answer_of([node(1), node(2), node(3)])
    each.bench.judge(hello(3))
    await each.tick()
    assert (each.asked, each.reads, each.dialled) == (0, 1, {2})
    await each.tick()
    assert each.reads == 1, "nothing is unknown any more"


async def test_a_node_that_lags_too_is_asked_in_vain() -> None:
    each = Lookup(node(1), node(2))
    each.answer = answer_of([node(1), node(2), node(3)])
    each.bench.judge(hello(3))
    await each.tick()
    for lagging in ([], [node(2)]):
        each.answer = answer_of(lagging)
        each.bench.judge(hello(4))
        await each.tick()
        assert each.dialled == {2, 3}
    assert each.asked == 3


async def test_a_node_that_cannot_read_metadata_asks_until_it_is_told() -> None:
    each = Lookup(node(1), node(2))
    each.bench.judge(hello(3))
    await each.tick()
    await each.tick()
    assert each.asked == 2
    each.answer = answer_of([node(1), node(2), node(3)])
    await each.tick()
    assert (each.asked, each.dialled) == (3, {2, 3})
    assert each.members.knows(3)
    await each.tick()
    assert each.asked == 3


async def test_a_node_that_another_one_has_told_of_is_dropped_unless_metadata_has_it() -> None:
    each = Lookup(node(1), node(2))
    each.bench.judge(hello(3))
    each.answer = answer_of([node(number) for number in range(1, 50)])
    await each.tick()
    assert each.dialled == {*range(2, 50)}
    each.bench.connected(5)
    each.bench.registered[4] = node(4)
    each.is_readable = True
    await each.tick()
    assert each.dialled == {2, 4}
    assert [call for call in each.bench.channel.calls if call[0] == "disconnect"] == [
        ("disconnect", number, "") for number in range(3, 50) if number != 4
    ]
    assert each.members.told == {}
    assert not each.members.knows(5)


async def test_a_node_that_whoever_let_this_one_join_has_named_is_dropped_unless_metadata_has_it() -> None:
    each = Lookup(node(1), node(2))
    each.members.add_address(7, "h7:1")
    await each.tick()
    assert each.dialled == {2, 7}
    assert each.asked == 0, "nobody has come"
    each.is_readable = True
    await each.tick()
    assert each.dialled == {2}
    await each.tick()
    assert each.reads == 2


async def test_each_answer_replaces_the_one_before() -> None:
    each = Lookup(node(1), node(2))
    for told in ([node(1), node(3), node(4)], [node(1), node(4), node(5)]):
        each.bench.judge(hello(9))
        each.answer = answer_of(told)
        await each.tick()
    assert each.dialled == {2, 4, 5}


@pytest.mark.parametrize(
    "nodes",
    [
        many(2 * NODES_MAX + 1),
        many(5000),
        [node(1), node(3), node(0)],
        [node(1), node(3), NodeInfo(4, b"short", "h4:1", "", "", 1, "1")],
        [node(1), node(3), NodeInfo(4, bytes(16), "h4:1", "", "x" * (1 << 20), 1, "1")],
    ],
    ids=["more than are possible", "thousands", "id 0", "short secret", "large"],
)
async def test_an_answer_that_no_node_gives_is_refused_as_a_whole(nodes: list[NodeInfo]) -> None:
    each = Lookup(node(1), node(2))
    each.bench.judge(hello(3))
    each.answer = answer_of(nodes)
    await each.tick()
    assert (each.dialled, each.members.told) == ({2}, {})
    assert each.members.met_unknown, "it asks again"
    each.answer = answer_of([node(1), node(3), *[node(number, lost=True) for number in range(10, 2000)]])
    await each.tick()
    assert each.dialled == {2, 3}, "nodes of earlier releases tell of those that have left"
