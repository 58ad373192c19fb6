"""Records behind others of their partition that are not written for long.

Asynchronous records may be in flight for a minute. What comes later for their partition waits, and
so do callers that queue for room in the buffer; synchronous ones have a limit of their own, from
their arrival. So it is noted which records came when.
"""

import asyncio
from collections.abc import Callable

from pixy.errors import Unavailable
from pixy.proxy.topic_accumulators import PartitionAccumulator, ProduceBatch

_LOOKS = 20
"""Looks within the limit: a record is answered at most one interval early."""


class LateRecords:
    """Watches the partitions with records in flight.

    Args:
        limit_s: limit of synchronous records.
        monotonic: seconds of a clock.
        answer: called with records that are taken out of their accumulator, and their error.
        refuse_queued: called with a time: whoever has queued for room since then is refused.

    Attributes:
        pause_s: time between two looks; what comes within it counts as of one age.
    """

    def __init__(
        self,
        limit_s: float,
        monotonic: Callable[[], float],
        answer: Callable[[ProduceBatch, Unavailable], None],
        refuse_queued: Callable[[float, Unavailable], None],
    ) -> None:
        self._limit_s = limit_s
        self.pause_s = limit_s / _LOOKS
        self._monotonic = monotonic
        self._answer = answer
        self._refuse_queued = refuse_queued
        # The partitions, and the time of their flush.
        self._in_flight: dict[PartitionAccumulator, float] = {}
        # Invariant: set while there are partitions.
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, accumulator: PartitionAccumulator, now: float) -> None:
        """Records of a partition are in flight from now on."""
        self._in_flight.setdefault(accumulator, now)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.pause_s, self._look)

    def admitted(self, accumulator: PartitionAccumulator, since: float) -> None:
        """A record of a partition has queued since that time, and no longer."""
        if accumulator in self._in_flight:
            accumulator.mark(since, self.pause_s)

    def unwatch(self, accumulator: PartitionAccumulator) -> None:
        """Nothing of a partition is in flight."""
        self._in_flight.pop(accumulator, None)

    def stop(self) -> None:
        """Answer nobody any more."""
        self._in_flight.clear()

    def _look(self) -> None:
        self._timer = None
        if not self._in_flight:
            return
        self._timer = asyncio.get_running_loop().call_later(self.pause_s, self._look)
        now = self._monotonic()
        late = [each for each, since in self._in_flight.items() if since + self._limit_s <= now]
        for accumulator in self._in_flight:
            if accumulator.records:
                accumulator.mark(now, 0.0)
        for accumulator in late:
            batch = accumulator.take_synchronous(now - self._limit_s + self.pause_s)
            if batch is not None:
                self._answer(batch, self._error(accumulator))
        if late:
            self._refuse_queued(
                now - self._limit_s,
                Unavailable(f"the producer's buffer has been full for {self._limit_s:g} s"),
            )

    def _error(self, accumulator: PartitionAccumulator) -> Unavailable:
        topic, number = accumulator.partition
        reason = accumulator.fault or "messages before it are not written yet"
        return Unavailable(f"{topic}-{number} could not be written within {self._limit_s:g} s: {reason}")
