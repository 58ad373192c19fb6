"""Brokers die during a publication: retried under the same epoch, it is published once, and
invisible before.

Three brokers, three replicas, two of which must be in sync. A publication is held at a step, the
relevant broker dies, and the publication continues. The victim is the coordinator of the
transaction, that of the epoch (a consumer group's), or the leader of a partition.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pixy.backend import Backend, Published
from pixy.backend.kafka.client import KafkaClient
from pixy.backend.kafka.coordinators import Coordinators
from pixy.errors import Unavailable
from pixy.kafka_protocol.group_messages import GROUP_COORDINATOR, TRANSACTION_COORDINATOR
from tests.backend.kafka.test_staged_writes import COMMIT_OFFSET, END_TRANSACTION, read, stage_both
from tests.kafka.backends import kafka_options, make_kafka, open_kafka, start_again
from tests.kafka.cluster import Broker, KafkaCluster
from tests.kafka.consumer import consumed
from tests.kafka.relay import PRODUCE, Relay

pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.no_debug]

PATIENCE_S = 60.0
STEPS = {
    "begun": ("hold_before", PRODUCE),
    "records added": ("hold_before", COMMIT_OFFSET),
    "end sent, answer lost": ("hold_after", END_TRANSACTION),
}
VICTIMS = ["coordinator of the transaction", "coordinator of the epoch", "leader of a partition"]


@pytest.fixture
def sink(kafka_name: Callable[[str], str]) -> str:
    return kafka_name("failing-sink")


@pytest.fixture
async def topic(kafka_three: KafkaCluster, kafka_name: Callable[[str], str]) -> str:
    async with open_kafka(kafka_three) as backend:
        return (await backend.create_topic(kafka_name("failing"), 2)).name


@asynccontextmanager
async def publishing(
    backend: Backend, relay: Relay, sink: str, step: str
) -> AsyncIterator[asyncio.Task[Published]]:
    """Publishes epoch 0, held at a step during the block."""
    where, request = STEPS[step]
    setattr(relay, where, request)
    task = asyncio.create_task(backend.publish(sink, 0, "query", ["stage"]))
    async with asyncio.timeout(PATIENCE_S):
        await relay.held.wait()
        yield task
        relay.go_on.set()


async def find(cluster: KafkaCluster, backend: Backend, victim: str, topic: str, sink: str) -> Broker:
    """The broker to kill."""
    if victim == "leader of a partition":
        known = backend.topic(topic)
        assert known is not None
        return cluster.broker(known.partitions[0].leader)
    kind = TRANSACTION_COORDINATOR if victim == "coordinator of the transaction" else GROUP_COORDINATOR
    client = KafkaClient(kafka_options(cluster))
    await client.start()
    try:
        return cluster.broker(await Coordinators(client, kind).find(f"pixy-sink-{sink}"))
    finally:
        await client.stop()


async def publish_again(backend: Backend, sink: str) -> Published:
    """Publish epoch 0 until it is answered, as a client that retries."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await backend.publish(sink, 0, "query", ["stage"])
            except Unavailable:
                await asyncio.sleep(0)


async def check_once(
    cluster: KafkaCluster, backend: Backend, topic: str, sink: str, expected: list[list[bytes | None]]
) -> None:
    """Check that the epoch is published once, also after another call and with all brokers back."""
    assert await read(backend, topic) == expected
    assert await publish_again(backend, sink) == Published(False, 0)
    await start_again(cluster)
    assert await read(backend, topic) == expected
    assert await consumed(cluster, topic, 2) == [b"1", b"2", b"3"]


# Before its end, the state of a publication at a broker is the same at each step: its transaction
# is aborted.
@pytest.mark.parametrize(
    ("step", "victim"),
    [
        ("begun", "leader of a partition"),
        ("records added", "coordinator of the transaction"),
        *(("end sent, answer lost", victim) for victim in VICTIMS),
    ],
)
async def test_a_publication_during_the_death_of_a_broker_is_published_once(
    kafka_three: KafkaCluster, relay: Relay, topic: str, sink: str, tmp_path: Path, step: str, victim: str
) -> None:
    async with open_kafka(kafka_three, relay.dial, tmp_path / "kafka") as backend:
        expected = await stage_both(backend, topic, sink)
        async with publishing(backend, relay, sink, step) as task:
            (await find(kafka_three, backend, victim, topic, sink)).kill()
        try:
            assert await task == Published(True, 0)
        except Unavailable:
            assert (await publish_again(backend, sink)).last_epoch == 0
        await check_once(kafka_three, backend, topic, sink, expected)


@pytest.mark.parametrize("step", ["begun", "records added"])
async def test_records_of_an_aborted_publication_are_invisible(
    kafka_three: KafkaCluster, relay: Relay, topic: str, sink: str, tmp_path: Path, step: str
) -> None:
    """Two brokers die, and one alone may not write: the publication fails as retriable, and
    succeeds when they are back.
    """
    async with open_kafka(kafka_three, relay.dial, tmp_path / "kafka", delivery_timeout_s=3.0) as backend:
        expected = await stage_both(backend, topic, sink)
        async with publishing(backend, relay, sink, step) as task:
            for victim in (await find(kafka_three, backend, VICTIMS[0], topic, sink), *kafka_three.brokers):
                if sum(each.running for each in kafka_three.brokers) > 1:
                    victim.kill()
        with pytest.raises(Unavailable):
            await task
        await start_again(kafka_three)
        assert (await publish_again(backend, sink)).last_epoch == 0
        await check_once(kafka_three, backend, topic, sink, expected)
        everything = await consumed(kafka_three, topic, 2, "read_uncommitted")
        assert len(everything) == 6 if step == "records added" else len(everything) >= 3


async def test_the_next_process_resolves_a_publication_though_the_coordinator_died_too(
    kafka_three: KafkaCluster, relay: Relay, topic: str, sink: str, tmp_path: Path
) -> None:
    first = make_kafka(kafka_three, tmp_path / "first", relay.dial, delivery_timeout_s=1.0)
    await first.start()
    expected = await stage_both(first, topic, sink)
    relay.stop_after = END_TRANSACTION
    dying = asyncio.create_task(first.publish(sink, 0, "query", ["stage"]))
    await relay.stopped.wait()
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    (await find(kafka_three, first, VICTIMS[0], topic, sink)).kill()
    async with open_kafka(kafka_three, directory=tmp_path / "second") as second:
        assert (await publish_again(second, sink)).last_epoch == 0
        await check_once(kafka_three, second, topic, sink, expected)
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)
    await first.stop()


async def test_a_coordinator_that_freezes_and_resumes_ends_nothing_twice(
    kafka_three: KafkaCluster, relay: Relay, topic: str, sink: str, tmp_path: Path
) -> None:
    """The end of the transaction is in its socket, and is read after another coordinator has ended
    it.
    """
    async with open_kafka(kafka_three, relay.dial, tmp_path / "kafka", request_timeout_s=2.0) as backend:
        expected = await stage_both(backend, topic, sink)
        frozen = await find(kafka_three, backend, VICTIMS[0], topic, sink)
        relay.hold_before = END_TRANSACTION
        task = asyncio.create_task(backend.publish(sink, 0, "query", ["stage"]))
        await relay.held.wait()
        with frozen.paused():
            relay.go_on.set()
            await asyncio.gather(task, return_exceptions=True)
            assert (await publish_again(backend, sink)).last_epoch == 0
            assert await read(backend, topic) == expected
        await asyncio.to_thread(kafka_three.wait_ready)
        await check_once(kafka_three, backend, topic, sink, expected)
