"""Staged writes in front of a real Kafka: complete and once, with failures at any step."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pixy.backend import Backend, Published, StageSeal, TopicPartition
from pixy.backend.kafka import KafkaBackend, KafkaOptions, staged_writes
from pixy.clock import SystemClock
from pixy.config import StagingConfig
from pixy.errors import DataDirectoryError, FailedPrecondition, ResourceExhausted, Unavailable
from tests.conformance.staged import piece_of, stage_values
from tests.conformance.support import fetch_now, values
from tests.fakes.waiting import until
from tests.kafka.backends import kafka_options, make_kafka, open_kafka, staging_place
from tests.kafka.cluster import KafkaCluster
from tests.kafka.consumer import consumed
from tests.kafka.relay import PRODUCE, Relay
from tests.management.test_cluster_samples import samples_of, scraped

pytestmark = pytest.mark.process

INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TRANSACTION, COMMIT_OFFSET = 22, 24, 25, 26, 28
STEPS = {
    "init producer id": INIT_PRODUCER_ID,
    "add partitions": ADD_PARTITIONS,
    "add offsets": ADD_OFFSETS,
    "produce": PRODUCE,
    "commit offset": COMMIT_OFFSET,
    "end transaction": END_TRANSACTION,
}


@pytest.fixture
def sink(kafka_name: Callable[[str], str]) -> str:
    return kafka_name("staged-sink")


@pytest.fixture
async def topic(kafka: KafkaCluster, kafka_name: Callable[[str], str]) -> str:
    async with open_kafka(kafka) as backend:
        return (await backend.create_topic(kafka_name("staged"), 2)).name


async def read(backend: Backend, topic: str) -> list[list[bytes | None]]:
    """Every committed value, by partition."""
    found: list[list[bytes | None]] = []
    for number in range(2):
        at, of_partition = 0, []
        while (result := await fetch_now(backend, TopicPartition(topic, number), at)).next_offset > at:
            of_partition += values(result)
            at = result.next_offset
        found.append(of_partition)
    return found


async def stage_both(
    backend: Backend, topic: str, sink: str, stage: str = "stage"
) -> list[list[bytes | None]]:
    """Stage records for both partitions; returns them."""
    await stage_values(
        backend, sink, stage, {TopicPartition(topic, 0): [b"1", b"2"], TopicPartition(topic, 1): [b"3"]}
    )
    return [[b"1", b"2"], [b"3"]]


def files(directory: Path) -> list[str]:
    return sorted(each.name for kind in ("staging", "publishing") for each in (directory / kind).glob("*"))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
async def test_a_daemon_that_dies_at_any_step_publishes_once(
    kafka: KafkaCluster, relay: Relay, topic: str, sink: str, tmp_path: Path, step: str, when: str
) -> None:
    first = make_kafka(kafka, tmp_path / "first", relay.dial, delivery_timeout_s=1.0, request_timeout_s=2.0)
    await first.start()
    expected = await stage_both(first, topic, sink)
    setattr(relay, f"stop_{when}", STEPS[step])
    dying = asyncio.create_task(first.publish(sink, 0, "query", ["stage"]))
    await relay.stopped.wait()
    # The state of a killed process: its files as they are, and no more requests to Kafka.
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    async with open_kafka(kafka, directory=tmp_path / "second") as second:
        published = await second.publish(sink, 0, "query", ["stage"])
        assert published.last_epoch == 0
        assert published.published is not (step == "end transaction" and when == "after")
        assert await read(second, topic) == expected
        assert await second.publish(sink, 0, "query", ["stage"]) == Published(False, 0)
        with pytest.raises(FailedPrecondition):
            await second.publish(sink, 1, "query", ["stage"])
        assert await read(second, topic) == expected
        await wait_gone(tmp_path / "second")
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)
    await first.stop()


async def wait_gone(directory: Path) -> None:
    async def gone() -> bool:
        return files(directory) == []

    await until(gone)


async def test_a_start_ends_transactions_left_open_by_the_last_process(
    kafka: KafkaCluster, relay: Relay, topic: str, sink: str, tmp_path: Path
) -> None:
    """Without a request for the sink: other records after the open transaction are readable at
    once.
    """
    first = make_kafka(kafka, tmp_path / "first", relay.dial, delivery_timeout_s=1.0, request_timeout_s=2.0)
    await first.start()
    await stage_both(first, topic, sink)
    relay.stop_before = COMMIT_OFFSET
    dying = asyncio.create_task(first.publish(sink, 0, "query", ["stage"]))
    await relay.stopped.wait()
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    assert len(files(tmp_path / "second")) == 2
    async with open_kafka(kafka, directory=tmp_path / "second") as second:

        async def settled() -> bool:
            return len(files(tmp_path / "second")) == 1

        await until(settled)
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        piece = piece_of({TopicPartition(topic, 0): [b"behind"]})
        second.append(
            TopicPartition(topic, 0),
            bytearray(piece[0].batches),
            1,
            lambda offset, error: done.set_result(error),
        )
        assert await done is None
        assert await read(second, topic) == [[b"behind"], []]
        assert await second.publish(sink, 0, "query", ["stage"]) == Published(True, 0)
        assert await read(second, topic) == [[b"behind", b"1", b"2"], [b"3"]]
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)
    await first.stop()


@pytest.mark.parametrize("lost", [1, 1000])
async def test_a_publication_with_an_unanswered_end_is_resolved(
    kafka: KafkaCluster, relay: Relay, topic: str, sink: str, tmp_path: Path, lost: int
) -> None:
    """Lost once: it is requested again. Lost forever: the epoch decides, under a new producer
    epoch.
    """
    async with open_kafka(kafka, relay.dial, tmp_path / "kafka") as backend:
        expected = await stage_both(backend, topic, sink)
        relay.lose, relay.lose_answers = END_TRANSACTION, lost
        assert await backend.publish(sink, 0, "query", ["stage"]) == Published(True, 0)
        assert relay.lost >= 1
        assert await read(backend, topic) == expected
        await wait_gone(tmp_path / "kafka")


async def test_a_publication_with_an_unacknowledged_batch_can_be_retried(
    kafka: KafkaCluster, relay: Relay, topic: str, sink: str, tmp_path: Path
) -> None:
    async with open_kafka(kafka, relay.dial, tmp_path / "kafka", delivery_timeout_s=1.0) as backend:
        expected = await stage_both(backend, topic, sink)
        relay.lose, relay.lose_answers = PRODUCE, 1000
        with pytest.raises(Unavailable, match=r"nothing was published: it is not known whether"):
            await backend.publish(sink, 0, "query", ["stage"])
        assert relay.lost >= 1
        relay.lose_answers = 0
        assert await backend.publish(sink, 0, "query", ["stage"]) == Published(True, 0)
        assert await read(backend, topic) == expected
        assert await consumed(kafka, topic, 2, "read_uncommitted") == [b"1", b"1", b"2", b"2", b"3", b"3"]


async def test_a_publication_is_invisible_before_its_end(
    kafka: KafkaCluster, relay: Relay, topic: str, sink: str, tmp_path: Path
) -> None:
    first = make_kafka(kafka, tmp_path / "first", relay.dial, delivery_timeout_s=1.0, request_timeout_s=2.0)
    await first.start()
    await stage_both(first, topic, sink)
    relay.stop_before = END_TRANSACTION
    dying = asyncio.create_task(first.publish(sink, 0, "query", ["stage"]))
    await relay.stopped.wait()
    async with open_kafka(kafka) as reader:
        assert await read(reader, topic) == [[], []]
        assert await consumed(kafka, topic, 2, "read_uncommitted") == [b"1", b"2", b"3"]
        assert await consumed(kafka, topic, 2) == []
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)
    await first.stop()


async def test_stages_are_published_by_the_daemon_that_stored_them(
    kafka: KafkaCluster, topic: str, sink: str, tmp_path: Path
) -> None:
    async with (
        open_kafka(kafka, directory=tmp_path / "a") as ours,
        open_kafka(kafka, directory=tmp_path / "b") as theirs,
    ):
        expected = await stage_both(ours, topic, sink)
        with pytest.raises(
            FailedPrecondition, match=r"is at another daemon; stages are published by the daemon"
        ):
            await theirs.publish(sink, 0, "query", ["stage"])
        assert await ours.publish(sink, 0, "query", ["stage"]) == Published(True, 0)
        assert await theirs.publish(sink, 0, "query", ["stage"]) == Published(False, 0)
        with pytest.raises(FailedPrecondition, match=r"query"):
            await theirs.publish(sink, 0, "other", [])
        assert await read(theirs, topic) == expected


async def test_sealed_stages_survive_a_restart_and_others_do_not(
    kafka: KafkaCluster, topic: str, sink: str, tmp_path: Path
) -> None:
    async with open_kafka(kafka, directory=tmp_path / "kafka") as backend:
        expected = await stage_both(backend, topic, sink)
        await backend.stage(sink, "open", 0, piece_of({TopicPartition(topic, 0): [b"lost"]}))
    async with open_kafka(kafka, directory=tmp_path / "kafka") as backend:
        with pytest.raises(FailedPrecondition, match=r"open"):
            await backend.publish(sink, 0, "query", ["stage", "open"])
        assert await backend.publish(sink, 0, "query", ["stage"]) == Published(True, 0)
        assert await read(backend, topic) == expected


async def test_a_directory_belongs_to_one_process(
    kafka: KafkaCluster, topic: str, sink: str, tmp_path: Path
) -> None:
    async with (
        open_kafka(kafka, directory=tmp_path / "kafka") as first,
        open_kafka(kafka, directory=tmp_path / "kafka") as second,
    ):
        await stage_both(first, topic, sink)
        with pytest.raises(Unavailable, match=r"used by another process"):
            await stage_both(second, topic, sink, "other")
        third = make_kafka(kafka, tmp_path / "kafka")
        with pytest.raises(DataDirectoryError, match=r"used by another process"):
            await third.start()
        await third.stop()


async def test_nothing_is_created_on_disk_before_the_first_stage(
    kafka: KafkaCluster, sink: str, tmp_path: Path
) -> None:
    async with open_kafka(kafka, directory=tmp_path / "kafka") as backend:
        assert await backend.publish(sink, 0, "query", []) == Published(True, 0)
        await backend.discard(sink, ["unknown"])
        assert not (tmp_path / "kafka").exists()


async def test_many_large_batches_are_published_in_order(
    kafka: KafkaCluster, topic: str, sink: str, tmp_path: Path
) -> None:
    """More than may be in flight, and more than is read at a time."""
    partition = TopicPartition(topic, 0)
    async with open_kafka(kafka, directory=tmp_path / "kafka", buffer_bytes=1 << 20) as backend:
        staged = [[b"%d/%d" % (piece, number) + bytes(100_000) for number in range(5)] for piece in range(8)]
        await stage_values(backend, sink, "a", *[{partition: each} for each in staged[:5]])
        await stage_values(backend, sink, "b", *[{partition: each} for each in staged[5:]])
        assert await backend.publish(sink, 0, "query", ["a", "b"]) == Published(True, 0)
        assert (await read(backend, topic))[0] == [value for each in staged for value in each]


@pytest.mark.parametrize("limit", ["1048588", "900"])
async def test_small_batches_are_published_in_few_requests(
    kafka: KafkaCluster,
    relay: Relay,
    topic: str,
    sink: str,
    tmp_path: Path,
    limit: str,
    kafka_name: Callable[[str], str],
) -> None:
    """Nobody reads on in their partitions while the transaction is open."""
    async with open_kafka(kafka, relay.dial, directory=tmp_path / "kafka") as backend:
        name = (await backend.create_topic(kafka_name("small"), 2, {"max_message_bytes": limit})).name
        partitions = [TopicPartition(name, number) for number in range(2)]
        staged = [
            {each: [b"%d/%d/%d" % (stage, piece, each.partition)] for each in partitions}
            for stage in range(10)
            for piece in range(60)
        ]
        staged[77] = {partitions[0]: [b"large" + bytes(700)]}
        for stage in range(10):
            await stage_values(backend, sink, f"{stage}", *staged[60 * stage : 60 * stage + 60])
        before = relay.requests
        published = await backend.publish(sink, 0, "query", [f"{stage}" for stage in range(10)])
        assert published == Published(True, 0)
        requests = relay.requests - before
        assert await read(backend, name) == [
            [value for piece in staged for value in piece.get(each, ())] for each in partitions
        ]
    assert requests < (30 if limit == "1048588" else 200)


async def test_stages_of_an_idle_sink_expire_and_staged_bytes_are_bounded(
    kafka: KafkaCluster, topic: str, sink: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_writes, "_EXPIRY_CHECK_S", 0.02)
    config = StagingConfig(expiry=0.5, max_bytes=1000)
    backend = KafkaBackend(kafka_options(kafka), staging_place(tmp_path / "kafka", config))
    await backend.start()
    await stage_both(backend, topic, sink)
    with pytest.raises(ResourceExhausted, match=r"staging\.max_bytes"):
        await stage_values(backend, sink, "large", {TopicPartition(topic, 0): [bytes(1000)]})
    await wait_gone(tmp_path / "kafka")
    with pytest.raises(FailedPrecondition, match=r"has expired"):
        await backend.publish(sink, 0, "query", ["stage"])
    await backend.stop()


async def test_a_call_cancelled_while_stages_are_opened_leaves_their_directory_usable(
    tmp_path: Path,
) -> None:
    options = KafkaOptions(seed_peers=("127.0.0.1:1",), client_id="tests")
    staged = KafkaBackend(options, staging_place(tmp_path / "kafka"))._staged
    seal = StageSeal(0, 0)
    impatient = asyncio.create_task(staged.stage("sink", "stage", 0, [], seal))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.wait({impatient})
    assert await staged.stage("sink", "stage", 0, [], seal) == 0
    await staged.stop()


async def test_a_damaged_stage_is_named_by_the_status_and_counted_as_a_problem(tmp_path: Path) -> None:
    directory = tmp_path / "kafka"
    options = KafkaOptions(seed_peers=("127.0.0.1:1",), client_id="tests")
    before = KafkaBackend(options, staging_place(directory))
    await before._staged.stage("sink", "stage", 0, [], StageSeal(0, 0))
    await before.stop()
    path = directory / "staging" / files(directory)[0]
    whole = (path / "stage").read_bytes()
    for content, problems in ((whole[:-1] + bytes([whole[-1] ^ 1]), 1), (whole, 0)):
        (path / "stage").write_bytes(content)
        backend = KafkaBackend(options, staging_place(directory))
        await backend.start()
        with pytest.raises(FailedPrecondition, match="Kafka's own tools") as raised:
            await backend.cluster_status()
        named = f"damaged stages of staged writes: 1, {path}"
        assert (named in str(raised.value)) is bool(problems)
        assert (await scraped(samples_of(backend, SystemClock())))["pixy_problems"] == {("c",): problems}
        await backend.stop()
