"""pixy/serving/steps.py: a cancelled handler leaves no garbage."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pixy.aio.futures import failure_of
from pixy.serving import Steps
from tests.fakes.waiting import settle


class FakeWorkload:
    """A workload that runs a step at once, or in the next iteration of the loop."""

    def __init__(self, *, busy: bool) -> None:
        self._busy = busy

    def maybe_begin_step(self) -> bool:
        """See `Workload`."""
        return not self._busy

    def end_step(self) -> None:
        """See `Workload`."""

    def queue(self, step: Callable[[], None]) -> None:
        """See `Workload`."""
        asyncio.get_running_loop().call_soon(step)


class Held:
    """Something that a handler holds, for instance a request."""


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("begun", [False, True], ids=["before its first step", "while it waits"])
@pytest.mark.parametrize("busy", [False, True], ids=["at once", "queued"])
async def test_a_handler_that_is_cancelled_leaves_nothing_for_the_collector(
    no_collections: None, busy: bool, begun: bool
) -> None:
    async def handle(held: Held) -> None:
        await asyncio.get_running_loop().create_future()
        raise AssertionError(held)

    workload: Any = FakeWorkload(busy=busy)
    held = Held()
    reference = weakref.ref(held)
    task = asyncio.get_running_loop().create_task(Steps(handle(held), workload))
    del held
    task.add_done_callback(failure_of)
    if begun:
        await settle()
    task.cancel()
    await settle()
    assert task.cancelled()
    del task
    await settle()
    assert reference() is None
