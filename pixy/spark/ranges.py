"""Planning of tasks: ranges of offsets are split into pieces and packed into tasks.

Splitting follows Spark's Kafka connector: `maxRecordsPerPartition` first, then `minPartitions` for
large ranges. In addition, small ranges share a task unless `minPartitions` is set: starting a
Python task takes as long as reading ten thousand records.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

_TASK_RECORDS = 10_000
"""Ranges are packed into one task up to this number of records."""


class PlannedRange(NamedTuple):
    """Records to read: offsets from `first` up to `end`, exclusive, of the topic with this id."""

    topic: str
    partition: int
    first: int
    end: int
    topic_id: bytes = b""

    @property
    def records(self) -> int:
        return max(self.end - self.first, 0)


def plan_tasks(
    ranges: Iterable[PlannedRange], min_partitions: int | None, max_records: int | None
) -> list[tuple[PlannedRange, ...]]:
    """Plan the ranges of each task, in order. Empty ranges are left out, so there may be no task.

    Args:
        min_partitions: minimum number of tasks, if there are as many records.
        max_records: maximum number of records of a piece.
    """
    pieces = [each for each in ranges if each.records]
    if max_records is not None:
        pieces = [part for each in pieces for part in _cut(each, -(-each.records // max_records))]
    if min_partitions is None:
        return _pack(pieces)
    if len(pieces) < min_partitions:
        pieces = _spread(pieces, min_partitions)
    return [(piece,) for piece in pieces]


def _spread(ranges: Sequence[PlannedRange], tasks: int) -> list[PlannedRange]:
    """Split ranges larger than an even share, in proportion to their records."""
    share = sum(each.records for each in ranges) / tasks
    large = [each for each in ranges if each.records >= share]
    large_records = sum(each.records for each in large)
    left = tasks - (len(ranges) - len(large))
    pieces: list[PlannedRange] = []
    for each in ranges:
        if each.records < share:
            pieces.append(each)
            continue
        # Rounded up for the remainder, so that there are never fewer tasks than requested.
        parts = min(max(-(-each.records * left // large_records), 1), each.records)
        left, large_records = left - parts, large_records - each.records
        pieces += _cut(each, parts)
    return pieces


def _cut(given: PlannedRange, parts: int) -> list[PlannedRange]:
    bounds = [given.first + given.records * part // parts for part in range(parts + 1)]
    return [given._replace(first=first, end=end) for first, end in pairwise(bounds)]


def _pack(ranges: Sequence[PlannedRange]) -> list[tuple[PlannedRange, ...]]:
    tasks: list[tuple[PlannedRange, ...]] = []
    gathered: list[PlannedRange] = []
    for each in ranges:
        if gathered and sum(one.records for one in gathered) + each.records > _TASK_RECORDS:
            tasks.append(tuple(gathered))
            gathered = []
        gathered.append(each)
    return [*tasks, tuple(gathered)] if gathered else tasks
