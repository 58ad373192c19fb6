"""Offsets of many partitions: their form in a checkpoint, how much of a backlog one batch takes, and when a batch is due. No calls, no
clock.

**Form.** `{"topic": {"0": 12, "1": 7}}`, next offset to read, as Spark's Kafka connector has it. Spark compares offsets as text, so topics
are sorted by name and partitions by number, always.

**The start of a query.** Spark asks for the initial offset twice before the first batch and again when that batch is replayed, and never
writes it down. "latest" is another offset each time, and what came in between would be lost. Therefore the end of batch 0, which Spark
does write down, carries where it began, under a key that no topic can have: `{"$start": {...}, "topic": {...}}`. In the initial offset
itself the key is there and null, which is how batch 0 is known.
"""

import math
from collections.abc import Mapping
from typing import Any

from pixy.records import TopicPartition

__all__ = [
    "Offsets",
    "Pace",
    "began_at",
    "from_json",
    "initial_json",
    "is_initial",
    "limit_offsets",
    "to_json",
]

Offsets = dict[TopicPartition, int]
"""Next offset of each partition."""

_START = "$start"


def to_json(
    offsets: Mapping[TopicPartition, int], start: Mapping[TopicPartition, int] | None = None
) -> dict[str, Any]:
    """The form of a checkpoint; `start` is where batch 0 began, if this is its end."""
    form: dict[str, Any] = {} if start is None else {_START: to_json(start)}
    for topic, partition in sorted(offsets):
        form.setdefault(topic, {})[str(partition)] = offsets[TopicPartition(topic, partition)]
    return form


def initial_json(offsets: Mapping[TopicPartition, int]) -> dict[str, Any]:
    """The form of an initial offset."""
    return {_START: None, **to_json(offsets)}


def from_json(form: Mapping[str, Any]) -> Offsets:
    """The offsets, without what was noted of the start."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in form.items()
        if topic != _START
        for partition, offset in partitions.items()
    }


def is_initial(form: Mapping[str, Any]) -> bool:
    """Whether this is an initial offset: the batch that starts there is batch 0."""
    return _START in form and form[_START] is None


def began_at(start: Mapping[str, Any], end: Mapping[str, Any]) -> Offsets:
    """Where the batch from `start` to `end` begins: what its end says of it comes first."""
    noted = end.get(_START)
    return from_json(start if noted is None else noted)


def limit_offsets(
    start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], records: int
) -> Offsets:
    """The end of a batch of about so many records: each partition gives its share of the backlog, and at least one.

    Partitions that `start` lacks are new and begin at 0.
    """
    backlogs = {each: end - start.get(each, 0) for each, end in latest.items() if end > start.get(each, 0)}
    total = sum(backlogs.values())
    if total <= records:
        return dict(latest)
    limited = dict(latest)
    for each, backlog in backlogs.items():
        share = records * backlog / total
        limited[each] = start.get(each, 0) + min(max(math.floor(share), 1), backlog)
    return limited


class Pace:
    """Whether a batch is due: `minOffsetsPerTrigger` and `maxTriggerDelay`.

    Args:
        min_records: None or how many records make a batch.
        max_delay_seconds: after so long a batch is due with fewer.
    """

    def __init__(self, min_records: int | None, max_delay_seconds: float) -> None:
        self._min_records = min_records
        self._max_delay_seconds = max_delay_seconds
        # When the last batch was due; None before the first, which is due at once.
        self._last: float | None = None

    def is_due(self, records: int, now: float) -> bool:
        """Decide; `now` is in seconds, on a clock that never steps back."""
        waited_enough = self._last is None or now - self._last >= self._max_delay_seconds
        if self._min_records is not None and records < self._min_records and not waited_enough:
            return False
        self._last = now
        return True
