"""The acked offsets of one consumer group in one partition. Pure: no clock, no I/O, no knowledge of
offers.

Everything below `base` is acked; acked offsets above it are kept as ranges. A commit carries the
base as its offset and the ranges as metadata.

An ack in order moves the base and touches nothing else. Ranges are two parallel lists of integers
instead of a list of pairs: they are searched by bisection and changed in place, and an ack out of
order usually extends the last range. There are never more ranges than unacked records between them,
so the limit on offers bounds the memory.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from pixy.consume import sparse_acks
from pixy.consume.sparse_acks import AckRange

__all__ = ["OffsetTracker"]


class OffsetTracker:
    """Acked offsets of one partition, for one consumer group.

    Args:
        base: everything below is acked.
        ranges: acked ranges, none below `base`.
    """

    __slots__ = ("_ends", "base", "begins")

    def __init__(self, base: int, ranges: Iterable[AckRange] = ()) -> None:
        # All offsets below are acked. Invariant: never decreases; `base` itself is not acked.
        self.base = base
        # Begin and end of each acked range; read-only for others.
        # Invariant: base < begins[0] < ends[0] < begins[1] < ends[1] ...
        self.begins: list[int] = []
        self._ends: list[int] = []
        for begin, end in ranges:
            self.skip(begin, end)

    @property
    def ranges(self) -> list[AckRange]:
        """The acked ranges above the base, ascending."""
        return list(map(AckRange, self.begins, self._ends))

    @property
    def top(self) -> int:
        """No offset from here on is acked."""
        return self._ends[-1] if self._ends else self.base

    def metadata(self) -> str:
        """The acked ranges as the metadata of a commit."""
        return sparse_acks.encode(self.base, self.ranges)

    def ack(self, offset: int) -> bool:
        """Mark an offset as acked; False if it was acked before."""
        base = self.base
        if offset == base:
            begins = self.begins
            if begins and begins[0] == base + 1:
                self.base = self._ends.pop(0)
                begins.pop(0)
            else:
                self.base = base + 1
            return True
        if offset < base:
            return False
        ends = self._ends
        if ends and ends[-1] == offset:
            ends[-1] = offset + 1
            return True
        return self._mark(offset, offset + 1)

    def skip(self, begin: int, end: int) -> bool:
        """Mark the offsets from `begin` to `end`, exclusive, as acked; False if all were acked
        before.
        """
        begin = max(begin, self.base)
        return begin < end and self._mark(begin, end)

    def adjust(self, offset: int) -> bool:
        """Move the base to `offset`, or to the end of the range around it; False if `offset` is not
        above the base.
        """
        return self.skip(self.base, offset)

    def is_acked(self, offset: int) -> bool:
        """True if the offset is acked."""
        return self.next_unacked(offset) != offset

    def next_unacked(self, offset: int) -> int:
        """The first offset at or after `offset` that is not acked."""
        if offset <= self.base:
            return self.base
        at = bisect_right(self._ends, offset)
        if at < len(self.begins) and self.begins[at] <= offset:
            return self._ends[at]
        return offset

    def check_invariants(self) -> None:
        """Check the invariants of the fields."""
        assert len(self.begins) == len(self._ends)
        previous = self.base
        for begin, end in self.ranges:
            assert previous < begin < end, (previous, begin, end)
            previous = end

    def _mark(self, begin: int, end: int) -> bool:
        """Merge [begin, end), which is not empty and not below the base, into the ranges it
        touches.
        """
        begins, ends = self.begins, self._ends
        first = bisect_left(ends, begin)
        behind = bisect_right(begins, end)
        if first < behind:
            if begins[first] <= begin and end <= ends[first]:
                return False
            begin = min(begin, begins[first])
            end = max(end, ends[behind - 1])
        if begin == self.base:
            self.base = end
            del begins[first:behind]
            del ends[first:behind]
        else:
            begins[first:behind] = [begin]
            ends[first:behind] = [end]
        return True
