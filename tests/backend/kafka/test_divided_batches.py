"""Kafka refuses a batch because of some of its records: the others of the batch, which are of other
clients, are written, once and in their order.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pixy.backend import Backend, TopicPartition
from pixy.backend.kafka import KafkaBackend
from pixy.clock import SystemClock
from pixy.config import ProducerConfig
from pixy.errors import (
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    MessageTooLarge,
    PixyError,
    Unavailable,
)
from pixy.proxy.accumulator import Accumulators
from pixy.records import Record, make_partitioner
from tests.conformance.support import fetch_now, values
from tests.fakes.brokers import DESCRIBE_CONFIGS, PRODUCE
from tests.fakes.clock import FakeClock
from tests.fakes.idempotent_log import IdempotentLog
from tests.kafka.backends import open_kafka, staging_place
from tests.kafka.cluster import KafkaCluster

PATIENCE_S = 120.0
MESSAGE_TOO_LARGE, NOT_ALLOWED, INVALID_TIMESTAMP, INVALID_RECORD = 10, 29, 32, 87
SIZE_MAX = 60
"""Bytes of the values of a batch that a scripted broker takes."""


class Clients:
    """Clients of one partition, each with one message."""

    def __init__(self, backend: Backend, topic: str, options: ProducerConfig | None = None) -> None:
        self.clock = FakeClock(wall_ms=SystemClock().wall_ms())
        self._backend = backend
        self._topic = topic
        self.faults: list[BaseException] = []
        options = options or ProducerConfig(timeout=600.0)
        partitioner = make_partitioner(options.partitioner, Random(1))
        self.accumulators = Accumulators(backend, options, partitioner, self.clock, self.faults.append)
        self.answers: dict[bytes, int | PixyError | None] = {}

    def send(self, value: bytes, *, sync: bool = True, key: bytes | None = b"key") -> None:
        def done(_: Any, __: int, offset: int, error: PixyError | None) -> None:
            assert value not in self.answers
            self.answers[value] = error or (offset if sync else None)

        topic = self._backend.topic(self._topic)
        assert topic is not None
        self.accumulators.append(topic, key, value, (), len(value) + len(key or b""), done, None, sync)

    async def answered(self) -> None:
        await self.accumulators.drained()
        assert not self.faults
        assert self.accumulators.buffered_bytes == 0


@asynccontextmanager
async def open_clients(log: IdempotentLog, directory: Path) -> AsyncIterator[Clients]:
    options = log.options(delivery_timeout_s=600.0, retry_backoff_s=0.1)
    backend = KafkaBackend(options, staging_place(directory / "none"), dial=log.dial)
    await backend.start()
    try:
        clients = Clients(backend, "t")
        yield clients
        await clients.answered()
        assert backend._producer.buffered_bytes == 0
    finally:
        await backend.stop()


def judge_naming(records: Sequence[Record]) -> tuple[int, Mapping[int, str]]:
    """Values that begin with "bad" are at fault, and named."""
    faults = {
        number: f"no {record.value!r}"
        for number, record in enumerate(records)
        if (record.value or b"").startswith(b"bad")
    }
    return (INVALID_RECORD if faults else 0), faults


def judge_bytes(records: Sequence[Record]) -> tuple[int, Mapping[int, str]]:
    """Batches of more than `SIZE_MAX` bytes are too large."""
    return (MESSAGE_TOO_LARGE if sum(len(each.value or b"") for each in records) > SIZE_MAX else 0), {}


def judge_both(records: Sequence[Record]) -> tuple[int, Mapping[int, str]]:
    return judge_bytes(records) if judge_bytes(records)[0] else judge_naming(records)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_others_are_written_once_and_in_order_whatever_breaks(
    virtual: asyncio.Runner, tmp_path: Path, seed: int
) -> None:
    virtual.run(_break_often(Random(seed), tmp_path))


async def _break_often(rng: Random, directory: Path) -> None:
    log = IdempotentLog()
    log.judge = judge_both
    log.bytes_max = rng.choice([None, 130])
    log.tells_bytes_max = rng.choice([True, False])
    breaks = rng.choice([0.0, 0.2, 0.5])

    def maybe_break() -> None:
        if rng.random() < breaks:
            log.cut()

    log.before = log.after = maybe_break
    good: list[bytes] = []
    bad: list[bytes] = []
    async with open_clients(log, directory) as clients:
        for number in range(80):
            kind = rng.choice(["good", "good", "good", "bad", "large"])
            value = {"good": b"%d", "bad": b"bad %d", "large": b"%d" + bytes(SIZE_MAX)}[kind] % number
            (good if kind == "good" else bad).append(value)
            clients.send(value, sync=rng.random() < 0.6)
            if rng.random() < 0.2:
                await asyncio.sleep(rng.choice([0.001, 0.1, 1.0]))
        await clients.answered()
    assert log.values == good
    for value, answer in clients.answers.items():
        if value in good:
            assert answer in {None, good.index(value)}
        else:
            in_doubt = breaks and isinstance(answer, DeadlineExceeded)
            assert answer is None or isinstance(answer, InvalidArgument) or in_doubt
    assert clients.accumulators.lost == sum(clients.answers[value] is None for value in bad)


def test_the_reason_is_that_of_the_record(virtual: asyncio.Runner, tmp_path: Path) -> None:
    virtual.run(_reasons(tmp_path))


async def _reasons(directory: Path) -> None:
    log = IdempotentLog()
    log.judge = judge_naming
    async with open_clients(log, directory) as clients:
        for value in (b"1", b"bad 1", b"bad 2", b"2"):
            clients.send(value)
    assert (clients.answers[b"1"], clients.answers[b"2"]) == (0, 1)
    assert "no b'bad 1'" in str(clients.answers[b"bad 1"])
    assert "no b'bad 2'" in str(clients.answers[b"bad 2"])


def test_what_was_written_without_an_answer_and_then_refused_is_not_written_again(
    virtual: asyncio.Runner, tmp_path: Path
) -> None:
    virtual.run(_written_and_refused(tmp_path))


async def _written_and_refused(directory: Path) -> None:
    """The options of the topic change between the attempts."""
    log = IdempotentLog()

    def lose_the_answer() -> None:
        if len(log.values) > 1:
            log.after = lambda: None
            log.judge = judge_bytes
            log.cut()

    log.after = lose_the_answer
    async with open_clients(log, directory) as clients:
        clients.send(b"first")
        await clients.answered()
        sent = [b"%d" % number + bytes(20) for number in range(4)]
        for value in sent:
            clients.send(value)
        await clients.answered()
        clients.send(b"next")
    assert log.values == [b"first", *sent, b"next"]
    assert {type(clients.answers[value]) for value in sent} == {Internal}
    assert "Kafka did not return its offset" in str(clients.answers[sent[0]])
    assert clients.answers[b"next"] == 5


@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
@pytest.mark.parametrize("why", ["named", "unnamed", "too large", "not allowed"])
def test_a_refusal_behind_a_lost_answer_does_not_say_that_nothing_was_written(
    virtual: asyncio.Runner, tmp_path: Path, why: str, together: bool
) -> None:
    virtual.run(_refused_behind_a_lost_answer(tmp_path, why, together))


async def _refused_behind_a_lost_answer(directory: Path, why: str, together: bool) -> None:
    """The options of the topic change between the attempts, to the detriment of one message."""
    log = IdempotentLog()
    bad = b"bad" + bytes(1000)
    sent = [b"1", bad, b"2"] if together else [bad]

    def judge_unnamed(records: Sequence[Record]) -> tuple[int, Mapping[int, str]]:
        return (INVALID_TIMESTAMP if judge_naming(records)[0] else 0), {}

    def judge_all(_: Sequence[Record]) -> tuple[int, Mapping[int, str]]:
        return NOT_ALLOWED, {}

    def lose_the_answer() -> None:
        if len(log.values) > 1:
            log.after = lambda: None
            if why == "too large":
                log.bytes_max = 500
            else:
                log.judge = {"named": judge_naming, "unnamed": judge_unnamed, "not allowed": judge_all}[why]
            log.cut()

    log.after = lose_the_answer
    async with open_clients(log, directory) as clients:
        clients.send(b"first")
        await clients.answered()
        for value in sent:
            clients.send(value)
        await clients.answered()
        log.judge = judge_naming
        clients.send(b"next")
    assert log.values == [b"first", *sent, b"next"]
    assert clients.answers[b"next"] == len(sent) + 1
    answers = [clients.answers[value] for value in sent]
    assert {type(answer) for answer in answers} <= {DeadlineExceeded, Internal}
    if not together:
        assert "not known whether t-0 was written: an attempt had no answer, then" in str(answers[0])


@pytest.mark.parametrize("tells", [True, False], ids=["told", "secret"])
def test_the_limit_of_a_topic_is_known_for_a_while(
    virtual: asyncio.Runner, tmp_path: Path, tells: bool
) -> None:
    virtual.run(_large_and_small(tmp_path, tells))


async def _large_and_small(directory: Path, tells: bool) -> None:
    log = IdempotentLog()
    log.bytes_max, log.tells_bytes_max = 2000, tells
    good: list[bytes] = []
    async with open_clients(log, directory) as clients:

        async def send_many(begin: int, *, fit: bool = False) -> int:
            """Number of requests that a hundred messages take, of which half are too large."""
            before = log.count(PRODUCE)
            for number in range(begin, begin + 100):
                value = b"%d" % number + bytes(2000 * (number % 2))
                clients.send(value)
                if fit or number % 2 == 0:
                    good.append(value)
            await clients.answered()
            return log.count(PRODUCE) - before

        first, second = await send_many(0), await send_many(100)
        assert log.values == good
        assert (first, second) == (3, 2) if tells else min(first, second) > 100
        # It is altered by others.
        log.bytes_max = 1_000_000
        await asyncio.sleep(6.0)
        assert await send_many(200, fit=True) == 1
        log.bytes_max = 2000
        assert await send_many(300) < 4 or not tells
    assert log.values == good
    refused = {value for value, answer in clients.answers.items() if isinstance(answer, MessageTooLarge)}
    assert refused == clients.answers.keys() - set(good)
    if tells:
        assert log.count(DESCRIBE_CONFIGS) == 2


@pytest.mark.parametrize("asks", [True, False], ids=["asking", "divided"])
def test_a_topic_that_is_deleted_while_a_batch_is_divided(
    virtual: asyncio.Runner, tmp_path: Path, asks: bool
) -> None:
    virtual.run(_deleted(tmp_path, asks))


async def _deleted(directory: Path, asks: bool) -> None:
    """All messages are answered, as those of a topic that is gone, and nothing is left behind."""
    log = IdempotentLog()
    log.bytes_max = 500
    async with open_clients(log, directory) as clients:
        client = clients._backend._client  # type: ignore[attr-defined]
        clients.send(b"first")
        await clients.answered()
        deleted = asyncio.Event()

        async def delete() -> None:
            if len(log.values) > 1 - asks and not deleted.is_set():
                deleted.set()
                del log.topics["t"]
                await client.refresh(["t"])

        describe, produce = log._describe_config, log._produce

        async def describe_late(request: Any) -> Any:
            if asks:
                await delete()
            return describe(request)

        async def produce_late(request: Any) -> Any:
            answer = produce(request)
            if not asks:
                await delete()
            return answer

        log.on(DESCRIBE_CONFIGS, describe_late)
        log.on(PRODUCE, produce_late)
        sent = [b"%d" % number + bytes(100) for number in range(20)]
        for number, value in enumerate(sent):
            clients.send(value, sync=number % 2 == 0)
        await clients.answered()
        assert deleted.is_set()
    written = log.values[1:]
    assert written == sent[: len(written)]
    assert bool(written) is not asks
    gone = {type(clients.answers[value]) for value in sent[::2] if value not in written}
    assert gone == {Unavailable}
    assert clients.accumulators.lost == sum(value not in written for value in sent[1::2])


@pytest.mark.process
async def test_messages_that_kafka_refuses_fail_alone(
    kafka: KafkaCluster, kafka_name: Callable[[str], str]
) -> None:
    """A compacted topic takes no message without a key, and this one no large batch."""
    options = ProducerConfig(timeout=PATIENCE_S, flush_frequency=0.01)
    topic = kafka_name("divided")
    async with open_kafka(kafka, delivery_timeout_s=PATIENCE_S) as backend:
        await backend.create_topic(topic, 1, {"cleanup_policy": "compact", "max_message_bytes": "3000"})
        clients = Clients(backend, topic, options)
        large = b"large" + bytes(4000)
        good = [b"%d" % number + bytes(200) for number in range(40)]
        for number, value in enumerate(good):
            if number == 7:
                clients.send(b"no key", key=None)
            if number == 23:
                clients.send(large)
            clients.send(value, sync=number % 2 == 0)
        async with asyncio.timeout(PATIENCE_S):
            await clients.answered()
        written = await fetch_now(backend, TopicPartition(topic, 0), 0)
    assert values(written) == good
    assert [clients.answers[value] for value in good[::2]] == list(range(0, 40, 2))
    assert clients.accumulators.lost == 0
    assert isinstance(clients.answers[large], MessageTooLarge)
    assert "3000 bytes at most" in str(clients.answers[large])
    assert "without key" in str(clients.answers[b"no key"]).lower()


@pytest.mark.process
async def test_messages_from_a_time_that_the_topic_does_not_allow_fail_alone(
    kafka: KafkaCluster, kafka_name: Callable[[str], str]
) -> None:
    options = ProducerConfig(timeout=PATIENCE_S, flush_frequency=0.01)
    topic = kafka_name("old")
    async with open_kafka(kafka, delivery_timeout_s=PATIENCE_S) as backend:
        await backend.create_topic(topic, 1, {"message_timestamp_before_max_ms": "3600000"})
        clients = Clients(backend, topic, options)
        good = [b"%d" % number for number in range(10)]
        for number, value in enumerate(good):
            if number % 4 == 2:
                clients.clock.set_wall(-7_200_000)
                clients.send(b"old %d" % number)
                clients.clock.set_wall(0)
            clients.send(value, sync=number % 2 == 0)
        async with asyncio.timeout(PATIENCE_S):
            await clients.answered()
        assert values(await fetch_now(backend, TopicPartition(topic, 0), 0)) == good
    assert [clients.answers[value] for value in good[::2]] == list(range(0, 10, 2))
    assert clients.accumulators.lost == 0
    for number in (2, 6):
        error = clients.answers[b"old %d" % number]
        assert isinstance(error, InvalidArgument)
        assert "error 32" in str(error)
