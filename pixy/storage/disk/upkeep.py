"""Background tasks on files, on a dedicated thread: removal of deleted files, repair of indexes.

A task is a generator with short steps. Tasks run round robin, a step at a time, so a long one does
not delay the others, and at most one step is queued when the thread is stopped. The next start
finds the unfinished work.
"""

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple

from pixy.storage.disk.worker import Worker

Steps = Generator[None, None, Any]
"""A task: each step blocks for a short time, the return value is the result."""


class _Task(NamedTuple):
    steps: Steps
    done: Callable[[Any], None]


class StepsEnd(NamedTuple):
    """The end of a task: the value that it has returned."""

    value: Any


class Upkeep:
    """Runs tasks round robin, step by step.

    Args:
        worker: the thread for the steps. The upkeep takes ownership.
        on_fault: called with the exception of a step; no task continues after that.
    """

    def __init__(self, worker: Worker, on_fault: Callable[[BaseException], None]) -> None:
        self._worker = worker
        self._on_fault = on_fault
        self._tasks: deque[_Task] = deque()
        # The worker runs a step of the first task.
        self._running = False
        self._stopped = False

    def add(self, steps: Steps, done: Callable[[Any], None]) -> None:
        """Run a task to its end, then call `done` with its result on the event loop."""
        if self._stopped:
            return
        self._tasks.append(_Task(steps, done))
        self._go_on()

    def stop(self) -> None:
        """Finish the current step and drop all tasks."""
        self._stopped = True
        self._worker.stop()
        self._tasks.clear()

    def _go_on(self) -> None:
        if self._tasks and not self._running:
            self._running = True
            self._worker.submit(partial(next_step, self._tasks[0].steps), self._stepped)

    def _stepped(self, end: StepsEnd | None, error: BaseException | None) -> None:
        self._running = False
        if self._stopped:
            return
        if error is not None:
            self._stopped = True
            self._on_fault(error)
            return
        task = self._tasks.popleft()
        if end is None:
            self._tasks.append(task)  # round robin
        else:
            task.done(end.value)
        self._go_on()


def next_step(steps: Steps) -> StepsEnd | None:
    """Run a step, on the worker; returns the end after the last one."""
    try:
        next(steps)
    except StopIteration as end:
        return StepsEnd(end.value)
    return None


def run_steps(steps: Steps) -> Any:
    """Run all steps that are left, and return the result; None if a task has ended before."""
    while (end := next_step(steps)) is None:
        pass
    return end.value
