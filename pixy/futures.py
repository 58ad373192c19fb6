"""Completion of futures whose waiter may be gone, and the end of tasks that nobody awaits.

A waiter that is cancelled leaves its future done, and a future that is done raises `InvalidStateError` when it is completed: inside
whatever has come to complete it, which may be the journal. So nothing in pixy calls `set_result` or `set_exception` but this.
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
    """The exception that ended a task; None if it came to its end or was cancelled.

    A cancelled task keeps its `CancelledError` until it is asked for that, and with the traceback all that its coroutines held: often the
    task itself, so that a request of megabytes would stay until cycles are collected. This asks.
    """
    try:
        return task.exception()
    except asyncio.CancelledError:
        return None
