"""Ownership of asyncio tasks: each has an owner and a name, and no exception is lost.

An exception that ends a task is a bug: `on_fault` gets it, and callers that wait for the task get
INTERNAL. Expected errors are handled inside the task.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial

from pixy.aio.futures import failure_of
from pixy.errors import PixyError, ShuttingDown
from pixy.faults import OnFault, internal_error

OnAbort = Callable[[PixyError], None]
"""Answers the caller of a task that was cancelled or failed."""


class Tasks:
    """The running tasks of one owner.

    Args:
        on_fault: called with the exception that ended a task.
    """

    def __init__(self, on_fault: OnFault) -> None:
        self.on_fault = on_fault
        self._tasks: dict[asyncio.Task[None], None] = {}
        # Bound once: each task would have its own.
        self._done_callback = self._done

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(
        self,
        coroutine: Coroutine[object, object, None],
        name: str,
        on_abort: OnAbort | None = None,
    ) -> asyncio.Task[None]:
        """Start a task.

        Args:
            on_abort: called with the reason if the task fails or is cancelled, even before its
                first step.
        """
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._done_callback)
        if on_abort is not None:
            task.add_done_callback(partial(_abort, on_abort))
        return task

    def expected(self, fault: Exception) -> PixyError:
        """The error that a background task logs before it retries.

        A bug is reported to `on_fault` and becomes INTERNAL.
        """
        if isinstance(fault, PixyError):
            return fault
        self.on_fault(fault)
        return internal_error(fault)

    def cancel_nowait(self) -> None:
        """Cancel every task: none of them takes another step but to end."""
        for task in self._tasks:
            task.cancel()

    async def cancel_all(self) -> None:
        """Cancel every task and wait until all have ended."""
        while self._tasks:
            self.cancel_nowait()
            await asyncio.wait(list(self._tasks))

    async def wait_all(self) -> None:
        """Wait until every task has ended. Cancelling the wait cancels the tasks."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        error = failure_of(task)
        if error is not None:
            self.on_fault(error)


def _abort(on_abort: OnAbort, task: asyncio.Task[None]) -> None:
    if task.cancelled():
        on_abort(ShuttingDown())
    elif (error := task.exception()) is not None:
        on_abort(internal_error(error))
