"""Simulated processes on one event loop: how one ends."""

import asyncio
import gc
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.sim.kit.lives import Life, LivesLoop


async def work() -> None:
    raise AssertionError("the process has ended")


async def guarded(*given: Coroutine[Any, Any, None]) -> None:
    for each in given:
        await each


def begin(process: Life, coroutine: Coroutine[Any, Any, None]) -> None:
    process.run(asyncio.get_event_loop().create_task, coroutine)


def spawned_and_ended(process: Life) -> None:
    begin(process, work())
    process.end()


def spawned_with_another_inside(process: Life) -> None:
    begin(process, guarded(guarded(work(), work())))
    process.end()


def ended_and_spawned(process: Life) -> None:
    """As by an exception of a call in which the process ends."""

    def end() -> None:
        process.end()
        begin_in_process(guarded(work()))

    begin_in_process = asyncio.get_event_loop().create_task
    process.run(end)


@pytest.mark.parametrize("life", [spawned_and_ended, spawned_with_another_inside, ended_and_spawned])
def test_a_process_that_ends_leaves_no_coroutine_that_python_warns_of(life: Callable[[Life], None]) -> None:
    loop = LivesLoop()
    asyncio.set_event_loop(loop)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        life(Life(loop, 1))
        loop.run_until_complete(asyncio.sleep(1.0))
        loop.dead_tasks.clear()
        gc.collect()
    asyncio.set_event_loop(None)
    loop.close()
    assert [str(each.message) for each in told] == []


def test_a_coroutine_that_a_living_process_forgets_is_told_of() -> None:
    loop = LivesLoop()
    process = Life(loop, 1)
    with pytest.warns(RuntimeWarning, match="'work' was never awaited"):
        process.run(lambda: work() and None)
    loop.close()
