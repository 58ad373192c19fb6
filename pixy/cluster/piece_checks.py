"""Checks of pieces of stages that come from another node. Pure."""

from pixy.errors import CorruptData
from pixy.proto.state_pb2 import PieceRecord, StagedPiece
from pixy.records import check_batch, crc32c, read_header, split_batches
from pixy.staging import NewPiece

__all__ = ["AT_ONCE_BYTES", "PIECE_BYTES_MAX", "why_impossible", "why_not_piece", "why_not_staged"]

PIECE_BYTES_MAX = 32 << 20
"""Bytes of a piece for one partition; a call takes twice as many."""

AT_ONCE_BYTES = 256 << 10
"""Pieces of more bytes are checked on another thread: small batches take long."""


def why_impossible(piece: PieceRecord) -> str:
    """Reason why no stage has such a piece, empty if one can: each of its partitions is there once,
    and has no more records than bytes. So sums of any number of pieces have 63 bits.
    """
    seen = set()
    for part in piece.parts:
        key = (part.topic_id, part.partition)
        if part.partition < 0 or key in seen:
            return f"partition {part.partition} of topic {part.topic} is none, or is there more than once"
        seen.add(key)
        if not 0 <= part.records <= part.bytes:
            return f"partition {part.partition} of topic {part.topic} has {part.records} records in {part.bytes} bytes"
    return ""


def why_not_staged(entry: StagedPiece) -> str:
    """Reason why no piece is as an entry says, empty if one can be."""
    if not entry.length <= PIECE_BYTES_MAX:
        return f"a piece of {entry.length} bytes, {PIECE_BYTES_MAX} are allowed"
    if not 0 <= entry.records <= entry.length:
        return f"a piece of {entry.records} records in {entry.length} bytes"
    return ""


def why_not_piece(piece: NewPiece) -> str:
    """Reason why a piece is not taken, empty if it is what its key and its number of records say:
    whole batches, whose records take as many offsets as there are.
    """
    batches = memoryview(piece.batches)
    if crc32c(batches) != piece.key.crc:
        return "a wrong checksum"
    records = 0
    try:
        for batch in split_batches(batches):
            check_batch(batch)
            header = read_header(batch)
            if header.last_offset_delta + 1 != header.records:
                return f"a batch of {header.records} records and last offset delta {header.last_offset_delta}"
            records += header.records
    except CorruptData as error:
        return str(error)
    return "" if records == piece.records else f"{records} records, {piece.records} were announced"
