"""pixy/rpc/deadlines.py: deadlines are kept in order, and ended calls cost nothing."""

import asyncio
from random import Random

import pytest

from pixy.clock import SystemClock
from pixy.rpc.deadlines import Deadlines
from tests.fakes.waiting import until


class FakeCall:
    """A call that logs its deadline."""

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


class FakeConnection:
    """A connection on which calls begin."""

    def __init__(self, deadlines: Deadlines) -> None:
        self.fresh: list[FakeCall] = []
        self._deadlines = deadlines

    def begin(self, call: FakeCall, deadline: float) -> None:
        call.deadline = deadline
        if not self.fresh:
            self._deadlines.watch(self)
        self.fresh.append(call)

    def take_new_calls(self) -> list[FakeCall]:
        fresh, self.fresh = self.fresh, []
        return [call for call in fresh if call.running]


def made(count: int) -> tuple[Deadlines, FakeConnection, list[FakeCall], list[str]]:
    deadlines, log = Deadlines(SystemClock()), list[str]()
    return deadlines, FakeConnection(deadlines), [FakeCall(str(number), log) for number in range(count)], log


async def reached(log: list[str], count: int) -> None:
    await until(lambda: len(log) >= count)


async def test_deadlines_come_in_order_and_never_early() -> None:
    deadlines, connection, calls, log = made(3)
    now = SystemClock().monotonic()
    for call, delay in zip(calls, (0.03, 0.01, 0.02), strict=True):
        connection.begin(call, now + delay)
    await reached(log, 3)
    assert log == ["1", "2", "0"]
    assert SystemClock().monotonic() - now >= 0.03
    assert len(deadlines) == 0


async def test_a_deadline_that_has_passed_comes_at_once() -> None:
    _, connection, (call,), log = made(1)
    connection.begin(call, SystemClock().monotonic() - 1)
    assert log == []
    await reached(log, 1)


async def test_an_ended_call_has_no_deadline() -> None:
    _, connection, (over, running), log = made(2)
    now = SystemClock().monotonic()
    connection.begin(over, now + 0.01)
    connection.begin(running, now + 0.02)
    over.end()
    await reached(log, 1)
    assert log == ["1"]


async def asked(connection: FakeConnection) -> None:
    """Wait until the connection was asked for its new calls."""
    await until(lambda: not connection.fresh)


@pytest.mark.slow
async def test_no_deadline_is_early_and_all_come_however_they_are_mixed() -> None:
    _, connection, calls, log = made(300)
    clock, came = SystemClock(), dict[str, float]()
    rng = Random(7)
    for call in calls:
        connection.begin(call, clock.monotonic() + rng.choice((0.0, 0.0005, 0.003, 0.01, 0.03)))
        if rng.random() < 0.1:
            await asyncio.sleep(0.001)
        came.update({name: clock.monotonic() for name in log if name not in came})
    await reached(log, len(calls))
    assert sorted(log, key=int) == [str(number) for number in range(300)]
    for name, at in came.items():
        deadline = calls[int(name)].deadline
        assert deadline is not None
        assert at >= deadline


async def test_calls_that_end_at_once_are_forgotten_at_once() -> None:
    deadlines, connection, calls, _ = made(10_000)
    for call in calls:
        connection.begin(call, SystemClock().monotonic() + 1000)
        call.end()
    await asked(connection)
    assert len(deadlines) == 0
    deadlines.close()


@pytest.mark.slow
async def test_calls_that_end_later_are_forgotten_when_they_are_the_majority() -> None:
    deadlines, connection, calls, _ = made(10_000)
    for first in range(0, len(calls), 100):
        some = calls[first : first + 100]
        for call in some:
            connection.begin(call, SystemClock().monotonic() + 1000)
        await asked(connection)
        for call in some:
            call.end()
        assert len(deadlines) <= 300
    deadlines.close()


async def test_a_deadline_beyond_all_timers_is_remembered() -> None:
    deadlines, connection, (call,), log = made(1)
    connection.begin(call, SystemClock().monotonic() + 99_999_999 * 3600.0)
    await asked(connection)
    assert (len(deadlines), log) == (1, [])
    deadlines.close()
