"""The embedded cluster as a backend: internals that the conformance tests cannot see."""

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random

import pytest
from structlog.testing import capture_logs

from pixy.backend import EmbeddedBackend, FetchResult, StagedBatches, StageSeal, TopicPartition, timestamps
from pixy.cluster import Node, NodeOptions, PartitionReplica, problems
from pixy.config import JournalConfig, StorageConfig
from pixy.errors import (
    CorruptData,
    OffsetOutOfRange,
    PixyError,
    ShuttingDown,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
    UnpackedTooLarge,
)
from pixy.records import NewRecord, OffsetCommit, Record, build_batch, crc32c, read_records
from pixy.storage import PartitionLog, ThreadWorker, Worker, WriterPace, run_on
from pixy.storage.journal import journal as journal_module
from pixy.storage.partition import log_segments
from pixy.storage.partition.segment import Chunk
from tests.fakes.batches import bomb
from tests.fakes.clock import FakeClock
from tests.fakes.disk import Call, RecordingDisk
from tests.fakes.waiting import until
from tests.fakes.worker import StepWorker

TOPIC = TopicPartition("topic", 0)
PATIENCE = 60.0


class Embedded:
    """A backend on a node with real threads, as in the daemon."""

    def __init__(
        self,
        directory: Path,
        *,
        tail_cache_bytes: int = 1 << 20,
        file_bytes: int = 1 << 16,
        pace: WriterPace | None = None,
    ) -> None:
        self.directory = directory
        self.disk = RecordingDisk()
        self.clock = FakeClock()
        self.faults: list[BaseException] = []
        self.workers: dict[str, Worker] = {}
        options = NodeOptions(
            directory,
            JournalConfig(file_bytes=file_bytes),
            StorageConfig(segment_bytes=1000, tail_cache_bytes=tail_cache_bytes, reserve_bytes=0),
            Random(1).randbytes,
            self._worker,
            writer_pace=pace or WriterPace(),
        )
        self.node = Node(self.disk, self.clock, options, self.faults.append)
        self.backend = EmbeddedBackend(self.node)

    def _worker(self, name: str, *, background: bool) -> Worker:
        worker = self.workers[name] = ThreadWorker(name, background=background)
        return worker

    @property
    def replica(self) -> PartitionReplica:
        replica = self.node.partition(TOPIC)
        assert replica is not None
        return replica

    def append_nowait(self, value: bytes, timestamp_ms: int = 1000) -> asyncio.Future[int]:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(offset: int, error: PixyError | None) -> None:
            if error is None:
                answer.set_result(offset)
            else:
                assert offset == -1
                answer.set_exception(error)

        batch = build_batch([NewRecord(None, value, (), timestamp_ms)])
        self.backend.append(TOPIC, batch, 1, done)
        return answer

    async def append(self, value: bytes, timestamp_ms: int = 1000) -> int:
        async with asyncio.timeout(PATIENCE):
            return await self.append_nowait(value, timestamp_ms)

    async def fetch(self, offset: int, max_bytes: int = 1 << 20, max_wait: float | None = 0) -> FetchResult:
        async with asyncio.timeout(PATIENCE):
            return await self.backend.fetch(TOPIC, offset, max_bytes=max_bytes, max_wait=max_wait)

    async def write(self) -> None:
        """Write everything to the segments."""
        await self.node._log.writer.flush()


def values(result: FetchResult) -> list[bytes | None]:
    return [record.value for batch in result.batches for record in read_records(batch)]


@pytest.fixture
def pace() -> WriterPace:
    """Pace of segment writes; tests may override it."""
    return WriterPace()


seldom_written = pytest.mark.parametrize("pace", [WriterPace(gather_s=1000)], ids=[""])


@pytest.fixture
async def embedded(tmp_path: Path, pace: WriterPace) -> AsyncIterator[Embedded]:
    embedded = Embedded(tmp_path / "data", pace=pace)
    await embedded.backend.start()
    await embedded.backend.create_topic("topic", 1)
    yield embedded
    await embedded.backend.stop()
    assert embedded.faults == []


