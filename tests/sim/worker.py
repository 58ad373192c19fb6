"""Workers of a simulated process: no threads, and an order that follows from a seed.

A piece of work runs as a whole, either in place or some time after it was handed over; its answer comes some time after that, with
anything else in between. With the process everything ends: no work begins and no answer arrives any more.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from pixy.storage.worker import Done
from tests.sim.disk import SimulatedDisk

__all__ = ["SimulatedWorker"]

Work = Callable[[], Any]

_DELAYS_S = (0.0, 0.0, 0.0, 0.0005, 0.01)
_PAUSE_S = 8.0
"""Long enough for a log to be cut, and its segments to go, before a read begins that was asked for before."""


class SimulatedWorker:
    """One worker thread of the process that runs on `disk`.

    Args:
        rng: when things happen; None for work in place.
        pauses: whether it does nothing for seconds now and then, as a thread whose disk is busy.
    """

    def __init__(self, disk: SimulatedDisk, rng: Random | None, *, pauses: bool = False) -> None:
        self._disk = disk
        self._rng = rng
        self._pauses = pauses
        self._queue: deque[tuple[Work, Done]] = deque()
        self._running = False
        self._stopped = False

    def submit(self, work: Work, done: Done) -> None:
        if self._stopped or self._disk.ended:
            return
        if self._rng is None:
            self._run(work, done)
            return
        self._queue.append((work, done))
        if not self._running:
            self._running = True
            self._later(self._next)

    def stop(self) -> None:
        self._stopped = True
        while self._queue:
            self._run(*self._queue.popleft())

    def _next(self) -> None:
        self._running = bool(self._queue)
        if self._queue:
            self._run(*self._queue.popleft())
            self._later(self._next)

    def _run(self, work: Work, done: Done) -> None:
        if self._disk.ended:
            return
        try:
            result, error = work(), None
        except BaseException as caught:  # `Ended` too: the process has ended, and nobody is left to be told
            result, error = None, caught
        if not self._disk.ended:
            asyncio.get_running_loop().call_soon(self._answer, done, result, error)

    def _answer(self, done: Done, result: Any, error: BaseException | None) -> None:
        if not self._disk.ended:
            done(result, error)

    def _later(self, callback: Callable[[], None]) -> None:
        assert self._rng is not None
        delay = self._rng.choice(_DELAYS_S)
        if self._pauses and self._rng.random() < 0.02:
            delay = _PAUSE_S
        asyncio.get_running_loop().call_later(delay, callback)
