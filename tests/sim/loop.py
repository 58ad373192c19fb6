"""An event loop with virtual time, which passes only while all tasks are idle."""

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar, TypeVarTuple, Unpack

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class _Idle(selectors.SelectSelector):
    """A selector that never waits: time jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.before_turn: Callable[[], None] = _nothing

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everybody waits and no timer is set")
        self.before_turn()
        self.now += max(0.0, timeout)
        return []


def _nothing() -> None:
    """Before a turn of which nobody is to be told."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs callbacks as usual, and advances `time` where another loop would sleep. Has no sockets
    and no threads.
    """

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[_Ts]], _T], *args: *_Ts
    ) -> asyncio.Future[_T]:
        """Work of other threads takes no virtual time."""
        done: asyncio.Future[_T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def __init__(self) -> None:
        self._idle = _Idle()
        super().__init__(self._idle)

    def time(self) -> float:
        return self._idle.now

    def before_turns(self, call: Callable[[], None]) -> None:
        """Have a function called before each turn: behind everything that the last one has run."""
        self._idle.before_turn = call
