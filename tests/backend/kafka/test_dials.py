"""pixy/backend/kafka/client.py: failed and cancelled dials, on scripted brokers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pixy.backend.kafka.client import KafkaClient
from pixy.backend.kafka.errors import BrokerFault
from pixy.kafka_protocol.messages import METADATA
from tests.fakes.brokers import Brokers
from tests.fakes.waiting import settle

BROKERS = METADATA([], False, False, {})
TIMEOUT_S = 2.0


class Dials:
    """Dials of a cluster that wait as long as `held`."""

    def __init__(self, brokers: Brokers) -> None:
        self.held = False
        self.count = 0
        brokers.before_dial = self._before

    async def _before(self, _: int) -> None:
        self.count += 1
        if self.held:
            await asyncio.Event().wait()


@asynccontextmanager
async def started(brokers: Brokers) -> AsyncIterator[tuple[KafkaClient, Dials]]:
    dials = Dials(brokers)
    client = KafkaClient(brokers.options(dial_timeout_s=TIMEOUT_S, retry_backoff_s=60.0), brokers.dial)
    await client.start()
    dials.held, dials.count = True, 0
    try:
        yield client, dials
    finally:
        await client.stop()


def test_callers_that_are_cancelled_leave_the_broker_to_others(virtual: asyncio.Runner) -> None:
    async def scenario() -> None:
        async with started(Brokers({"t": [0]})) as (client, dials):
            waiting = [asyncio.create_task(client.send(0, BROKERS, "bulk")) for _ in range(5)]
            for number, caller in enumerate(waiting, 1):
                await settle()
                assert dials.count == number, "the next caller dials at once"
                caller.cancel()
            await asyncio.wait(waiting)
            assert all(caller.cancelled() for caller in waiting)
            loop = asyncio.get_running_loop()
            began, dials.held = loop.time(), False
            assert (await client.send(0, BROKERS, "bulk")).brokers
            assert loop.time() == began

    virtual.run(scenario())


@pytest.mark.parametrize("timeout_s", [None, TIMEOUT_S / 2], ids=["of the dial", "of the request"])
def test_a_dial_that_exceeds_a_time_limit_keeps_others_from_waiting_as_long(
    virtual: asyncio.Runner, timeout_s: float | None
) -> None:
    async def scenario() -> None:
        async with started(Brokers({"t": [0]})) as (client, dials):
            loop = asyncio.get_running_loop()
            began = loop.time()
            with pytest.raises(BrokerFault, match="has not answered within"):
                await client.send(0, BROKERS, "bulk", timeout_s)
            assert loop.time() == pytest.approx(began + (timeout_s or TIMEOUT_S))
            with pytest.raises(BrokerFault, match="cannot connect to broker-0:9092: no answer in time"):
                await client.send(0, BROKERS, "bulk", timeout_s)
            assert dials.count == 1

    virtual.run(scenario())
