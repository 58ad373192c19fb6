"""Checks of pieces of stages that come from another node. Pure."""

from collections.abc import Sequence

from pixy.check_turns import SteppedCheck
from pixy.errors import InvalidArgument, PixyError
from pixy.proto.state_pb2 import PieceRecord, StagedPiece
from pixy.records import FORWARDED_LIMITS, CheckEffort, NewBatch, check_next_batch, crc32c
from pixy.staging import NewPiece

_LIMITS = FORWARDED_LIMITS._replace(producers=False)

PIECE_BYTES_MAX = 32 << 20
"""Bytes of a piece for one partition; a call takes twice as many."""

CALL_PIECES_MAX = 2000
"""Pieces of a call: a request of a client has fewer partitions."""


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


class PiecesCheck(SteppedCheck):
    """The check of pieces: each is what its key and its number of records say, and could be
    appended: whole batches, whose records take as many offsets as there are.
    """

    def __init__(self, pieces: Sequence[NewPiece]) -> None:
        # They may be the larger part of the cost of a request, which has passed.
        super().__init__(max(sum(len(each.batches) for each in pieces), 2 * PIECE_BYTES_MAX), "call")
        self._pieces = pieces
        self._checked = 0
        # Of the next piece.
        self._batches: list[NewBatch] = []
        self._crc = 0

    @property
    def is_done(self) -> bool:
        """See `SteppedCheck`."""
        return self._checked == len(self._pieces)

    def _check_next(self, effort: CheckEffort) -> None:
        key, records, buffer = self._pieces[self._checked]
        batches = memoryview(buffer)
        try:
            batch = check_next_batch(batches, self._batches, _LIMITS, effort)
        except PixyError as error:
            raise InvalidArgument(f"piece {key.number} is none: {error}") from None
        self._batches.append(batch)
        self._crc = crc32c(batches[batch.begin : batch.end], self._crc)
        if batch.end < len(batches):
            return
        found = sum(each.records for each in self._batches)
        if (self._crc, found) != (key.crc, records):
            raise InvalidArgument(
                f"piece {key.number} has {found} records and CRC-32C {self._crc:#010x}, {records} and {key.crc:#010x} "
                "were announced"
            )
        self._checked += 1
        self._batches, self._crc = [], 0
