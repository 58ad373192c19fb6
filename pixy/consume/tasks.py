"""The tasks of this package: named, owned, and never lost with their exception.

A task that ends with an exception has found a bug: it is logged, and `on_fault` is told, which stops the daemon. Faults that
are expected are handled inside the tasks.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial

import structlog

__all__ = ["OnFault", "Tasks"]

OnFault = Callable[[BaseException], None]
"""Told of the exception of a task that should have handled it."""

_log = structlog.get_logger()


class Tasks:
    """Owns tasks until they are done.

    Args:
        on_fault: called with an exception that a task did not handle.
    """

    def __init__(self, on_fault: OnFault) -> None:
        self._on_fault = on_fault
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(
        self,
        coroutine: Coroutine[object, object, None],
        name: str,
        on_abort: Callable[[], None] | None = None,
    ) -> asyncio.Task[None]:
        """Start a task. `on_abort` is called if it is cancelled, also before it ran at all, or fails."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        if on_abort is not None:
            task.add_done_callback(partial(_abort, on_abort))
        return task

    async def cancel_all(self) -> None:
        """Cancel every task and wait until they have ended."""
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            _log.error("task failed", task=task.get_name(), exc_info=error)
            self._on_fault(error)


def _abort(on_abort: Callable[[], None], task: asyncio.Task[None]) -> None:
    if task.cancelled() or task.exception() is not None:
        on_abort()
