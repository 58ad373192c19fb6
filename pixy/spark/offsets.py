"""Offsets of many partitions: their JSON in a checkpoint, the limit of a batch, and its due time.
Pure: no calls, no clock.

**JSON.** `{"topic": {"0": 12, "1": 7}}` with the next offset to read, as in Spark's Kafka
connector. Spark compares offsets as text, so topics are always sorted by name and partitions by
number.

**Start of a query.** Spark asks for the initial offset twice before the first batch and again when
that batch is replayed, and never persists it. "latest" is another offset each time, and records in
between would be lost. Therefore the end of batch 0, which Spark does persist, carries its start
under a key that no topic can have: `{"$start": {...}, "topic": {...}}`. The initial offset itself
has this key with null, which identifies batch 0.

**Topic ids.** An offset means nothing in a topic that was deleted and created again, whether or not
the new log has reached it. So the topic ids are under another such key: `{"$ids": {"topic": "<32
hexadecimal digits>"}, "topic": {...}}`. Checkpoints of earlier releases have none, and a topic
without a known id is presumed to be the existing one.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pixy.records import TopicPartition

Offsets = dict[TopicPartition, int]
"""Next offset of each partition."""

_START = "$start"
_IDS = "$ids"


@dataclass(frozen=True, slots=True)
class Reached:
    """Offsets, and the ids of their topics as far as known."""

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, bytes] = field(default_factory=dict)

    def is_recreated(self, topic: str, topic_id: bytes | None) -> bool:
        """True if the topic is known under another id."""
        known = self.topic_ids.get(topic)
        return known is not None and topic_id is not None and known != topic_id

    def without(self, topics: Collection[str]) -> "Reached":
        """A copy without some topics."""
        return Reached(
            {each: offset for each, offset in self.offsets.items() if each.topic not in topics},
            {topic: topic_id for topic, topic_id in self.topic_ids.items() if topic not in topics},
        )


def to_json(reached: Reached, start: Reached | None = None) -> dict[str, Any]:
    """JSON of a checkpoint; `start` is the start of batch 0, if this is its end."""
    form: dict[str, Any] = {} if start is None else {_START: to_json(start)}
    if reached.topic_ids:
        form[_IDS] = {topic: reached.topic_ids[topic].hex() for topic in sorted(reached.topic_ids)}
    for topic, partition in sorted(reached.offsets):
        form.setdefault(topic, {})[str(partition)] = reached.offsets[TopicPartition(topic, partition)]
    return form


def initial_json(reached: Reached) -> dict[str, Any]:
    """JSON of an initial offset."""
    return {_START: None, **to_json(reached)}


def from_json(form: Mapping[str, Any]) -> Reached:
    """Offsets and topic ids of a checkpoint, without the start of batch 0."""
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
    """True for an initial offset: the batch that starts there is batch 0."""
    return _START in form and form[_START] is None


def began_at(start: Mapping[str, Any], end: Mapping[str, Any]) -> Reached:
    """Start of the batch from `start` to `end`; the start recorded in `end` takes precedence."""
    noted = end.get(_START)
    return from_json(start if noted is None else noted)


def limit_offsets(
    start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], records: int
) -> Offsets:
    """End of a batch of about `records` records: each partition contributes its share of the
    backlog, and at least one.

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
    """Decides when a batch is due: `minOffsetsPerTrigger` and `maxTriggerDelay`.

    Args:
        min_records: minimum number of records of a batch; None: no minimum.
        max_delay_seconds: time after which a batch is due with fewer records.
    """

    def __init__(self, min_records: int | None, max_delay_seconds: float) -> None:
        self._min_records = min_records
        self._max_delay_seconds = max_delay_seconds
        # When the last batch was due; None before the first, which is due at once.
        self._last: float | None = None

    def is_due(self, records: int, now: float) -> bool:
        """True if a batch of `records` is due; `now` is in seconds of a monotonic clock."""
        waited_enough = self._last is None or now - self._last >= self._max_delay_seconds
        if self._min_records is not None and records < self._min_records and not waited_enough:
            return False
        self._last = now
        return True
