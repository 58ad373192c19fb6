"""Workers of a simulated process: no concurrent threads, and an order that follows from a seed.

A job begins some time after its submission, and its answer arrives some time after its end. In
between, at any call on the disk, it may pause while the event loop and other workers continue: see
`Job`. When the process ends, all jobs end and no more answers arrive.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from pixy.storage.disk.disk import Buffer, File
from pixy.storage.disk.worker import Done
from tests.sim.disk import SimulatedDisk
from tests.sim.job import Job

Work = Callable[[], Any]

_DELAYS_S = (0.0, 0.0, 0.0, 0.0005, 0.01)
_PAUSE_S = 8.0
"""Long enough for a log to be truncated and its segments removed before an earlier requested read
begins.
"""
_STOPS = 0.2
"""Probability that a job pauses at a call on the disk, if it may."""


class SimulatedWorker:
    """One worker thread of the process that runs on `disk`.

    Args:
        rng: source of timing; None runs jobs in place, as a whole.
        pauses: True to idle for seconds at times, like a thread on a busy disk.
        interleaves: True to let others run between the calls of its jobs.
        delay: seconds until a job begins or goes on; None for the usual ones.
    """

    def __init__(
        self,
        disk: SimulatedDisk,
        rng: Random | None,
        *,
        pauses: bool = False,
        interleaves: bool = False,
        delay: Callable[[], float] | None = None,
    ) -> None:
        self._disk = disk
        self._rng = rng
        self._pauses = pauses
        self._interleaves = interleaves
        self._delay = delay or self._usual_delay
        self._queue: deque[tuple[Work, Done]] = deque()
        self._running = False
        self._stopped = False
        # The paused job, and the callback for its end.
        self._job: tuple[Job, Done] | None = None

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

    def begin_write(self, file: File, buffers: Sequence[Buffer], position: int, done: Done) -> bool:
        return False

    def stop(self) -> None:
        self._stopped = True
        if self._job is not None and not self._job[0].ended:  # a job that was killed has
            job, _ = self._job
            self._go_on(job.finish)
        while self._queue:
            self._run(*self._queue.popleft())

    def _next(self) -> None:
        if self._disk.ended:
            return
        if self._job is not None:
            job, _ = self._job
            self._go_on(job.go_on)
        elif self._queue:
            work, done = self._queue.popleft()
            if self._interleaves:
                self._begin(work, done)
            else:
                self._run(work, done)
        else:
            self._running = False
            return
        self._later(self._next)

    def _begin(self, work: Work, done: Done) -> None:
        rng = self._rng
        assert rng is not None
        job = Job(work, lambda: rng.random() < _STOPS)
        self._disk.jobs.append(job)
        self._job = job, done
        self._go_on(job.go_on)

    def _go_on(self, go_on: Callable[[], None]) -> None:
        assert self._job is not None
        job, done = self._job
        if self._disk.ended:
            return
        go_on()
        if job.ended:
            self._job = None
            if not self._disk.ended:
                self._disk.jobs.remove(job)
                self._tell(done, job.result, job.error)

    def _run(self, work: Work, done: Done) -> None:
        if self._disk.ended:
            return
        try:
            result, error = work(), None
        except BaseException as caught:  # `Ended` too: the process has ended, and nobody is left to be told
            result, error = None, caught
        self._tell(done, result, error)

    def _tell(self, done: Done, result: Any, error: BaseException | None) -> None:
        if not self._disk.ended:
            asyncio.get_running_loop().call_soon(self._answer, done, result, error)

    def _answer(self, done: Done, result: Any, error: BaseException | None) -> None:
        if not self._disk.ended:
            done(result, error)

    def _later(self, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(self._delay(), callback)

    def _usual_delay(self) -> float:
        assert self._rng is not None
        delay = self._rng.choice(_DELAYS_S)
        if self._pauses and self._job is None and self._rng.random() < 0.02:
            delay = _PAUSE_S
        return delay
