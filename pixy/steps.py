"""Long work on the event loop, in steps with other callbacks in between."""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

__all__ = ["in_steps", "run_in_steps"]

T = TypeVar("T")

_ENDED = object()
_STEP_S = 0.0005
_ITEMS_PER_STEP = 500


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
