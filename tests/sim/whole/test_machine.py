"""Machines of the simulation: pauses, and starts that end in a call on the disk."""

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.sim.kit.lives import LivesLoop
from tests.sim.kit.scene import Scene
from tests.sim.whole.machine import Machine
from tests.sim.world import DIRECTORY


class Process:
    """A process that makes directories one after the other."""

    node: Any = None
    backend: Any = None
    proxy: Any = None
    consumers: Any = None

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.steps = 0

    async def start(self) -> None:
        for step in count(1):
            await asyncio.sleep(1.0)
            self.steps = step
            self._machine.disk.make_directory(DIRECTORY / f"{self._machine.lives}-{self.steps}")

    async def stop(self) -> None: ...


@pytest.fixture
def machine() -> Iterator[Machine]:
    loop = LivesLoop()
    yield Machine(1, Scene(1, loop), lambda machine, _: Process(machine), lambda *_: None, interleaves=False)
    loop.close()


def start(machine: Machine) -> None:
    machine._scene.loop.outside(0.0, machine.start)
    pass_time(machine, 0.0)


def pass_time(machine: Machine, seconds: float) -> int:
    """Let time pass; returns the steps of the process in it."""
    process = machine.process
    before = getattr(process, "steps", 0)
    machine._scene.loop.run_until_complete(asyncio.sleep(seconds))
    return getattr(process, "steps", 0) - before


@pytest.mark.parametrize(("first_s", "second_s"), [(2.0, 9.0), (10.0, 2.0)])
def test_a_pause_during_a_pause_lasts_until_both_are_over(
    machine: Machine, first_s: float, second_s: float
) -> None:
    start(machine)
    assert pass_time(machine, 2.5) == 2
    machine.pause(first_s)
    assert pass_time(machine, 1.0) == 0
    machine.pause(second_s)
    assert pass_time(machine, 8.5) == 0
    assert pass_time(machine, 3.0) > 0


def test_healing_ends_every_pause(machine: Machine) -> None:
    start(machine)
    machine.pause(1e6)
    machine.heal()
    assert pass_time(machine, 2.5) == 2
    machine.pause(2.0)
    assert pass_time(machine, 1.9) == 0


def test_starts_end_in_calls_on_the_disk_as_often_as_they_are_to(machine: Machine) -> None:
    machine.crashed_starts = [(2, "after"), (3, "before")]
    for operation in (3, 2):
        start(machine)
        pass_time(machine, 10.0)
        assert (machine.life, machine.disk.operations) == (None, operation)
    start(machine)
    assert pass_time(machine, 10.5) == 10
