"""Reads from segments, at a rate that leaves the disk to the journal.

A produce waits for a sync, and a sync waits for the disk's earlier requests. Consumers that catch
up read at the speed of the disk, and on a saturated disk every sync waits. So, while the journal is
being written, reads from the disk are limited to `storage.cold_read_bytes_per_second`. The answer
of a read above the limit is delayed until its bytes are due, and its reader requests more only
after that. A read that the page cache answers is free and is never delayed, and while nothing is
written there is no limit.

The bytes that a read took from the disk are those that the operating system accounts to the reading
thread: pages that it read ahead are charged to it, and later reads that find them are free.

Invariant: over any span in which the journal is written, the bytes of the answers are at most those
of the limit, plus `_CREDIT_S` of it, plus those of the first read.

The disk itself keeps each read small and out of the way of a sync: see `background` in
`storage/disk/disk`. This module limits their rate.

The road not taken: to wait before the read. At that point it is unknown whether the disk is needed,
and reads from memory would queue behind those from the disk. The cost of this choice: as many first
reads as there are readers begin at once, one after the other on one thread.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from pixy.storage import Disk, Worker, run_on

T = TypeVar("T")

_CREDIT_S = 0.01
"""Seconds of the limit that may be used at once: a reader of small amounts never waits."""


class ColdReads:
    """Runs reads on a thread, and delays their answers to limit the rate.

    Args:
        disk: the disk that is read; accounts the bytes that a thread read from the device.
        worker: the thread.
        bytes_per_second: limit of reads from the disk while `is_writing`; 0 for none.
        is_writing: tells whether the journal is in use.
    """

    def __init__(
        self, disk: Disk, worker: Worker, bytes_per_second: int, is_writing: Callable[[], bool]
    ) -> None:
        self._disk = disk
        self._worker = worker
        self._bytes_per_second = bytes_per_second
        self._is_writing = is_writing
        self._loop = asyncio.get_running_loop()
        # Time at which all bytes read so far are due, on the loop's clock.
        self._due = float("-inf")

    async def run(self, read: Callable[[], T]) -> T:
        """Run `read` on the thread and return its result, or raise its exception."""
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
