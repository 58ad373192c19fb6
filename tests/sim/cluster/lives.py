"""Simulated processes on one event loop.

Callbacks, timers and tasks belong to the process that scheduled them: once it has ended, none of
them runs. What reaches a process from outside, such as a packet, runs in it by `Life.run`.
"""

from asyncio import Handle, TimerHandle
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any, TypeVarTuple, Unpack

from tests.sim.loop import VirtualLoop

__all__ = ["Life", "LivesLoop"]

_Ts = TypeVarTuple("_Ts")


class Life:
    """One process, from its start to its end.

    Args:
        loop: the loop that it runs on.
        number: number of the process on its machine.

    Attributes:
        alive: True until `end`.
    """

    __slots__ = ("_loop", "alive", "number")

    def __init__(self, loop: "LivesLoop", number: int) -> None:
        self._loop = loop
        self.number = number
        self.alive = True

    def run(self, callback: Callable[..., object], *args: Any) -> None:
        """Run something in the process; nothing once it has ended."""
        if not self.alive:
            return
        loop = self._loop
        before, loop.current = loop.current, self
        try:
            callback(*args)
        finally:
            loop.current = before

    def end(self) -> None:
        """Run nothing of it any more."""
        self.alive = False


class LivesLoop(VirtualLoop):
    """A virtual loop shared by processes.

    Attributes:
        current: the process that runs; None while the simulation itself does.
    """

    def __init__(self) -> None:
        self.current: Life | None = None
        super().__init__()

    def outside(self, delay: float, callback: Callable[..., object], *args: Any) -> None:
        """Schedule a callback of the simulation, which no end of a process prevents."""
        before, self.current = self.current, None
        try:
            self.call_later(delay, callback, *args)
        finally:
            self.current = before

    def call_soon(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> Handle:
        life = self.current
        if life is None:
            return super().call_soon(callback, *args, context=context)
        return super().call_soon(partial(life.run, callback, *args), context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> TimerHandle:
        life = self.current
        if life is None:
            return super().call_at(when, callback, *args, context=context)
        return super().call_at(when, partial(life.run, callback, *args), context=context)
