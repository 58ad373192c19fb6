"""Ticks of a node, with virtual time: evenly, and after a pause the inbox first."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from pixy.cluster.peering.ticker import TICK_S, Ticker
from tests.sim.loop import VirtualLoop


class Machine:
    """A process whose loop can be late.

    Attributes:
        events: ticks, messages and pauses, with their times in ticks.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.events: list[tuple[str, float]] = []
        self.ticker = Ticker(lambda: self.note("tick"), lambda late: self.note(f"pause of {late:.0f} s"))

    def note(self, what: str) -> None:
        self.events.append((what, round(self.loop.time() / TICK_S, 3)))

    def pause(self, seconds: float) -> None:
        """Stop the process; what came meanwhile is handled when it goes on."""
        self.loop._idle.now += seconds

    def ticks(self) -> list[float]:
        return [at for what, at in self.events if what == "tick"]


Scenario = Callable[[Machine], Awaitable[None]]


@pytest.fixture
def run() -> Callable[[Scenario], Machine]:
    """Runs a scenario with virtual time."""

    def run_scenario(scenario: Scenario) -> Machine:
        async def main() -> Machine:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            machine = Machine(loop)
            machine.ticker.start()
            await scenario(machine)
            machine.ticker.stop()
            return machine

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(main())

    return run_scenario


Run = Callable[[Scenario], Machine]


def test_ticks_come_ten_times_a_second(run: Run) -> None:
    async def scenario(_: Machine) -> None:
        await asyncio.sleep(0.55)

    assert run(scenario).ticks() == [1, 2, 3, 4, 5]


def test_a_late_tick_does_not_move_those_behind_it(run: Run) -> None:
    async def scenario(machine: Machine) -> None:
        await asyncio.sleep(0.05)
        machine.pause(0.08)
        await asyncio.sleep(0.4)

    assert run(scenario).ticks() == [1.3, 2, 3, 4, 5]


def test_ticks_that_were_missed_are_not_made_up_for(run: Run) -> None:
    async def scenario(machine: Machine) -> None:
        await asyncio.sleep(0.05)
        machine.pause(0.4)
        await asyncio.sleep(0.3)

    machine = run(scenario)
    assert machine.ticks() == [4.5, 5.5, 6.5, 7.5]
    assert machine.events[0] == ("tick", 4.5), "it is no pause yet"


def test_after_a_pause_the_inbox_comes_first_and_the_clock_goes_on_by_one_tick(run: Run) -> None:
    async def scenario(machine: Machine) -> None:
        await asyncio.sleep(0.15)
        machine.pause(30)

        # As transports do: a read makes a message, and the next read comes an iteration later.
        def read(more: int) -> None:
            machine.note("message")
            if more:
                machine.loop.call_soon(read, more - 1)

        machine.loop.call_soon(read, 4)
        await asyncio.sleep(0.25)

    assert run(scenario).events == [
        ("tick", 1),
        ("message", 301.5),
        ("pause of 30 s", 301.5),
        *[("message", 301.5)] * 4,
        ("tick", 301.5),
        ("tick", 302.5),
        ("tick", 303.5),
    ]


def test_a_second_pause_is_noticed_too(run: Run) -> None:
    async def scenario(machine: Machine) -> None:
        for _ in range(2):
            await asyncio.sleep(0.15)
            machine.pause(2)
        await asyncio.sleep(0.05)

    assert [what for what, _ in run(scenario).events if what != "tick"] == ["pause of 2 s"] * 2


@pytest.mark.parametrize("pause_s", [0.0, 30.0])
def test_nothing_ticks_after_the_end(run: Run, pause_s: float) -> None:
    async def scenario(machine: Machine) -> None:
        await asyncio.sleep(0.15)
        machine.pause(pause_s)
        await asyncio.sleep(0)
        machine.ticker.stop()
        machine.ticker.stop()
        await asyncio.sleep(1)

    assert run(scenario).ticks() == [1]