@pytest.fixture
async def cold(tmp_path: Path) -> AsyncIterator[Embedded]:
    """A cluster that keeps no written records in memory."""
    embedded = Embedded(tmp_path / "data", tail_cache_bytes=0)
    await embedded.backend.start()
    await embedded.backend.create_topic("topic", 1)
    yield embedded
    await embedded.backend.stop()


async def test_no_file_is_touched_on_the_event_loop(tmp_path: Path) -> None:
    embedded = Embedded(tmp_path / "data", tail_cache_bytes=0, file_bytes=2000)
    here = threading.current_thread()
    touched: list[Call] = []

    def before(call: Call) -> None:
        if threading.current_thread() is here:
            touched.append(call)

    embedded.disk.before = before
    await embedded.backend.start()
    await embedded.backend.create_topic("topic", 2)
    for number in range(30):
        await embedded.append(b"x" * 200, number)
        if number % 7 == 0:
            await embedded.write()
    await embedded.fetch(0)
    await embedded.backend.offset_for_timestamp(TOPIC, 5)
    await embedded.backend.stop()
    assert touched == []


async def test_evicted_records_are_read_from_the_segments_by_the_files_worker(cold: Embedded) -> None:
    for number in range(30):
        await cold.append(b"%d" % number)
    await cold.write()
    assert cold.replica.log.read_memory(0, 1) is None
    got: list[bytes | None] = []
    while len(got) < 30:
        result = await cold.fetch(len(got), max_bytes=300)
        got += values(result)
        assert (result.next_offset, result.log_begin_offset, result.high_watermark) == (len(got), 0, 30)
    assert got == [b"%d" % number for number in range(30)]


async def test_a_damaged_partition_is_not_ready_and_names_the_position_while_others_continue(
    cold: Embedded,
) -> None:
    await cold.backend.create_topic("other", 1)
    for number in range(3):
        await cold.append(b"value %d" % number)
    await cold.write()
    (segment,) = (cold.directory / "topics" / "topic-0").glob("*.log")
    damaged = bytearray(segment.read_bytes())
    damaged[-3] ^= 1
    segment.write_bytes(damaged)
    assert values(await cold.fetch(1, max_bytes=1)) == [b"value 1"]
    where = r"0000\.log is corrupt at byte \d+: record batch at offset 2"
    for offset in (2, 1, 3):
        with pytest.raises(CorruptData, match=where):
            await cold.fetch(offset)
    with pytest.raises(CorruptData, match=where):
        await cold.append(b"more")
    await asyncio.sleep(0)
    assert (await cold.backend.describe_topic("topic")).partitions[0].leader == -1
    assert (await cold.backend.describe_topic("other")).partitions[0].leader == 1
    (problem,) = problems(await cold.backend.cluster_status())
    assert problem.startswith("node 1 has damaged partition topic-0, and serves nothing of it: ")
    assert "0000.log is corrupt at byte" in problem
    other = TopicPartition("other", 0)
    appended = asyncio.get_running_loop().create_future()
    new = build_batch([NewRecord(None, b"value", (), 1000)])
    cold.backend.append(other, new, 1, lambda offset, error: appended.set_result((offset, error)))
    assert await appended == (0, None)


async def test_a_partition_with_a_bad_sector_is_not_ready_while_others_continue(cold: Embedded) -> None:
    await cold.backend.create_topic("other", 1)
    await cold.append(b"value")
    await cold.write()
    (segment,) = (cold.directory / "topics" / "topic-0").glob("*.log")
    cold.disk.unreadable = {segment}
    for _ in range(2):
        with pytest.raises(CorruptData, match=r"topic-0 cannot be read: .*Input/output error"):
            await cold.fetch(0)
    assert (await cold.backend.describe_topic("topic")).partitions[0].leader == -1
    assert (await cold.backend.describe_topic("other")).partitions[0].leader == 1
    (problem,) = problems(await cold.backend.cluster_status())
    assert problem.startswith("node 1 has damaged partition topic-0, and serves nothing of it: ")


