"""The tasks of this package: named, owned, and never lost with their exception.

A task that ends with an exception has found a bug, which `on_fault` is told; who waits for the task is answered INTERNAL. Faults that
are expected are handled inside the tasks.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial

from pixy.errors import PixyError, ShuttingDown
from pixy.faults import OnFault, internal_error
from pixy.futures import failure_of

__all__ = ["Tasks"]

OnAbort = Callable[[PixyError], None]
"""Answers who waits for a task that did not come to its end."""


class Tasks:
    """Owns tasks until they are done.

    Args:
        on_fault: called with an exception that a task did not handle.
    """

    def __init__(self, on_fault: OnFault) -> None:
        self.on_fault = on_fault
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(
        self,
        coroutine: Coroutine[object, object, None],
        name: str,
        on_abort: OnAbort | None = None,
    ) -> asyncio.Task[None]:
        """Start a task. `on_abort` is called with the reason if it is cancelled, also before it ran at all, or fails."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        if on_abort is not None:
            task.add_done_callback(partial(_abort, on_abort))
        return task

    def expected(self, fault: Exception) -> PixyError:
        """The error that a job in the background tells of and tries again after; a bug is reported, and is one like any other."""
        if isinstance(fault, PixyError):
            return fault
        self.on_fault(fault)
        return internal_error(fault)

    async def cancel_all(self) -> None:
        """Cancel every task and wait until they have ended."""
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = failure_of(task)
        if error is not None:
            self.on_fault(error)


def _abort(on_abort: OnAbort, task: asyncio.Task[None]) -> None:
    if task.cancelled():
        on_abort(ShuttingDown())
    elif (error := task.exception()) is not None:
        on_abort(internal_error(error))
