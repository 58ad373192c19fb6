"""pixy/api/grpc/cluster.py: the status with its judgements, and nodes that leave."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from pixy.cluster import ClusterStatus, NodeStatus, RaftGroupStatus
from pixy.cluster.status import MemberState, MemberStatus
from pixy.proto import pixy_cluster_pb2 as pb
from pixy.proto.pixy_cluster_pb2_grpc import ClusterStub
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
