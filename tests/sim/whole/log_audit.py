"""Audit of one partition: what producers were answered and consumers have seen is compared with
each other, and with every replica in the end. No search is needed: offsets are the order.

Anomalies, by their names in Jepsen's workload for Kafka and in pixy's own rules:

- *inconsistent offset*: an offset has two values, for whoever and wherever. This covers the reuse
  of an offset, and replicas that differ.
- *duplicate*: a value has two offsets. *Phantom*: a value that nobody sent, or whose send has
  failed.
- *lost write*: an answered value is not in the log, or a fetch passes by one.
- *reordered*: a send that began behind the answer of another one has a lower offset; batches of one
  process are answered in another order than they were sent.
- *stale*: an end that a call proves is below one that was known before the call began. *Beyond the
  end*: an offset is refused that was known to be at or below the end.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.sim.kit.failure import require


class Record(NamedTuple):
    """A record that somebody has seen."""

    offset: int
    value: bytes
    timestamp_ms: int


class Send(NamedTuple):
    """A batch that was sent.

    Attributes:
        values: ids of its records, each of which occurs nowhere else.
        begin: position of the call in the history.
        process: where it was sent.
    """

    values: tuple[bytes, ...]
    begin: int
    process: Any


@dataclass(slots=True)
class SentValues:
    """Everything that was sent under the name of a partition.

    Attributes:
        by_value: the send of each value.
        failed: values of sends that had no effect.
    """

    by_value: dict[bytes, Send] = field(default_factory=dict)
    failed: set[bytes] = field(default_factory=set)

    def add(self, send: Send) -> None:
        """A batch was sent."""
        for value in send.values:
            self.by_value[value] = send


class LogAudit:
    """Audit of one partition.

    Args:
        name: for readers.
        sent: what was sent under its name.
    """

    def __init__(self, name: str, sent: SentValues) -> None:
        self._name = name
        self.sent = sent
        self._values: dict[int, bytes] = {}
        self._offsets: dict[bytes, int] = {}
        self._acknowledged: dict[bytes, int] = {}
        # Values whose offsets were not answered.
        self._published: set[bytes] = set()
        # Ends that were known from a position in the history on, both ascending.
        self._known_at: list[int] = []
        self._known: list[int] = []
        # Per process: begin and offset of the last of its sends that was answered.
        self._last: dict[Any, tuple[int, int]] = {}
        self._begin = 0
        self._shown = 0

    def __str__(self) -> str:
        return self._name

    # --- what is known ----------------------------------------------------------------------------

    def end_before(self, position: int) -> int:
        """The largest end that was known before a position in the history."""
        at = bisect_left(self._known_at, position)
        return self._known[at - 1] if at else 0

    @property
    def newest_end(self) -> int:
        """The largest end that is known."""
        return self._known[-1] if self._known else 0

    @property
    def acknowledged(self) -> int:
        """Number of values that were answered."""
        return len(self._acknowledged)

    def _know(self, position: int, end: int) -> None:
        if end > self.newest_end:
            self._known_at.append(position)
            self._known.append(end)

    def _put(self, offset: int, value: bytes, where: str) -> None:
        known = self._values.setdefault(offset, value)
        require(
            known == value,
            f"{self}: inconsistent offset {offset}: {value!r} ({where}), and {known!r} elsewhere",
        )
        at = self._offsets.setdefault(value, offset)
        require(at == offset, f"{self}: duplicate: {value!r} at {at} and {offset} ({where})")

    def handed_out(self, offset: int, value: bytes) -> None:
        """A client of a consumer group got a record."""
        self._put(offset, value, "consumed")

    # --- producers --------------------------------------------------------------------------------

    def failed(self, send: Send) -> None:
        """A send was answered with an error that proves that it had no effect."""
        for value in send.values:
            require(value not in self._offsets, f"{self}: {value!r} was refused, and is in the log")

    def answered(self, send: Send, offset: int, position: int) -> None:
        """A send was answered with the offset of its first record.

        Args:
            position: of the answer in the history.
        """
        known = self.end_before(send.begin)
        require(
            offset >= known,
            f"{self}: reordered: {send.values} at {offset}, and the end was {known} before they were sent",
        )
        before, last = self._last.get(send.process, (-1, -1))
        require(
            send.begin < before or offset > last,
            f"{self}: reordered: {send.values} at {offset}, an earlier batch of the same process at {last}",
        )
        if send.begin > before:
            self._last[send.process] = send.begin, offset
        for at, value in enumerate(send.values, offset):
            self._put(at, value, "answered")
            self._acknowledged[value] = at
        self._know(position, offset + len(send.values))

    def published(self, values: Sequence[bytes]) -> None:
        """Records were published."""
        self._published.update(values)

    # --- consumers --------------------------------------------------------------------------------

    def fetched(self, offset: int, records: Sequence[Record], result: Any, position: int) -> None:
        """A fetch was answered.

        Args:
            offset: of the request.
            records: those from the offset on.
            result: a `FetchResult`.
            position: of the answer in the history.
        """
        for expected, record in enumerate(records, offset):
            require(
                record.offset == expected,
                f"{self}: lost write: a fetch from {offset} passes by {expected} to {record.offset}",
            )
            self._see(record, f"fetched from {offset}")
        end = offset + len(records)
        require(
            result.next_offset == end, f"{self}: a fetch of {offset} to {end} goes on at {result.next_offset}"
        )
        require(result.high_watermark >= end, f"{self}: fetched to {end}, end {result.high_watermark}")
        require(
            result.log_begin_offset <= offset,
            f"{self}: fetched from {offset}, begin {result.log_begin_offset}",
        )
        self._show(result.log_begin_offset, result.high_watermark, position)

    def _see(self, record: Record, where: str) -> None:
        value = record.value
        require(value in self.sent.by_value, f"{self}: phantom: {value!r} at {record.offset} ({where})")
        require(
            value not in self.sent.failed,
            f"{self}: phantom: {value!r} was refused, and is at {record.offset}",
        )
        self._put(record.offset, value, where)

    def _show(self, begin: int, end: int, position: int) -> None:
        self._begin = max(self._begin, begin)
        self._shown = max(self._shown, end)
        self._know(position, end)

    def ranged(self, begin_offset: int, end_offset: int, begin: int, position: int) -> None:
        """The range of offsets was answered."""
        known = self.end_before(begin)
        require(
            end_offset >= known,
            f"{self}: stale: the end is said to be {end_offset}, and was {known} before the call began",
        )
        require(begin_offset <= end_offset, f"{self}: range {begin_offset} to {end_offset}")
        self._show(begin_offset, end_offset, position)

    def refused(self, offset: int, error: Any, begin: int) -> None:
        """A fetch was refused because its offset is out of range."""
        known = self.end_before(begin)
        require(
            offset < error.begin or offset > known,
            f"{self}: beyond the end: {offset} is refused ({error}), and the end was {known} before the call began",
        )

    # --- the end ----------------------------------------------------------------------------------

    def replica(self, where: str, begin: int, records: Sequence[Record]) -> None:
        """The whole content of a replica, at rest.

        Args:
            begin: its log begin offset.
        """
        for expected, record in enumerate(records, begin):
            require(
                record.offset == expected,
                f"{self}: {where} has offset {record.offset} where {expected} is due",
            )
            self._see(record, where)
        end = begin + len(records)
        require(
            end >= self.newest_end, f"{self}: lost write: {where} ends at {end}, {self.newest_end} was shown"
        )
        there = {record.value for record in records}
        lost = [value for value, at in self._acknowledged.items() if at >= begin and value not in there]
        lost += [
            value
            for value in sorted(self._published - there)
            if value not in self._offsets or self._offsets[value] >= begin
        ]
        require(not lost, f"{self}: lost write: {where} lacks {lost[:5]}")
        for value in there:
            send = self.sent.by_value[value]
            first = self._offsets[value] - send.values.index(value)
            whole = [self._values.get(at) for at in range(first, first + len(send.values))]
            require(
                first < begin or whole == list(send.values),
                f"{self}: {where} has {value!r}, and not all of {send.values}",
            )

    def searched(self, timestamp_ms: int, found: int | None, begin: int, records: Sequence[Record]) -> None:
        """Judge the answer of a search for a timestamp by the log, once that is known.

        Args:
            begin: position of the call in the history.
            records: the log.
        """
        known = self.end_before(begin)
        for record in records:
            if found is not None and record.offset >= found:
                require(
                    record.offset > found or record.timestamp_ms >= timestamp_ms,
                    f"{self}: {found} was found for {timestamp_ms}, and is of {record.timestamp_ms}",
                )
                break
            if record.offset < known or found is not None:
                require(
                    record.timestamp_ms < timestamp_ms,
                    f"{self}: {found} was found for {timestamp_ms}, and {record.offset} is of {record.timestamp_ms}",
                )
