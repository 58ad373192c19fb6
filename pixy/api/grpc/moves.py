"""Moves of replicas in messages of pixy_cluster.proto: requests for plans, and planned moves."""

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from pixy.cluster import (
    REQUESTED,
    CancelPlan,
    DrainPlan,
    MovePlan,
    MoveRequest,
    MovesPlanned,
    RebalancePlan,
    reason_name,
)
from pixy.errors import InvalidArgument
from pixy.proto import pixy_cluster_pb2 as pb
from pixy.proto.state_pb2 import MoveReason, PartitionMove
from pixy.records import TopicPartition

_TOKEN_BYTES_MAX = 1024
"""More than a move of a topic with a long name to a hundred nodes has."""


def decode_request(request: pb.PlanMovesRequest) -> MoveRequest:
    """The request of a client.

    Raises:
        InvalidArgument: it asks for nothing.
    """
    match request.WhichOneof("wanted"):
        case "drained_node":
            return DrainPlan(request.drained_node)
        case "move":
            move = request.move
            return MovePlan(TopicPartition(move.topic, move.partition), move.from_node, move.to_node)
        case "cancel":
            partition = TopicPartition(request.cancel.topic, request.cancel.partition)
            return CancelPlan(partition if partition.topic else None)
        case "rebalance" if request.rebalance:
            return RebalancePlan()
        case _:
            raise InvalidArgument(
                "nothing is to be planned: name a node, a partition, or what to do with all"
            )


def encode_plan(planned: MovesPlanned) -> pb.PlanMovesResponse:
    """A plan as a client gets it."""
    return pb.PlanMovesResponse(
        moves=[
            pb.PlannedMove(
                topic=move.topic.name,
                partition=move.partition,
                reason=reason_name(move.reason),
                replicas=move.topic.replicas[move.partition],
                target=move.target,
                token=move.message().SerializeToString(),
            )
            for move in planned.moves
        ],
        left_out=planned.left_out,
    )


def decode_moves(
    request: pb.BeginMovesRequest,
) -> tuple[MoveReason.ValueType, Sequence[PartitionMove]]:
    """Reason and moves of a plan that a client gives back.

    Raises:
        InvalidArgument: it was not given out like that.
    """
    reason = REQUESTED.get(request.reason or "move")
    if reason is None:
        raise InvalidArgument(f"reason is {request.reason!r}, expected one of {', '.join(REQUESTED)}")
    return reason, [_decode_token(token) for token in request.tokens]


def _decode_token(token: bytes) -> PartitionMove:
    try:
        if len(token) > _TOKEN_BYTES_MAX:
            raise DecodeError(f"it has {len(token)} bytes")
        return PartitionMove.FromString(token)
    except DecodeError as error:
        raise InvalidArgument(f"a token is none of PlanMoves: {error}") from None
