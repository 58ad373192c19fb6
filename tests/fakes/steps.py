"""The steps of the event loop that runs a test."""

import asyncio
import time
from collections.abc import Callable, Generator
from typing import TypeVar

import pytest

T = TypeVar("T")


def measure_steps(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """Returns a function that gives the longest step from here on, in seconds of the processor."""
    longest = 0.0
    run = asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        nonlocal longest
        begun = time.thread_time()
        run(handle)
        longest = max(longest, time.thread_time() - begun)

    monkeypatch.setattr(asyncio.Handle, "_run", measured)
    return lambda: longest


def result_of(steps: Generator[None, None, T]) -> T:
    """The result of work in steps, run to its end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def count_turns(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Returns a function that gives the number of turns that work in steps takes from here on."""
    turns = 0
    sleep = asyncio.sleep

    async def counted(delay: float, result: object = None) -> object:
        nonlocal turns
        turns += not delay
        return await sleep(delay, result)

    monkeypatch.setattr(asyncio, "sleep", counted)
    return lambda: turns
