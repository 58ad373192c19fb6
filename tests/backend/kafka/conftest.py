"""What the tests of the Kafka backend share."""

from collections.abc import AsyncIterator

import pytest

from tests.kafka.relay import Relay, open_relay


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    """A place in front of the brokers where connections can be cut, held up, and looked into."""
    async with open_relay() as opened:
        yield opened
