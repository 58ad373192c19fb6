from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.consume.fakes import Nodes, World
from tests.fakes.backend import FakeBackend
from tests.fakes.waiting import settle

MakeWorld = Callable[..., World]
MakeNodes = Callable[..., Nodes]


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
        counts = world.consumers.counts()
        assert (counts["fetched_bytes"], counts["unpacked_bytes"]) == (0, 0)


@pytest.fixture
async def make_nodes() -> AsyncIterator[MakeNodes]:
    """A factory of clusters of several nodes; all are stopped at the end, without a fault."""
    made: list[Nodes] = []

    def make(count: int = 2, partitions: int = 2, **options: Any) -> Nodes:
        made.append(Nodes(count, partitions, **options))
        return made[-1]

    yield make
    for nodes in made:
        nodes.links.heal()
        for world in nodes.worlds.values():
            for gate in world.backend.gates.values():
                gate.set()
            world.backend.failures.clear()
        for world in nodes.worlds.values():
            await world.consumers.drain(0)
            await world.backend.stop()
        await settle()
        assert [fault for world in nodes.worlds.values() for fault in world.faults] == []
        assert nodes.clock.timers == 0
