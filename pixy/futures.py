"""Completion of futures whose waiter may be gone, and exceptions of tasks that nobody awaits.

A cancelled waiter leaves its future done, and completing a future that is done raises
`InvalidStateError` in the code that completes it, which may be the journal. So no other code in
pixy calls `set_result` or `set_exception`.
"""

import asyncio
from typing import TypeVar

__all__ = ["failure_of", "reject", "resolve"]

T = TypeVar("T")


def resolve(future: "asyncio.Future[T]", result: T) -> None:
    """Complete a future, unless it is done."""
    if not future.done():
        future.set_result(result)


def reject(future: "asyncio.Future[T]", error: BaseException) -> None:
    """Fail a future, unless it is done."""
    if not future.done():
        future.set_exception(error)


def failure_of(task: "asyncio.Task[object]") -> BaseException | None:
    """The exception that ended a task; None if it returned or was cancelled.

    A cancelled task keeps its `CancelledError` until the exception is retrieved. Its traceback
    refers to all locals of the coroutines, often to the task itself, so a request of megabytes
    would stay in memory until the next cycle collection. This function retrieves it.
    """
    try:
        return task.exception()
    except asyncio.CancelledError:
        return None
