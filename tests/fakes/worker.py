"""Workers without threads: one runs its work inline, one on the test's command, and one when its
disk is not stalled.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pixy.storage.disk.disk import Buffer, File
from pixy.storage.disk.worker import Done

Work = Callable[[], Any]


class InlineWorker:
    """Runs work at once; the callback is called in the next iteration of the loop, as from a
    thread.
    """

    def __init__(self, name: str = "worker", *, background: bool = False) -> None:
        self.name = name
        self.stopped = False

    def submit(self, work: Work, done: Done) -> None:
        if not self.stopped:
            asyncio.get_running_loop().call_soon(done, *_run(work))

    def begin_write(self, file: File, buffers: Sequence[Buffer], position: int, done: Done) -> bool:
        return False

    def stop(self) -> None:
        self.stopped = True


class StallingDisk:
    """Makes workers whose work waits while the disk is stalled."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] | None = None

    def worker(self, name: str = "worker", *, background: bool = False) -> "StallingWorker":
        """A worker of this disk."""
        return StallingWorker(self, name, background=background)

    def stall(self) -> None:
        """Have work wait from now on."""
        self._waiting = []

    def resume(self) -> None:
        """Do what waits, in order."""
        waiting, self._waiting = self._waiting, None
        for work in waiting or ():
            work()

    def do(self, work: Callable[[], None]) -> None:
        """Work once the disk is not stalled."""
        if self._waiting is None:
            work()
        else:
            self._waiting.append(work)


class StallingWorker(InlineWorker):
    """An `InlineWorker` of a `StallingDisk`."""

    def __init__(self, disk: StallingDisk, name: str, *, background: bool) -> None:
        super().__init__(name, background=background)
        self._disk = disk

    def submit(self, work: Work, done: Done) -> None:
        self._disk.do(partial(super().submit, work, done))


class StepWorker:
    """Queues work until `step`, which calls the callback.

    `stop` runs the remaining work and drops the callbacks.
    """

    def __init__(self) -> None:
        self._queue: deque[tuple[Work, Done]] = deque()
        self._arrived = asyncio.Event()
        self.stopped = False

    def __len__(self) -> int:
        return len(self._queue)

    def submit(self, work: Work, done: Done) -> None:
        self._queue.append((work, done))
        self._arrived.set()

    def begin_write(self, file: File, buffers: Sequence[Buffer], position: int, done: Done) -> bool:
        return False

    async def wait(self) -> None:
        """Wait for work to be queued."""
        while not self._queue:
            self._arrived.clear()
            await self._arrived.wait()

    def step(self) -> None:
        """Run the oldest piece of work and call its callback."""
        work, done = self._queue.popleft()
        done(*_run(work))

    def stop(self) -> None:
        self.stopped = True
        while self._queue:
            _run(self._queue.popleft()[0])


def _run(work: Work) -> tuple[Any, BaseException | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error
