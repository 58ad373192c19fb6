"""pixy/aio/steps.py: long work leaves the event loop to others in between."""

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest

from pixy.aio.steps import LaterSteps, LoopShare, in_steps


class Turns:
    """Iterations of the event loop while something else runs."""

    def __init__(self) -> None:
        self.count = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)

    def stop(self) -> int:
        self._task.cancel()
        return self.count


async def test_items_come_in_order_and_others_run_in_between() -> None:
    turns = Turns()
    assert [item async for item in in_steps(iter(range(10_000)))] == list(range(10_000))
    assert turns.stop() >= 10_000 // 500 - 1


async def test_few_items_that_take_long_leave_the_loop_to_others_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    turns = Turns()
    async for _ in in_steps(range(5)):
        now += 0.001
    assert turns.stop() >= 4


async def test_a_few_quick_items_cost_no_turn_of_the_loop() -> None:
    turns = Turns()
    assert [item async for item in in_steps("abc")] == ["a", "b", "c"]
    assert turns.stop() == 0


async def test_it_can_be_left_early() -> None:
    async for item in in_steps(range(1000)):
        if item == 3:
            break
    assert item == 3


class Workers:
    """Tasks that share the loop; each piece of work takes `seconds`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.now = 0.0
        self.seconds = seconds
        self.order: list[int] = []
        self.share = LoopShare()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)

    async def work(self, number: int) -> None:
        await self.share.begin()
        self.now += self.seconds
        self.order.append(number)
        self.share.end()


@pytest.mark.parametrize(("seconds", "pieces"), [(0.01, 1), (0.0004, 3), (0.00001, 100)])
async def test_tasks_share_a_millisecond_of_each_iteration_in_fifo_order(
    monkeypatch: pytest.MonkeyPatch, seconds: float, pieces: int
) -> None:
    workers, most = Workers(monkeypatch, seconds), 0
    tasks = [asyncio.create_task(workers.work(number)) for number in range(200)]
    while len(workers.order) < 200:
        before = len(workers.order)
        await asyncio.sleep(0)
        most = max(most, len(workers.order) - before)
    await asyncio.gather(*tasks)
    assert workers.order == list(range(200))
    assert most == pieces


async def test_a_task_that_is_cancelled_while_it_waits_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = Workers(monkeypatch, 0.01)
    tasks = [asyncio.create_task(workers.work(number)) for number in range(50)]
    await asyncio.sleep(0)
    for task in tasks[10:45]:
        task.cancel()
    await asyncio.wait(tasks)
    assert workers.order == [*range(10), *range(45, 50)]


async def test_one_task_alone_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    workers, turns = Workers(monkeypatch, 0.0001), Turns()
    for number in range(5):
        await workers.work(number)
    assert turns.stop() == 0


async def test_later_steps_run_in_order_for_a_millisecond_of_each_iteration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    later, order, now = LaterSteps(), list[int](), 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)

    def step(number: int) -> None:
        nonlocal now
        now += 0.0004
        order.append(number)

    for number in range(9):
        later.add(partial(step, number))
    waiting = asyncio.create_task(later.wait())
    counts = []
    while not waiting.done():
        counts.append(len(order))
        await asyncio.sleep(0)
    assert order == list(range(9))
    assert counts[:4] == [0, 3, 6, 9]
    await later.wait()


async def test_iterators_run_later_in_turns() -> None:
    later, order = LaterSteps(), list[str]()

    def work(name: str) -> Iterator[None]:
        for _ in range(3):
            order.append(name)
            yield

    for name in "ab":
        later.run(work(name))
    while len(order) < 6:
        await later.wait()
    assert order == list("ababab")


async def test_an_iterator_as_a_whole_runs_before_what_is_added_later_also_if_a_step_fails() -> None:
    later, order, faults = LaterSteps(), list[int](), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))

    def step(number: int) -> None:
        order.append(number)
        assert number != 2

    later.run_whole(map(step, range(5)))
    await later.wait()
    asyncio.get_running_loop().set_exception_handler(None)
    assert (order, len(faults)) == ([0, 1, 2, 3, 4], 1)


async def test_a_later_step_that_fails_does_not_end_those_behind_it() -> None:
    later, done, faults = LaterSteps(), list[int](), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))

    def fail() -> None:
        raise ValueError

    later.add(fail)
    later.add(lambda: done.append(1))
    await later.wait()
    asyncio.get_running_loop().set_exception_handler(None)
    assert (done, len(faults)) == ([1], 1)
