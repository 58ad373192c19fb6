"""pixy/api/grpc/cluster.py: the status with its judgements, and nodes that leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from pixy.cluster import (
    CancelPlan,
    ClusterStatus,
    DrainPlan,
    ExportedRecord,
    ExportedState,
    MovePlan,
    MovesPlanned,
    NodeStatus,
    RaftGroupStatus,
    RebalancePlan,
    Topic,
)
from pixy.cluster.peering.move_planner import PlannedMove
from pixy.cluster.status import CopyStatus, MemberState, MemberStatus, MoveStatus
from pixy.proto import pixy_cluster_pb2 as pb
from pixy.proto.pixy_cluster_pb2_grpc import ClusterStub
from pixy.proto.state_pb2 import MoveReason
from pixy.records import TopicPartition
from tests.fakes.server import FakeServer, serve_cluster

if TYPE_CHECKING:
    # For type checkers only.
    from pixy.proto.pixy_cluster_pb2_grpc import ClusterAsyncStub

CODE = grpc.StatusCode

MEMBERS = tuple(
    MemberStatus(node_id, 7, 0, MemberState.LEADER if node_id == 1 else MemberState.REPLICATING)
    for node_id in (1, 2, 3)
)
STATUS = ClusterStatus(
    bytes(range(16)),
    (
        NodeStatus(1, "10.0.0.1:19094", is_self=True),
        NodeStatus(2, "10.0.0.2:19094", heard_s=0.25),
        NodeStatus(3, "10.0.0.3:19094", up=False),
    ),
    (RaftGroupStatus(1, "metadata", 1, 5, (1, 2, 3), members=MEMBERS),),
)


@pytest.fixture
async def served() -> AsyncIterator[FakeServer]:
    async with serve_cluster() as served:
        served.backend.status = STATUS
        yield served


@pytest.fixture
async def stub(served: FakeServer) -> AsyncIterator[ClusterAsyncStub]:
    async with grpc.aio.insecure_channel(served.address) as channel:
        yield ClusterStub(channel)


async def fails(call: Any, code: grpc.StatusCode, text: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert (caught.value.code(), text in (caught.value.details() or "")) == (code, True)


async def test_the_status_says_what_is_wrong_and_which_nodes_have_to_stay(stub: ClusterAsyncStub) -> None:
    status = await stub.Status(pb.StatusRequest())
    assert (status.cluster_id, status.node_id) == (bytes(range(16)), 1)
    assert [(node.node_id, node.up) for node in status.nodes] == [(1, True), (2, True), (3, False)]
    assert list(status.problems) == [
        "node 3 (10.0.0.3:19094) is not reachable: not heard of since this node started"
    ]
    assert [bool(node.reasons_to_stay) for node in status.nodes] == [True, True, False]


async def test_nodes_are_removed_and_forgotten(stub: ClusterAsyncStub, served: FakeServer) -> None:
    await stub.RemoveNode(pb.RemoveNodeRequest(cluster="first", node_id=2))
    await stub.ForgetNode(pb.ForgetNodeRequest(node_id=3))
    assert served.backend.left == [("remove", 2), ("forget", 3)]


async def test_an_unknown_node_is_not_found(stub: ClusterAsyncStub) -> None:
    await fails(stub.RemoveNode(pb.RemoveNodeRequest(node_id=9)), CODE.NOT_FOUND, "no node 9")
    await fails(stub.ForgetNode(pb.ForgetNodeRequest(node_id=9)), CODE.NOT_FOUND, "no node 9")


async def test_an_unknown_cluster_is_an_invalid_argument(stub: ClusterAsyncStub) -> None:
    await fails(stub.Status(pb.StatusRequest(cluster="none")), CODE.INVALID_ARGUMENT, "none")


async def test_no_node_leaves_during_a_drain(stub: ClusterAsyncStub, served: FakeServer) -> None:
    served.proxy.begin_drain()
    await fails(stub.RemoveNode(pb.RemoveNodeRequest(node_id=2)), CODE.UNAVAILABLE, "shutting down")
    await fails(stub.ForgetNode(pb.ForgetNodeRequest(node_id=3)), CODE.UNAVAILABLE, "shutting down")
    assert served.backend.left == []
    assert (await stub.Status(pb.StatusRequest())).node_id == 1


# --- moves ----------------------------------------------------------------------------------------

TOPIC = Topic("t", b"i" * 16, 1, {}, (1000, 1001), ((1, 2, 3), (2, 3, 1)), placements={1: 4})
PLANNED = PlannedMove(TOPIC, 1, MoveReason.MOVE_REASON_MOVE, (2, 3, 4))


async def test_a_node_is_drained_and_undrained(stub: ClusterAsyncStub) -> None:
    await stub.DrainNode(pb.DrainNodeRequest(cluster="first", node_id=2, draining=True))
    assert [node.draining for node in (await stub.Status(pb.StatusRequest())).nodes] == [False, True, False]
    await stub.DrainNode(pb.DrainNodeRequest(node_id=2))
    assert not any(node.draining for node in (await stub.Status(pb.StatusRequest())).nodes)
    await fails(stub.DrainNode(pb.DrainNodeRequest(node_id=9)), CODE.NOT_FOUND, "no node 9")


async def test_a_plan_that_comes_back_is_what_was_planned(stub: ClusterAsyncStub, served: FakeServer) -> None:
    served.backend.planned = MovesPlanned([PLANNED], ["some stay"])
    wanted = pb.MovedReplica(topic="t", partition=1, from_node=1, to_node=4)
    planned = await stub.PlanMoves(pb.PlanMovesRequest(move=wanted))
    (shown,) = planned.moves
    assert (shown.topic, shown.partition, shown.reason) == ("t", 1, "move")
    assert ([*shown.replicas], [*shown.target], [*planned.left_out]) == ([2, 3, 1], [2, 3, 4], ["some stay"])
    served.backend.refused_moves = ["it has moved"]
    begun = await stub.BeginMoves(pb.BeginMovesRequest(reason=shown.reason, tokens=[shown.token]))
    assert [*begun.refused] == ["it has moved"]
    assert served.backend.begun == [(MoveReason.MOVE_REASON_MOVE, [PLANNED.message()])]


async def test_every_kind_of_plan_can_be_asked_for(stub: ClusterAsyncStub, served: FakeServer) -> None:
    for request in (
        pb.PlanMovesRequest(drained_node=3),
        pb.PlanMovesRequest(rebalance=True),
        pb.PlanMovesRequest(cancel=pb.CancelledMoves()),
        pb.PlanMovesRequest(cancel=pb.CancelledMoves(topic="t", partition=1)),
        pb.PlanMovesRequest(move=pb.MovedReplica(topic="t", partition=1, from_node=2, to_node=3)),
    ):
        await stub.PlanMoves(request)
    partition = TopicPartition("t", 1)
    assert served.backend.move_requests == [
        DrainPlan(3),
        RebalancePlan(),
        CancelPlan(),
        CancelPlan(partition),
        MovePlan(partition, 2, 3),
    ]


async def test_what_is_no_plan_is_an_invalid_argument(stub: ClusterAsyncStub, served: FakeServer) -> None:
    for wanted in (pb.PlanMovesRequest(), pb.PlanMovesRequest(rebalance=False)):
        await fails(stub.PlanMoves(wanted), CODE.INVALID_ARGUMENT, "nothing is to be planned")
    for begun, text in (
        (pb.BeginMovesRequest(reason="drain"), "expected one of move, rebalance, cancel"),
        (pb.BeginMovesRequest(reason="move", tokens=[b"\xff"]), "a token is none of PlanMoves"),
        (pb.BeginMovesRequest(reason="move", tokens=[bytes(2000)]), "it has 2000 bytes"),
    ):
        await fails(stub.BeginMoves(begun), CODE.INVALID_ARGUMENT, text)
    assert served.backend.begun == []


async def test_nothing_begins_to_move_during_a_drain_of_the_daemon(
    stub: ClusterAsyncStub, served: FakeServer
) -> None:
    served.proxy.begin_drain()
    await fails(stub.DrainNode(pb.DrainNodeRequest(node_id=2)), CODE.UNAVAILABLE, "shutting down")
    begin = pb.BeginMovesRequest(reason="move", tokens=[PLANNED.message().SerializeToString()])
    await fails(stub.BeginMoves(begin), CODE.UNAVAILABLE, "shutting down")
    assert served.backend.begun == []


async def test_the_status_has_moves_with_state_and_reason(stub: ClusterAsyncStub, served: FakeServer) -> None:
    move = MoveStatus(1000, TopicPartition("t", 0), "drain", (1, 2), (1, 3), copies=(CopyStatus(3, 1, 2, 3),))
    served.backend.status = replace(STATUS, can_move=True, moves=(move,))
    status = await stub.Status(pb.StatusRequest())
    (shown,) = status.moves
    assert status.can_move
    assert (shown.topic, shown.partition, shown.reason) == ("t", 0, "drain")
    assert (shown.state, shown.waits) == ("waiting", "the partition has no leader")
    assert [(each.node_id, each.copied_bytes, each.total_bytes) for each in shown.copies] == [(3, 1, 2)]
    assert "partition t-0 cannot move on: the partition has no leader" in status.problems


# --- exported state -------------------------------------------------------------------------------


async def test_state_is_streamed_in_pieces(stub: ClusterAsyncStub, served: FakeServer) -> None:
    records = [ExportedRecord("groups-0", b"%d" % number, bytes(1000)) for number in range(1000)]
    served.backend.exported = ExportedState(b"c" * 16, 9, 1234, iter(records))
    answers = [answer async for answer in stub.ExportState(pb.ExportStateRequest())]
    first = answers[0]
    assert (first.cluster_id, first.feature_level, first.time_ms) == (b"c" * 16, 9, 1234)
    assert first.version
    assert len(answers) > 3
    found = [(r.state_group, r.key, r.value) for answer in answers for r in answer.records]
    assert found == [tuple(record) for record in records]


async def test_one_client_has_one_export_at_a_time(stub: ClusterAsyncStub, served: FakeServer) -> None:
    asked, goes_on = asyncio.Event(), asyncio.Event()

    def records() -> Iterator[ExportedRecord]:
        yield ExportedRecord("sinks", b"sinks", b"")

    async def export() -> ExportedState:
        asked.set()
        await goes_on.wait()
        return ExportedState(b"", 0, 0, records())

    served.backend.export_state = export  # type: ignore[method-assign]
    first = asyncio.create_task(_all(stub.ExportState(pb.ExportStateRequest())))
    await asked.wait()
    asked.clear()
    second = asyncio.create_task(_all(stub.ExportState(pb.ExportStateRequest())))
    await stub.Status(pb.StatusRequest())
    assert not asked.is_set()
    goes_on.set()
    assert len(await first) == len(await second) == 2


async def _all(call: Any) -> list[pb.ExportStateResponse]:
    return [answer async for answer in call]
