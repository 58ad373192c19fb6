"""Threads for blocking work, as a constructor argument.

The event loop submits a function and gets a callback on the loop when it has run. A simulation
passes a worker that runs the function in place.
"""

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from pixy.aio.futures import reject, resolve
from pixy.aio.scheduling import run_in_background
from pixy.storage.disk.disk import Buffer, File, RealFile
from pixy.storage.disk.io_uring import IoUring, open_io_uring

T = TypeVar("T")

_JOIN_S = 5.0
_NOT_NOW = (errno.EAGAIN, errno.ECANCELED)
_NOT_HERE = (errno.EINVAL, errno.EOPNOTSUPP)
"""Errors of a write by io_uring that say nothing of the disk, for the moment or in this file. All
its bytes are written again before the next sync, so no failed one is taken for a success.
"""

Done = Callable[[Any, BaseException | None], None]


class Worker(Protocol):
    """Runs blocking functions in the order of submission, one at a time."""

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        """Run `work`, then call `done(result, None)` or `done(None, error)` on the event loop."""

    def begin_write(self, file: File, buffers: Sequence[Buffer], position: int, done: Done) -> bool:
        """Begin `file.write_durably` without the worker's thread; one such write at a time.

        Returns:
            False if that is not possible here: nothing is done then.
        """

    def stop(self) -> None:
        """Run all submitted functions, then end."""


class MakeWorker(Protocol):
    """Factory of workers."""

    def __call__(self, name: str, *, background: bool) -> Worker:
        """Make a worker.

        Args:
            name: the name of its thread.
            background: its work has no waiters, and runs at a lower priority.
        """


class ThreadWorker:
    """A worker with one thread, which calls back on the loop that runs during construction.

    `MakeWorker` describes the arguments.
    """

    def __init__(self, name: str, *, background: bool = False) -> None:
        self._background = background
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[tuple[Callable[[], Any], Done] | None] = SimpleQueue()
        # For writes without the thread, made by the first one; None if they are impossible.
        self._ring: IoUring | None = None
        self._asks_for_ring = True
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        self._queue.put((work, done))

    def begin_write(self, file: File, buffers: Sequence[Buffer], position: int, done: Done) -> bool:
        if self._asks_for_ring:
            self._asks_for_ring = False
            self._ring = open_io_uring()
        if self._ring is None or not isinstance(file, RealFile):
            return False
        return file.begin_write(
            self._ring, buffers, position, partial(self._write_ended, file, buffers, position, done)
        )

    def _write_ended(
        self, file: File, buffers: Sequence[Buffer], position: int, done: Done, result: int
    ) -> None:
        error = -min(result, 0)
        if result == sum(map(len, buffers)):
            done(None, None)
        elif not error or error in _NOT_NOW + _NOT_HERE:
            if error in _NOT_HERE:
                self._close_ring(0.0)
            self.submit(lambda: file.write_durably(buffers, position), done)
        else:
            done(None, OSError(error, os.strerror(error)))

    def stop(self) -> None:
        self._queue.put(None)
        # Bounded: a hanging disk must not block the event loop, which enforces the shutdown
        # timeout.
        end = time.monotonic() + _JOIN_S
        self._thread.join(_JOIN_S)
        self._close_ring(max(0.0, end - time.monotonic()))

    def _close_ring(self, timeout: float) -> None:
        ring, self._ring = self._ring, None
        if ring is not None:
            ring.close(timeout)

    def _run(self) -> None:
        if self._background:
            run_in_background()
        get, call = self._queue.get, self._loop.call_soon_threadsafe
        while (job := get()) is not None:
            work, done = job
            try:
                result = work()
            except BaseException as error:
                call(done, None, error)
            else:
                call(done, result, None)
                del result
            del work, done, job


async def run_on(worker: Worker, work: Callable[[], T]) -> T:
    """Run `work` on a worker and wait for its result. Cancellation ends the wait, not the work."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: Any, error: BaseException | None) -> None:
        if error is None:
            resolve(future, result)
        else:
            reject(future, error)

    worker.submit(work, done)
    return await future
