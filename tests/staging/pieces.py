"""Pieces of replicated stages for tests."""

from pixy.records import crc32c
from pixy.staging import NewPiece, PieceKey
from tests.staging.stages import batches_of


def new_piece(*values: bytes, stage: int = 7, raft_group: int = 1000, number: int = 0) -> NewPiece:
    """A piece with a batch for each value."""
    batches = batches_of(*values)
    return NewPiece(PieceKey(stage, raft_group, number, crc32c(batches)), len(values), batches)
