"""Checks of the batches of requests, before anything of them is written.

What takes half a millisecond at most is checked at once, on the event loop, and waits for nobody.
Everything else takes turns: a turn is half a millisecond on the event loop, or, for a batch that
takes more, another thread for `_SLICE_S` of processor time, or the batch that exceeds it. Then the
next request has its turn. So a request waits for a turn of each of the others, not for their ends,
and one whose call has ended costs no further turn. A request that costs more than `request_effort`
is refused where it exceeds it.

A batch is checked as a whole, so that only one is decompressed at a time. Small batches stay on the
loop, because a thread has to wait for the interpreter, for milliseconds if the loop is busy.
"""

import asyncio
from collections.abc import Sequence
from time import thread_time
from typing import NamedTuple

from pixy.backend import TopicPartition
from pixy.byte_semaphore import ByteSemaphore
from pixy.errors import InvalidBatch, InvalidRecords, MessageTooLarge
from pixy.one_thread import OneThread
from pixy.records import BatchLimits, CheckEffort, LongCheckError, NewBatch, check_next_batch

__all__ = ["BatchChecks", "Checked", "PartitionBatches", "request_effort"]

_SLICE_S = 0.005
_REQUEST_RECORDS = 2_000_000
_REQUEST_UNPACKED_BYTES = 128 << 20
_UNPACKED_FACTOR = 40


class PartitionBatches(NamedTuple):
    """Whole batches back to back for one partition."""

    partition: TopicPartition
    batches: bytes | memoryview


Checked = list[NewBatch] | InvalidRecords
"""The batches of one partition, or why they are refused."""


def request_effort(size: int) -> CheckEffort:
    """Largest cost of the check of a request with so many bytes of batches: about a second.

    Records without compression never exceed it.
    """
    return CheckEffort(max(_REQUEST_RECORDS, size), max(_REQUEST_UNPACKED_BYTES, _UNPACKED_FACTOR * size))


class BatchChecks:
    """The checks of one cluster's requests."""

    def __init__(self) -> None:
        self._turn = ByteSemaphore(1)
        self._thread = OneThread()

    @property
    def is_idle(self) -> bool:
        """True if no check has a turn."""
        return self._turn.available(1) and self._thread.is_idle

    async def check(self, partitions: Sequence[PartitionBatches], limits: BatchLimits) -> list[Checked]:
        """Check the batches of a request, by partition.

        Raises:
            InvalidBatch, MessageTooLarge: something is not a batch that could be appended, or the
                request costs too much.
        """
        check = _RequestCheck(partitions, limits)
        is_long = check.advance_shortly()
        while not check.is_done:
            async with self._turn.holding(1):
                if is_long:
                    await self._thread.run(check.advance)
                is_long = check.advance_shortly()
            await asyncio.sleep(0)
        return check.checked


class _RequestCheck:
    """The check of one request.

    Attributes:
        checked: the partitions that are checked.
    """

    def __init__(self, partitions: Sequence[PartitionBatches], limits: BatchLimits) -> None:
        self.checked: list[Checked] = []
        self._partitions = partitions
        self._limits = limits
        # Of the next partition.
        self._batches: list[NewBatch] = []
        self._size = sum(len(each.batches) for each in partitions)
        # Effort that is left to the request.
        self._left = request_effort(self._size)

    @property
    def is_done(self) -> bool:
        """All is checked."""
        return len(self.checked) == len(self._partitions)

    def advance_shortly(self) -> bool:
        """Check what takes half a millisecond; True if the next batch takes more than that."""
        effort, is_first = CheckEffort(), True
        try:
            while not self.is_done:
                self._check_next(effort)
                is_first = False
        except LongCheckError:
            pass
        self._charge(effort)
        return is_first and not self.is_done

    def advance(self) -> None:
        """Check for the time of a slice."""
        end = thread_time() + _SLICE_S
        try:
            while not self.is_done and thread_time() < end:
                self._check_next(self._left)
        except LongCheckError:
            raise self._too_large() from None

    def _charge(self, effort: CheckEffort) -> None:
        """Count what was spent of the effort of a turn."""
        whole = CheckEffort()
        self._left.records -= whole.records - effort.records
        self._left.unpacked_bytes -= whole.unpacked_bytes - effort.unpacked_bytes
        if self._left.records < 0 or self._left.unpacked_bytes < 0:
            raise self._too_large()

    def _too_large(self) -> MessageTooLarge:
        allowed = request_effort(self._size)
        return MessageTooLarge(
            f"the batches of the request decompress to more than {allowed.unpacked_bytes} bytes, or have more than "
            f"{allowed.records} records, where a compressed byte counts as 8, a batch as 64 records, an uncompressed record "
            "as an eighth and a header as a quarter besides; send fewer batches in a request"
        )

    def _check_next(self, effort: CheckEffort) -> None:
        (topic, number), buffer = self._partitions[len(self.checked)]
        try:
            self._batches.append(check_next_batch(memoryview(buffer), self._batches, self._limits, effort))
        except (InvalidBatch, MessageTooLarge) as error:
            located = type(error)(f"partition {number} of topic {topic}: {error}")
            if not isinstance(located, InvalidRecords):
                raise located from None
            self.checked.append(located)
            self._batches = []
            return
        if self._batches[-1].end == len(buffer):
            self.checked.append(self._batches)
            self._batches = []
