"""Objects with the records of a range of offsets, and the parts that none has. Pure.

All objects of a partition are parts of one log, so batches are the same in each. Objects may
overlap, if two backups ran at the same time.
"""

from collections.abc import Iterable
from typing import NamedTuple

from pixy.backup.object_names import RangeName


class Cover(NamedTuple):
    """Objects with records of a range, and the parts of the range that none has, in order."""

    objects: list[RangeName]
    missing: list[tuple[int, int]]


def cover(begin: int, end: int, there: Iterable[RangeName]) -> Cover:
    """The objects that have the records from `begin` up to `end`, as few as possible."""
    objects, missing, at = [], [], begin
    left = sorted(there)
    number = 0
    while at < end:
        best: RangeName | None = None
        while number < len(left) and left[number].first <= at:
            if best is None or left[number].end > best.end:
                best = left[number]
            number += 1
        if best is not None and best.end > at:
            objects.append(best)
            at = best.end
            continue
        following = left[number].first if number < len(left) else end
        missing.append((at, min(following, end)))
        at = min(following, end)
    return Cover(objects, missing)
