"""Shared fixtures of the Kafka backend's tests."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.kafka.relay import Relay, open_relay
from tests.sim.loop import VirtualLoop


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    """A relay in front of the brokers that can cut, delay and inspect connections."""
    async with open_relay() as opened:
        yield opened


@pytest.fixture
def virtual() -> Iterator[asyncio.Runner]:
    """Runs coroutines on a loop with virtual time, for scripted brokers."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        yield runner
