"""One or all brokers are killed, stopped or frozen and come back: no answered write is lost,
duplicated or reordered.

Three brokers, three replicas, two of which must be in sync. Each test checks the log at the end:
records answered as written exist once, at the answered offset, in the order of the appends; those
answered with an error may exist or not.
"""

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable

import pytest

from pixy.backend import BATCH_MEMORY_BYTES, Backend, TopicPartition
from pixy.backend.kafka import KafkaBackend
from pixy.errors import DeadlineExceeded, PixyError, Unavailable
from tests.conformance.support import append, append_nowait, fetch_now, make_batch, offsets, values
from tests.fakes.waiting import until
from tests.kafka.backends import open_kafka, start_again
from tests.kafka.cluster import Broker, KafkaCluster

pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.no_debug]

PATIENCE_S = 60.0
DELIVERY_S = 20.0
OUTSTANDING = 20


@pytest.fixture
async def backend(kafka_three: KafkaCluster) -> AsyncIterator[KafkaBackend]:
    async with open_kafka(kafka_three, delivery_timeout_s=DELIVERY_S, metadata_max_age_s=5.0) as opened:
        yield opened


@pytest.fixture
async def partition(backend: KafkaBackend, kafka_name: Callable[[str], str]) -> TopicPartition:
    name = kafka_name("failover")
    await backend.create_topic(name, 1)
    return TopicPartition(name, 0)