@pytest.mark.parametrize("name", ["00000000000000000000.log", "identity"])
async def test_a_bad_sector_of_one_partition_does_not_stop_a_start(tmp_path: Path, name: str) -> None:
    first = Embedded(tmp_path / "node")
    await first.backend.start()
    for topic in ("topic", "other"):
        await first.backend.create_topic(topic, 1)
    await first.append(b"value")
    await first.backend.stop()
    again = Embedded(tmp_path / "node")
    again.disk.unreadable = {again.directory / "topics" / "topic-0" / name}
    await again.backend.start()
    try:
        with pytest.raises(CorruptData, match=rf"{name}.*Input/output error|cannot be read: .*{name}"):
            await again.fetch(0)
        assert (await again.backend.describe_topic("other")).partitions[0].leader == 1
    finally:
        await again.backend.stop()


@pytest.mark.slow
@pytest.mark.parametrize("written", [False, True], ids=["in its stage", "in a segment"])
@pytest.mark.parametrize("linked", [False, True], ids=["copied", "linked"])
async def test_reading_a_damaged_staged_batch_makes_its_partition_not_ready(
    cold: Embedded, monkeypatch: pytest.MonkeyPatch, linked: bool, written: bool
) -> None:
    monkeypatch.setattr(log_segments, "LINK_BYTES_MIN", 0 if linked else 1 << 40)
    batches = [bytes(build_batch([NewRecord(None, value, (), 1000)])) for value in (b"good", b"bad")]
    crcs = [crc32c(b"".join(batches))]
    seal = StageSeal(1, crc32c(crcs[0].to_bytes(4, "big")))
    await cold.append(b"before")
    await cold.backend.stage("sink", "stage", 0, [StagedBatches(TOPIC, b"".join(batches), 2)], seal)
    writer = cold.node._log.writer
    thread, waiting = writer._worker, StepWorker()
    if not written:
        writer._worker = waiting
    await cold.backend.publish("sink", 0, "query", ["stage"])
    if written:
        await cold.write()
    pattern = "topics/*/*.log" if written else "staging/*/*.batches"
    path = sorted(cold.directory.glob(pattern))[-1]
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 1
    path.write_bytes(damaged)
    assert values(await cold.fetch(1, max_bytes=1)) == [b"good"]
    for offset in (2, 1, 3):
        with pytest.raises(CorruptData, match=rf"{path.name} is corrupt at byte \d+: record batch at offset"):
            await cold.fetch(offset)
    with pytest.raises(CorruptData, match=path.name):
        await cold.append(b"more")
    while waiting:
        waiting.step()
    writer._worker = thread
    assert cold.faults == []


async def test_a_waiting_fetch_is_woken_by_the_append_and_leaves_no_waiter(embedded: Embedded) -> None:
    waiting = [asyncio.create_task(embedded.fetch(0, max_wait=wait)) for wait in (None, 100.0)]
    await asyncio.sleep(0)
    assert len(embedded.replica.waiters or ()) == 2
    await embedded.append(b"value")
    assert [values(await task) for task in waiting] == [[b"value"], [b"value"]]
    assert embedded.replica.waiters is None


async def test_a_timed_out_fetch_is_empty_and_leaves_no_waiter(embedded: Embedded) -> None:
    result = await embedded.fetch(0, max_wait=0.001)
    assert (list(result.batches), result.next_offset) == ([], 0)
    assert embedded.replica.waiters is None


