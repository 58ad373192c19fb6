"""Service `Cluster` of pixy_cluster.proto: translates between requests and calls of a proxy."""

import asyncio
from collections.abc import Iterator, Mapping

from pixy import __version__
from pixy.aio.address_quota import AddressSemaphore
from pixy.api.grpc.large_answers import a_few_at_a_time
from pixy.api.grpc.maxima import REPEATED_MAX
from pixy.api.grpc.moves import decode_moves, decode_request, encode_plan
from pixy.api.grpc.refusals import proxy_of, translate
from pixy.client_address import client_address
from pixy.cluster import (
    ClusterStatus,
    ExportedRecord,
    encode_status,
    move_standings,
    problems,
    safe_to_stop,
    unreplicated,
)
from pixy.proto import pixy_cluster_pb2 as pb
from pixy.proxy import Proxy
from pixy.rpc import Handler, JoinedMessage, Service, StreamCall, UnaryCall

_EXPORTS, _EXPORTS_OF_ADDRESS = 4, 1
"""Exports of state at a time, each of which keeps a copy of some tables."""
_EXPORT_BYTES = 1 << 18
"""Bytes of records in an answer: some milliseconds of work."""


class ClusterService:
    """Handlers of `Cluster`.

    Args:
        proxies: by name of the cluster; "" is the default cluster.
    """

    def __init__(self, proxies: Mapping[str, Proxy]) -> None:
        self._proxies = proxies
        self._exports = AddressSemaphore(_EXPORTS, _EXPORTS_OF_ADDRESS)

    def service(self) -> Service:
        """The service with its handlers."""
        handlers: dict[str, Handler] = {
            "Status": a_few_at_a_time(self.status),
            "RemoveNode": self.remove_node,
            "ForgetNode": self.forget_node,
            "DrainNode": self.drain_node,
            "PlanMoves": self.plan_moves,
            "BeginMoves": self.begin_moves,
            "ExportState": self.export_state,
        }
        return Service(
            pb.DESCRIPTOR.services_by_name["Cluster"], handlers, translate, maxima=REPEATED_MAX["Cluster"]
        )

    async def status(self, request: pb.StatusRequest, call: UnaryCall) -> JoinedMessage:
        """# pixy_cluster.proto: Status"""
        status = await proxy_of(self._proxies, request.cluster).cluster_status()
        # There may be thousands of raft groups.
        return await asyncio.to_thread(_judged, status)

    async def remove_node(self, request: pb.RemoveNodeRequest, call: UnaryCall) -> pb.RemoveNodeResponse:
        """# pixy_cluster.proto: RemoveNode"""
        await proxy_of(self._proxies, request.cluster).remove_node(request.node_id)
        return pb.RemoveNodeResponse()

    async def forget_node(self, request: pb.ForgetNodeRequest, call: UnaryCall) -> pb.ForgetNodeResponse:
        """# pixy_cluster.proto: ForgetNode"""
        await proxy_of(self._proxies, request.cluster).forget_node(request.node_id)
        return pb.ForgetNodeResponse()

    async def drain_node(self, request: pb.DrainNodeRequest, call: UnaryCall) -> pb.DrainNodeResponse:
        """# pixy_cluster.proto: DrainNode"""
        await proxy_of(self._proxies, request.cluster).drain_node(request.node_id, draining=request.draining)
        return pb.DrainNodeResponse()

    async def plan_moves(self, request: pb.PlanMovesRequest, call: UnaryCall) -> pb.PlanMovesResponse:
        """# pixy_cluster.proto: PlanMoves"""
        planned = await proxy_of(self._proxies, request.cluster).plan_moves(decode_request(request))
        return encode_plan(planned)

    async def begin_moves(self, request: pb.BeginMovesRequest, call: UnaryCall) -> pb.BeginMovesResponse:
        """# pixy_cluster.proto: BeginMoves"""
        refused = await proxy_of(self._proxies, request.cluster).begin_moves(*decode_moves(request))
        return pb.BeginMovesResponse(refused=refused)

    async def export_state(self, request: pb.ExportStateRequest, call: StreamCall) -> None:
        """# pixy_cluster.proto: ExportState"""
        proxy = proxy_of(self._proxies, request.cluster)
        async with self._exports.holding(client_address(call.peer), 1):
            state = await proxy.export_state()
            answer = pb.ExportStateResponse(
                cluster_id=state.cluster_id,
                version=__version__,
                feature_level=state.feature_level,
                time_ms=state.time_ms,
            )
            await call.send(answer)
            records = iter(state.records)
            while some := await asyncio.to_thread(_next_records, records):
                async with call.reserve_output(len(some)):
                    await call.send_serialized([some])


def _judged(status: ClusterStatus) -> JoinedMessage:
    """A `StatusResponse`: the status, and what follows from it."""
    response = encode_status(status)
    response.problems.extend(problems(status))
    for node in response.nodes:
        node.reasons_to_stay.extend(safe_to_stop(status, node.node_id))
        node.unreplicated = unreplicated(status, node.node_id)
    for shown, standing in zip(response.moves, move_standings(status), strict=True):
        shown.state, shown.waits = standing.state.value, standing.waits
    return JoinedMessage([response.SerializeToString()])


def _next_records(records: Iterator[ExportedRecord]) -> bytes:
    """An `ExportStateResponse` with the next records; empty at the end."""
    answer, size = pb.ExportStateResponse(), 0
    for name, key, value in records:
        answer.records.append(pb.StateRecord(state_group=name, key=key, value=value))
        size += len(key) + len(value)
        if size >= _EXPORT_BYTES:
            break
    return answer.SerializeToString()
