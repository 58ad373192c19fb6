"""pixy/aio/futures.py: a waiter may be gone when its future is completed, and no code completes
futures in another way.
"""

import ast
import asyncio
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

import pixy
from pixy.aio.futures import SmallEvent, failure_of, reject, resolve

SOURCES = sorted(Path(pixy.__file__).parent.rglob("*.py"))


async def test_a_future_is_completed_once() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    resolve(future, 1)
    resolve(future, 2)
    reject(future, ValueError("too late"))
    assert await future == 1


async def test_a_future_fails_once() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    reject(future, ValueError("no"))
    reject(future, ValueError("too late"))
    resolve(future, 1)
    with pytest.raises(ValueError, match="no"):
        await future


async def test_a_future_with_a_cancelled_waiter_is_left_alone() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    future.cancel()
    resolve(future, 1)
    reject(future, ValueError("too late"))
    assert future.cancelled()


class Held:
    """An object held by a task."""


async def test_the_failure_of_a_task_is_reported() -> None:
    async def fail() -> None:
        raise KeyError("no")

    async def succeed() -> None:
        pass

    failed, succeeded = asyncio.create_task(fail()), asyncio.create_task(succeed())
    await asyncio.wait({failed, succeeded})
    assert isinstance(failure_of(failed), KeyError)
    assert failure_of(succeeded) is None


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def test_a_cancelled_task_releases_its_references_although_it_refers_to_itself(
    no_collections: None,
) -> None:
    async def hold(held: Held) -> None:
        itself = asyncio.current_task()
        await asyncio.get_running_loop().create_future()
        raise AssertionError(itself, held)

    held = Held()
    reference = weakref.ref(held)
    task = asyncio.create_task(hold(held))
    del held
    await asyncio.sleep(0)
    task.add_done_callback(failure_of)
    task.cancel()
    await asyncio.wait({task})
    assert failure_of(task) is None
    del task
    await asyncio.sleep(0)
    assert reference() is None


@pytest.mark.slow
def test_nothing_else_completes_a_future() -> None:
    completing = [
        f"{path}:{node.lineno}"
        for path in SOURCES
        if path.name != "futures.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("set_result", "set_exception")
    ]
    assert not completing, f"complete futures with pixy.aio.futures, their waiters may be gone: {completing}"


async def test_a_small_event_wakes_all_that_wait_and_lets_later_ones_pass() -> None:
    event = SmallEvent()
    waiters = [asyncio.create_task(event.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waiters[1].cancel()
    event.set()
    event.clear()
    await asyncio.gather(waiters[0], waiters[2])
    assert waiters[1].cancelled()
    assert not event.is_set()
    event.set()
    event.set()
    await event.wait()
    assert event.is_set()


async def test_a_small_event_has_waiters_in_memory_only_while_there_are_some() -> None:
    event = SmallEvent()
    alone = gc.get_referents(event)
    waiter = asyncio.create_task(event.wait())
    await asyncio.sleep(0)
    assert gc.get_referents(event) != alone
    event.set()
    event.clear()
    await waiter
    assert gc.get_referents(event) == alone