async def test_a_cancelled_fetch_leaves_no_waiter_and_the_others_keep_waiting(embedded: Embedded) -> None:
    first, second = (asyncio.create_task(embedded.fetch(0, max_wait=None)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert len(embedded.replica.waiters or ()) == 1
    await embedded.append(b"value")
    assert values(await second) == [b"value"]
    assert embedded.replica.waiters is None


async def test_a_cancelled_cold_fetch_disturbs_nothing(cold: Embedded) -> None:
    await cold.append(b"value")
    await cold.write()
    fetching = asyncio.create_task(cold.fetch(0))
    await asyncio.sleep(0)
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    assert values(await cold.fetch(0)) == [b"value"]


# --- changes of topics, and retention -------------------------------------------------------------


async def test_a_fetch_waiting_when_its_topic_is_deleted_ends_even_if_there_is_a_new_one(
    embedded: Embedded,
) -> None:
    waiting = asyncio.create_task(embedded.fetch(0, max_wait=None))
    await asyncio.sleep(0)
    await embedded.backend.delete_topic("topic")
    await embedded.backend.create_topic("topic", 1)
    with pytest.raises(UnknownPartition):
        await waiting
    await embedded.append(b"new")
    assert values(await embedded.fetch(0)) == [b"new"]


async def test_a_fetch_reading_files_when_its_topic_is_deleted_reports_it_and_damages_nothing(
    cold: Embedded,
) -> None:
    for _ in range(5):
        await cold.append(b"x" * 500)
    await cold.write()
    busy = threading.Event()
    cold.workers["pixy-files"].submit(lambda: busy.wait(PATIENCE), lambda _result, _error: None)
    fetching = asyncio.create_task(cold.fetch(0))
    await asyncio.sleep(0)
    await cold.backend.delete_topic("topic")
    await run_on(cold.workers["pixy-writer"], lambda: None)
    await cold.backend.create_topic("topic", 1)
    busy.set()
    with pytest.raises(UnknownPartition, match="topic topic was deleted"):
        await fetching
    assert cold.replica.fault is None


async def test_a_fetch_below_the_moved_begin_is_out_of_range_and_damages_nothing(cold: Embedded) -> None:
    await cold.backend.alter_topic("topic", config={"retention_bytes": "1", "retention_ms": "-1"})
    for _ in range(5):
        await cold.append(b"x" * 900)
    await cold.write()
    busy = threading.Event()
    cold.workers["pixy-files"].submit(lambda: busy.wait(PATIENCE), lambda _result, _error: None)
    fetching = asyncio.create_task(cold.fetch(1))
    searching = asyncio.create_task(cold.backend.offset_for_timestamp(TOPIC, 0))
    await asyncio.sleep(0)
    cold.node._retention.stop()
    cold.node._retention._check()
    await cold.node._log.journal.drained()
    await cold.write()
    await cold.node._log.journal.drained()
    await run_on(cold.workers["pixy-writer"], lambda: None)
    assert len(list((cold.directory / "topics" / "topic-0").glob("*.log"))) == 1
    busy.set()
    with pytest.raises(OffsetOutOfRange, match="offset 1 is out of range: 4 to 5 are served") as caught:
        await fetching
    assert (caught.value.begin, caught.value.end) == (4, 5)
    assert await searching == 4
    assert cold.replica.fault is None
    with pytest.raises(OffsetOutOfRange):
        await cold.fetch(3)
    assert values(await cold.fetch(4)) == [b"x" * 900]


async def test_a_topic_that_would_be_compacted_is_kept_whole_and_the_log_says_so(cold: Embedded) -> None:
    policy: dict[str, str | None] = {"cleanup_policy": "compact"}
    with capture_logs() as logs:
        await cold.backend.alter_topic("topic", config={"retention_bytes": "1", **policy})
        await cold.backend.create_topic("other", 1, {"cleanup_policy": "compact,delete"})
    assert [(each["log_level"], each["topic"], each["event"]) for each in logs if "topic" in each] == [
        ("warning", "topic", "records of a topic are not compacted: all of them are kept"),
        ("warning", "other", "records of a topic are not compacted: they are deleted by age and size"),
    ]
    for _ in range(5):
        await cold.append(b"x" * 900)
    await cold.write()
    cold.node._retention.stop()
    cold.node._retention._check()
    await cold.node._log.journal.drained()
    assert cold.replica.log.begin_offset == 0
    await cold.backend.alter_topic("topic", config={"cleanup_policy": "compact,delete"})
    cold.node._retention.stop()
    cold.node._retention._check()
    await until(lambda: cold.replica.log.begin_offset > 0)


async def test_a_description_follows_the_topic(embedded: Embedded) -> None:
    backend = embedded.backend
    first = await backend.describe_topic("topic")
    assert backend.topic("topic") is first
    grown = await backend.alter_topic("topic", partitions=3, config={"retention_ms": "5"})
    assert (len(grown.partitions), grown.config, grown.version) == (3, {"retention_ms": "5"}, 2)
    assert backend.topic("topic") == await backend.describe_topic("topic") == grown
    await backend.delete_topic("topic")
    assert backend.topic("topic") is None
    with pytest.raises(UnknownTopic):
        await backend.describe_topic("topic")
    again = await backend.create_topic("topic", 1)
    assert again.topic_id != first.topic_id
    assert backend.topic("topic") == again


async def test_members_lose_the_partitions_of_a_deleted_topic_before_they_get_those_of_a_new_one(
    embedded: Embedded,
) -> None:
    told: list[dict[str, list[int]]] = []
    membership = await embedded.backend.join_consumer_group(
        "group", "client", ["topic"], lambda assigned: told.append({k: list(v) for k, v in assigned.items()})
    )
    await until(lambda: told == [{"topic": [0]}])
    await embedded.backend.delete_topic("topic")
    await embedded.backend.create_topic("topic", 2)
    await until(lambda: told[-1] == {"topic": [0, 1]})
    assert told == [{"topic": [0]}, {"topic": []}, {"topic": [0, 1]}]
    await membership.leave()


async def test_offsets_committed_in_a_deleted_topic_do_not_apply_to_a_new_one(embedded: Embedded) -> None:
    await embedded.append(b"value")
    await embedded.backend.commit_offsets("group", {TOPIC: OffsetCommit(1, "m")})
    assert await embedded.backend.committed_offsets("group", "topic") == {0: OffsetCommit(1, "m")}
    await embedded.backend.delete_topic("topic")
    await embedded.backend.create_topic("topic", 1)
    assert await embedded.backend.committed_offsets("group", "topic") == {}


async def test_after_stop_no_topic_is_changed_or_deleted(embedded: Embedded) -> None:
    await embedded.backend.stop()
    with pytest.raises(ShuttingDown):
        await embedded.backend.alter_topic("topic", partitions=2)
    with pytest.raises(ShuttingDown):
        await embedded.backend.delete_topic("topic")


# --- timestamps -----------------------------------------------------------------------------------


@pytest.mark.slow
@seldom_written
async def test_timestamps_are_found_in_segments_and_in_memory(embedded: Embedded) -> None:
    for number in range(10):
        await embedded.append(b"x" * 200, number * 10)
    await embedded.write()
    for number in range(10, 20):
        await embedded.append(b"y", number * 10)
    assert embedded.replica.log.written_offset == 10
    for timestamp in range(-5, 200, 5):
        found = await embedded.backend.offset_for_timestamp(TOPIC, timestamp)
        at = max(0, (timestamp + 9) // 10)
        assert found == (at if at < 20 else None), timestamp


@seldom_written
async def test_a_batch_written_to_the_segments_during_the_search_is_found(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    await embedded.append(b"early", 10)
    await embedded.write()
    await embedded.append(b"late", 20)
    searched, go_on = asyncio.Event(), threading.Event()
    loop, search = asyncio.get_running_loop(), embedded.replica.log.find_timestamp

    def slow(_log: object, timestamp_ms: int) -> int | None:
        found = search(timestamp_ms)
        loop.call_soon_threadsafe(searched.set)
        assert go_on.wait(PATIENCE)
        return found

    monkeypatch.setattr(type(embedded.replica.log), "find_timestamp", slow)
    searching = asyncio.create_task(embedded.backend.offset_for_timestamp(TOPIC, 15))
    await searched.wait()
    await embedded.write()
    go_on.set()
    assert await searching == 1


async def test_a_search_decodes_records_while_others_read_segments(
    cold: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cold.append(b"early", 10)
    await cold.append(b"late", 20)
    await cold.write()
    decoding, go_on = asyncio.Event(), threading.Event()
    loop, decode = asyncio.get_running_loop(), read_records

    def slow(batch: bytes) -> Iterator[Record]:
        loop.call_soon_threadsafe(decoding.set)
        assert go_on.wait(PATIENCE)
        return decode(batch)

    monkeypatch.setattr(timestamps, "read_records", slow)
    searching = asyncio.create_task(cold.backend.offset_for_timestamp(TOPIC, 15))
    async with asyncio.timeout(PATIENCE):
        await decoding.wait()
        # The search is blocked, but the loop, the journal and reads of segments are not.
        assert values(await cold.fetch(0)) == [b"early", b"late"]
        assert await cold.append(b"meanwhile", 30) == 2
    assert not searching.done()
    go_on.set()
    assert await searching == 1


async def test_searches_that_wait_hold_no_records(cold: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    await cold.append(b"early", 10)
    await cold.append(b"late", 20)
    await cold.write()
    decoding, go_on = asyncio.Event(), threading.Event()
    loop, decode = asyncio.get_running_loop(), read_records
    reads: list[int] = []
    read = type(cold.replica.log).read

    def slow(batch: bytes) -> Iterator[Record]:
        loop.call_soon_threadsafe(decoding.set)
        assert go_on.wait(PATIENCE)
        return decode(batch)

    def counted(log: PartitionLog, offset: int, max_bytes: int) -> Chunk:
        reads.append(offset)
        return read(log, offset, max_bytes)

    monkeypatch.setattr(timestamps, "read_records", slow)
    monkeypatch.setattr(type(cold.replica.log), "read", counted)
    searches = [asyncio.create_task(cold.backend.offset_for_timestamp(TOPIC, 15)) for _ in range(10)]
    async with asyncio.timeout(PATIENCE):
        await decoding.wait()
        await run_on(cold.workers["pixy-files"], lambda: None)
        assert len(reads) == 1
        for search in searches[2:]:
            search.cancel()
        go_on.set()
        assert [await search for search in searches[:2]] == [1, 1]
    assert len(reads) == 2


async def test_the_search_ends_if_its_topic_is_recreated_while_records_are_decoded(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    await embedded.append(b"old", 20)
    decoding, go_on = asyncio.Event(), threading.Event()
    loop, decode = asyncio.get_running_loop(), read_records

    def slow(batch: bytes) -> Iterator[Record]:
        loop.call_soon_threadsafe(decoding.set)
        assert go_on.wait(PATIENCE)
        return decode(batch)

    monkeypatch.setattr(timestamps, "read_records", slow)
    searching = asyncio.create_task(embedded.backend.offset_for_timestamp(TOPIC, 15))
    async with asyncio.timeout(PATIENCE):
        await decoding.wait()
    await embedded.backend.delete_topic("topic")
    await embedded.backend.create_topic("topic", 1)
    go_on.set()
    with pytest.raises(UnknownPartition, match="topic topic was deleted"):
        await searching


@pytest.mark.slow
async def test_a_batch_that_decompresses_too_far_fails_only_the_search_that_needs_it(
    embedded: Embedded,
) -> None:
    await embedded.append(b"early", 10)
    bad = asyncio.get_running_loop().create_future()
    embedded.backend.append(TOPIC, bytearray(bomb(20)), 1, lambda offset, _error: bad.set_result(offset))
    assert await bad == 1
    await embedded.append(b"late", 30)
    with pytest.raises(
        UnpackedTooLarge, match="record batch at offset 1 cannot be decoded, the next batch is at 2"
    ):
        await embedded.backend.offset_for_timestamp(TOPIC, 15)
    assert embedded.replica.fault is None
    assert await embedded.backend.offset_for_timestamp(TOPIC, 5) == 0
    assert await embedded.backend.offset_for_timestamp(TOPIC, 25) == 2
    assert len((await embedded.fetch(0)).batches) == 3


# --- consumer groups ------------------------------------------------------------------------------


async def test_a_group_is_listed_until_the_last_topic_with_its_offsets_is_deleted(
    embedded: Embedded,
) -> None:
    names = {f"g{number}" for number in range(20)}
    for name in names:
        await embedded.backend.commit_offsets(name, {TOPIC: OffsetCommit(0)})
    await embedded.backend.create_topic("other", 1)
    await embedded.backend.commit_offsets("g0", {TopicPartition("other", 0): OffsetCommit(0)})
    assert set(await embedded.backend.list_groups()) == names
    await embedded.backend.delete_topic(TOPIC.topic)

    async def one_is_left() -> bool:
        return set(await embedded.backend.list_groups()) == {"g0"}

    await until(one_is_left)


# --- blocked and stopped --------------------------------------------------------------------------


@pytest.mark.slow
async def test_an_append_on_a_full_disk_is_unavailable_and_service_recovers(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_FULL_DISK_RETRY_S", 0.001)
    tries = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()

    def no_room(call: Call) -> None:
        if call.what == "allocate":
            loop.call_soon_threadsafe(tries.release)
            raise OSError(errno.ENOSPC, "No space left on device")

    embedded.disk.before = no_room
    first = embedded.append_nowait(b"x" * 100_000)
    async with asyncio.timeout(PATIENCE):
        for _ in range(2):  # the second attempt sees the error of the first
            await tries.acquire()
    with pytest.raises(Unavailable, match="the disk is full"):
        await embedded.append(b"refused")
    with pytest.raises(Unavailable, match="the disk is full"):
        await embedded.backend.create_topic("other", 1)
    embedded.disk.heal()
    assert await asyncio.wait_for(first, PATIENCE) == 0
    assert await embedded.append(b"next") == 1


async def test_a_sink_rejected_for_lack_of_space_counts_as_active(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = bytes(build_batch([NewRecord(None, b"staged", (), 1000)]))
    await embedded.backend.stage("sink", "stage", 0, [StagedBatches(TOPIC, batch, 1)])
    for ask in (
        lambda: embedded.backend.stage("sink", "other", 0, []),
        lambda: embedded.backend.publish("sink", 0, "query", []),
    ):
        embedded.clock.advance(20 * 3600)
        with monkeypatch.context() as full:
            full.setattr(Node, "blocked", Unavailable("the disk is full"))
            with pytest.raises(Unavailable):
                await ask()
        embedded.node.publisher.expire(embedded.node.now_ms())
        assert embedded.node.publisher.staged_by(embedded.node.metadata.topics["topic"].topic_id) == ["sink"]


async def test_after_stop_waits_and_changes_are_rejected(cold: Embedded) -> None:
    await cold.append(b"value")
    await cold.write()
    waiting = asyncio.create_task(cold.fetch(1, max_wait=None))
    await asyncio.sleep(0)
    await cold.backend.stop()
    with pytest.raises(ShuttingDown):
        await waiting
    with pytest.raises(ShuttingDown):
        await cold.append(b"late")
    with pytest.raises(ShuttingDown):
        await cold.backend.create_topic("late", 1)
    with pytest.raises(ShuttingDown):
        await cold.backend.commit_offsets("group", {})
    with pytest.raises(ShuttingDown):
        await cold.fetch(0)
    with pytest.raises(ShuttingDown):
        await cold.backend.offset_for_timestamp(TOPIC, 0)
    await cold.backend.stop()


async def test_stop_answers_accepted_appends(embedded: Embedded) -> None:
    answers = [embedded.append_nowait(b"%d" % number) for number in range(10)]
    await embedded.backend.stop()
    assert [answer.result() for answer in answers] == list(range(10))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pixy-")]


async def test_stop_after_a_fault_ends_and_leaves_no_thread(tmp_path: Path) -> None:
    embedded = Embedded(tmp_path / "data")
    await embedded.backend.start()
    await embedded.backend.create_topic("topic", 1)
    broken = asyncio.Event()
    embedded.node.on_fault = lambda _: broken.set()
    embedded.disk.fail("sync", ".journal", errno.EIO)
    answer = embedded.append_nowait(b"value")
    async with asyncio.timeout(PATIENCE):
        await broken.wait()
        await embedded.backend.stop()
    assert not answer.done()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pixy-")]
