"""The state that outlives the processes of a simulation, and the runner of processes."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.fakes.clock import FakeClock
from tests.sim.disk import SimulatedDisk
from tests.sim.loop import VirtualLoop
from tests.sim.model import Model

DIRECTORY = Path("/var/pixy/node")


@dataclass(slots=True)
class World:
    """A machine, and the model of its data.

    Attributes:
        rng: source of all randomness.
        disk, clock: disk and clock of all processes.
        model: model of their requests.
        counts: number of events by kind.
    """

    rng: Random
    disk: SimulatedDisk
    clock: FakeClock
    model: Model
    counts: Counter[str] = field(default_factory=Counter)


def run_process(world: World, live: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a process until it returns, or until the disk ends it.

    Raises:
        AssertionError: an expectation does not hold, also in a task that nothing awaited.
    """
    unhandled: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=VirtualLoop, debug=False) as runner:
        loop = runner.get_loop()
        loop.set_exception_handler(lambda _, context: unhandled.append(context))
        world.clock.follow(loop)
        world.clock.set_wall(0)
        try:
            runner.run(_until_ended(world.disk, live))
        finally:
            world.clock.follow(None)
    if unhandled and not world.disk.ended:
        raise AssertionError(f"unhandled: {unhandled[0]}") from unhandled[0].get("exception")


async def _until_ended(disk: SimulatedDisk, live: Callable[[], Coroutine[Any, Any, None]]) -> None:
    task = asyncio.get_running_loop().create_task(live())
    disk.on_ended = task.cancel
    try:
        await task
    except asyncio.CancelledError:
        if not disk.ended:
            raise
    finally:
        disk.on_ended = lambda: None
