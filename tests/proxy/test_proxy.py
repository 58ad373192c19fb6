"""pixy/proxy/proxy.py: the operations of all APIs, on a real embedded log."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import FunctionType
from typing import Any

import pytest
import structlog

from pixy.backend import OffsetCommit, TopicPartition
from pixy.clock import SystemClock
from pixy.config import ConsumerConfig, ProducerConfig, ProxyConfig
from pixy.consume import ConsumeRequest, Offer
from pixy.consume.group import NEWEST, OLDEST
from pixy.errors import (
    AckBeyondEnd,
    InvalidAck,
    InvalidGroup,
    InvalidHeaders,
    InvalidOffset,
    InvalidTopic,
    LongPollTimeout,
    MessageTooLarge,
    NotConsumed,
    PixyError,
    ServiceDisabled,
    ShuttingDown,
    TopicExists,
    TopicMissing,
    Unavailable,
    UnknownGroup,
    UnknownPartition,
    UnknownTopic,
)
from pixy.proxy import Proxy
from tests.fakes.backend import FakeBackend
from tests.fakes.node import make_embedded
from tests.fakes.waiting import until

Open = Callable[..., Awaitable[Proxy]]
CONSUMER = replace(ConsumerConfig(), long_polling_timeout=60, offsets_commit_interval=0.01)


@pytest.fixture
async def open_proxy(tmp_path: Path) -> AsyncIterator[Open]:
    """Opens a proxy on `tmp_path`; keyword arguments replace fields of its configuration."""
    opened: list[Proxy] = []

    async def open_it(**changes: object) -> Proxy:
        fields: dict[str, object] = {"default_partitions": 1, "consumer": CONSUMER, **changes}
        proxy = Proxy(
            "test",
            replace(ProxyConfig(), **fields),  # type: ignore[arg-type]  # the tests name real fields
            make_embedded(tmp_path),
            client_id="me",
            clock=SystemClock(),
            rng=Random(1),
            on_fault=_fault,
        )
        await proxy.start()
        opened.append(proxy)
        return proxy

    yield open_it
    for proxy in opened:
        await proxy.drain(0)
        await proxy.stop()


@pytest.fixture
async def fake_proxy() -> AsyncIterator[Proxy]:
    """A proxy on an in-memory cluster."""
    proxy = Proxy(
        "test",
        ProxyConfig(),
        FakeBackend(),
        client_id="me",
        clock=SystemClock(),
        rng=Random(1),
        on_fault=_fault,
    )
    await proxy.start()
    yield proxy
    await proxy.drain(0)
    await proxy.stop()


def _fault(error: BaseException) -> None:
    raise AssertionError("a fault") from error


async def produce(
    proxy: Proxy, value: bytes, topic: str = "t", key: bytes | None = b"", sync: bool = True
) -> tuple[int, int]:
    answer: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()

    def done(_: object, partition: int, offset: int, error: PixyError | None) -> None:
        if error is None:
            answer.set_result((partition, offset))
        else:
            answer.set_exception(error)

    proxy.produce(topic, key, value, (), done, sync=sync)
    return await answer


async def consume(
    proxy: Proxy,
    topic: str = "t",
    group: str = "g",
    auto_ack: bool = False,
    ack: tuple[int, int] | None = None,
    if_offered: bool = False,
    patience_s: float | None = None,
) -> Offer:
    answer: asyncio.Future[Offer] = asyncio.get_running_loop().create_future()

    def done(offer: Offer | None, error: PixyError | None) -> None:
        if offer is not None:
            answer.set_result(offer)
        else:
            assert error is not None
            answer.set_exception(error)

    deadline = SystemClock().monotonic() + patience_s if patience_s is not None else None
    proxy.consume(ConsumeRequest(group, topic, auto_ack, ack, if_offered), done, deadline)
    offer = await answer
    offer.delivered()
    return offer


async def ack(proxy: Proxy, offset: int, partition: int = 0, topic: str = "t", group: str = "g") -> None:
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: PixyError | None) -> None:
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)

    proxy.ack(group, topic, partition, offset, done)
    await answer


async def committed(proxy: Proxy, offset: int, group: str = "g") -> None:
    """Wait until the group's commit of partition 0 has reached `offset`."""

    async def is_committed() -> bool:
        return (await proxy.get_offsets(group, "t"))[0].offset == offset

    await until(is_committed)


