"""A handler's coroutine, driven so that each of its steps is taken in its connection's turn and charged to it.

A step is what runs between two awaits that suspend. The task of the handler calls `send` and `throw` here as it would on the coroutine
itself. When it is not the connection's turn, the task is given a `Turn` to wait for, and the step follows when that comes, inside the slice
that the line serves, so its time is the slice's time. A cancellation waits for its turn like any other step.

The traceback of an error has the frames that it passed. So none of them keeps the error: that would be a cycle, and all that the handler
held would stay until cycles are collected.

The road not taken: a future that is set when the turn comes. The task would go on in the next turn of the loop, together with all
others whose turn came, and nobody could end the slice.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any

from pixy.futures import resolve
from pixy.rpc.workload import Workload

__all__ = ["Steps"]

Step = Callable[[Any], Any]


class Turn(asyncio.Future[None]):
    """The wait of one task for its turn. `come` runs the task's step at once instead of in a later turn of the loop."""

    def __init__(self) -> None:
        super().__init__()
        self._wake: Callable[[Any], object] | None = None
        self._context: Context | None = None
        self._is_cancelled = False
        # What `Future.__await__` tells the task that it waits.
        self._asyncio_future_blocking = True

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        """See `asyncio.Future`. Called once, by the task that waits."""
        self._wake, self._context = fn, context

    def cancel(self, msg: Any | None = None) -> bool:
        """Let the task be cancelled when its turn comes."""
        self._is_cancelled = True
        return True

    def come(self) -> None:
        """Run the step."""
        if self._is_cancelled:
            super().cancel()
        else:
            resolve(self, None)
        assert self._context is not None
        self._context.run(self._take_wake(), self)

    def _take_wake(self) -> Callable[[Any], object]:
        # A traceback of the step has this object in its frames. With the task it would be a cycle.
        wake, self._wake = self._wake, None
        assert wake is not None
        return wake


class Steps(Coroutine[Any, Any, None]):
    """A coroutine in the turns of a connection.

    Args:
        work: the handler's coroutine.
        workload: of the connection, which is charged.
    """

    __slots__ = ("_next", "_work", "_workload")

    def __init__(self, work: Coroutine[Any, Any, None], workload: Workload) -> None:
        self._work = work
        self._workload = workload
        # The step that waits for its turn, and its argument.
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
        """See `Coroutine`. It is the outermost one of its task."""
        raise NotImplementedError

    def _take(self, step: Step, argument: Any) -> Any:
        """Take a step, or wait for its turn."""
        workload = self._workload
        if not workload.maybe_begin_step():
            self._next = step, argument
            turn = Turn()
            workload.queue(turn.come)
            return turn
        try:
            return step(argument)
        finally:
            del argument
            workload.end_step()
