"""Fair scheduling of a handler's coroutine, step by step, charged to its connection.

A step is the code between two awaits that suspend. The handler's task calls `send` and `throw` here
as it would on the coroutine itself. If the connection has to queue, the task gets a `QueuedStep` to
wait for, and the step runs later, inside a slice of the connection, whose time it takes. A
cancellation queues like any other step.

The traceback of an error has the frames that it passed. So none of them keeps the error: that would
be a cycle, and everything that the handler held would stay until cycles are collected.

The road not taken: a future that is set when the slice begins. The task would continue in the next
iteration of the loop, together with all others that were set, and nothing could end the slice.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any

from pixy.aio.futures import resolve
from pixy.serving.workload import Workload

Step = Callable[[Any], Any]


class QueuedStep(asyncio.Future[None]):
    """The wait of one task for its step.

    `run` takes the step at once, not in a later iteration of the loop.
    """

    def __init__(self) -> None:
        super().__init__()
        self._wake: Callable[[Any], object] | None = None
        self._context: Context | None = None
        self._is_cancelled = False
        # Set by `Future.__await__` of a future that a task waits for.
        self._asyncio_future_blocking = True

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        """See `asyncio.Future`. Called once, by the waiting task."""
        self._wake, self._context = fn, context

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the task when its step runs."""
        self._is_cancelled = True
        return True

    def run(self) -> None:
        """Take the step."""
        if self._is_cancelled:
            super().cancel()
        else:
            resolve(self, None)
        assert self._context is not None
        self._context.run(self._take_wake(), self)

    def _take_wake(self) -> Callable[[Any], object]:
        # A traceback of the step has this object in its frames: with the task it would be a cycle.
        wake, self._wake = self._wake, None
        assert wake is not None
        return wake


class Steps(Coroutine[Any, Any, None]):
    """A coroutine whose steps a connection's workload schedules.

    Args:
        work: the handler's coroutine.
        workload: is charged.
    """

    __slots__ = ("_next", "_work", "_workload")

    def __init__(self, work: Coroutine[Any, Any, None], workload: Workload) -> None:
        self._work = work
        self._workload = workload
        # The queued step and its argument.
        self._next: tuple[Step, Any] | None = None

    def send(self, value: Any, /) -> Any:
        """See `Coroutine`."""
        if self._next is not None:
            (step, argument), self._next = self._next, None
            try:
                return step(argument)
            finally:
                del argument
        return self._take(self._work.send, value)

    def throw(self, error: Any, /, *_: Any) -> Any:
        """See `Coroutine`."""
        try:
            if self._next is not None:
                self._next = None
                return self._work.throw(error)
            return self._take(self._work.throw, error)
        finally:
            del error

    def close(self) -> None:
        """See `Coroutine`."""
        self._work.close()

    def __await__(self) -> Generator[Any, Any, None]:
        """See `Coroutine`. Never called: this is the outermost coroutine of its task."""
        raise NotImplementedError

    def _take(self, step: Step, argument: Any) -> Any:
        """Take a step, or queue it."""
        workload = self._workload
        if not workload.maybe_begin_step():
            self._next = step, argument
            queued = QueuedStep()
            workload.queue(queued.run)
            return queued
        try:
            return step(argument)
        finally:
            del argument
            workload.end_step()
