"""pixy/steps.py: long work leaves the event loop to others in between."""

import asyncio

import pytest

from pixy.steps import in_steps


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
