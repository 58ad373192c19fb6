"""Checks of the batches of requests, before anything of them is written.

A check that takes half a millisecond at most is done at once, on the event loop, and waits for
nobody. Any other one is done on another thread, in slices: after `_SLICE_S` of processor time, or
the batch that exceeds it, the next request has its turn. So a request waits for a slice of each of
the others, not for their ends, and one whose call has ended costs no further slice. A request that
costs more than `request_effort` is refused where it exceeds it.

A batch is checked as a whole, so that only one is decompressed at a time.
"""

from collections.abc import Iterator, Sequence
from time import thread_time
from typing import NamedTuple

from pixy.backend import TopicPartition
from pixy.errors import InvalidBatch, InvalidRecords, MessageTooLarge
from pixy.one_thread import OneThread
from pixy.records import BatchLimits, CheckEffort, LongCheckError, NewBatch, iter_new_batches

__all__ = ["BatchChecks", "Checked", "PartitionBatches", "request_effort"]

_SLICE_S = 0.005
_REQUEST_RECORDS = 2_000_000
_REQUEST_UNPACKED_BYTES = 128 << 20
_UNPACKED_FACTOR = 32


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
        self._thread = OneThread()

    @property
    def is_idle(self) -> bool:
        """True if no check is on the other thread."""
        return self._thread.is_idle

    async def check(self, partitions: Sequence[PartitionBatches], limits: BatchLimits) -> list[Checked]:
        """Check the batches of a request, by partition.

        Raises:
            InvalidBatch, MessageTooLarge: something is not a batch that could be appended, or the
                request costs too much.
        """
        try:
            quick = _RequestCheck(partitions, limits, CheckEffort())
            quick.finish()
            return quick.checked
        except LongCheckError:
            pass
        effort = request_effort(sum(len(each.batches) for each in partitions))
        records, unpacked_bytes = effort.records, effort.unpacked_bytes
        check = _RequestCheck(partitions, limits, effort)
        try:
            while not await self._thread.run(check.advance):
                pass
        except LongCheckError:
            raise MessageTooLarge(
                f"the batches of the request decompress to more than {unpacked_bytes} bytes, or have more than {records} "
                f"records, where a batch counts as 64 and an uncompressed record as an eighth besides; "
                "send fewer batches in a request"
            ) from None
        return check.checked


class _RequestCheck:
    """The check of one request.

    Attributes:
        checked: the partitions that are checked.
    """

    def __init__(
        self, partitions: Sequence[PartitionBatches], limits: BatchLimits, effort: CheckEffort
    ) -> None:
        self.checked: list[Checked] = []
        self._steps = self._check(partitions, limits, effort)

    def finish(self) -> None:
        """Check all."""
        for _ in self._steps:
            pass

    def advance(self) -> bool:
        """Check for the time of a slice; returns True when all is checked."""
        end = thread_time() + _SLICE_S
        return all(thread_time() < end for _ in self._steps)

    def _check(
        self, partitions: Sequence[PartitionBatches], limits: BatchLimits, effort: CheckEffort
    ) -> Iterator[None]:
        """A step is a batch."""
        for (topic, number), buffer in partitions:
            batches: list[NewBatch] = []
            try:
                for batch in iter_new_batches(buffer, limits, effort):
                    batches.append(batch)
                    yield
                self.checked.append(batches)
            except (InvalidBatch, MessageTooLarge) as error:
                located = type(error)(f"partition {number} of topic {topic}: {error}")
                if not isinstance(located, InvalidRecords):
                    raise located from None
                self.checked.append(located)
                yield
