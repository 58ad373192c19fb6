"""Writes to a real Kafka: each batch once, in order, within its timeout, and rejections are
reported.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from pixy.backend import Backend, TopicPartition
from pixy.backend.kafka import KafkaBackend
from pixy.errors import (
    DeadlineExceeded,
    InvalidArgument,
    MessageTooLarge,
    PixyError,
    ShuttingDown,
    Unavailable,
    UnknownPartition,
)
from pixy.records import NewRecord, build_batch, read_header
from tests.conformance.support import append, append_nowait, fetch_now, make_batch, offsets, values
from tests.fakes.waiting import until
from tests.kafka.backends import open_kafka
from tests.kafka.cluster import KafkaCluster
from tests.kafka.relay import Relay

pytestmark = pytest.mark.process

PATIENCE_S = 60.0


@pytest.fixture
def delivery_s() -> float:
    """Delivery timeout: long by default."""
    return PATIENCE_S


hasty = pytest.mark.parametrize("delivery_s", [2.0], ids=["hasty"])


@pytest.fixture
async def backend(kafka: KafkaCluster, relay: Relay, delivery_s: float) -> AsyncIterator[KafkaBackend]:
    async with open_kafka(kafka, relay.dial, delivery_timeout_s=delivery_s) as opened:
        yield opened


@pytest.fixture
async def topic(backend: KafkaBackend, kafka_name: Callable[[str], str]) -> str:
    name = kafka_name("produce")
    await backend.create_topic(name, 2)
    return name


@pytest.fixture
def partition(topic: str) -> TopicPartition:
    return TopicPartition(topic, 0)


async def producers(backend: Backend, partition: TopicPartition) -> list[tuple[int, int]]:
    """Producer id and sequence of each batch in the log."""
    batches = (await fetch_now(backend, partition, 0)).batches
    headers = [read_header(batch) for batch in batches]
    return [(each.producer_id, each.base_sequence) for each in headers]


async def test_batches_carry_one_producer_and_gapless_sequences(
    backend: KafkaBackend, partition: TopicPartition
) -> None:
    for batch in ([b"0", b"1", b"2"], [b"3"], [b"4", b"5"]):
        await append(backend, partition, *batch)
    found = await producers(backend, partition)
    assert len({producer for producer, _ in found}) == 1
    assert [sequence for _, sequence in found] == [0, 3, 4]


async def test_a_batch_whose_answer_was_lost_is_written_once_and_answered_with_its_offset(
    backend: KafkaBackend, partition: TopicPartition, relay: Relay
) -> None:
    assert await append(backend, partition, b"0") == 0
    relay.lose_answers = 1
    assert await append(backend, partition, b"1", b"2") == 1
    assert await append(backend, partition, b"3") == 3
    assert relay.lost == 1
    result = await fetch_now(backend, partition, 0)
    assert (offsets(result), values(result)) == ([0, 1, 2, 3], [b"0", b"1", b"2", b"3"])


async def test_order_is_kept_when_answers_are_lost_repeatedly(
    backend: KafkaBackend, partition: TopicPartition, relay: Relay
) -> None:
    await append(backend, partition, b"0")
    answers = []
    for number in range(1, 40):
        if number % 8 == 0:
            relay.lose_answers += 1
        answers.append(append_nowait(backend, partition, b"%d" % number))
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(*answers) == list(range(1, 40))
    assert relay.lost == 4
    assert values(await fetch_now(backend, partition, 0)) == [b"%d" % number for number in range(40)]


@hasty
async def test_without_any_answer_the_outcome_is_unknown_and_the_partition_continues_with_a_new_producer(
    backend: KafkaBackend, partition: TopicPartition, relay: Relay
) -> None:
    await append(backend, partition, b"0")
    relay.lose_answers = 1_000_000
    with pytest.raises(
        DeadlineExceeded, match=r"not known whether produce-\d+-0 was written within 2 s: the connection"
    ):
        await append(backend, partition, b"in doubt")
    relay.lose_answers = 0
    assert await append(backend, partition, b"1") == 2
    result = await fetch_now(backend, partition, 0)
    assert values(result) == [b"0", b"in doubt", b"1"]
    (first, _), (second, _), third = await producers(backend, partition)
    assert first == second
    assert third[0] != first
    assert third[1] == 0


async def test_a_slow_broker_makes_answers_late_and_nothing_else(
    backend: KafkaBackend, topic: str, relay: Relay
) -> None:
    partitions = [TopicPartition(topic, number) for number in range(2)]
    for partition in partitions:
        await append(backend, partition, b"0")
    relay.delay_s = 0.3
    answers = [append_nowait(backend, partition, b"1", b"2") for partition in partitions for _ in range(4)]
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(*answers) == [1, 3, 5, 7] * 2
    assert backend.fault == ""
    for partition in partitions:
        assert offsets(await fetch_now(backend, partition, 0)) == list(range(9))


@hasty
async def test_time_already_waited_counts_towards_the_timeout_of_a_batch(
    backend: KafkaBackend, partition: TopicPartition, relay: Relay
) -> None:
    await append(backend, partition, b"0")
    relay.lose_answers = 1_000_000
    loop = asyncio.get_running_loop()
    answered: list[tuple[str, type[object], float]] = []

    def append_aged(name: str, age_s: float) -> None:
        began = loop.time()

        def done(_: int, error: PixyError | None) -> None:
            answered.append((name, type(error), loop.time() - began))

        backend.append(partition, make_batch(name.encode()), 1, done, age_s)

    append_aged("too old", 2.0)
    append_aged("old", 1.5)
    append_aged("older than the one before it", 1.9)
    append_aged("young", 0.0)
    await until(lambda: len(answered) == 4)
    names, errors, seconds = zip(*answered, strict=True)
    assert names == ("too old", "older than the one before it", "old", "young")
    # A busy machine may send none of them in time.
    assert errors[0] is errors[1] is Unavailable
    assert {errors[2], errors[3]} <= {Unavailable, DeadlineExceeded}
    assert seconds[2] >= 0.5
    assert seconds[3] >= 1.5


async def test_a_batch_rejected_by_kafka_is_reported_and_the_next_one_is_written(
    backend: KafkaBackend, partition: TopicPartition
) -> None:
    await append(backend, partition, b"0")
    large = append_nowait(backend, partition, b"v" * 9_000_000)
    following = append_nowait(backend, partition, b"1")
    with pytest.raises(MessageTooLarge, match="larger than max_message_bytes of the topic"):
        await large
    assert await following == 1
    assert [sequence for _, sequence in await producers(backend, partition)] == [0, 1]


async def test_the_reason_of_a_rejection_is_kafkas_own(
    backend: KafkaBackend, kafka_name: Callable[[str], str]
) -> None:
    compacted = TopicPartition(kafka_name("compacted"), 0)
    await backend.create_topic(compacted.topic, 1, {"cleanup_policy": "compact"})
    answer = asyncio.get_running_loop().create_future()
    batch = build_batch([NewRecord(None, b"no key", (), 1000)])
    backend.append(compacted, batch, 1, lambda *outcome: answer.set_result(outcome))
    async with asyncio.timeout(PATIENCE_S):
        offset, error = await answer
    assert offset == -1
    assert isinstance(error, InvalidArgument)
    assert "without key" in str(error) or "record" in str(error)


async def test_partitions_do_not_wait_for_each_other(backend: KafkaBackend, topic: str, relay: Relay) -> None:
    async with asyncio.timeout(PATIENCE_S):
        answers = [
            append_nowait(backend, TopicPartition(topic, number % 2), b"%d" % number) for number in range(200)
        ]
        outcomes = await asyncio.gather(*answers)
    assert outcomes == [number // 2 for number in range(200)]


async def test_deletion_of_a_topic_by_others_ends_its_waiting_batches(
    kafka: KafkaCluster, backend: KafkaBackend, kafka_name: Callable[[str], str]
) -> None:
    partition = TopicPartition(kafka_name("deleted"), 0)
    async with open_kafka(kafka) as other:
        await other.create_topic(partition.topic, 1)
        await backend.describe_topic(partition.topic)
        await append(backend, partition, b"0")
        await other.delete_topic(partition.topic)
    with pytest.raises(UnknownPartition, match="deleted"):
        await append(backend, partition, b"1")
    assert backend.topic(partition.topic) is None


@hasty
async def test_stop_answers_all_batches_even_without_answers_of_the_broker(
    backend: KafkaBackend, partition: TopicPartition, relay: Relay
) -> None:
    await append(backend, partition, b"0")
    relay.lose_answers = 1_000_000
    answers = [append_nowait(backend, partition, b"%d" % number) for number in range(3)]
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        await backend.stop()
    assert {type(each.exception()) for each in answers} <= {DeadlineExceeded, Unavailable}
    assert type(answers[0].exception()) is DeadlineExceeded
    late = append_nowait(backend, partition, b"late")
    assert isinstance(late.exception(), ShuttingDown)


@hasty
async def test_a_batch_with_a_longer_limit_delays_no_answer_behind_it(
    backend: KafkaBackend, partition: TopicPartition, relay: Relay
) -> None:
    await append(backend, partition, b"0")
    relay.lose_answers = 1_000_000
    answered: list[tuple[str, int, type[object]]] = []

    def append_aged(name: str, age_s: float) -> None:
        def done(offset: int, error: PixyError | None) -> None:
            answered.append((name, offset, type(error)))

        backend.append(partition, make_batch(name.encode()), 1, done, age_s)

    append_aged("patient", -600.0)
    append_aged("hasty", 0.0)
    await until(lambda: answered)
    assert answered == [("hasty", -1, Unavailable)]
    relay.lose_answers = 0
    await until(lambda: len(answered) == 2)
    assert answered[1] == ("patient", 1, type(None))
