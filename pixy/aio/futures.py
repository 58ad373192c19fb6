"""Completion of futures whose waiter may be gone, and exceptions of tasks that nobody awaits.

A cancelled waiter leaves its future done, and completing a future that is done raises
`InvalidStateError` in the code that completes it, which may be the journal. So no other code in
pixy calls `set_result` or `set_exception`.
"""

import asyncio
from typing import Protocol, TypeVar

T = TypeVar("T")


class _Cancellable(Protocol):
    def cancel(self) -> object: ...


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


class SmallEvent:
    """As `asyncio.Event`, at a tenth of the memory: it has a list of waiters only while there are
    some. For objects of which there are thousands.
    """

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        """True once it is set, until it is cleared."""
        return self._is_set

    def set(self) -> None:
        """Set it: all waiters return."""
        if not self._is_set:
            self._is_set = True
            for waiter in self._waiters or ():
                resolve(waiter, None)

    def clear(self) -> None:
        """Have those that come wait until it is set again."""
        self._is_set = False

    async def wait(self, timer: _Cancellable | None = None) -> None:
        """Return when it is set; a timer that may set it is cancelled then."""
        if not self._is_set:
            waiter = asyncio.get_running_loop().create_future()
            if self._waiters is None:
                self._waiters = []
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if timer is not None:
                    timer.cancel()
                self._waiters.remove(waiter)
                if not self._waiters:
                    self._waiters = None
        elif timer is not None:
            timer.cancel()
