"""The file work of all stages of a node: jobs that share one worker fairly, step by step.

A job is a generator with short steps. The worker runs one step at a time, and `FairQueue` says of
which job, so the work of one client waits for a step of each other address and sink, and not for
their ends. Jobs of one lane run one after another, which keeps those of one stage in order: its
pieces, its seal, its removal.

    nobody waits for a job any more   it is dropped, unless it has begun
    the stages stop                   removals end, all other jobs are dropped, begun or not

A job that has begun goes on when its callers go away: the result is there for a retry.

The road not taken: a thread for each address. Syncs of one disk do not become quicker together.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from pixy.aio.futures import resolve
from pixy.errors import PixyError, ShuttingDown, Unavailable
from pixy.staging.fair_queue import FairQueue, Lane
from pixy.storage import Steps, StepsEnd, Worker, next_step, run_steps


class DroppedJob(Exception):
    """A job was dropped. Its files are in an unknown state if it had begun.

    Attributes:
        reason: the error for its callers.
    """

    def __init__(self, reason: PixyError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class StageJob:
    """A job, in the queue or in progress.

    Args:
        jobs: those of the node.
        lane: its place in the queue.
        steps: the work.
        done: called once on the event loop with its result or its error, perhaps a `DroppedJob`.
            Returns the error for its callers.
        must: true if it may not be dropped.
    """

    __slots__ = ("_done", "_ended", "_jobs", "_waiters", "begun", "lane", "must", "steps")

    def __init__(
        self,
        jobs: "StageJobs",
        lane: Lane,
        steps: Steps,
        done: "Callable[[Any, BaseException | None], PixyError | None]",
        *,
        must: bool,
    ) -> None:
        self._jobs = jobs
        self.lane = lane
        self.steps = steps
        self._done = done
        self.must = must
        self.begun = False
        self._waiters = 0
        self._ended: asyncio.Future[PixyError | None] = asyncio.get_running_loop().create_future()

    async def wait(self) -> PixyError | None:
        """Wait for the end, and return the error for callers. The job is dropped if the last
        waiter is cancelled before it has begun.
        """
        self._waiters += 1
        try:
            return await asyncio.shield(self._ended)
        finally:
            self._waiters -= 1
            if not self._waiters and not self._ended.done():
                self._jobs.drop(self, Unavailable("nobody waits for it any more"))

    def end(self, result: Any, error: BaseException | None) -> None:
        """Report the end, unless it was reported before."""
        if not self._ended.done():
            resolve(self._ended, self._done(result, error))


class StageJobs:
    """The jobs of a node.

    Args:
        worker: the thread for their steps. The jobs take ownership.

    Attributes:
        stopped: true once they have stopped: no more jobs are taken.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._queue: FairQueue[StageJob] = FairQueue()
        # The job of which the worker runs a step.
        self._running: StageJob | None = None
        self.stopped = False

    def submit(
        self,
        lane: Lane,
        steps: Steps,
        done: Callable[[Any, BaseException | None], PixyError | None],
        *,
        must: bool = False,
    ) -> StageJob:
        """Queue a job; see `StageJob`. The next start does what is submitted after the stop."""
        job = StageJob(self, lane, steps, done, must=must)
        if not self.stopped:
            self._queue.add(lane, job)
            self._go_on()
        return job

    def drop(self, job: StageJob, reason: PixyError) -> None:
        """Drop a job in the queue, unless it has begun."""
        if not job.begun and not self.stopped:
            self._queue.remove(job.lane, job)
            job.end(None, DroppedJob(reason))

    def stop(self) -> None:
        """Finish removals, within the time that a worker has, and drop the other jobs."""
        self.stopped = True
        for job in list(self._queue):
            if job.must:
                self._worker.submit(partial(run_steps, job.steps), job.end)
            elif job is not self._running:
                job.end(None, DroppedJob(ShuttingDown()))
        self._worker.stop()

    def _go_on(self) -> None:
        if self._running is None and not self.stopped:
            job = self._running = self._queue.first()
            if job is not None:
                job.begun = True
                self._worker.submit(partial(next_step, job.steps), self._stepped)

    def _stepped(self, end: StepsEnd | None, error: BaseException | None) -> None:
        job, self._running = self._running, None
        assert job is not None
        self._queue.served(job.lane)
        if end is not None or error is not None:
            self._queue.remove(job.lane, job)
            job.end(None if end is None else end.value, error)
        elif self.stopped and not job.must:
            job.end(None, DroppedJob(ShuttingDown()))
        self._go_on()
