"""A proxy while its topics grow, are deleted, recreated, and lose partitions to damage."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from pixy.backend import Backend, OffsetCommit, TopicDescription, TopicPartition
from pixy.clock import SystemClock
from pixy.config import ConsumerConfig, ProxyConfig
from pixy.consume import ConsumeRequest, Offer
from pixy.errors import CorruptData, PixyError, ShuttingDown, TopicMissing, Unavailable, UnknownTopic
from pixy.proxy import Proxy
from tests.fakes.backend import FakeBackend
from tests.fakes.node import make_embedded
from tests.fakes.waiting import until

PATIENCE = 60.0
CONSUMER = replace(ConsumerConfig(), long_polling_timeout=PATIENCE, offsets_commit_interval=0.01)


def _fault(error: BaseException) -> None:
    raise AssertionError("a bug was reported") from error


class Daemon:
    """A proxy with awaitable calls."""

    def __init__(self, backend: Backend, **changes: object) -> None:
        fields: dict[str, object] = {"default_partitions": 2, "consumer": CONSUMER, **changes}
        config = replace(ProxyConfig(), **fields)  # type: ignore[arg-type]  # the tests name real fields
        self.backend = backend
        self.proxy = Proxy(
            "test", config, backend, client_id="me", clock=SystemClock(), rng=Random(1), on_fault=_fault
        )

    def produce(self, value: bytes, key: bytes | None = None) -> Awaitable[tuple[int, int]]:
        """Produce a message; the answer is awaited with a long timeout."""
        answer: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()

        def done(_: object, partition: int, offset: int, error: PixyError | None) -> None:
            if error is None:
                answer.set_result((partition, offset))
            else:
                answer.set_exception(error)

        self.proxy.produce("t", key, value, (), done)
        return asyncio.wait_for(answer, PATIENCE)

    def consume(self, *, ack: tuple[int, int] | None = None, poll_s: float = PATIENCE) -> Awaitable[Offer]:
        """Consume a message, with auto ack unless another one is acked; the answer is awaited with
        a long timeout.
        """
        answer: asyncio.Future[Offer] = asyncio.get_running_loop().create_future()

        def done(offer: Offer | None, error: PixyError | None) -> None:
            if offer is not None:
                answer.set_result(offer)
                offer.delivered()
            else:
                assert error is not None
                answer.set_exception(error)

        deadline = SystemClock().monotonic() + poll_s
        self.proxy.consume(ConsumeRequest("g", "t", ack is None, ack), done, deadline)
        return asyncio.wait_for(answer, PATIENCE)

    async def values(self, count: int) -> list[bytes | None]:
        return sorted([(await self.consume()).record.value for _ in range(count)], key=str)


@pytest.fixture(params=["fake", "embedded"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return FakeBackend() if request.param == "fake" else make_embedded(tmp_path)


@pytest.fixture
async def daemon(backend: Backend) -> AsyncIterator[Daemon]:
    """A proxy that creates topics on first use."""
    daemon = Daemon(backend)
    await daemon.proxy.start()
    yield daemon
    await daemon.proxy.drain(0)
    await daemon.proxy.stop()


@pytest.fixture
async def strict_daemon(backend: Backend) -> AsyncIterator[Daemon]:
    """A proxy that does not create topics, with `t` of one partition."""
    daemon = Daemon(backend, auto_create_topics=False)
    await daemon.proxy.start()
    await backend.create_topic("t", 1)
    yield daemon
    await daemon.proxy.drain(0)
    await daemon.proxy.stop()


@pytest.mark.slow
async def test_a_topic_that_grows_is_written_and_consumed_in_every_partition(strict_daemon: Daemon) -> None:
    await strict_daemon.produce(b"0")
    assert await strict_daemon.values(1) == [b"0"]
    await strict_daemon.backend.alter_topic("t", partitions=3)
    # One after the other, because messages that arrive together share a partition.
    answers = [await strict_daemon.produce(b"%03d" % at) for at in range(100)]
    assert {partition for partition, _ in answers} == {0, 1, 2}
    assert await strict_daemon.values(100) == [b"%03d" % at for at in range(100)]


@pytest.mark.slow
async def test_a_produce_after_the_deletion_recreates_the_topic(daemon: Daemon) -> None:
    await daemon.produce(b"old")
    await daemon.backend.delete_topic("t")
    assert (await daemon.produce(b"new"))[1] == 0
    assert await daemon.values(1) == [b"new"]


class FickleBackend(FakeBackend):
    """A cluster that deletes topics as soon as they are created, a number of times."""

    deletions = 2

    async def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None
    ) -> TopicDescription:
        created = await super().create_topic(name, partitions, config)
        if self.deletions:
            self.deletions -= 1
            await self.delete_topic(name)
        return created


async def test_a_topic_deleted_as_soon_as_it_is_created_is_recreated() -> None:
    backend = FickleBackend()
    daemon = Daemon(backend)
    await daemon.proxy.start()
    waiting = daemon.consume()
    await daemon.produce(b"v")
    assert (await waiting).record.value == b"v"
    assert backend.deletions == 0
    await daemon.proxy.drain(0)
    await daemon.proxy.stop()


async def test_a_drain_ends_the_creation_of_topics_that_others_delete() -> None:
    backend = FickleBackend()
    backend.deletions = 1_000_000
    daemon = Daemon(backend)
    await daemon.proxy.start()
    produced = daemon.produce(b"v")
    await asyncio.sleep(0)
    await daemon.proxy.drain(0)
    with pytest.raises(ShuttingDown):
        await produced
    await daemon.proxy.stop()


async def test_without_automatic_creation_a_deleted_topic_is_missing(strict_daemon: Daemon) -> None:
    await strict_daemon.produce(b"old")
    await strict_daemon.consume()
    waiting = strict_daemon.consume()
    await strict_daemon.backend.delete_topic("t")
    with pytest.raises(TopicMissing):
        await waiting
    with pytest.raises(TopicMissing):
        await strict_daemon.produce(b"new")
    with pytest.raises(TopicMissing):
        await strict_daemon.consume()
    acked: asyncio.Future[PixyError | None] = asyncio.get_running_loop().create_future()
    strict_daemon.proxy.ack("g", "t", 0, 0, acked.set_result)
    assert isinstance(await acked, UnknownTopic)
    with pytest.raises(UnknownTopic):
        await strict_daemon.proxy.get_offsets("g", "t")


@pytest.mark.slow
async def test_a_request_waiting_for_a_deleted_topic_gets_the_first_message_of_its_replacement(
    daemon: Daemon,
) -> None:
    await daemon.produce(b"old")
    offer = await daemon.consume()
    waiting = daemon.consume()
    await daemon.backend.delete_topic("t")
    partition, offset = await daemon.produce(b"new")
    again = await waiting
    assert (again.record.value, again.partition, offset) == (b"new", partition, 0)
    offer.delivered()


async def test_the_last_ack_of_a_deleted_topic_neither_fails_the_next_poll_nor_acks_anything(
    strict_daemon: Daemon,
) -> None:
    for at in range(3):
        await strict_daemon.produce(b"old-%d" % at)
    offers = [await strict_daemon.consume(ack=(0, 0)) for _ in range(2)]
    await strict_daemon.backend.delete_topic("t")
    await strict_daemon.backend.create_topic("t", 1)
    await strict_daemon.produce(b"new-0")
    await strict_daemon.produce(b"new-1")
    first = await strict_daemon.consume(ack=(0, offers[-1].record.offset))
    second = await strict_daemon.consume(ack=(0, 2))
    assert [first.record.value, second.record.value] == [b"new-0", b"new-1"]


@pytest.mark.slow
async def test_offsets_restart_with_a_recreated_topic(daemon: Daemon) -> None:
    for at in range(5):
        await daemon.produce(b"%d" % at, key=b"k")
    await daemon.values(5)
    await daemon.backend.delete_topic("t")
    await daemon.backend.create_topic("t", 1)
    await daemon.produce(b"new")
    assert await daemon.values(1) == [b"new"]

    async def is_committed() -> bool:
        offsets = await daemon.proxy.get_offsets("g", "t")
        return [(each.begin, each.end, each.offset) for each in offsets] == [(0, 1, 1)]

    await until(is_committed)


@pytest.mark.slow
async def test_set_offsets_are_deleted_with_the_topic(daemon: Daemon) -> None:
    await daemon.produce(b"0", key=b"k")
    partition = (await daemon.produce(b"1", key=b"k"))[0]
    await daemon.proxy.set_offsets("g", "t", [(partition, OffsetCommit(2))])
    await daemon.backend.delete_topic("t")
    await daemon.backend.create_topic("t", 2)
    await daemon.produce(b"new", key=b"k")
    assert await daemon.values(1) == [b"new"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
async def test_while_a_topic_is_deleted_repeatedly_all_requests_are_answered_and_nothing_newer_is_lost(
    daemon: Daemon, seed: int
) -> None:
    rng = Random(seed)
    going_on, last_deletion_over = True, False
    written: set[bytes] = set()
    consumed: set[bytes | None] = set()
    answered = 0
    progress = asyncio.Event()

    async def produce_on(name: int) -> None:
        nonlocal answered
        turn = 0
        while going_on:
            turn += 1
            value = b"%d-%d" % (name, turn)
            counts = last_deletion_over
            try:
                await daemon.produce(value)
            except PixyError as error:
                assert not counts
                # The topic is created automatically, so no call is at fault.
                assert isinstance(error, Unavailable), error  # noqa: PT017 - the others are told apart
            else:
                if counts:
                    written.add(value)
            answered += 1
            progress.set()

    async def answers(count: int) -> None:
        """Wait for `count` further answers."""
        before = answered
        async with asyncio.timeout(PATIENCE):
            while answered < before + count:
                progress.clear()
                await progress.wait()

    async def consume_on() -> None:
        while going_on or not written <= consumed:
            try:
                consumed.add((await daemon.consume(poll_s=0.5)).record.value)
            except PixyError as error:
                assert error.grpc_status == 5, error  # noqa: PT017 - the others are told apart

    async def change(count: int) -> None:
        for _ in range(count):
            try:
                match rng.choice(["delete", "delete", "grow", "create"]):
                    case "delete":
                        await daemon.backend.delete_topic("t")
                    case "grow":
                        await daemon.backend.alter_topic("t", partitions=rng.randint(2, 8))
                    case "create":
                        await daemon.backend.create_topic("t", rng.randint(1, 8))
            except PixyError:
                pass
            await answers(rng.randint(0, 40))

    tasks = [asyncio.create_task(produce_on(name)) for name in range(6)]
    tasks += [asyncio.create_task(consume_on()) for _ in range(3)]
    await change(30)
    last_deletion_over = True
    await answers(300)
    going_on = False
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*tasks)
    assert len(written) > 100


# --- a damaged partition --------------------------------------------------------------------------


@pytest.fixture
async def damaged() -> AsyncIterator[Daemon]:
    """A topic with two partitions with a message each, the first one damaged."""
    backend = FakeBackend()
    daemon = Daemon(backend)
    await daemon.proxy.start()
    await backend.create_topic("t", 2)
    partitions: set[int] = set()
    while len(partitions) < 2:
        partitions.add((await daemon.produce(b"before"))[0])
    backend.damage(TopicPartition("t", 0))
    yield daemon
    await daemon.proxy.drain(0)
    await daemon.proxy.stop()


@pytest.mark.slow
async def test_other_partitions_are_consumed_and_timed_out_polls_name_the_damage(damaged: Daemon) -> None:
    taken: set[int] = set()
    error: PixyError | None = None
    async with asyncio.timeout(PATIENCE):
        while not (taken and isinstance(error, CorruptData)):
            try:
                taken.add((await damaged.consume(poll_s=0.2)).partition)
            except PixyError as refused:
                error = refused
    assert taken == {1}
    assert "t-0/00000000000000000000.log, byte 0" in str(error)


async def test_messages_without_a_key_go_to_the_other_partitions_and_are_consumed(damaged: Daemon) -> None:
    answers = await asyncio.gather(*(damaged.produce(b"after-%02d" % at) for at in range(50)))
    assert {partition for partition, _ in answers} == {1}
    found: set[bytes | None] = set()
    while len(found) < 51:
        found.add((await damaged.consume()).record.value)


async def test_a_message_with_a_key_of_the_damaged_partition_is_answered_with_the_damage(
    damaged: Daemon,
) -> None:
    answers = await asyncio.gather(
        *(damaged.produce(b"v", key=b"%d" % at) for at in range(50)), return_exceptions=True
    )
    refused = [each for each in answers if isinstance(each, BaseException)]
    assert {type(each) for each in refused} == {CorruptData}
    assert {each[0] for each in answers if isinstance(each, tuple)} == {1}
