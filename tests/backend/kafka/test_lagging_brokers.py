"""pixy/backend/kafka/client.py: brokers that lag behind, on scripted brokers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pixy.backend.kafka.client import KafkaClient
from pixy.kafka_protocol.messages import METADATA
from tests.fakes.brokers import Brokers


@asynccontextmanager
async def started(brokers: Brokers) -> AsyncIterator[tuple[KafkaClient, list[set[str]]]]:
    """A client that asks broker 0 first, and the topics of which it tells its listeners."""
    client = KafkaClient(brokers.options(), brokers.dial)
    told: list[set[str]] = []
    await client.start()
    await client.send(0, METADATA([], False, False, {}), "metadata")
    await client.refresh()
    client.listeners.append(told.append)
    try:
        yield client, told
    finally:
        await client.stop()


def test_a_topic_that_one_broker_lacks_stays(virtual: asyncio.Runner) -> None:
    """The broker has just started, or is cut off from the controllers."""

    async def scenario() -> None:
        brokers = Brokers({"t": [0]}, nodes=3)
        async with started(brokers) as (client, told):
            brokers.behind = {0: {}}
            await client.refresh()
            assert client.metadata.doubted
            await asyncio.sleep(60)
            assert "t" in client.metadata.topics
            assert told == []

    virtual.run(scenario())


def test_a_topic_that_a_broker_learns_of_late_is_asked_for_until_then(virtual: asyncio.Runner) -> None:
    async def scenario() -> None:
        brokers = Brokers({"t": [0]}, nodes=3)
        async with started(brokers) as (client, told):
            brokers.behind = {0: {}}
            await client.refresh(["t"])
            await asyncio.sleep(3)
            brokers.behind = {}
            await asyncio.sleep(3)
            assert not client.metadata.doubted
            asked = brokers.count(METADATA.key)
            await asyncio.sleep(10)
            assert (brokers.count(METADATA.key), told) == (asked, [])

    virtual.run(scenario())


def test_a_deletion_that_reaches_the_brokers_one_after_the_other_is_noticed(
    virtual: asyncio.Runner,
) -> None:
    async def scenario() -> None:
        brokers = Brokers({"t": [0]}, nodes=3)
        async with started(brokers) as (client, told):
            for node_id in range(3):
                assert "t" in client.metadata.topics
                brokers.behind[node_id] = {}
                await client.refresh(["t"])
                await asyncio.sleep(3)
            assert "t" not in client.metadata.topics
            assert told == [{"t"}]

    virtual.run(scenario())


def test_a_deletion_is_noticed_though_a_broker_hangs(virtual: asyncio.Runner) -> None:
    async def scenario() -> None:
        brokers = Brokers({"t": [0]}, nodes=3)
        async with started(brokers) as (client, told):
            brokers.before_dial = lambda node_id: asyncio.Event().wait() if node_id == 2 else None
            del brokers.topics["t"]
            await client.refresh(["t"])
            assert told == [{"t"}]

    virtual.run(scenario())


def test_a_deletion_is_noticed_though_most_brokers_hang_or_have_not_heard_of_it(
    virtual: asyncio.Runner,
) -> None:
    async def scenario() -> None:
        brokers = Brokers({"t": [0]}, nodes=3)
        async with started(brokers) as (client, told):
            brokers.before_dial = lambda node_id: None if node_id == 0 else asyncio.Event().wait()
            del brokers.topics["t"]
            await client.refresh(["t"])
            await asyncio.sleep(25)
            assert told == []
            await asyncio.sleep(15)
            assert told == [{"t"}]

    virtual.run(scenario())


def test_a_new_leader_is_found_though_the_broker_that_was_asked_has_not_heard_of_it(
    virtual: asyncio.Runner,
) -> None:
    """It is cut off from the controllers, and goes on as the leader that it was."""

    async def scenario() -> None:
        brokers = Brokers({"t": [0]}, nodes=3)
        async with started(brokers) as (client, told):
            brokers.behind = {0: {"t": [0]}}
            brokers.topics["t"] = [1]
            client.request_refresh(["t"])
            await asyncio.sleep(1)
            client.request_refresh(["t"])
            await asyncio.sleep(1)
            assert client.metadata.leader("t", 0) == 1
            for _ in range(10):
                await client.refresh()
            assert client.metadata.leader("t", 0) == 1
            assert told == [{"t"}]

    virtual.run(scenario())


def test_a_new_leader_is_found_in_time_though_nobody_asks_for_it(virtual: asyncio.Runner) -> None:
    async def scenario() -> None:
        brokers = Brokers({"t": [0]}, nodes=3)
        async with started(brokers) as (client, _):
            brokers.behind = {0: {"t": [0]}}
            brokers.topics["t"] = [1]
            await asyncio.sleep(40)
            assert client.metadata.leader("t", 0) == 1

    virtual.run(scenario())