@pytest.mark.parametrize("call", [Proxy.produce, Proxy.consume])
def test_the_calls_of_every_message_make_no_closure(call: FunctionType) -> None:
    # Python makes the cell of each variable at every call, whether the closure is made or not.
    assert call.__code__.co_cellvars == ()


@pytest.mark.slow
async def test_a_message_is_consumed_with_key_value_and_position(open_proxy: Open) -> None:
    proxy = await open_proxy()
    assert await produce(proxy, b"hello", key=b"k") == (0, 0)
    offer = await consume(proxy)
    assert (offer.partition, offer.record.offset, offer.record.key, offer.record.value) == (
        0,
        0,
        b"k",
        b"hello",
    )


@pytest.mark.slow
async def test_a_missing_key_and_an_empty_key_stay_distinct(open_proxy: Open) -> None:
    proxy = await open_proxy()
    await produce(proxy, b"1", key=None)
    await produce(proxy, b"2", key=b"")
    assert [(await consume(proxy)).record.key for _ in range(2)] == [None, b""]


@pytest.mark.slow
async def test_produce_and_consume_create_a_missing_topic_with_the_default_partitions(
    open_proxy: Open,
) -> None:
    proxy = await open_proxy(default_partitions=4)
    await produce(proxy, b"x", topic="produced")
    # On a busy machine the group has not begun by then.
    with pytest.raises((LongPollTimeout, Unavailable)):
        await consume(proxy, topic="consumed", patience_s=0.05)
    assert {topic.name: len(topic.partitions) for topic in await proxy.list_topics()} == {
        "consumed": 4,
        "produced": 4,
    }


async def test_without_auto_creation_a_missing_topic_is_bad_input_for_produce_and_consume(
    open_proxy: Open,
) -> None:
    proxy = await open_proxy(auto_create_topics=False)
    with pytest.raises(TopicMissing, match="topic t "):
        await produce(proxy, b"x")
    with pytest.raises(TopicMissing, match="topic t "):
        await consume(proxy)
    assert await proxy.list_topics() == []


async def test_offsets_are_those_of_all_partitions_or_of_none(fake_proxy: Proxy) -> None:
    """A partition that is left out would count as one without lag."""
    backend: Any = fake_proxy._backend
    backend.create("t", 3)
    backend.silent.add(TopicPartition("t", 1))
    with pytest.raises(Unavailable, match="partition 1 of topic t has no leader"):
        await fake_proxy.get_offsets("g", "t")
    assert (await fake_proxy.known_ranges("t")).keys() == {0, 2}
    backend.silent.clear()
    assert [each.partition for each in await fake_proxy.get_offsets("g", "t")] == [0, 1, 2]


async def test_read_only_calls_never_create_a_topic(open_proxy: Open) -> None:
    proxy = await open_proxy()
    for call in (
        proxy.get_offsets("g", "t"),
        proxy.set_offsets("g", "t", []),
        proxy.describe_topic("t"),
        proxy.known_ranges("t"),
        ack(proxy, 0),
    ):
        with pytest.raises(UnknownTopic, match="unknown topic t"):
            await call
    assert await proxy.list_consumers("t", "") == {}
    assert await proxy.list_topics() == []


@pytest.mark.slow
async def test_a_group_must_have_a_name_of_bounded_length(open_proxy: Open) -> None:
    proxy = await open_proxy()
    await produce(proxy, b"x")
    for group in ("", "x" * 256):
        with pytest.raises(InvalidGroup):
            await consume(proxy, group=group)
        with pytest.raises(InvalidGroup):
            await ack(proxy, 0, group=group)
        with pytest.raises(InvalidGroup):
            await proxy.get_offsets(group, "t")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "x" * 250])
async def test_invalid_topic_names_are_rejected_everywhere(open_proxy: Open, name: str) -> None:
    proxy = await open_proxy()
    for call in (
        produce(proxy, b"x", topic=name),
        consume(proxy, topic=name),
        ack(proxy, 0, topic=name),
        proxy.get_offsets("g", name),
        proxy.describe_topic(name),
        proxy.known_ranges(name),
        proxy.create_topic(name, 1, {}),
        proxy.alter_topic(name, 2, {}),
        proxy.delete_topic(name),
        proxy.list_consumers(name, ""),
    ):
        with pytest.raises(InvalidTopic):
            await call


