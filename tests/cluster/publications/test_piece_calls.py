"""Pieces that other nodes bring, by what this node knows of their stages."""

import asyncio
from pathlib import Path

import pytest

from pixy.cluster.publications import piece_calls
from pixy.cluster.publications.piece_calls import PieceCalls
from pixy.cluster.state.publications import SinksState
from pixy.errors import FailedPrecondition, PixyError, ResourceExhausted, Unavailable
from pixy.proto.node_calls_pb2 import PieceBytes, PutPiecesRequest
from pixy.proto.state_pb2 import OpenStage, SinksCommand
from pixy.staging import Pieces
from tests.fakes.disk import RecordingDisk
from tests.fakes.worker import InlineWorker
from tests.staging.pieces import new_piece
from tests.storage.logs import CLUSTER_ID

PIECE = new_piece(b"value", stage=1)
REQUEST = PutPiecesRequest(
    stage=1,
    pieces=[
        PieceBytes(
            raft_group=PIECE.key.raft_group,
            number=PIECE.key.number,
            records=PIECE.records,
            crc=PIECE.key.crc,
            batches=bytes(PIECE.batches),
        )
    ],
).SerializeToString()
OPEN = SinksCommand(open_stage=OpenStage(sink_id="sink", stage_id="stage")).SerializeToString()


class Laggard:
    """A node that has not applied `committed` yet, and cannot learn of it without a majority."""

    def __init__(self, directory: Path) -> None:
        self.state = SinksState()
        self.groups = {1000}
        self.committed_groups: set[int] = set()
        self.committed: list[bytes] = []
        self.has_majority = True
        self.pieces = Pieces(
            RecordingDisk(), directory, InlineWorker("pieces", background=True), 1 << 20, print
        )
        self.calls = PieceCalls(1, self.pieces, None, self.state, self.groups.__contains__, self.confirm)

    async def confirm(self, timeout: float) -> None:
        if not self.has_majority:
            raise Unavailable(f"no leader within {timeout} s")
        self.groups |= self.committed_groups
        while self.committed:
            self.state.apply(self.committed.pop())


@pytest.fixture
async def node(tmp_path: Path) -> Laggard:
    made = Laggard(tmp_path / "pieces")
    await made.pieces.recover(CLUSTER_ID)
    return made


async def test_a_piece_of_a_stage_that_was_opened_is_taken_by_a_node_that_did_not_know(node: Laggard) -> None:
    node.committed.append(OPEN)
    assert await node.calls.put(2, REQUEST) == b""
    assert node.pieces.has(PIECE.key)


async def test_a_piece_of_a_partition_is_taken_by_a_node_that_did_not_know_of_its_replica(
    node: Laggard,
) -> None:
    node.committed.append(OPEN)
    await node.confirm(1)
    node.groups.clear()
    with pytest.raises(Unavailable, match="node 1 has no replica of raft group 1000"):
        await node.calls.put(2, REQUEST)
    assert not node.pieces.has(PIECE.key)
    node.committed_groups.add(1000)
    assert await node.calls.put(2, REQUEST) == b""
    assert node.pieces.has(PIECE.key)


async def test_a_piece_of_a_stage_that_nobody_opened_is_refused(node: Laggard) -> None:
    with pytest.raises(FailedPrecondition, match="a stage with number 1 was never opened"):
        await node.calls.put(2, REQUEST)
    assert not node.pieces.has(PIECE.key)


async def test_a_node_that_cannot_find_out_is_asked_again(node: Laggard) -> None:
    node.committed.append(OPEN)
    node.has_majority = False
    with pytest.raises(Unavailable):
        await node.calls.put(2, REQUEST)
    assert not node.pieces.has(PIECE.key)
    node.has_majority = True
    assert await node.calls.put(2, REQUEST) == b""


class Peers:
    """The other nodes: they answer, refuse, or say nothing, by id."""

    def __init__(self, answers: dict[int, PixyError | None]) -> None:
        self.answers = answers
        self.cancelled: list[int] = []

    async def call(
        self, node_id: int, method: int, payload: bytes, timeout: float, *, bulk: bool = False
    ) -> bytes:
        del method, payload, timeout, bulk
        if node_id not in self.answers:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                self.cancelled.append(node_id)
                raise
        error = self.answers[node_id]
        if error is not None:
            raise error
        return b""


def bringing(node: Laggard, node_id: int, peers: Peers) -> PieceCalls:
    return PieceCalls(node_id, node.pieces, peers, node.state, node.groups.__contains__, node.confirm)


async def test_a_piece_on_a_majority_waits_for_no_slow_node(
    node: Laggard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piece_calls, "LATE_S", 0.01)
    peers = Peers({2: None})
    await bringing(node, 1, peers).bring([(PIECE, (1, 2, 3))])
    await asyncio.sleep(0)
    assert node.pieces.has(PIECE.key)
    assert peers.cancelled == [3]


async def test_a_piece_on_no_majority_waits_for_a_slow_node(node: Laggard) -> None:
    peers = Peers({2: Unavailable("the connection was lost")})
    waiting = asyncio.create_task(bringing(node, 1, peers).bring([(PIECE, (1, 2, 3))]))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])
    await asyncio.sleep(0)
    assert peers.cancelled == [3]


async def test_a_refusal_of_a_node_that_has_answered_counts(node: Laggard) -> None:
    peers = Peers({2: None, 3: ResourceExhausted("no room")})
    with pytest.raises(ResourceExhausted, match="no room"):
        await bringing(node, 1, peers).bring([(PIECE, (1, 2, 3))])
