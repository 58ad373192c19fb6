"""The newest part of a partition log: batches in memory, and between them parts of stages, which are files.

Lives on the event loop, but for `parts`, which a reader on another thread may take as it is at that moment.

Invariants: what is here is the end of the log, without holes; what is not in a segment is here.
"""

from bisect import bisect_right
from typing import NamedTuple, cast

from pixy.storage.segment import Chunk
from pixy.storage.staged_part import StagedPart

__all__ = ["Appended", "LogTail", "Unwritten"]

_TRIM = 64
"""Evicted batches are dropped from the lists this many at a time."""

Appended = bytearray | StagedPart


class Unwritten(NamedTuple):
    """Batches and parts that are in no segment, and the offset behind them.

    `memory_bytes` is the size of the batches, which are in memory; `staged_bytes` that of the parts.
    """

    batches: list[Appended]
    end_offset: int
    memory_bytes: int
    staged_bytes: int


class LogTail:
    """The end of one log.

    Attributes:
        parts: those that are not in a segment yet, in order. It grows at its end, and is replaced when any of them go.
    """

    __slots__ = ("_bases", "_batches", "_evicted", "_memory_bytes", "_staged_bytes", "_unwritten_at", "parts")

    def __init__(self) -> None:
        # Batches and parts with their base offsets; the first `_evicted` are gone, the lists are trimmed now and then.
        self._bases: list[int] = []
        self._batches: list[Appended | None] = []
        self._evicted = 0
        # Invariant: batches from this place in the lists on are not in a segment. These are so large, in memory and in parts.
        self._unwritten_at = 0
        self._memory_bytes = 0
        self._staged_bytes = 0
        self.parts: list[StagedPart] = []

    def append(self, batch: bytearray, base_offset: int) -> None:
        """Take the next batch."""
        self._bases.append(base_offset)
        self._batches.append(batch)
        self._memory_bytes += len(batch)

    def append_part(self, part: StagedPart) -> None:
        """Take the next part; it has its place."""
        self._bases.append(part.base_offset)
        self._batches.append(part)
        self._staged_bytes += part.size
        self.parts.append(part)

    def read(self, offset: int, max_bytes: int, end_offset: int) -> Chunk | None:
        """Batches from the one that holds `offset` on, if they are in memory; None if they must be read from files.

        At most `max_bytes`, but at least one. `offset` is below `end_offset`, where the log ends.
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
        """Bytes of all batches in memory, in a segment or not."""
        return sum(len(batch) for batch in self._batches if isinstance(batch, bytearray))

    def unwritten(self, end_offset: int) -> Unwritten:
        """What is not in a segment yet; the log ends at `end_offset`."""
        # Only what is written is ever evicted. And nothing is done for each batch: a turn of the loop asks hundreds of logs.
        batches = cast("list[Appended]", self._batches[self._unwritten_at :])
        return Unwritten(batches, end_offset, self._memory_bytes, self._staged_bytes)

    def wrote(self, unwritten: Unwritten) -> None:
        """This is in segments."""
        first = self._unwritten_at
        self._unwritten_at += len(unwritten.batches)
        self._memory_bytes -= unwritten.memory_bytes
        self._staged_bytes -= unwritten.staged_bytes
        if unwritten.staged_bytes:
            self.parts = [part for part in self.parts if part.base_offset >= unwritten.end_offset]
            self._merge_parts(first)

    def evict(self) -> int:
        """Drop the oldest batch from memory; returns its size, 0 if it is not written yet or there is none."""
        while self._evicted < self._unwritten_at and isinstance(self._batches[self._evicted], StagedPart):
            self._drop()
        if self._evicted >= self._unwritten_at:
            return 0
        batch = self._batches[self._evicted]
        assert isinstance(batch, bytearray)
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
        """Of written parts side by side only the first stays: all of them say alike that the files must be read.

        Else a log that takes nothing but stages would gather them for ever.
        """
        for at in range(self._unwritten_at - 1, max(first, self._evicted + 1) - 1, -1):
            if isinstance(self._batches[at], StagedPart) and isinstance(self._batches[at - 1], StagedPart):
                del self._batches[at], self._bases[at]
                self._unwritten_at -= 1
