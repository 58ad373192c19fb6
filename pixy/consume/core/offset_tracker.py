"""The acked offsets of one consumer group in one partition. Pure: no clock, no I/O, no knowledge of
offers.

Everything below `base` is acked; acked offsets above it are kept as ranges. A commit carries the
base as its offset and the ranges as metadata.

An ack in order moves the base and touches nothing else. Ranges are two parallel lists of integers
instead of a list of pairs: they are searched by bisection and changed in place, and an ack out of
order usually extends the last range. The length of their encoding is kept, because it is bounded:
`refuses` tells which acks would exceed what a commit can have. Gaps in the log are marked
nevertheless; they are found again.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from pixy.consume.core import sparse_acks
from pixy.consume.core.sparse_acks import METADATA_BYTES_MAX, RANGE_CHARS_MAX, AckRange, encoded_chars

CROWDED_RANGES = METADATA_BYTES_MAX // RANGE_CHARS_MAX
"""A tracker with fewer ranges refuses no ack, whatever they are."""


class OffsetTracker:
    """Acked offsets of one partition, for one consumer group.

    Args:
        base: everything below is acked.
        ranges: acked ranges, none below `base`.
    """

    __slots__ = ("_chars", "_ends", "base", "begins")

    def __init__(self, base: int, ranges: Iterable[AckRange] = ()) -> None:
        # All offsets below are acked. Invariant: never decreases; `base` itself is not acked.
        self.base = base
        # Begin and end of each acked range; read-only for others.
        # Invariant: base < begins[0] < ends[0] < begins[1] < ends[1] ...
        self.begins: list[int] = []
        self._ends: list[int] = []
        # Length of their encoding without the first gap, which every ack in order changes.
        self._chars = 0
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

    @property
    def size(self) -> int:
        """Length of the encoding of all ranges."""
        return self._chars + (encoded_chars(self.begins[0] - self.base) if self.begins else 0)

    def metadata(self) -> str:
        """The acked ranges as the metadata of a commit, as far as they fit."""
        return sparse_acks.encode(self.base, map(AckRange, self.begins, self._ends))

    def refuses(self, offset: int) -> bool:
        """True if a commit could not have the ack of this offset: the encoding would grow beyond
        the largest metadata.
        """
        if offset <= self.base or self.is_acked(offset):
            return False
        first, behind, begin, end = self._merged(offset, offset + 1)
        gap = (begin if not first else self.begins[0]) - self.base
        size = self._chars_with(first, behind, begin, end) + encoded_chars(gap)
        return size > METADATA_BYTES_MAX and size > self.size

    def ack(self, offset: int) -> bool:
        """Mark an offset as acked; False if it was acked before."""
        base = self.base
        if offset == base:
            begins = self.begins
            if begins and begins[0] == base + 1:
                self._chars -= self._chars_of(0, 1)
                self.base = self._ends.pop(0)
                begins.pop(0)
            else:
                self.base = base + 1
            return True
        if offset < base:
            return False
        ends = self._ends
        if ends and ends[-1] == offset:
            count = offset - self.begins[-1]
            self._chars += encoded_chars(count + 1) - encoded_chars(count)
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
        assert self._chars == self._chars_of(0, len(self.begins))

    def _mark(self, begin: int, end: int) -> bool:
        """Merge [begin, end), which is not empty and not below the base, into the ranges it
        touches.
        """
        begins, ends = self.begins, self._ends
        first, behind, merged_begin, merged_end = self._merged(begin, end)
        if first < behind and begins[first] <= begin and end <= ends[first]:
            return False
        if merged_begin == self.base:
            self._chars -= self._chars_of(first, behind)
            self.base = merged_end
            del begins[first:behind]
            del ends[first:behind]
        else:
            self._chars = self._chars_with(first, behind, merged_begin, merged_end)
            begins[first:behind] = [merged_begin]
            ends[first:behind] = [merged_end]
        return True

    def _merged(self, begin: int, end: int) -> tuple[int, int, int, int]:
        """Indexes of the first range that [begin, end) touches, and of the one behind the last; and
        begin and end of the range that all of them make.
        """
        begins, ends = self.begins, self._ends
        first = bisect_left(ends, begin)
        behind = bisect_right(begins, end)
        if first < behind:
            return first, behind, min(begin, begins[first]), max(end, ends[behind - 1])
        return first, behind, begin, end

    def _chars_with(self, first: int, behind: int, begin: int, end: int) -> int:
        """`_chars` with [begin, end) in place of the ranges between two indexes."""
        chars = self._chars - self._chars_of(first, behind) + encoded_chars(end - begin)
        if first:
            chars += encoded_chars(begin - self._ends[first - 1])
        if behind < len(self.begins):
            chars += encoded_chars(self.begins[behind] - end)
        return chars

    def _chars_of(self, first: int, behind: int) -> int:
        """Part of `_chars` of the ranges between two indexes, and of the gaps on both sides."""
        begins, ends = self.begins, self._ends
        chars = sum(encoded_chars(ends[at] - begins[at]) for at in range(first, behind))
        gaps = range(max(first, 1), min(behind + 1, len(begins)))
        return chars + sum(encoded_chars(begins[at] - ends[at - 1]) for at in gaps)
