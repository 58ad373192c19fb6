"""Pieces of stages between nodes: brings them to all replicas of their partitions, and answers the
calls of other nodes that bring or fetch some.

A piece is for a stage that was opened: that is a command of `sinks`, which bounds the stages; and
for a partition with a replica here. This node may not have applied either yet when the first piece
comes, so it asks what was committed before it refuses one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from pixy.check_turns import CheckTurns
from pixy.cluster.peering import CallPeer, PeerMethod
from pixy.cluster.state import CALL_PIECES_MAX, PiecesCheck, SinksState
from pixy.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PixyError,
    ResourceExhausted,
    Unavailable,
)
from pixy.large_fields import serialize_with
from pixy.proto.node_calls_pb2 import GetPieceRequest, GetPieceResponse, PieceBytes, PutPiecesRequest
from pixy.raft.quorum import is_majority
from pixy.staging import NewPiece, PieceKey, Pieces

_CALL_BYTES = 16 << 20
"""Bytes from which on a call takes no more pieces."""
_TIMEOUT_S = 5.0
LATE_S = 0.5
"""Wait for the other nodes once a piece is durable on a majority."""
_CONFIRM_S = 3.0
_ANSWER_BYTES_MAX = 16 << 20


class PieceCalls:
    """Calls of one node, and its answers.

    Args:
        node_id: this node.
        pieces: its pieces.
        channel: to the other nodes; None without any.
        state: the state group `sinks`, as far as it is applied here.
        serves: tells whether this node has a replica of a partition, by its raft group, as far as
            metadata is applied here.
        confirm: returns once `sinks` and metadata have here what was committed before; takes a
            timeout in seconds.
    """

    def __init__(
        self,
        node_id: int,
        pieces: Pieces,
        channel: CallPeer | None,
        state: SinksState,
        serves: Callable[[int], bool],
        confirm: Callable[[float], Awaitable[None]],
    ) -> None:
        self._node_id = node_id
        self._pieces = pieces
        self._channel = channel
        self._state = state
        self._serves = serves
        self._confirm = confirm
        self._turns = CheckTurns()

    async def bring(self, pieces: Sequence[tuple[NewPiece, Sequence[int]]]) -> None:
        """Bring pieces of one stage to nodes; return when each piece is durable on a majority of
        its nodes, and here if this node is one of them. The others have a moment to answer: what
        they lack, they fetch.

        Args:
            pieces: each with its nodes.

        Raises:
            ResourceExhausted: a node has no room for its pieces.
            Unavailable: too few nodes have answered.
        """
        by_node: dict[int, list[NewPiece]] = {}
        for piece, nodes in pieces:
            for node_id in nodes:
                by_node.setdefault(node_id, []).append(piece)
        failures = await self._bring_to_all(by_node, [nodes for _, nodes in pieces])
        for error in failures.values():
            if not isinstance(error, Unavailable):
                raise error
        if self._node_id in failures:
            raise failures[self._node_id]
        for piece, nodes in pieces:
            there = [node_id for node_id in nodes if node_id not in failures]
            if not is_majority(there, nodes):
                failure = next(failures[node_id] for node_id in nodes if node_id in failures)
                raise Unavailable(
                    f"piece {piece.key.number} is on {len(there)} of {len(nodes)} nodes, which is no majority: "
                    f"{failure}"
                )

    async def _bring_to_all(
        self, by_node: Mapping[int, Sequence[NewPiece]], replicas: Sequence[Sequence[int]]
    ) -> dict[int, PixyError]:
        """Bring each node its pieces; returns the failures.

        Args:
            replicas: the nodes of each piece.
        """
        late = {
            asyncio.create_task(self._bring_to(node_id, some), name=f"pieces for node {node_id}"): node_id
            for node_id, some in by_node.items()
        }
        failures: dict[int, PixyError] = {}

        def take(done: Iterable[asyncio.Task[PixyError | None]]) -> None:
            for each in done:
                node_id, error = late.pop(each), each.result()
                if error is not None:
                    failures[node_id] = error

        try:
            while late and not self._is_durable(replicas, {*late.values(), *failures}):
                take((await asyncio.wait(late, return_when=asyncio.FIRST_COMPLETED))[0])
            if late:
                take((await asyncio.wait(late, timeout=LATE_S))[0])
        finally:
            for each in late:
                each.cancel()
        return failures | {node_id: Unavailable(f"node {node_id} is slow") for node_id in late.values()}

    def _is_durable(self, replicas: Sequence[Sequence[int]], missing: Collection[int]) -> bool:
        """True if each piece is where it has to be, whatever becomes of it on the missing nodes."""
        return self._node_id not in missing and all(
            is_majority([each for each in nodes if each not in missing], nodes) for nodes in replicas
        )

    async def _bring_to(self, node_id: int, pieces: Sequence[NewPiece]) -> PixyError | None:
        """Bring pieces to one node; returns the failure. Whatever is the node's own matter is
        `Unavailable`.
        """
        try:
            if node_id == self._node_id:
                await self._pieces.put(pieces)
                return None
            if self._channel is None:
                return Unavailable(f"node {node_id} cannot be reached")
            for request in _requests(pieces):
                await self._channel.call(
                    node_id, PeerMethod.PUT_PIECES, request.SerializeToString(), _TIMEOUT_S, bulk=True
                )
        except (FailedPrecondition, InvalidArgument, ResourceExhausted) as refusal:
            return refusal
        except PixyError as error:
            return Unavailable(f"node {node_id}: {error}")
        return None

    async def put(self, caller: int, payload: bytes) -> bytes:
        """Take pieces that another node brings.

        Raises:
            FailedPrecondition: the stage takes no more pieces, or was never opened.
            InvalidArgument: a piece is not what the request says.
            ResourceExhausted: there is no room for them.
            Unavailable: this node cannot find out whether the stage was opened, or has no replica
                of a partition.
        """
        request = PutPiecesRequest.FromString(payload)
        groups = {each.raft_group for each in request.pieces}
        if not self._state.was_opened(request.stage) or not all(map(self._serves, groups)):
            await self._confirm(_CONFIRM_S)
        if not self._state.was_opened(request.stage):
            raise FailedPrecondition(f"a stage with number {request.stage} was never opened")
        for raft_group in groups:
            if not self._serves(raft_group):
                raise Unavailable(f"node {self._node_id} has no replica of raft group {raft_group}")
        if self._state.is_gone(request.stage):
            raise FailedPrecondition("the stage was published or discarded, or has expired")
        pieces = [
            NewPiece(
                PieceKey(request.stage, each.raft_group, each.number, each.crc), each.records, each.batches
            )
            for each in request.pieces
        ]
        if len({piece.key for piece in pieces}) < len(pieces):
            raise InvalidArgument(f"a piece came from node {caller} twice")
        try:
            await self._turns.run(PiecesCheck(pieces))
        except PixyError as error:
            raise InvalidArgument(f"pieces that came from node {caller} are not taken: {error}") from None
        await self._pieces.put(pieces)
        return b""

    async def get(self, caller: int, payload: bytes) -> bytes:
        """Give a piece to a replica that lacks it."""
        request = GetPieceRequest.FromString(payload)
        key = PieceKey(request.stage, request.raft_group, request.number, request.crc)
        try:
            size = min(request.max_bytes, _ANSWER_BYTES_MAX)
            batches = await self._pieces.read(key, request.position, size)
        except NotFound:
            return GetPieceResponse().SerializeToString()
        return b"".join(serialize_with(GetPieceResponse(found=True), "batches", [batches]))


def _requests(pieces: Iterable[NewPiece]) -> list[PutPiecesRequest]:
    requests: list[PutPiecesRequest] = []
    size = 0
    for key, records, batches in pieces:
        if not requests or size + len(batches) > _CALL_BYTES or len(requests[-1].pieces) == CALL_PIECES_MAX:
            requests.append(PutPiecesRequest(stage=key.stage))
            size = 0
        size += len(batches)
        requests[-1].pieces.append(
            PieceBytes(
                raft_group=key.raft_group,
                number=key.number,
                records=records,
                crc=key.crc,
                batches=bytes(batches),
            )
        )
    return requests
