"""Answers to the callers of produced records, many at a time.

Lost asynchronous records are counted and logged.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import structlog

from pixy.errors import PixyError

__all__ = ["ProduceAnswers", "ProduceDone"]

log = structlog.get_logger(__name__)

ProduceDone = Callable[[Sequence[Any], int, int, PixyError | None], None]
"""Answers callers, many at a time.

Called with their `waiter`s and (partition, offset of the first record, None), where the offsets of
the others follow, or with (-1, -1, error). Each waiter is answered once. An asynchronous record is
answered with (-1, -1, None) when it is buffered.
"""

_LOST_LOG_INTERVAL_S = 10.0


class ProduceAnswers:
    """Answers the callers of a producer.

    Args:
        monotonic: seconds of a clock, which space the log entries.

    Attributes:
        lost: asynchronous records that were not written.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lost_logged_at = float("-inf")
        self.lost = 0

    def answer(
        self,
        dones: list[ProduceDone | None],
        waiters: list[Any],
        partition: int,
        base_offset: int,
        error: PixyError | None,
    ) -> None:
        """Answer consecutive records, neighbours with the same `done` in one call."""
        for begin, end in _runs(dones):
            done = dones[begin]
            waiting = waiters[begin:end]
            if done is None and error is not None:
                self._note_lost(end - begin, error)
            elif done is not None and error is not None:
                done(waiting, -1, -1, error)
            elif done is not None:
                done(waiting, partition, base_offset + begin, None)

    def _note_lost(self, records: int, error: PixyError) -> None:
        """Count and log asynchronous records that were not written."""
        self.lost += records
        now = self._monotonic()
        if now - self._lost_logged_at >= _LOST_LOG_INTERVAL_S:
            self._lost_logged_at = now
            log.error("asynchronous messages could not be written", messages=self.lost, reason=str(error))


def _runs(dones: list[ProduceDone | None]) -> Iterator[tuple[int, int]]:
    """Begin and end of each run of equal neighbours; nearly always one."""
    begin, count = 0, len(dones)
    if dones.count(dones[0]) == count:
        yield 0, count
        return
    for _, run in groupby(dones):
        end = begin + len(list(run))
        yield begin, end
        begin = end
