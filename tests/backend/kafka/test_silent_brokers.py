"""pixy/backend/kafka: a broker that is in the metadata and does not answer."""

import asyncio
import random
from typing import Any

import pytest

from pixy.backend.kafka.client import KafkaClient
from pixy.backend.kafka.coordinators import Coordinators
from tests.fakes.brokers import FIND_COORDINATOR, Brokers


@pytest.mark.parametrize("seed", range(3))
def test_a_coordinator_is_found_although_a_broker_is_silent(
    virtual: asyncio.Runner, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Brokers are asked in a random order: in one of these it is the first one."""
    monkeypatch.setattr("pixy.backend.kafka.client.random", random.Random(seed))
    brokers = Brokers({"t": [1]}, nodes=3)
    brokers.on(FIND_COORDINATOR, lambda _: (0, 0, None, 1, "broker-1", 9092))
    answer = brokers.answer
    asked: list[int] = []

    async def answer_but_for_one(request: Any, node_id: int) -> Any:
        asked.append(node_id)
        return await (asyncio.Event().wait() if node_id == 0 else answer(request, node_id))

    async def run() -> None:
        client = KafkaClient(brokers.options(), brokers.dial)
        await client.start()
        monkeypatch.setattr(brokers, "answer", answer_but_for_one)
        try:
            async with asyncio.timeout(10):
                assert await Coordinators(client).find("g") == 1
        finally:
            await client.stop()

    virtual.run(run())
    assert asked
