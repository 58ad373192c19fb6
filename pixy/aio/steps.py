"""Long work on the event loop, in steps with other callbacks in between."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Generic, TypeVar

from pixy.aio.futures import resolve

T = TypeVar("T")

_ENDED = object()
_STEP_S = 0.0005
_ITEMS_PER_STEP = 500
_SHARE_S = 0.001
_RESUMED_AT_ONCE = 20


def run_in_steps(work: Iterator[object]) -> None:
    """Run an iterator to its end, the first step at once, then one per iteration of the loop."""
    if next(work, _ENDED) is not _ENDED:
        asyncio.get_running_loop().call_soon(run_in_steps, work)


def in_steps(items: Iterable[T]) -> "_InSteps[T]":
    """Items for `async for`, whose body takes little time for each and does not suspend.

    Every half a millisecond other callbacks run in between, so what the body relies on may change
    from item to item.
    """
    return _InSteps(items)


class _InSteps(Generic[T]):
    # Not an asynchronous generator: one that is left early would need a task to close it.
    __slots__ = ("_items", "_left", "_time", "_until")

    def __init__(self, items: Iterable[T]) -> None:
        self._items = iter(items)
        self._time = asyncio.get_running_loop().time
        # Bounds of the present step.
        self._until = self._time() + _STEP_S
        self._left = _ITEMS_PER_STEP

    def __aiter__(self) -> "_InSteps[T]":
        return self

    async def __anext__(self) -> T:
        self._left -= 1
        if self._left < 0 or self._time() >= self._until:
            await asyncio.sleep(0)
            self._until, self._left = self._time() + _STEP_S, _ITEMS_PER_STEP
        for item in self._items:
            return item
        raise StopAsyncIteration


class LoopShare:
    """Work of one kind that many tasks do: a millisecond of it in each iteration of the loop, in
    FIFO order. One piece is done however long it takes.
    """

    __slots__ = ("_began", "_early", "_renewing", "_spent", "_waiting")

    def __init__(self) -> None:
        self._began = 0.0
        # Seconds spent in this iteration.
        self._spent = 0.0
        # The next iteration begins with `_renew`.
        self._renewing = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        # Those that were resumed and found no time, in front of the others.
        self._early: deque[asyncio.Future[None]] = deque()

    async def begin(self) -> None:
        """Wait until there is time for one piece of work. It does not suspend until `end`."""
        if self._waiting or self._spent >= _SHARE_S:
            await self._wait(self._waiting)
            while self._spent >= _SHARE_S:
                await self._wait(self._early)
        self._began = asyncio.get_running_loop().time()

    async def _wait(self, queue: deque[asyncio.Future[None]]) -> None:
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        queue.append(turn)
        self._renew_next(loop)
        await turn

    def end(self) -> None:
        """The piece of work is done."""
        loop = asyncio.get_running_loop()
        self._spent += loop.time() - self._began
        self._renew_next(loop)

    def _renew_next(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._renewing:
            self._renewing = True
            loop.call_soon(self._renew, loop)

    def _renew(self, loop: asyncio.AbstractEventLoop) -> None:
        self._renewing = False
        self._spent = 0.0
        while self._early:
            self._waiting.appendleft(self._early.pop())
        for _ in range(min(_RESUMED_AT_ONCE, len(self._waiting))):
            resolve(self._waiting.popleft(), None)
        if self._waiting:
            self._renew_next(loop)


class LaterSteps:
    """Callbacks that run later, in FIFO order, for a millisecond in each iteration of the loop."""

    __slots__ = ("_callbacks", "_scheduled")

    def __init__(self) -> None:
        self._callbacks: deque[Callable[[], object]] = deque()
        # Invariant: true exactly while there are callbacks.
        self._scheduled = False

    def add(self, callback: Callable[[], object]) -> None:
        """Run a callback in one of the next iterations. It takes little time."""
        self._callbacks.append(callback)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def run(self, work: Iterator[object]) -> None:
        """Run an iterator to its end, with those of others in between."""
        self.add(partial(self._step, work))

    def run_whole(self, work: Iterator[object]) -> None:
        """Run an iterator to its end, in front of all that is added later."""
        self.add(partial(self._step_first, work))

    def _step(self, work: Iterator[object]) -> None:
        if next(work, _ENDED) is not _ENDED:
            self.run(work)

    def _step_first(self, work: Iterator[object]) -> None:
        # There again before the step, which may fail.
        self._callbacks.appendleft(partial(self._step_first, work))
        if next(work, _ENDED) is _ENDED:
            self._callbacks.popleft()

    async def wait(self) -> None:
        """Return when all callbacks have run that are there."""
        if self._callbacks:
            done = asyncio.get_running_loop().create_future()
            self.add(partial(resolve, done, None))
            await done

    def _run(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + _SHARE_S
        try:
            while self._callbacks:
                self._callbacks.popleft()()
                if loop.time() >= until:
                    break
        finally:
            self._scheduled = bool(self._callbacks)
            if self._scheduled:
                loop.call_soon(self._run)
