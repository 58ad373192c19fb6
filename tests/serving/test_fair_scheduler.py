"""pixy/serving/fair_scheduler.py: the queue has one quantum in an iteration, round robin."""

import asyncio

from pixy.serving.fair_scheduler import QUANTUM_S, FairScheduler
from tests.fakes.clock import FakeClock


class Member:
    """A member with a number of slices, each of a fixed duration."""

    def __init__(self, name: str, clock: FakeClock, log: list[str], slices: int, slice_s: float) -> None:
        self.name, self.clock, self.log = name, clock, log
        self.slices, self.slice_s = slices, slice_s

    def run_slice(self) -> bool:
        self.clock.advance(self.slice_s)
        self.log.append(self.name)
        self.slices -= 1
        return self.slices > 0

    def hold_back(self) -> None:
        self.log.append(f"hold {self.name}")


async def test_an_iteration_ends_with_its_quantum_and_the_queue_goes_on_round_robin() -> None:
    clock, log = FakeClock(), list[str]()
    scheduler = FairScheduler(clock.monotonic)
    for name, slices in (("a", 3), ("b", 1), ("c", 3)):
        scheduler.enqueue(Member(name, clock, log, slices, QUANTUM_S * 0.4))
    await asyncio.sleep(0)
    assert log == ["a", "b", "c", "hold a", "hold b", "hold c"]
    log.clear()
    scheduler.enqueue(Member("late", clock, log, 1, 0))
    await asyncio.sleep(0)
    assert log == ["a", "c", "late", "a", "hold late"]
    log.clear()
    await asyncio.sleep(0)
    assert log == ["c"]
    log.clear()
    await asyncio.sleep(0)
    assert log == []


async def test_a_member_whose_work_fits_the_quantum_is_not_held_back() -> None:
    clock, log = FakeClock(), list[str]()
    scheduler = FairScheduler(clock.monotonic)
    scheduler.enqueue(Member("a", clock, log, 5, QUANTUM_S * 0.1))
    await asyncio.sleep(0)
    assert log == ["a"] * 5


async def test_a_member_that_joins_during_a_slice_is_served() -> None:
    clock, log = FakeClock(), list[str]()
    scheduler = FairScheduler(clock.monotonic)

    class Host(Member):
        def run_slice(self) -> bool:
            scheduler.enqueue(Member("guest", clock, log, 1, 0))
            return super().run_slice()

    scheduler.enqueue(Host("host", clock, log, 1, QUANTUM_S))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [name for name in log if not name.startswith("hold")] == ["host", "guest"]


async def test_the_scheduler_has_time_until_the_quantum_is_charged_or_a_member_queues() -> None:
    clock, log = FakeClock(), list[str]()
    scheduler = FairScheduler(clock.monotonic)
    has_time = []
    for charged in (QUANTUM_S / 2, QUANTUM_S / 2):
        scheduler.charge(charged)
        has_time.append(scheduler.has_time)
    await asyncio.sleep(0)
    has_time.append(scheduler.has_time)
    scheduler.enqueue(Member("a", clock, log, 2, QUANTUM_S))
    has_time.append(scheduler.has_time)
    for _ in range(2):
        await asyncio.sleep(0)
        has_time.append(scheduler.has_time)
    assert has_time == [True, False, True, False, False, True]
