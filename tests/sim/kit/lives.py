"""Simulated processes on one event loop.

Callbacks, timers and tasks belong to the process that scheduled them: once it has ended, none of
them runs. What reaches a process from outside, such as a packet, runs in it by `Life.run`.

A process may be paused, as by SIGSTOP. When it goes on, an event loop runs first what was ready,
then what has arrived, and then the timers that are due; so does `Life.resume`.
"""

import asyncio
import inspect
from asyncio import Handle, TimerHandle
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVarTuple, Unpack
from weakref import WeakSet

from tests.sim.loop import VirtualLoop

_Ts = TypeVarTuple("_Ts")


class Life:
    """One process, from its start to its end.

    Args:
        loop: the loop that it runs on.
        number: number of the process on its machine.

    Attributes:
        alive: True until `end`.
        paused: nothing of it runs, and nothing is lost.
        tasks: tasks of the process.
    """

    __slots__ = ("_arrived", "_due", "_loop", "_ready", "alive", "number", "paused", "tasks")

    def __init__(self, loop: "LivesLoop", number: int) -> None:
        self._loop = loop
        self.number = number
        self.alive = True
        self.paused = False
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        # What a pause holds up: callbacks that were ready, arrivals, and timers.
        self._ready: list[_Callback] = []
        self._arrived: list[_Callback] = []
        self._due: list[_Callback] = []

    def run(self, callback: Callable[..., object], *args: Any) -> None:
        """Run something in the process; nothing once it has ended."""
        if self.paused:
            self._arrived.append(_Callback(self, callback, args, timer=False))
            return
        if not self.alive:
            return
        loop = self._loop
        before, loop.current = loop.current, self
        try:
            callback(*args)
        finally:
            loop.current = before

    def pause(self) -> None:
        """Run nothing until `resume`."""
        self.paused = True

    def resume(self) -> None:
        """Go on with what was held up."""
        self.paused = False
        held = [*self._ready, *self._arrived, *self._due]
        self._ready, self._arrived, self._due = [], [], []
        for callback in held:
            self._loop.again(callback)

    def hold(self, callback: "_Callback") -> None:
        """Run a callback after the pause."""
        (self._due if callback.timer else self._ready).append(callback)

    def end(self) -> None:
        """Run nothing of it any more."""
        self.alive = self.paused = False
        self._ready, self._arrived, self._due = [], [], []
        for task in self.tasks:
            self._loop.bury(task)


class _Callback:
    """A callback of a process.

    Attributes:
        timer: it was scheduled for a time.
        handle: how its scheduler may cancel it.
    """

    __slots__ = ("_args", "_call", "handle", "life", "timer")

    def __init__(
        self, life: Life, call: Callable[..., object], args: tuple[Any, ...], *, timer: bool
    ) -> None:
        self.life = life
        self._call = call
        self._args = args
        self.timer = timer
        self.handle: Handle | None = None

    def __call__(self) -> None:
        life = self.life
        if life.paused:
            life.hold(self)
        elif life.alive and (self.handle is None or not self.handle.cancelled()):
            life.run(self._call, *self._args)


class LivesLoop(VirtualLoop):
    """A virtual loop shared by processes.

    Attributes:
        current: the process that runs; None while the simulation itself does.
        dead_tasks: what processes were doing when they ended. None of it goes on; if it were
            collected, its clean-up would run.
    """

    def __init__(self) -> None:
        self.current: Life | None = None
        self.dead_tasks: list[asyncio.Task[Any]] = []
        super().__init__()
        self.set_task_factory(_make_task)

    def outside(self, delay: float, callback: Callable[..., object], *args: Any) -> None:
        """Schedule a callback of the simulation, which no end of a process prevents."""
        before, self.current = self.current, None
        try:
            self.call_later(delay, callback, *args)
        finally:
            self.current = before

    def bury(self, task: asyncio.Task[Any]) -> None:
        """Keep a task of a process that has ended: nothing of it runs."""
        self.dead_tasks.append(task)
        _close_unbegun(task.get_coro())

    def again(self, callback: _Callback) -> None:
        """Schedule a callback of a process that a pause has held up."""
        handle = callback.handle
        super().call_soon(callback, context=None if handle is None else handle._context)  # type: ignore[attr-defined]  # runs where it would have

    def call_soon(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> Handle:
        life = self.current
        if life is None:
            return super().call_soon(callback, *args, context=context)
        held = _Callback(life, callback, args, timer=False)
        held.handle = super().call_soon(held, context=context)
        return held.handle

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
        held = _Callback(life, callback, args, timer=True)
        handle = held.handle = super().call_at(when, held, context=context)
        return handle


def _make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
    assert isinstance(loop, LivesLoop)
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
    life = loop.current
    if life is not None and life.alive:
        life.tasks.add(task)
    elif life is not None:
        loop.bury(task)
    return task


def _close_unbegun(work: object) -> None:
    """Close a coroutine that has not begun, and those that it was given: Python warns of one that
    is dropped, which is a bug only where its process lives.
    """
    if isinstance(work, tuple):
        for each in work:
            _close_unbegun(each)
    elif inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
        given = tuple(inspect.getcoroutinelocals(work).values())
        work.close()
        _close_unbegun(given)
