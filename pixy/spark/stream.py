"""Stream reader: decides the end of each batch. One instance lives in its own process while the
query runs.

Spark keeps the query's progress: every decision is made from the `start` that Spark passes. State
here is only the initial offset, which must be the same on each request; when the last batch was
due; the end of `AvailableNow`; and the topics as of a moment ago.

An idle query asks for the end of the log a hundred times a second. The answer is always fresh: a
cached one would miss records written before the question, and `processAllAvailable` would return
without them. Instead, an answer without new records is delayed if the previous one had none either;
Spark asks again only after it.

A partition that appears while the query runs is read from offset 0. A deleted partition stays in
the offsets forever: if it came back with an offset of its own, Spark would read it twice. A topic
that was deleted and created again, which its id shows, is data loss, or is read from its beginning.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from pixy.errors import InvalidArgument, OffsetOutOfRange
from pixy.proto import pixy_log_pb2 as pb
from pixy.records import TopicPartition
from pixy.spark.client import LogClient
from pixy.spark.finder import OffsetFinder
from pixy.spark.offsets import (
    Offsets,
    Pace,
    Reached,
    began_at,
    from_json,
    initial_json,
    is_initial,
    limit_offsets,
    to_json,
)
from pixy.spark.options import ReadOptions
from pixy.spark.ranges import PlannedRange, plan_tasks
from pixy.spark.source import RangesPartition, read_partition

_IDLE_SECONDS = 0.04
"""Delay of an answer without new records."""

_TOPICS_MAX_AGE_SECONDS = 1.0


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on from the query's position. Pickled into the tasks, where only `read` is called.

    Args:
        clock: monotonic time in seconds.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        options: ReadOptions,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._clock = clock
        self._sleep = sleep
        self._pace = Pace(options.min_offsets_per_trigger, options.max_trigger_delay_seconds)
        # The initial offset, once requested. Invariant: never changes.
        self._initial: dict[str, Any] | None = None
        # End of the query; None: it has no end.
        self._available: Offsets | None = None
        # The last answers of the daemon, and the time of that about topics.
        self._topics: dict[str, pb.Topic] = {}
        self._topics_at: float | None = None
        self._latest: Offsets = {}
        # Time of the last answer without new records.
        self._idle_at = -math.inf

    def __reduce__(self) -> tuple[type["StreamReader"], tuple[ReadOptions]]:
        """Tasks need the options only, not the state."""
        return StreamReader, (self._options,)

    # --- offsets ----------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Start of a new query."""
        if self._initial is None:
            finder = self._finder()
            self._refresh_topics(finder)
            partitions = finder.partitions(self._topics, must_exist=True)
            found = finder.find(self._options.start, partitions)
            self._initial = initial_json(Reached(found, self._ids_of(found)))
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """Read limit of the options. Spark takes a single one, so the minimum number of records is
        applied here.
        """
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """End of the batch that starts at `start`. Without new records it is exactly `start`."""
        reached = from_json(start)
        finder = self._finder()
        self._maybe_refresh_topics(finder)
        recreated = self._recreated(reached)
        known = reached.without(recreated)
        latest = self._capped(known.offsets, self._find_latest(finder, known.offsets))
        backlog = sum(max(end - known.offsets.get(each, 0), 0) for each, end in latest.items())
        if is_initial(start):
            self._pace.is_due(backlog, self._clock())
            return to_json(self._limited(known, latest, limit), start=reached)
        hurry = self._available is not None or isinstance(limit, ReadAllAvailable)
        is_same = latest == known.offsets and not recreated
        if is_same or not (hurry or self._pace.is_due(backlog, self._clock())):
            self._rest()
            return start
        return to_json(self._limited(known, latest, limit))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """End of the log, for the query's progress."""
        return to_json(Reached(self._latest)) if self._latest else None

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of this run: later records are left to the next one."""
        finder = self._finder()
        self._maybe_refresh_topics(finder)
        self._available = self._find_latest(finder, {})

    def _recreated(self, reached: Reached) -> list[str]:
        """Topics that were recreated since they were read.

        Raises:
            OffsetOutOfRange: there are some, with failOnDataLoss.
        """
        recreated = [
            name for name, topic in self._topics.items() if reached.is_recreated(name, topic.topic_id or None)
        ]
        for name in recreated if self._options.fail_on_data_loss else ():
            raise OffsetOutOfRange(
                f"topic {name} was deleted and created again: it was read as topic {reached.topic_ids[name].hex()} and is "
                f"{self._topics[name].topic_id.hex()} now; records may be lost. With failOnDataLoss=false the query reads it from its "
                "beginning",
                0,
                0,
            )
        return recreated

    def _find_latest(self, finder: OffsetFinder, known: Mapping[TopicPartition, int]) -> Offsets:
        """End offsets of all partitions, including deleted ones of `known`."""
        self._latest = finder.latest(finder.partitions(self._topics, must_exist=False))
        for each, offset in known.items():
            end = self._latest.get(each)
            if (end is None or end < offset) and self._options.fail_on_data_loss:
                if not self._options.subscription.selects(each):
                    raise InvalidArgument(
                        f"{each.topic}-{each.partition} was read up to offset {offset} and is no longer subscribed: add it to the option "
                        "again, or with failOnDataLoss=false the query continues without it"
                    )
                now_is = "is gone" if end is None else f"ends at {end}"
                raise OffsetOutOfRange(
                    f"{each.topic}-{each.partition} was read up to offset {offset} and {now_is}: records may be lost, because the topic "
                    "was deleted or recreated. With failOnDataLoss=false the query continues with the existing records",
                    0,
                    end or 0,
                )
        return {**known, **self._latest}

    def _maybe_refresh_topics(self, finder: OffsetFinder) -> None:
        if self._topics_at is None or self._clock() - self._topics_at >= _TOPICS_MAX_AGE_SECONDS:
            self._refresh_topics(finder)

    def _refresh_topics(self, finder: OffsetFinder) -> None:
        self._topics, self._topics_at = finder.topics(), self._clock()

    def _ids_of(self, partitions: Iterable[TopicPartition]) -> dict[str, bytes]:
        """Ids of the partitions' topics, without topics that do not exist."""
        names = {each.topic for each in partitions}
        return {
            name: topic.topic_id for name, topic in self._topics.items() if name in names and topic.topic_id
        }

    def _rest(self) -> None:
        """Delay an answer without new records: Spark would ask again at once."""
        if self._available is None and self._clock() - self._idle_at < 2 * _IDLE_SECONDS:
            self._sleep(_IDLE_SECONDS)
        self._idle_at = self._clock()

    def _capped(self, known: Mapping[TopicPartition, int], latest: Offsets) -> Offsets:
        """The same offsets, limited to the end of the query."""
        available = self._available
        if available is None:
            return latest
        return {
            **known,
            **{each: min(end, available[each]) for each, end in latest.items() if each in available},
        }

    def _limited(self, known: Reached, latest: Offsets, limit: ReadLimit) -> Reached:
        limited = (
            limit_offsets(known.offsets, latest, limit.max_rows) if isinstance(limit, ReadMaxRows) else latest
        )
        return Reached(limited, {**known.topic_ids, **self._ids_of(limited)})

    # --- batches ----------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Ranges of each task of a batch; the same for a replayed batch."""
        if start == end:
            return []
        first, last = began_at(start, end), from_json(end)
        if self._topics_at is None:
            self._refresh_topics(self._finder())
        topic_ids = {**self._ids_of(last.offsets), **last.topic_ids}
        ranges = []
        for each, stop in sorted(last.offsets.items()):
            begin = first.offsets.get(each, 0)
            topic_id = topic_ids.get(each.topic)
            # A recreated topic is read from its beginning. Without its id it is recognized by an
            # end before the start.
            if begin > stop or first.is_recreated(each.topic, topic_id):
                begin = 0
            ranges.append(PlannedRange(*each, begin, stop, topic_id or b""))
        tasks = plan_tasks(ranges, self._options.min_partitions, self._options.max_records_per_partition)
        return [RangesPartition(each) for each in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one task."""
        return read_partition(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: progress is in Spark's checkpoint."""

    def stop(self) -> None:
        """Does nothing: Spark does not call it when a query stops."""

    def _finder(self) -> OffsetFinder:
        return OffsetFinder(
            LogClient(self._options.connection),
            self._options.subscription,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )
