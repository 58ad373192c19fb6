"""pixy/aio/byte_semaphore.py: bytes are bounded, acquired in FIFO order, and never lost."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from pixy.aio.byte_semaphore import ByteSemaphore
from tests.fakes.waiting import settle


async def start(*work: Coroutine[Any, Any, None]) -> list[asyncio.Task[None]]:
    """Tasks that have gone as far as they can."""
    tasks = [asyncio.create_task(each) for each in work]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def test_callers_acquire_so_many_bytes_and_no_more() -> None:
    semaphore = ByteSemaphore(10)
    await semaphore.acquire(6)
    await semaphore.acquire(4)
    (waiting,) = await start(semaphore.acquire(1))
    assert (waiting.done(), semaphore.acquired, semaphore.queued) == (False, 10, 1)
    semaphore.release(4)
    await waiting
    assert (semaphore.acquired, semaphore.queued) == (7, 0)


async def test_nobody_overtakes_even_if_its_bytes_would_fit() -> None:
    semaphore = ByteSemaphore(10)
    await semaphore.acquire(8)
    large, small = await start(semaphore.acquire(5), semaphore.acquire(1))
    assert not semaphore.available(1)
    assert (large.done(), small.done()) == (False, False)
    semaphore.release(8)
    await settle()
    assert (large.done(), small.done(), semaphore.acquired) == (True, True, 6)


async def test_a_caller_that_is_alone_acquires_more_than_the_size() -> None:
    semaphore = ByteSemaphore(10)
    assert semaphore.available(100)
    await semaphore.acquire(1)
    (waiting,) = await start(semaphore.acquire(100))
    assert not waiting.done()
    semaphore.release(1)
    await waiting
    assert (semaphore.acquired, semaphore.available(1)) == (100, False)


async def test_a_caller_that_is_cancelled_makes_way_for_those_behind() -> None:
    semaphore = ByteSemaphore(10)
    await semaphore.acquire(8)
    large, small = await start(semaphore.acquire(5), semaphore.acquire(2))
    large.cancel()
    await small
    assert (semaphore.acquired, semaphore.queued) == (10, 0)


async def test_bytes_of_a_caller_that_is_cancelled_as_it_acquires_are_not_lost() -> None:
    semaphore = ByteSemaphore(10)
    await semaphore.acquire(10)
    first, second = await start(semaphore.acquire(10), semaphore.acquire(3))
    semaphore.release(10)
    first.cancel()
    await second
    assert (first.cancelled(), semaphore.acquired, semaphore.queued) == (True, 3, 0)


async def test_a_caller_that_was_cancelled_in_the_same_iteration_acquires_nothing() -> None:
    semaphore = ByteSemaphore(10)
    await semaphore.acquire(10)
    first, second = await start(semaphore.acquire(10), semaphore.acquire(3))
    first.cancel()
    semaphore.release(10)
    await second
    assert (first.cancelled(), semaphore.acquired, semaphore.queued) == (True, 3, 0)


@pytest.mark.parametrize("cancelled", ["before", "after"])
async def test_bytes_are_released_however_a_caller_is_cancelled_around_its_admission(cancelled: str) -> None:
    semaphore = ByteSemaphore(10)
    await semaphore.acquire(10)
    (only,) = await start(semaphore.acquire(10))
    if cancelled == "before":
        only.cancel()
    semaphore.release(10)
    only.cancel()
    await asyncio.wait({only})
    assert (semaphore.acquired, semaphore.queued, semaphore.available(10)) == (0, 0, True)


async def test_a_block_holds_its_bytes_until_it_ends_or_is_cancelled() -> None:
    semaphore = ByteSemaphore(10)
    entered = asyncio.Event()

    async def block() -> None:
        async with semaphore.holding(7):
            entered.set()
            await asyncio.Event().wait()

    (task,) = await start(block())
    assert (entered.is_set(), semaphore.acquired) == (True, 7)
    task.cancel()
    await asyncio.wait({task})
    assert semaphore.acquired == 0
    async with semaphore.holding(3):
        assert semaphore.acquired == 3
    assert semaphore.acquired == 0
