"""Partitions that do not answer, and their part of the producer's buffer.

A partition is silent when it has no leader as records come for it, or has answered nothing for two
seconds, until it has taken a batch. While others answer, silent partitions together have at most
half of the buffer, in records and in bytes; further records for them are refused with the reason.
So an outage of some partitions is none of the others: these have at least the other half, and do
not queue behind records for which there is no room. An outage of all has the whole buffer.

Records that have come before that may be more than half. What exceeds the half does not count for
others, so the buffer may hold half as much again.
"""

import asyncio
from collections.abc import Callable

from pixy.errors import PixyError, Unavailable
from pixy.proxy.topic_accumulators import PartitionAccumulator, SilentRecords

LOOK_S = 0.25
"""Pause between two looks."""

_LOOKS = 8
"""Looks without an answer after which a partition is silent. Not a time: a process that was paused
has asked nobody meanwhile.
"""


class SilentPartitions:
    """Counts of the records of silent partitions.

    Args:
        records, size: records that the buffer holds, and their bytes.
        on_silent: called when partitions have become silent, which makes room for others.

    Attributes:
        records_max, bytes_max: what the buffer holds now.
    """

    __slots__ = (
        "_all_bytes",
        "_all_records",
        "_in_flight",
        "_look_number",
        "_on_silent",
        "_others_answer",
        "_timer",
        "_total",
        "bytes_max",
        "records_max",
    )

    def __init__(self, records: int, size: int, on_silent: Callable[[], None]) -> None:
        self._all_records, self._all_bytes = records, size
        self._on_silent = on_silent
        self._total = SilentRecords()
        # A partition has taken a batch since some are silent.
        self._others_answer = False
        # Partitions with batches in flight that are not silent, and the look before the flush or
        # the last answer. Invariant: ascending; the timer is set if there are some.
        self._in_flight: dict[PartitionAccumulator, int] = {}
        self._look_number = 0
        self._timer: asyncio.TimerHandle | None = None
        self.records_max, self.bytes_max = records, size

    @property
    def any(self) -> bool:
        """True while silent partitions have records."""
        return self._total.records > 0

    def stop(self) -> None:
        """Look no more."""
        self._in_flight.clear()
        if self._timer is not None:
            self._timer.cancel()

    def watch(self, accumulator: PartitionAccumulator) -> None:
        """Batches of a partition that is not silent are sent."""
        self._in_flight.setdefault(accumulator, self._look_number)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def begin(self, accumulator: PartitionAccumulator) -> None:
        """A partition is silent from now on."""
        self._in_flight.pop(accumulator, None)
        number = accumulator.unanswered + len(accumulator.records)
        size = accumulator.unanswered_bytes + accumulator.bytes
        accumulator.silent = SilentRecords(number, size)
        self._add(number, size)

    def check(self, accumulator: PartitionAccumulator, size: int) -> None:
        """Check that there is room for one more record of a silent partition.

        Raises:
            Unavailable: silent partitions have their half of the buffer, or all of it.
        """
        total, parts = self._total, 2 if self._others_answer else 1
        if not total.records or (
            total.records < self._all_records // parts and total.bytes + size <= self._all_bytes // parts
        ):
            return
        topic, number = accumulator.partition
        reason = accumulator.fault or "it has no leader, or has not answered for two seconds"
        what = (
            "their half of the producer's buffer is full" if parts == 2 else "the producer's buffer is full"
        )
        raise Unavailable(
            f"{topic}-{number} takes no messages at present ({reason}), and {what} of messages for partitions that do not "
            f"answer: {total.records} messages with {total.bytes} bytes; try again"
        ).at_limit("producer.channel_buffer_size and producer.buffer_bytes for partitions that do not answer")

    def count(self, records: SilentRecords, number: int, size: int) -> None:
        """Count records of a silent partition that have come, or, below 0, were answered."""
        records.records += number
        records.bytes += size
        self._add(number, size)

    def answered(self, accumulator: PartitionAccumulator, error: PixyError | None) -> None:
        """A partition has taken a batch, or all that was sent has failed."""
        self._in_flight.pop(accumulator, None)
        if error is not None:
            return
        silent = accumulator.silent
        if silent is not None:
            accumulator.silent = None
            self._add(-silent.records, -silent.bytes)
        self._others_answer = self.any
        if accumulator.in_flight:
            self.watch(accumulator)

    def _add(self, number: int, size: int) -> None:
        total = self._total
        total.records += number
        total.bytes += size
        self.records_max = _room(self._all_records, total.records)
        self.bytes_max = _room(self._all_bytes, total.bytes)

    def _look(self) -> None:
        self._timer = None
        self._look_number += 1
        late = []
        for accumulator, look in self._in_flight.items():
            if look > self._look_number - _LOOKS:
                break
            late.append(accumulator)
        for accumulator in late:
            self.begin(accumulator)
        if self._in_flight:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
        if late:
            self._on_silent()


def _room(limit: int, silent: int) -> int:
    """The room of the buffer if silent partitions count with at most half of it: at most half as
    much again.
    """
    half = limit // 2
    return limit + min(max(0, silent - half), limit - half)
