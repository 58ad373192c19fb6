"""Offsets of many partitions: their form in a checkpoint, how much of a backlog one batch takes, and when a batch is due. No calls, no
clock.

**Form.** `{"topic": {"0": 12, "1": 7}}`, next offset to read, as Spark's Kafka connector has it. Spark compares offsets as text, so topics
are sorted by name and partitions by number, always.

**The start of a query.** Spark asks for the initial offset twice before the first batch and again when that batch is replayed, and never
writes it down. "latest" is another offset each time, and what came in between would be lost. Therefore the end of batch 0, which Spark
does write down, carries where it began, under a key that no topic can have: `{"$start": {...}, "topic": {...}}`. In the initial offset
itself the key is there and null, which is how batch 0 is known.

**The ids of topics.** An offset means nothing in a topic that was deleted and created again, whether that has reached it or not. So the ids
are under another such key: `{"$ids": {"topic": "<32 hexadecimal digits>"}, "topic": {...}}`. Checkpoints of earlier releases have none,
and a topic whose id is not known is taken for the one that there is.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pixy.records import TopicPartition

__all__ = [
    "Offsets",
    "Pace",
    "Reached",
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
_IDS = "$ids"


@dataclass(frozen=True, slots=True)
class Reached:
    """Offsets, and the ids of the topics that they are of, as far as they are known."""

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, bytes] = field(default_factory=dict)

    def is_another(self, topic: str, topic_id: bytes | None) -> bool:
        """True when a topic is known by another id than this."""
        known = self.topic_ids.get(topic)
        return known is not None and topic_id is not None and known != topic_id

    def without(self, topics: Collection[str]) -> "Reached":
        """The same without some topics."""
        return Reached(
            {each: offset for each, offset in self.offsets.items() if each.topic not in topics},
            {topic: topic_id for topic, topic_id in self.topic_ids.items() if topic not in topics},
        )


def to_json(reached: Reached, start: Reached | None = None) -> dict[str, Any]:
    """The form of a checkpoint; `start` is where batch 0 began, if this is its end."""
    form: dict[str, Any] = {} if start is None else {_START: to_json(start)}
    if reached.topic_ids:
        form[_IDS] = {topic: reached.topic_ids[topic].hex() for topic in sorted(reached.topic_ids)}
    for topic, partition in sorted(reached.offsets):
        form.setdefault(topic, {})[str(partition)] = reached.offsets[TopicPartition(topic, partition)]
    return form


def initial_json(reached: Reached) -> dict[str, Any]:
    """The form of an initial offset."""
    return {_START: None, **to_json(reached)}


def from_json(form: Mapping[str, Any]) -> Reached:
    """What was reached, without what was noted of the start."""
    offsets = {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in form.items()
        if topic not in (_START, _IDS)
        for partition, offset in partitions.items()
    }
    return Reached(
        offsets, {topic: bytes.fromhex(topic_id) for topic, topic_id in form.get(_IDS, {}).items()}
    )


def is_initial(form: Mapping[str, Any]) -> bool:
    """Whether this is an initial offset: the batch that starts there is batch 0."""
    return _START in form and form[_START] is None


def began_at(start: Mapping[str, Any], end: Mapping[str, Any]) -> Reached:
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
