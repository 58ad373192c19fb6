"""Tasks that belong to somebody: none is forgotten, and an exception that is a bug is told."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from pixy.faults import OnFault
from pixy.futures import failure_of

__all__ = ["OwnedTasks", "tell_loop"]


def tell_loop(fault: BaseException) -> None:
    """Have the event loop log an exception that is a bug."""
    context = {"message": "a fault in the access to Kafka", "exception": fault}
    asyncio.get_running_loop().call_exception_handler(context)


class OwnedTasks:
    """The running tasks of one owner.

    Args:
        on_fault: called with the exception that a task ended with.
    """

    def __init__(self, on_fault: OnFault) -> None:
        self.on_fault = on_fault
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run something."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def end(self, *, cancel: bool) -> None:
        """Return when all have ended, by themselves or because they are cancelled."""
        if cancel:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if (bug := failure_of(task)) is not None:
            self.on_fault(bug)