@pytest.mark.slow
async def test_a_topic_is_created_with_the_requested_partitions_or_the_default(
    open_proxy: Open,
) -> None:
    proxy = await open_proxy(default_partitions=4)
    assert len((await proxy.create_topic("default", None, {})).partitions) == 4
    assert len((await proxy.create_topic("two", 2, {})).partitions) == 2
    with pytest.raises(TopicExists):
        await proxy.create_topic("two", 2, {})


async def test_a_topic_grows_and_is_deleted(fake_proxy: Proxy) -> None:
    proxy = fake_proxy
    await proxy.create_topic("t", 1, {"retention_ms": "1", "segment_ms": "2"})
    await produce(proxy, b"x")
    altered = await proxy.alter_topic("t", 2, {"retention_ms": None, "segment_ms": "3"})
    assert (len(altered.partitions), altered.config) == (2, {"segment_ms": "3"})
    assert await proxy.known_ranges("t") == {0: (0, 1), 1: (0, 0)}
    assert len((await proxy.alter_topic("t", None, {})).partitions) == 2
    await proxy.delete_topic("t")
    for call in (proxy.describe_topic("t"), proxy.alter_topic("t", 3, {}), proxy.delete_topic("t")):
        with pytest.raises(UnknownTopic, match="unknown topic t"):
            await call


async def test_a_drain_rejects_changes_to_topics(open_proxy: Open) -> None:
    proxy = await open_proxy()
    created = await proxy.create_topic("t", 1, {})
    proxy.begin_drain()
    for call in (proxy.create_topic("u", 1, {}), proxy.alter_topic("t", 2, {}), proxy.delete_topic("t")):
        with pytest.raises(ShuttingDown):
            await call
    assert await proxy.list_topics() == [created]


async def test_a_message_of_exactly_the_limit_is_accepted_and_one_byte_more_is_not(open_proxy: Open) -> None:
    proxy = await open_proxy(producer=replace(ProducerConfig(), max_message_bytes=100))
    assert await produce(proxy, b"x" * 97, key=b"key") == (0, 0)
    with pytest.raises(MessageTooLarge, match=r"the message has 101 bytes.*allows 100"):
        await produce(proxy, b"x" * 98, key=b"key")


async def test_headers_are_bounded_in_number_and_size(open_proxy: Open) -> None:
    proxy = await open_proxy(producer=replace(ProducerConfig(), max_headers=2, max_header_bytes=10))

    def never(*_: object) -> None:
        raise AssertionError("refused requests are not called back")

    with pytest.raises(InvalidHeaders, match="3 headers"):
        proxy.produce("t", None, b"", [("a", b"")] * 3, never)
    with pytest.raises(InvalidHeaders, match="11 bytes"):
        proxy.produce("t", None, b"", [("é", b"x" * 9)], never)


async def test_a_new_group_starts_at_the_oldest_message_and_commits_that(open_proxy: Open) -> None:
    proxy = await open_proxy()
    await produce(proxy, b"x")
    assert (await proxy.get_offsets("g", "t"))[0].offset == -1
    assert (await proxy.get_offsets("g", "t"))[0].lag == 0
    assert (await consume(proxy)).record.offset == 0
    await committed(proxy, 0)


@pytest.mark.slow
async def test_a_new_group_starts_at_the_newest_message_if_configured(open_proxy: Open) -> None:
    proxy = await open_proxy(consumer=replace(CONSUMER, initial_offset="newest"))
    await produce(proxy, b"x")
    # On a busy machine the group has not begun by then.
    with pytest.raises((LongPollTimeout, Unavailable)):
        await consume(proxy, patience_s=0.05)
    await committed(proxy, 1)


@pytest.mark.slow
async def test_acks_are_committed_with_sparse_acks_and_lag(open_proxy: Open) -> None:
    proxy = await open_proxy()
    for _ in range(5):
        await produce(proxy, b"x")
        await consume(proxy)
    await ack(proxy, 0)
    await ack(proxy, 2)
    await committed(proxy, 1)
    (offsets,) = await proxy.get_offsets("g", "t")
    assert (offsets.begin, offsets.end, offsets.lag, offsets.metadata, offsets.sparse_acks) == (
        0,
        5,
        4,
        "BB",
        "1-2",
    )


