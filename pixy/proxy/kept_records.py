"""Asynchronous records that the backend has refused, until they are written or given up.

They stay in the accumulator of their partition, count as in flight there, and are sent again in
their order, one batch at a time, after growing pauses. See `accumulator` for what is kept.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from pixy.aio.retries import Backoff
from pixy.config import ProducerConfig
from pixy.errors import DeadlineExceeded, PixyError, ShuttingDown, Unavailable
from pixy.proxy.produce_answers import ProduceDone
from pixy.proxy.topic_accumulators import PartitionAccumulator, ProduceBatch, record_size

_RETRY_MIN_S = 0.1
_RETRY_MAX_S = 1.0
"""First and longest pause before kept records are sent again."""


class KeptRecords:
    """Kept records of one producer.

    Args:
        options: the `producer` section of the configuration.
        monotonic: seconds of a clock.
        send: sends a batch, with the age of its records for the backend.
        give_up: called with a batch whose time is over, and the last error.

    Attributes:
        keep_s: time after which asynchronous records are given up.
    """

    def __init__(
        self,
        options: ProducerConfig,
        monotonic: Callable[[], float],
        send: Callable[[ProduceBatch, float], None],
        give_up: Callable[[ProduceBatch, PixyError], None],
    ) -> None:
        self._limit_s = options.timeout
        self._retry_max_s = min(options.retry_backoff, _RETRY_MAX_S)
        self._monotonic = monotonic
        self._send = send
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        self.keep_s = max(options.timeout, options.retry_max * options.retry_backoff)

    def stop(self) -> None:
        """Keep and send nothing more."""
        self._stopped = True

    def may_keep(self, batch: ProduceBatch, error: PixyError) -> bool:
        """True if the asynchronous records of a failed batch are sent again."""
        if None not in batch.dones or self._stopped or self._monotonic() >= batch.until:
            return False
        # A part without synchronous records of a batch that was divided has their limit.
        return isinstance(error, Unavailable | DeadlineExceeded) and not isinstance(error, ShuttingDown)

    def keep(self, batch: ProduceBatch, error: PixyError) -> tuple[list[ProduceDone | None], list[Any], int]:
        """Keep the asynchronous records of a batch, in the order of the flush.

        Returns:
            The others, which count as one more batch in flight: callbacks, callers and size.
        """
        accumulator, dones, waiters, size, records, until = batch
        assert records is not None
        kept = [record for record, done in zip(records, dones, strict=True) if done is None]
        kept_bytes = sum(map(record_size, kept))
        nobody: list[ProduceDone | None] = [None] * len(kept)
        keep = ProduceBatch(accumulator, nobody, nobody, kept_bytes, kept, until)
        accumulator.kept.insert(len(accumulator.kept) - accumulator.behind, keep)
        accumulator.fault = error
        accumulator.in_flight += 1
        asked = [at for at, done in enumerate(dones) if done is not None]
        return [dones[at] for at in asked], [waiters[at] for at in asked], size - kept_bytes

    def go_on(self, accumulator: PartitionAccumulator, error: PixyError | None) -> None:
        """Send the oldest kept batch when that is due, after an answer of the backend."""
        if error is None:
            accumulator.backoff = None
        if accumulator.in_flight == len(accumulator.kept) and accumulator.retry is None:
            pause_s = self._pause(accumulator) if error is not None else 0.0
            accumulator.retry = self._loop.call_later(pause_s, self._try_again, accumulator)

    def _pause(self, accumulator: PartitionAccumulator) -> float:
        """The pause before the next attempt."""
        if accumulator.kept[0].until <= self._monotonic():
            return 0.0
        if accumulator.backoff is None:
            accumulator.backoff = Backoff(min(_RETRY_MIN_S, self._retry_max_s), self._retry_max_s)
        return accumulator.backoff.grow()

    def _try_again(self, accumulator: PartitionAccumulator) -> None:
        """Send the oldest kept batch, or give it up."""
        accumulator.retry = None
        if self._stopped:
            return
        batch = accumulator.kept.popleft()
        accumulator.behind = len(accumulator.kept)
        left_s = batch.until - self._monotonic()
        if left_s > 0:
            self._send(batch, self._limit_s - left_s)
        else:
            assert accumulator.fault is not None
            self._give_up(batch, accumulator.fault)
