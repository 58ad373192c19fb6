"""Work on files that nobody waits for, on a thread of its own: the removal of what was deleted, the repair of indexes.

Each piece of work is an iterator; each of its steps is short. Works take turns, a step at a time, so that a long one delays no other, and
the thread has no more than one step in its queue when it is stopped. What is not done by then is found by the next start.
"""

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple

from pixy.storage.worker import Worker

__all__ = ["Steps", "Upkeep"]

Steps = Generator[None, None, Any]
"""Work on files: each step blocks for a short time, what it returns is its result."""


class _Task(NamedTuple):
    steps: Steps
    done: Callable[[Any], None]


class _Result(NamedTuple):
    value: Any


class Upkeep:
    """Runs works in turns, step by step.

    Args:
        worker: the thread for it. The upkeep owns it from here on.
        on_fault: called with what a step has raised; nothing goes on after that.
    """

    def __init__(self, worker: Worker, on_fault: Callable[[BaseException], None]) -> None:
        self._worker = worker
        self._on_fault = on_fault
        self._tasks: deque[_Task] = deque()
        # A step of the first one is on the worker.
        self._running = False
        self._stopped = False

    def add(self, steps: Steps, done: Callable[[Any], None]) -> None:
        """Run work to its end, then call `done` with its result on the event loop."""
        if self._stopped:
            return
        self._tasks.append(_Task(steps, done))
        self._go_on()

    def stop(self) -> None:
        """Finish the step that is under way, and end. What is not done stays undone."""
        self._stopped = True
        self._worker.stop()
        self._tasks.clear()

    def _go_on(self) -> None:
        if self._tasks and not self._running:
            self._running = True
            self._worker.submit(partial(_step, self._tasks[0].steps), self._stepped)

    def _stepped(self, result: _Result | None, error: BaseException | None) -> None:
        self._running = False
        if self._stopped:
            return
        if error is not None:
            self._stopped = True
            self._on_fault(error)
            return
        task = self._tasks.popleft()
        if result is None:
            self._tasks.append(task)  # the others have their turns first
        else:
            task.done(result.value)
        self._go_on()


def _step(steps: Steps) -> _Result | None:
    """On the worker; returns the result if that was the last step."""
    try:
        next(steps)
    except StopIteration as end:
        return _Result(end.value)
    return None