class Writer:
    """Appends numbered records to one partition continuously, several in flight, and records the
    answers.
    """

    def __init__(self, backend: Backend, partition: TopicPartition) -> None:
        self._backend = backend
        self._partition = partition
        self._room = asyncio.Semaphore(OUTSTANDING)
        self._task = asyncio.create_task(self._write())
        self._answers: list[asyncio.Future[int]] = []
        self._changed = asyncio.Event()

    async def __aenter__(self) -> "Writer":
        await self.wait_written(50)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop appending, and wait for the answers."""
        self._task.cancel()
        await asyncio.gather(self._task, *self._answers, return_exceptions=True)

    async def _write(self) -> None:
        while True:
            await self._room.acquire()
            answer = append_nowait(self._backend, self._partition, b"%d" % len(self._answers))
            answer.add_done_callback(self._answered)
            self._answers.append(answer)

    def _answered(self, answer: asyncio.Future[int]) -> None:
        self._room.release()
        self._changed.set()

    @property
    def written(self) -> dict[int, bytes]:
        """Values answered as written, by offset."""
        done = [(at, each) for at, each in enumerate(self._answers) if each.done() and not each.exception()]
        assert len({each.result() for _, each in done}) == len(done), "two records were told the same offset"
        return {each.result(): b"%d" % at for at, each in done}

    @property
    def errors(self) -> list[BaseException]:
        return [error for each in self._answers if each.done() and (error := each.exception()) is not None]

    async def wait_written(self, more: int) -> None:
        """Wait until `more` further records are written."""
        await self._wait(lambda: len(self.written), more)

    async def wait_errors(self, more: int) -> None:
        await self._wait(lambda: len(self.errors), more)

    async def _wait(self, count: Callable[[], int], more: int) -> None:
        enough = count() + more
        async with asyncio.timeout(PATIENCE_S):
            while count() < enough:
                self._changed.clear()
                await self._changed.wait()


async def read(backend: Backend, partition: TopicPartition) -> dict[int, bytes | None]:
    """All values of the partition, by offset."""
    found: dict[int, bytes | None] = {}
    async with asyncio.timeout(PATIENCE_S):
        end = (await backend.offset_ranges(partition.topic))[partition.partition].end
        offset = 0
        while offset < end:
            result = await backend.fetch(partition, offset, max_bytes=1 << 20, max_wait=5.0)
            found.update(zip(offsets(result), values(result), strict=True))
            offset = result.next_offset
    return found


async def check(backend: Backend, partition: TopicPartition, writer: Writer) -> None:
    """Check that the log has the answered records once and in order, and no duplicates."""
    log = await read(backend, partition)
    assert writer.written.items() <= log.items()
    numbers = [int(value or b"-1") for _, value in sorted(log.items())]
    assert numbers == sorted(set(numbers)), "a record is there twice, or out of order"


def leader(kafka: KafkaCluster, backend: Backend, partition: TopicPartition) -> Broker:
    description = backend.topic(partition.topic)
    assert description is not None
    return kafka.broker(description.partitions[partition.partition].leader)


async def test_writes_continue_when_the_leader_is_killed(
    kafka_three: KafkaCluster, backend: KafkaBackend, partition: TopicPartition
) -> None:
    async with Writer(backend, partition) as writer:
        killed = leader(kafka_three, backend, partition)
        killed.kill()
        await writer.wait_written(200)
        assert leader(kafka_three, backend, partition) is not killed
    assert writer.errors == []
    await check(backend, partition, writer)


async def test_writes_continue_during_a_rolling_restart_of_all_brokers(
    kafka_three: KafkaCluster, backend: KafkaBackend, partition: TopicPartition
) -> None:
    async with Writer(backend, partition) as writer:
        for broker in kafka_three.brokers:
            await asyncio.to_thread(broker.stop)
            await writer.wait_written(100)
            await start_again(kafka_three, broker.node_id)
            await writer.wait_written(100)
    assert writer.errors == []
    await check(backend, partition, writer)


async def test_writes_continue_with_the_next_leader_when_one_freezes(
    kafka_three: KafkaCluster, backend: KafkaBackend, partition: TopicPartition
) -> None:
    async with Writer(backend, partition) as writer:
        frozen = leader(kafka_three, backend, partition)
        with frozen.paused():
            await writer.wait_written(200)
            assert leader(kafka_three, backend, partition) is not frozen
        # Requests left in its sockets must not be written now.
        await writer.wait_written(200)
    assert writer.errors == []
    await asyncio.to_thread(kafka_three.wait_ready)
    await check(backend, partition, writer)


async def test_a_write_is_not_answered_before_other_replicas_have_it(
    kafka_three: KafkaCluster, partition: TopicPartition
) -> None:
    async with (
        open_kafka(kafka_three, delivery_timeout_s=3.0) as backend,
        open_kafka(kafka_three, delivery_timeout_s=3.0, required_acks=1) as content,
    ):
        for each in (backend, content):
            await each.describe_topic(partition.topic)
            await append(each, partition, b"before")
        alone = leader(kafka_three, backend, partition)
        for broker in kafka_three.brokers:
            if broker is not alone:
                broker.kill()
        with pytest.raises(DeadlineExceeded, match="not known whether"):
            await append(backend, partition, b"of one replica")
        # The leader itself accepts it, as a writer with acks=1 sees.
        await append(content, partition, b"of one replica")
    await start_again(kafka_three)


async def test_a_waiting_fetch_gets_records_written_after_a_change_of_leaders(
    kafka_three: KafkaCluster, backend: KafkaBackend, partition: TopicPartition
) -> None:
    assert await append(backend, partition, b"before") == 0
    waiting = asyncio.create_task(backend.fetch(partition, 1, max_bytes=1000))
    await fetch_now(backend, partition, 1)
    leader(kafka_three, backend, partition).kill()
    async with asyncio.timeout(PATIENCE_S):
        written = await append_nowait(backend, partition, b"after")
        result = await waiting
    assert (written, offsets(result), values(result)) == (1, [1], [b"after"])


async def test_without_brokers_writes_fail_with_the_reason_and_resume_afterwards(
    kafka_three: KafkaCluster, partition: TopicPartition
) -> None:
    async with (
        open_kafka(kafka_three, delivery_timeout_s=2.0) as backend,
        Writer(backend, partition) as writer,
    ):
        found: dict[int, bytes | None] = {}
        reader = asyncio.create_task(follow(backend, partition, found))
        kafka_three.kill()
        await writer.wait_errors(2 * OUTSTANDING)
        assert {type(error) for error in writer.errors} <= {Unavailable, DeadlineExceeded}
        assert type(writer.errors[-1]) is Unavailable
        assert "within 2 s" in str(writer.errors[-1])
        assert "cannot connect to 127.0.0.1:" in str(writer.errors[-1])
        assert "cannot connect" in backend.fault
        await start_again(kafka_three)
        await writer.wait_written(100)
        assert backend.fault == ""
        await writer.stop()
        await until(lambda: max(writer.written) in found)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        assert writer.written.items() <= found.items()
        await check(backend, partition, writer)


async def follow(backend: Backend, partition: TopicPartition, found: dict[int, bytes | None]) -> None:
    """Read from the beginning without end, as a consumer does; only a temporarily missing leader
    may be reported.
    """
    offset = 0
    while True:
        try:
            result = await backend.fetch(partition, offset, max_bytes=1 << 20)
        except Unavailable:
            continue  # the backend has waited for a leader
        found.update(zip(offsets(result), values(result), strict=True))
        offset = result.next_offset


async def test_a_backend_starts_without_brokers_and_becomes_ready_by_itself(
    kafka_three: KafkaCluster, partition: TopicPartition
) -> None:
    kafka_three.kill()
    async with open_kafka(kafka_three) as backend:
        assert "cannot connect" in backend.fault
        with pytest.raises(Unavailable, match=r"has not been reached yet: .*cannot connect"):
            backend.topic(partition.topic)
        with pytest.raises(Unavailable, match="cannot connect"):
            await backend.describe_topic(partition.topic)
        await start_again(kafka_three)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await backend.describe_topic(partition.topic)
                    break
                except PixyError:
                    await asyncio.sleep(0)
        assert backend.fault == ""
        assert await append(backend, partition, b"v") == 0


async def test_requests_waiting_for_a_frozen_broker_are_bounded_and_reported(
    kafka_three: KafkaCluster, partition: TopicPartition
) -> None:
    size = len(make_batch(b"v" * 1000)) + BATCH_MEMORY_BYTES
    async with open_kafka(kafka_three, buffer_bytes=10 * size, delivery_timeout_s=2.0) as backend:
        await append(backend, partition, b"first")
        with kafka_three.broker(1).paused(), kafka_three.broker(2).paused(), kafka_three.broker(3).paused():
            answers = [append_nowait(backend, partition, b"v" * 1000) for _ in range(12)]
            refused = [each for each in answers if each.done()]
            assert refused == answers[10:]
            assert all("wait to be written" in str(each.exception()) for each in refused)
            async with asyncio.timeout(PATIENCE_S):
                outcomes = await asyncio.gather(*answers[:10], return_exceptions=True)
            # The first was sent; the others were queued after it.
            assert [type(each) for each in outcomes] == [DeadlineExceeded, *9 * [Unavailable]]
    await asyncio.to_thread(kafka_three.wait_ready)


class Watched(bytearray):
    """A batch that supports weak references."""


async def test_a_written_batch_is_released_while_another_partition_is_blocked(
    kafka_three: KafkaCluster, backend: KafkaBackend, kafka_name: Callable[[str], str]
) -> None:
    """Memory is bounded by unanswered batches, whatever else is written."""
    topic = await backend.create_topic(kafka_name("beside"), 6)
    leaders = {each.leader: TopicPartition(topic.name, each.partition) for each in topic.partitions}
    (frozen, stuck), (_, busy), *_ = leaders.items()
    for partition in (stuck, busy):
        await append(backend, partition, b"before")
    with kafka_three.broker(frozen).paused():
        waiting = append_nowait(backend, stuck, b"waits")
        batch, answer = Watched(make_batch(b"v" * 1000)), asyncio.get_running_loop().create_future()
        held = weakref.ref(batch)
        backend.append(busy, batch, 1, lambda *outcome: answer.set_result(outcome))
        del batch
        async with asyncio.timeout(PATIENCE_S):
            assert await answer == (1, None)
        assert not waiting.done()
        assert held() is None
    async with asyncio.timeout(PATIENCE_S):
        assert await waiting == 1
    await asyncio.to_thread(kafka_three.wait_ready)
