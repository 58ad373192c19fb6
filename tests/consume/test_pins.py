"""Batches that wait for their decompression keep a part of the memory of fetched batches."""

import asyncio

import pytest

from pixy.consume.core.timers import Timers
from pixy.consume.memory.bounded_memory import BoundedMemory
from pixy.consume.memory.memory_turns import Demand
from pixy.consume.memory.pins import Pin, bounded_pins
from pixy.errors import Unavailable
from tests.fakes.clock import FakeClock
from tests.fakes.waiting import settle


class Holder:
    """The memory of a partition."""

    position = 0

    def __init__(self, group: str, demand: Demand) -> None:
        self.group = group
        self.wants = demand
        self.errors: list[Unavailable] = []

    def demand(self, now: float) -> Demand:
        assert now >= 0
        return self.wants

    def memory_waits(self, error: Unavailable) -> None:
        self.errors.append(error)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def memory(clock: FakeClock) -> BoundedMemory:
    """Room for two batches of 10 bytes."""
    return bounded_pins(80, Timers(clock, clock.call_later)).large


def pin(memory: BoundedMemory, group: str, demand: Demand = Demand.WAITING) -> tuple[Pin, Holder]:
    holder = Holder(group, demand)
    return Pin(memory, holder), holder


async def test_what_a_request_waits_for_stays_until_its_end_and_the_next_one_waits(
    memory: BoundedMemory, clock: FakeClock
) -> None:
    first, second, third = (pin(memory, group)[0] for group in "abc")
    last, holder = pin(memory, "d")
    for each in (first, second, third):
        each.maybe_hold(10)
    assert (first.held, second.held, third.held) == (True, True, False)
    turn = asyncio.create_task(last.turn(10))
    for _ in range(50):
        await settle()
        clock.advance(0.2)
    assert not last.held
    assert [error.limit for error in holder.errors] == ["consumer.max_fetched_bytes"]
    third.maybe_hold(10)
    assert not third.held  # not in front of one that waits
    first.release()
    await turn
    assert (second.held, last.held, memory.held_bytes) == (True, True, 20)


@pytest.mark.parametrize("demand", [Demand.NONE, Demand.SERVED])
async def test_a_request_that_waits_takes_the_place_of_what_nobody_waits_for(
    memory: BoundedMemory, clock: FakeClock, demand: Demand
) -> None:
    idle, kept = pin(memory, "a", demand)[0], pin(memory, "a")[0]
    other = pin(memory, "b")[0]
    idle.maybe_hold(10)
    kept.maybe_hold(10)
    turn = asyncio.create_task(other.turn(10))
    await settle()
    clock.advance(0.2)
    await turn
    assert (idle.held, kept.held, other.held) == (False, True, True)


async def test_a_wait_that_ends_keeps_no_place(memory: BoundedMemory) -> None:
    pins = [pin(memory, group)[0] for group in "abcd"]
    for each in pins[:2]:
        each.maybe_hold(20)
    turns = [asyncio.create_task(each.turn(20)) for each in pins[2:]]
    await settle()
    turns[0].cancel()
    for each in pins[:3]:
        each.release()
    await turns[1]
    memory.turns.check_invariants()
    assert (memory.held_bytes, memory.turns.has_waiting) == (20, False)
