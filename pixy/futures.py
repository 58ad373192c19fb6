"""Completion of futures whose waiter may be gone.

A waiter that is cancelled leaves its future done, and a future that is done raises `InvalidStateError` when it is completed: inside
whatever has come to complete it, which may be the journal. So nothing in pixy calls `set_result` or `set_exception` but this.
"""

import asyncio
from typing import TypeVar

__all__ = ["reject", "resolve"]

T = TypeVar("T")


def resolve(future: "asyncio.Future[T]", result: T) -> None:
    """Complete a future, unless it is done."""
    if not future.done():
        future.set_result(result)


def reject(future: "asyncio.Future[T]", error: BaseException) -> None:
    """Fail a future, unless it is done."""
    if not future.done():
        future.set_exception(error)
