import asyncio
from math import inf

from pixy.aio.futures import SmallEvent
from pixy.clock import SystemClock
from pixy.consume.core.timers import Alarm, Timers
from tests.fakes.clock import FakeClock
from tests.fakes.waiting import settle


def alarm_on(clock: FakeClock) -> tuple[Alarm, list[float]]:
    calls: list[float] = []
    return Alarm(Timers(clock, clock.call_later), calls.append), calls


def test_an_alarm_fires_once_at_the_earliest_requested_time() -> None:
    clock = FakeClock()
    alarm, calls = alarm_on(clock)
    for when in (1005.0, 1003.0, 1009.0):
        alarm.at(when)
    assert (alarm.when, clock.timers) == (1003.0, 1)
    clock.advance(20)
    assert calls == [1003.0]
    assert alarm.when == inf


def test_a_cancelled_alarm_does_not_fire() -> None:
    clock = FakeClock()
    alarm, calls = alarm_on(clock)
    alarm.at(1001.0)
    alarm.cancel()
    alarm.cancel()
    clock.advance(5)
    assert calls == []
    alarm.at(1006.0)
    clock.advance(1)
    assert calls == [1006.0]


async def test_sleeping_takes_as_long_as_the_clock_says() -> None:
    clock = FakeClock()
    task = asyncio.create_task(Timers(clock, clock.call_later).sleep(2.0))
    await settle()
    clock.advance(1.9)
    await settle()
    assert not task.done()
    clock.advance(0.1)
    await task


async def test_waiting_ends_with_the_event_and_leaves_no_timer() -> None:
    clock = FakeClock()
    event = SmallEvent()
    task = asyncio.create_task(Timers(clock, clock.call_later).wait(event, 5.0))
    await settle()
    event.set()
    await task
    assert clock.timers == 0


async def test_without_a_timer_of_its_own_the_event_loop_is_used() -> None:
    await Timers(SystemClock()).sleep(0.0)
