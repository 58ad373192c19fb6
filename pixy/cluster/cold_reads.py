"""Reads from segments, at a pace that leaves the disk to those who write.

A produce waits for a sync, and a sync waits for what the disk does before it. Consumers that catch up read as fast as the disk goes, and
on a disk that is busy all the time every sync waits. So, while the journal is written, what comes from the disk is bounded:
`storage.cold_read_bytes_per_second`. The answer of a read that goes beyond it comes when its bytes are due, and its reader asks for more
behind that. A read that the page cache answers costs nothing and never waits here, and while nobody writes there is no bound.

What a read had from the disk is what the system says of the thread that read: pages that it read ahead belong to it, and the reads that
find them later are free.

Invariant: over any span in which the journal is written, the answers given have at most the bound's bytes, and `_CREDIT_S` of it, and those
of the first read.

The disk itself sees to it that each read is small and keeps out of the way of a sync: see `background` in `storage/disk`. This here is
about how much there is of them.

The road not taken: to wait before the read. Nobody knows then whether the disk is needed, and reads from memory would stand in line behind
those from the disk. What that costs: as many first reads as there are readers begin at once, one after the other on one thread.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from pixy.storage import Disk, Worker, run_on

__all__ = ["ColdReads"]

T = TypeVar("T")

_CREDIT_S = 0.01
"""So much of the bound may be had at once: who reads a little now and then never waits."""


class ColdReads:
    """Runs reads on a thread.

    Args:
        disk: what is read from; knows what a thread has had from the device.
        worker: the thread.
        bytes_per_second: what may come from the disk while `is_writing`; 0 is no bound.
        is_writing: whether the journal is in use at the moment.
    """

    def __init__(
        self, disk: Disk, worker: Worker, bytes_per_second: int, is_writing: Callable[[], bool]
    ) -> None:
        self._disk = disk
        self._worker = worker
        self._bytes_per_second = bytes_per_second
        self._is_writing = is_writing
        self._loop = asyncio.get_running_loop()
        # When all that was read is due, in the loop's time.
        self._due = float("-inf")

    async def run(self, read: Callable[[], T]) -> T:
        """Run `read` on the thread and return what it gives, or raise what it raises."""
        result, size = await run_on(self._worker, partial(self._measured, read))
        if size and self._bytes_per_second and self._is_writing():
            now = self._loop.time()
            self._due = max(self._due, now - _CREDIT_S) + size / self._bytes_per_second
            if self._due > now:
                await asyncio.sleep(self._due - now)
        return result

    def _measured(self, read: Callable[[], T]) -> tuple[T, int]:
        before = self._disk.device_bytes_read()
        result = read()
        return result, self._disk.device_bytes_read() - before