@pytest.mark.slow
async def test_bad_acks_are_rejected_and_good_ones_are_idempotent(open_proxy: Open) -> None:
    proxy = await open_proxy()
    await produce(proxy, b"x")
    await ack(proxy, 0)
    await ack(proxy, 0)
    with pytest.raises(AckBeyondEnd):
        await ack(proxy, 1)
    with pytest.raises(InvalidAck):
        await ack(proxy, -1)
    with pytest.raises(InvalidAck):
        await ack(proxy, 0, partition=7)


@pytest.mark.slow
async def test_the_accidental_ack_of_an_old_client_does_not_lose_the_first_message(open_proxy: Open) -> None:
    proxy = await open_proxy()
    await produce(proxy, b"first")
    assert (await consume(proxy, ack=(0, 0), if_offered=True)).record.value == b"first"


@pytest.mark.slow
async def test_set_offsets_moves_a_live_group_back_and_forth(open_proxy: Open) -> None:
    proxy = await open_proxy()
    for n in range(4):
        await produce(proxy, b"%d" % n)
    assert [(await consume(proxy, auto_ack=True)).record.value for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    await proxy.set_offsets("g", "t", [(0, OffsetCommit(OLDEST))])
    assert (await consume(proxy)).record.value == b"0"
    await proxy.set_offsets("g", "t", [(0, OffsetCommit(NEWEST))])
    with pytest.raises(LongPollTimeout):
        await consume(proxy, patience_s=0.05)
    await proxy.set_offsets("g", "t", [(0, OffsetCommit(1, "BB"))])
    assert [(await consume(proxy)).record.value for _ in range(2)] == [b"1", b"3"]


@pytest.mark.slow
async def test_set_offsets_changes_all_partitions_or_none(open_proxy: Open) -> None:
    proxy = await open_proxy(default_partitions=2)
    await produce(proxy, b"x")
    good = (0, OffsetCommit(0))
    for bad, error in [
        ((7, OffsetCommit(0)), UnknownPartition),
        ((1, OffsetCommit(-3)), InvalidOffset),
        (good, InvalidOffset),
    ]:
        with pytest.raises(error):
            await proxy.set_offsets("g", "t", [good, bad])
    assert [offsets.offset for offsets in await proxy.get_offsets("g", "t")] == [-1, -1]


@pytest.mark.slow
async def test_list_consumers_tells_group_client_and_partitions(open_proxy: Open) -> None:
    proxy = await open_proxy(default_partitions=2)
    await produce(proxy, b"x", topic="other")
    await produce(proxy, b"x")
    await consume(proxy)
    assert await proxy.list_consumers("t", "") == {"g": {"me": [0, 1]}}
    assert await proxy.list_consumers("t", "g") == {"g": {"me": [0, 1]}}
    with pytest.raises(NotConsumed, match="topic other is not consumed by g"):
        await proxy.list_consumers("other", "g")
    with pytest.raises(UnknownGroup, match="unknown consumer group h"):
        await proxy.list_consumers("t", "h")


async def test_consuming_can_be_disabled_while_producing_continues(open_proxy: Open) -> None:
    proxy = await open_proxy(consumer=replace(CONSUMER, disabled=True))
    with pytest.raises(ServiceDisabled):
        await consume(proxy)
    await produce(proxy, b"x")
    with pytest.raises(ServiceDisabled):
        await consume(proxy)


async def test_a_drain_rejects_new_work_accepts_acks_and_writes_buffered_messages(open_proxy: Open) -> None:
    proxy = await open_proxy(producer=replace(ProducerConfig(), flush_frequency=3600.0))
    await produce(proxy, b"x", sync=False)
    draining = asyncio.create_task(proxy.drain(5))
    await draining
    assert (await proxy.get_offsets("g", "t"))[0].end == 1
    with pytest.raises(ShuttingDown):
        await produce(proxy, b"x")
    with pytest.raises(ShuttingDown):
        await consume(proxy)


async def test_a_drain_waits_for_acks_of_outstanding_offers_and_commits_them(
    open_proxy: Open, tmp_path: Path
) -> None:
    proxy = await open_proxy()
    await produce(proxy, b"x")
    await consume(proxy)
    draining = asyncio.create_task(proxy.drain(60))
    await asyncio.sleep(0)
    assert not draining.done()
    await ack(proxy, 0)
    await draining
    assert (await proxy.get_offsets("g", "t"))[0].offset == 1


async def test_a_cancelled_consume_takes_no_message(open_proxy: Open) -> None:
    proxy = await open_proxy()
    await produce(proxy, b"x", topic="other")

    def never(offer: Offer | None, error: PixyError | None) -> None:
        raise AssertionError("cancelled requests are not called back")

    for topic in ("t", "other2"):
        waiting = proxy.consume(ConsumeRequest("g", topic), never)
        assert waiting is not None
        waiting.cancel()
    await produce(proxy, b"x")
    assert (await consume(proxy)).record.offset == 0


async def test_a_cancelled_request_is_not_told_that_its_topic_is_missing(open_proxy: Open) -> None:
    proxy = await open_proxy(auto_create_topics=False)
    told: list[object] = []
    for pending in (
        proxy.produce("t", None, b"x", (), lambda *answer: told.append(answer)),
        proxy.consume(ConsumeRequest("g", "t"), lambda *answer: told.append(answer)),
        proxy.consume(ConsumeRequest("g", "t", must_exist=True), lambda *answer: told.append(answer)),
    ):
        assert pending is not None
        pending.cancel()
    with pytest.raises(TopicMissing):  # they have waited for the same answer
        await consume(proxy)
    assert told == []


async def test_consumers_are_sent_away_at_once_when_the_process_has_left_its_cluster(
    open_proxy: Open,
) -> None:
    proxy = await open_proxy(consumer=replace(CONSUMER, long_polling_timeout=600.0))
    await produce(proxy, b"x")
    await proxy._backend.create_topic("empty", 1)
    waiting = asyncio.create_task(consume(proxy, "empty"))
    await until(lambda: proxy.counts()["waiting_consumers"] == 1)
    proxy.leave_cluster("use another one")
    for refused in (waiting, consume(proxy)):
        with pytest.raises(Unavailable, match="use another one"):
            await refused


@pytest.mark.slow
async def test_a_drain_that_cannot_write_reports_the_number_of_messages_in_doubt(
    open_proxy: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = await open_proxy()
    await produce(proxy, b"before")
    batches: list[tuple[Any, ...]] = []
    append = proxy._backend.append
    monkeypatch.setattr(proxy._backend, "append", lambda *batch: batches.append(batch))
    await produce(proxy, b"1", sync=False)
    await produce(proxy, b"2", sync=False)
    with structlog.testing.capture_logs() as logs:
        assert await proxy.drain(0.05) == 2
    assert [line["messages"] for line in logs] == [2]
    for batch in batches:
        append(*batch)
    await proxy._accumulators.drained()


async def test_a_drain_answers_requests_waiting_for_a_topic(
    open_proxy: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = await open_proxy()

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(proxy._backend, "create_topic", never)
    waiting = asyncio.create_task(produce(proxy, b"x"))
    polling = asyncio.create_task(consume(proxy))
    await asyncio.sleep(0)
    assert await proxy.drain(5) == 0
    for task in (waiting, polling):
        with pytest.raises(ShuttingDown):
            await task


async def test_empty_headers_count_in_the_buffer_and_in_its_queue() -> None:
    """They have no bytes, but take memory."""
    options = ProducerConfig(buffer_bytes=1 << 20)
    backend = FakeBackend(topics={"t": 1})
    proxy = Proxy(
        "test",
        replace(ProxyConfig(), producer=options),
        backend,
        client_id="me",
        clock=SystemClock(),
        rng=Random(1),
        on_fault=_fault,
    )
    backend.hold_appends()
    headers = [("", b"")] * options.max_headers
    fit = options.buffer_bytes // (160 * len(headers))
    written: list[int] = []

    def produce_one() -> None:
        def done(waiters: Sequence[object], partition: int, offset: int, error: PixyError | None) -> None:
            assert error is None
            written.extend(range(offset, offset + len(waiters)))

        proxy.produce("t", b"", b"", headers, done, None, sync=True)

    for _ in range(2 * fit):  # as many queue
        produce_one()
    assert proxy.counts()["buffered_bytes"] == fit * 160 * len(headers)
    assert proxy.counts()["waiting_messages"] == fit
    with pytest.raises(Unavailable, match="the producer's buffer is full"):
        produce_one()
    backend.release_appends()
    await until(lambda: len(written) == 2 * fit)
    assert proxy.counts()["buffered_bytes"] == 0
    assert await proxy.produced() == {"t": (2 * fit, 0)}
    await proxy.drain(0)
    await proxy.stop()
