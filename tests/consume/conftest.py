from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.consume.fakes import World
from tests.fakes.backend import FakeBackend

MakeWorld = Callable[..., World]


@pytest.fixture
async def make_world() -> AsyncIterator[MakeWorld]:
    """A factory of worlds with one topic `t`; all are stopped at the end, without a fault."""
    worlds: list[World] = []

    def make(partitions: int = 1, **options: Any) -> World:
        worlds.append(World(FakeBackend(topics={"t": partitions}), **options))
        return worlds[-1]

    yield make
    for world in worlds:
        world.backend.gates.clear()
        world.backend.failures.clear()
        await world.consumers.drain(0)
        assert world.faults == []
        assert world.clock.timers == 0
