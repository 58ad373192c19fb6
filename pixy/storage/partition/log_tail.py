"""The tail of a partition log: batches in memory, and among them parts of stages, which are files.

Used on the event loop only, except `parts`: a reader on another thread may take the current list.

Invariants: the tail is the end of the log, without holes; it has all that is not in a segment.
"""

from bisect import bisect_right
from typing import NamedTuple, cast

from pixy.storage.partition.segment import Chunk
from pixy.storage.partition.staged_part import StagedPart

_TRIM = 64
"""Number of evicted batches at which the lists are trimmed."""

Batch = bytes | bytearray | memoryview
Appended = Batch | StagedPart


class Unwritten(NamedTuple):
    """Batches and parts that are in no segment, and the offset behind them.

    `memory_bytes` is the size of the batches, `staged_bytes` that of the parts.
    """

    batches: list[Appended]
    end_offset: int
    memory_bytes: int
    staged_bytes: int


class LogTail:
    """The tail of one log.

    Attributes:
        parts: parts that are not in a segment yet, in order. The list grows at its end, and is
            replaced when parts are removed.
    """

    __slots__ = ("_bases", "_batches", "_evicted", "_memory_bytes", "_staged_bytes", "_unwritten_at", "parts")

    def __init__(self) -> None:
        # Batches and parts with their base offsets; the first `_evicted` are None until a trim.
        self._bases: list[int] = []
        self._batches: list[Appended | None] = []
        self._evicted = 0
        # Invariant: the batches from `_unwritten_at` on are in no segment; they have
        # `_memory_bytes` in memory and `_staged_bytes` in parts.
        self._unwritten_at = 0
        self._memory_bytes = 0
        self._staged_bytes = 0
        self.parts: list[StagedPart] = []

    def append(self, batch: Batch, base_offset: int) -> None:
        """Add the next batch."""
        self._bases.append(base_offset)
        self._batches.append(batch)
        self._memory_bytes += len(batch)

    def append_part(self, part: StagedPart) -> None:
        """Add the next part, which has its position in the log."""
        self._bases.append(part.base_offset)
        self._batches.append(part)
        self._staged_bytes += part.size
        self.parts.append(part)

    def read(self, offset: int, max_bytes: int, end_offset: int) -> Chunk | None:
        """Batches in memory from the one with `offset` on; None if they must be read from files.

        Args:
            max_bytes: limit of the result, which has at least one batch.
            end_offset: the end of the log, above `offset`.
        """
        at = bisect_right(self._bases, offset, self._evicted) - 1
        if at < self._evicted:
            return None
        chunk: list[memoryview] = []
        size = 0
        count = len(self._batches)
        while at < count:
            batch = self._batches[at]
            assert batch is not None
            if isinstance(batch, StagedPart):
                if not chunk:
                    return None
                break
            size += len(batch)
            if chunk and size > max_bytes:
                break
            chunk.append(memoryview(batch))
            at += 1
        return Chunk(chunk, self._bases[at] if at < count else end_offset)

    @property
    def memory_bytes(self) -> int:
        """Bytes of all batches in memory, written to a segment or not."""
        return sum(len(batch) for batch in self._batches if isinstance(batch, (bytes, bytearray, memoryview)))

    def unwritten(self, end_offset: int) -> Unwritten:
        """Batches and parts that are in no segment; the log ends at `end_offset`."""
        # The cast holds: only written batches are evicted. No work per batch here: one turn of the
        # event loop calls this on hundreds of logs.
        batches = cast("list[Appended]", self._batches[self._unwritten_at :])
        return Unwritten(batches, end_offset, self._memory_bytes, self._staged_bytes)

    def wrote(self, unwritten: Unwritten) -> None:
        """Mark these batches and parts as written to segments."""
        first = self._unwritten_at
        self._unwritten_at += len(unwritten.batches)
        self._memory_bytes -= unwritten.memory_bytes
        self._staged_bytes -= unwritten.staged_bytes
        if unwritten.staged_bytes:
            self.parts = [part for part in self.parts if part.base_offset >= unwritten.end_offset]
            self._merge_parts(first)

    def evict(self) -> int:
        """Drop the oldest batch from memory.

        Returns:
            Its size; 0 if it is not written yet, or there is none.
        """
        while self._evicted < self._unwritten_at and isinstance(self._batches[self._evicted], StagedPart):
            self._drop()
        if self._evicted >= self._unwritten_at:
            return 0
        batch = self._batches[self._evicted]
        assert isinstance(batch, (bytes, bytearray, memoryview))
        self._drop()
        return len(batch)

    def _drop(self) -> None:
        self._batches[self._evicted] = None
        self._evicted += 1
        if self._evicted >= _TRIM:
            del self._bases[: self._evicted]
            del self._batches[: self._evicted]
            self._unwritten_at -= self._evicted
            self._evicted = 0

    def _merge_parts(self, first: int) -> None:
        """Keep only the first of adjacent written parts: all of them mean that files must be read.

        Otherwise a log of stages alone would accumulate them forever.
        """
        for at in range(self._unwritten_at - 1, max(first, self._evicted + 1) - 1, -1):
            if isinstance(self._batches[at], StagedPart) and isinstance(self._batches[at - 1], StagedPart):
                del self._batches[at], self._bases[at]
                self._unwritten_at -= 1
