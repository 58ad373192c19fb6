"""pixy/rpc/turns.py: who waits in line is served a millisecond per turn of the loop, one slice after the other."""

import asyncio

from pixy.rpc.turns import TURN_S, Turns
from tests.fakes.clock import FakeClock


class Worker:
    """Has so many slices of work, each of which takes so long."""

    def __init__(self, name: str, clock: FakeClock, log: list[str], slices: int, slice_s: float) -> None:
        self.name, self.clock, self.log = name, clock, log
        self.slices, self.slice_s = slices, slice_s

    def work(self) -> bool:
        self.clock.advance(self.slice_s)
        self.log.append(self.name)
        self.slices -= 1
        return self.slices > 0

    def hold_back(self) -> None:
        self.log.append(f"hold {self.name}")


async def test_a_turn_ends_after_its_time_and_the_rest_follows_round_and_round() -> None:
    clock, log = FakeClock(), list[str]()
    turns = Turns(clock.monotonic)
    for name, slices in (("a", 3), ("b", 1), ("c", 3)):
        turns.wait(Worker(name, clock, log, slices, TURN_S * 0.4))
    await asyncio.sleep(0)
    assert log == ["a", "b", "c", "hold a", "hold b", "hold c"]
    log.clear()
    turns.wait(Worker("late", clock, log, 1, 0))
    await asyncio.sleep(0)
    assert log == ["a", "c", "late", "a", "hold late"]
    log.clear()
    await asyncio.sleep(0)
    assert log == ["c"]
    log.clear()
    await asyncio.sleep(0)
    assert log == []


async def test_nobody_is_held_back_whose_work_is_done_within_the_turn() -> None:
    clock, log = FakeClock(), list[str]()
    turns = Turns(clock.monotonic)
    turns.wait(Worker("a", clock, log, 5, TURN_S * 0.1))
    await asyncio.sleep(0)
    assert log == ["a"] * 5


async def test_who_comes_while_another_one_works_is_served_too() -> None:
    clock, log = FakeClock(), list[str]()
    turns = Turns(clock.monotonic)

    class Inviting(Worker):
        def work(self) -> bool:
            turns.wait(Worker("guest", clock, log, 1, 0))
            return super().work()

    turns.wait(Inviting("host", clock, log, 1, TURN_S))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [name for name in log if not name.startswith("hold")] == ["host", "guest"]


async def test_a_turn_is_free_until_it_was_charged_for_its_time_or_somebody_waits() -> None:
    clock, log = FakeClock(), list[str]()
    turns = Turns(clock.monotonic)
    free = []
    for charged in (TURN_S / 2, TURN_S / 2):
        turns.charge(charged)
        free.append(turns.free)
    await asyncio.sleep(0)
    free.append(turns.free)
    turns.wait(Worker("a", clock, log, 2, TURN_S))
    free.append(turns.free)
    for _ in range(2):
        await asyncio.sleep(0)
        free.append(turns.free)
    assert free == [True, False, True, False, False, True]
