"""Workers without threads: one runs its work inline, the other on the test's command."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from pixy.storage.worker import Done

__all__ = ["InlineWorker", "StepWorker"]

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

    def stop(self) -> None:
        self.stopped = True


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
