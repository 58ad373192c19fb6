"""Disk space reserved for the time when the disk is full.

A file, `reserve`, occupies `storage.reserve_bytes` and holds no data. When there is no room for a
journal file, a segment or a checkpoint, the file is removed: accepted entries are written, consumer
groups continue to commit, retention continues to make room. New messages are refused until the
space can be reserved again, which is retried indefinitely.

The writers notice the full disk themselves (`disk.is_disk_full`) and wait for room: `Journal`
before a flush, `LogWriter` before a write, `Checkpoints` once a checkpoint has failed. `Stages` and
`Pieces` refuse.

The road not taken: to watch the free space and stop early. Free space says nothing about quotas,
and may be gone a moment later.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

from pixy.errors import Unavailable
from pixy.storage import Disk, Worker, is_disk_full

T = TypeVar("T")

log = structlog.get_logger(__name__)

_RETRY_S = 1.0


class Reserve:
    """The reserved disk space.

    Args:
        disk, directory: location of the file.
        size: bytes to reserve; 0 reserves nothing and refuses nothing for lack of it.
        worker: the thread for file work.
        full: tells whether a write is waiting for room.

    Attributes:
        blocked: reason why no messages are accepted, None while the space is reserved.
    """

    def __init__(
        self, disk: Disk, directory: Path, size: int, worker: Worker, full: Callable[[], bool]
    ) -> None:
        self._disk = disk
        self._path = directory / "reserve"
        self._size = size
        self._worker = worker
        self._full = full
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        # Number of jobs submitted to the worker.
        self._begun = 0
        self.blocked: Unavailable | None = None

    def start(self) -> None:
        """Reserve the space, or begin to retry."""
        self._try_reserve()

    def release(self) -> None:
        """Free the space, because the disk is full."""
        if self.blocked is None and self._size and not self._stopped:
            self._block()
            self._run(self._free, self._freed)

    def stop(self) -> None:
        """Stop retrying. Reserved space stays reserved."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    # --- on the event loop ------------------------------------------------------------------------

    def _block(self) -> None:
        self.blocked = Unavailable(
            f"the disk is full: the rest of {self._size} bytes (storage.reserve_bytes) is reserved for offset commits"
        )
        log.error("the disk is full; no messages are accepted until there is room", reserve_bytes=self._size)

    def _run(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        self._begun = number = self._begun + 1

        def finished(result: T, error: BaseException | None) -> None:
            if self._stopped or number != self._begun:
                return  # only the newest job tells the current state
            if error is None:
                done(result)
                return
            # Not a reason to stop the node: the reserve matters only when the disk is full.
            log.error("the reserve on the disk cannot be changed", file=str(self._path), error=str(error))
            if self.blocked is not None:
                self._retry()

        self._worker.submit(work, finished)

    def _retry(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_RETRY_S, self._try_reserve)

    def _try_reserve(self) -> None:
        if self._full():
            self._retry()
        else:
            self._run(self._reserve, self._reserved)

    def _reserved(self, reserved: bool) -> None:
        if not reserved:
            if self.blocked is None:
                self._block()
            self._retry()
        elif self.blocked is not None:
            log.info("there is room on the disk again")
            self.blocked = None

    def _freed(self, _: None) -> None:
        self._retry()

    # --- on the worker ----------------------------------------------------------------------------

    def _reserve(self) -> bool:
        """Reserve the space; False when the disk has no room for it."""
        if not self._size:
            self._free()
            return True
        try:
            file = self._disk.open(self._path, create=True)
            try:
                file.allocate(self._size)
                file.truncate(self._size)
            finally:
                file.close()
        except OSError as error:
            self._free()
            if is_disk_full(error):
                return False
            raise
        return True

    def _free(self) -> None:
        if self._path.name in self._disk.names(self._path.parent):
            self._disk.unlink(self._path)
