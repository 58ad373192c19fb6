"""pixy/aio/address_quota.py: bytes shared by addresses, which take turns.
`tests/rpc/test_uploads.py` has the quota behind uploads.
"""

import asyncio

import pytest

from pixy.aio.address_quota import AddressSemaphore


class Works:
    """Pieces of work that acquire bytes, in the order in which they begin."""

    def __init__(self, size: int, share: int) -> None:
        self.semaphore = AddressSemaphore(size, share)
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, *names: str, size: int = 1) -> None:
        for name in names:
            self._ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._work(name, size))

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
            await self.tasks[name]
        await asyncio.sleep(0)

    async def _work(self, name: str, size: int) -> None:
        async with self.semaphore.holding(name[0], size):
            self.begun.append(name)
            await self._ends[name].wait()


async def test_an_address_has_its_share_and_leaves_the_rest_to_others() -> None:
    works = Works(4, 2)
    works.begin("a1", "a2", "a3", "b1")
    await asyncio.sleep(0)
    assert works.begun == ["a1", "a2", "b1"]
    assert (works.semaphore.acquired, works.semaphore.queued, works.semaphore.queued_by("a")) == (3, 1, 1)
    await works.end("a2", "a1", "a3", "b1")
    assert works.begun[3:] == ["a3"]
    assert (works.semaphore.acquired, works.semaphore.queued, works.semaphore.queued_by("a")) == (0, 0, 0)


async def test_addresses_take_turns_however_many_callers_of_one_came_before() -> None:
    works = Works(1, 1)
    works.begin("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    await asyncio.sleep(0)
    for name in ("a1", "a2", "b1", "c1", "a3", "b2", "a4"):
        assert works.begun[-1] == name
        await works.end(name)


async def test_more_than_all_is_acquired_by_one_that_is_alone_and_nothing_at_once() -> None:
    works = Works(4, 2)
    works.begin("a1", size=9)
    works.begin("b1", size=9)
    works.begin("c1", size=0)
    await asyncio.sleep(0)
    assert works.begun == ["a1", "c1"]
    await works.end("a1")
    assert works.begun == ["a1", "c1", "b1"]
    await works.end("b1", "c1")


async def test_nothing_is_left_in_the_queue_of_those_that_are_cancelled_behind_others() -> None:
    works = Works(1, 1)
    works.begin("a1", "a2", "a3", "a4")
    await asyncio.sleep(0)
    for name in ("a3", "a4"):
        works.tasks[name].cancel()
        await asyncio.gather(works.tasks[name], return_exceptions=True)
    assert [len(queue) for queue in works.semaphore._quota._queues.values()] == [1]
    await works.end("a1", "a2")
    assert works.begun == ["a1", "a2"]
    assert not works.semaphore._quota._queues


@pytest.mark.parametrize("turn_has_come", [False, True])
async def test_one_that_is_cancelled_in_the_queue_holds_up_nobody(turn_has_come: bool) -> None:
    works = Works(2, 2)
    works.begin("a1", size=1)
    works.begin("a2", size=2)
    works.begin("a3", size=1)
    await asyncio.sleep(0)
    assert works.begun == ["a1"]
    if turn_has_come:
        works.semaphore.release("a", 1)
    works.tasks["a2"].cancel()
    await asyncio.gather(works.tasks["a2"], return_exceptions=True)
    await asyncio.sleep(0)
    assert works.begun == ["a1", "a3"]
    if turn_has_come:
        works.semaphore._quota._acquire("a", 1)
    await works.end("a1", "a3")
    assert (works.semaphore.acquired, works.semaphore.queued) == (0, 0)
