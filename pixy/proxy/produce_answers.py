"""Answers to the callers of produced records, many at a time."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from pixy.errors import PixyError

ProduceDone = Callable[[Sequence[Any], int, int, PixyError | None], None]
"""Answers callers, many at a time.

Called with their `waiter`s and (partition, offset of the first record, None), where the offsets of
the others follow, or with (-1, -1, error). Each waiter is answered once. An asynchronous record is
answered with (-1, -1, None) when it is buffered.
"""


def answer(
    dones: list[ProduceDone | None],
    waiters: list[Any],
    partition: int,
    base_offset: int,
    error: PixyError | None,
) -> int:
    """Answer consecutive records, neighbours with the same `done` in one call.

    Returns:
        The number of asynchronous records, which have no caller any more.
    """
    asynchronous = 0
    for begin, end in _runs(dones):
        done = dones[begin]
        if done is None:
            asynchronous += end - begin
        elif error is not None:
            done(waiters[begin:end], -1, -1, error)
        else:
            done(waiters[begin:end], partition, base_offset + begin, None)
    return asynchronous


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
