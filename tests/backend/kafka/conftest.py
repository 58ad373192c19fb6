"""What the tests of the Kafka backend share."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.kafka.relay import Relay, open_relay
from tests.sim.loop import VirtualLoop


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    """A place in front of the brokers where connections can be cut, held up, and looked into."""
    async with open_relay() as opened:
        yield opened


@pytest.fixture
def virtual() -> Iterator[asyncio.Runner]:
    """Runs coroutines on a loop whose time passes only while nothing happens: for scripted brokers."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        yield runner
