"""pixy/api/grpc/deadlines.py: deadlines are kept, in order, and those of calls that are over cost nothing."""

import asyncio
from random import Random

from pixy.api.grpc.deadlines import GRAIN_S, Deadlines
from pixy.clock import SystemClock


class FakeCall:
    """A call that notes when its deadline comes."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.running = True
        self.deadline: float | None = None
        self._name = name
        self._log = log

    def end(self) -> None:
        self.running = False

    def deadline_exceeded(self) -> None:
        self._log.append(self._name)
        self.end()


def made(count: int) -> tuple[Deadlines, list[FakeCall], list[str]]:
    deadlines, log = Deadlines(SystemClock()), list[str]()
    return deadlines, [FakeCall(str(number), log) for number in range(count)], log


def add(deadlines: Deadlines, call: FakeCall, deadline: float) -> None:
    call.deadline = deadline
    deadlines.add(call)


async def reached(log: list[str], count: int) -> None:
    async with asyncio.timeout(5):
        while len(log) < count:  # noqa: ASYNC110 - the fake has no event
            await asyncio.sleep(0.001)


async def test_deadlines_come_in_their_order_and_not_too_early() -> None:
    deadlines, calls, log = made(3)
    now = SystemClock().monotonic()
    for call, delay in zip(calls, (0.03, 0.01, 0.02), strict=True):
        add(deadlines, call, now + delay)
    await reached(log, 3)
    assert log == ["1", "2", "0"]
    assert SystemClock().monotonic() - now >= 0.03
    assert len(deadlines) == 0


async def test_a_deadline_that_has_passed_comes_at_once() -> None:
    deadlines, (call,), log = made(1)
    add(deadlines, call, SystemClock().monotonic() - 1)
    assert log == []
    await reached(log, 1)


async def test_a_call_that_is_over_has_no_deadline() -> None:
    deadlines, (over, running), log = made(2)
    now = SystemClock().monotonic()
    add(deadlines, over, now + 0.01)
    add(deadlines, running, now + 0.02)
    over.end()
    await reached(log, 1)
    assert log == ["1"]


async def sifted(deadlines: Deadlines) -> None:
    """Wait until the calls that were added have been looked through."""
    async with asyncio.timeout(5):
        while deadlines._fresh:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(GRAIN_S)


async def test_no_deadline_is_early_and_all_come_however_they_are_mixed() -> None:
    deadlines, calls, log = made(300)
    clock, came = SystemClock(), dict[str, float]()
    rng = Random(7)
    for call in calls:
        add(deadlines, call, clock.monotonic() + rng.choice((0.0, 0.0005, 0.003, 0.01, 0.03)))
        if rng.random() < 0.1:
            await asyncio.sleep(0.001)
        came.update({name: clock.monotonic() for name in log if name not in came})
    await reached(log, len(calls))
    assert sorted(log, key=int) == [str(number) for number in range(300)]
    for name, at in came.items():
        deadline = calls[int(name)].deadline
        assert deadline is not None
        assert at >= deadline


async def test_calls_that_are_over_at_once_are_forgotten_at_once() -> None:
    deadlines, calls, _ = made(10_000)
    for call in calls:
        add(deadlines, call, SystemClock().monotonic() + 1000)
        call.end()
    await sifted(deadlines)
    assert len(deadlines) == 0
    deadlines.close()


async def test_calls_that_were_over_later_are_forgotten_when_they_are_the_majority() -> None:
    deadlines, calls, _ = made(10_000)
    for first in range(0, len(calls), 100):
        some = calls[first : first + 100]
        for call in some:
            add(deadlines, call, SystemClock().monotonic() + 1000)
        await sifted(deadlines)
        for call in some:
            call.end()
        assert len(deadlines) <= 300
    deadlines.close()


async def test_a_deadline_beyond_all_timers_is_remembered() -> None:
    deadlines, (call,), log = made(1)
    add(deadlines, call, SystemClock().monotonic() + 99_999_999 * 3600.0)
    await sifted(deadlines)
    assert (len(deadlines), log) == (1, [])
    deadlines.close()
