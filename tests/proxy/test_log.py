"""pixy/proxy/log.py: appends in flight are bounded, held until answered, and validated when handed
over.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pixy.backend import BATCH_MEMORY_BYTES, OffsetRange, TopicPartition
from pixy.backend.protocol import AppendDone
from pixy.check_turns import SteppedCheck
from pixy.config import ProducerConfig, ProxyConfig
from pixy.errors import (
    Internal,
    InvalidArgument,
    InvalidBatch,
    InvalidRecords,
    MessageTooLarge,
    PartitionNotFound,
    ShuttingDown,
    StaleTopicVersion,
    TopicMissing,
    Unavailable,
)
from pixy.proxy import (
    Appended,
    OffsetPosition,
    OffsetQuery,
    PartitionBatches,
    Range,
    RangeState,
    TopicVersion,
    silent_appends,
)
from pixy.proxy.log import Log
from pixy.proxy.topics import TopicCreator
from pixy.records import build_batch
from tests.fakes.backend import FakeBackend
from tests.fakes.batches import batch_of, raw_batch, raw_record
from tests.fakes.clock import EPOCH_MS, FakeClock
from tests.fakes.node import make_embedded
from tests.fakes.server import serve_cluster
from tests.fakes.waiting import settle, until

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
BATCH = batch_of(b"value")
SIZE = len(BATCH)
MEMORY = SIZE + BATCH_MEMORY_BYTES


def fault(error: BaseException) -> None:
    raise AssertionError("a bug") from error


async def make(
    backend: FakeBackend | None = None,
    *,
    room: int = 64 << 20,
    auto_create: bool = True,
    share_percent: int = 100,
) -> tuple[Log, FakeBackend]:
    """A log with a limit in bytes, on a cluster with a topic `t` of two partitions."""
    backend = backend or FakeBackend()
    await backend.start()
    await backend.create_topic("t", 2)
    producer = replace(ProducerConfig(), buffer_bytes=room)
    config = replace(ProxyConfig(), producer=producer, auto_create_topics=auto_create)
    log = Log(backend, config, TopicCreator(backend, config, fault), FakeClock(), share_percent)
    return log, backend


def append(
    log: Log, batches: int = 1, version: int | None = None, peer: str = ""
) -> "asyncio.Task[list[Appended]]":
    versions = [] if version is None else [TopicVersion("t", version)]
    return asyncio.create_task(log.append([PartitionBatches(T0, BATCH * batches)], versions, peer))


async def test_appends_in_flight_and_queued_are_bounded() -> None:
    log, backend = await make(room=2 * MEMORY)
    backend.hold_appends()
    first, second, third = append(log, 2), append(log), append(log)
    await settle()
    assert backend.held_appends == 2
    text = f"0 bytes of batches are being checked, {2 * MEMORY} are being written and {2 * MEMORY} wait"
    with pytest.raises(Unavailable, match=text):
        await append(log)
    backend.release_appends()
    assert [await first, await second, await third] == [
        [Appended(0, None)],
        [Appended(2, None)],
        [Appended(3, None)],
    ]
    assert await append(log) == [Appended(4, None)]


async def test_the_memory_of_batches_in_flight_counts_with_their_bytes() -> None:
    log, backend = await make()
    backend.hold_appends()
    first, second = append(log, 3), append(log, 5)
    await settle()
    assert log.semaphore.acquired == 8 * MEMORY
    backend.release_appends()
    await asyncio.gather(first, second)
    assert log.semaphore.acquired == 0
    assert log.produced.by_topic["t"] == [8, 8 * SIZE]


async def test_nothing_of_a_partition_with_a_batch_that_is_known_to_be_too_large_is_written() -> None:
    log, backend = await make()
    backend.bytes_max, backend.refused_as_large = SIZE, 1
    too_large = batch_of(bytes(1000))
    batches = [PartitionBatches(T0, BATCH + too_large + BATCH), PartitionBatches(T1, BATCH)]
    refused, written = await log.append(batches, [])
    assert isinstance(refused.error, MessageTooLarge)
    assert f"a record batch has {len(too_large)} bytes, topic t takes {SIZE}" in str(refused.error)
    assert written == Appended(0, None)
    assert (await append(log))[0] == Appended(0, None)


async def test_an_address_has_its_share_of_what_is_written_and_of_the_queue() -> None:
    log, backend = await make(room=4 * MEMORY, share_percent=50)
    backend.hold_appends()
    hostile = [append(log, peer=f"10.0.0.1:{port}") for port in range(1, 7)]
    await settle()
    assert backend.held_appends == 2, "half of the room"
    with pytest.raises(Unavailable, match=f"{4 * MEMORY} wait, {4 * MEMORY} of them of this client address"):
        await append(log, peer="10.0.0.1:9")
    others = [append(log, peer=f"10.0.0.2:{port}") for port in range(1, 5)]
    await settle()
    assert backend.held_appends == 4
    with pytest.raises(Unavailable):
        await append(log, peer="10.0.0.2:9")
    backend.release_appends()
    for each in (*hostile, *others):
        assert (await each)[0].error is None
    assert (log.semaphore.acquired, log.semaphore.queued) == (0, 0)


class OnePartitionIsOut(FakeBackend):
    """A cluster whose partition `T0` answers nothing until it comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Callable[[], None]] = []
        self.is_out = True

    def append(
        self,
        partition: TopicPartition,
        batch: bytearray,
        records: int,
        done: AppendDone,
        age_s: float = 0.0,
    ) -> None:
        go_on = partial(super().append, partition, batch, records, done, age_s)
        if self.is_out and partition == T0:
            self.waiting.append(go_on)
        else:
            go_on()

    def come_back(self) -> None:
        self.is_out = False
        for go_on in self.waiting:
            go_on()


async def test_partitions_that_do_not_answer_have_half_of_what_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(silent_appends, "LOOK_S", 0.005)
    backend = OnePartitionIsOut()
    log, _ = await make(backend, room=4 * MEMORY)
    silent = [append(log) for _ in range(5)]
    other = asyncio.create_task(log.append([PartitionBatches(T1, BATCH)], []))
    assert await other == [Appended(0, None)], "though it came last"
    assert len(backend.waiting) == 4
    ((offset, error),) = await silent[4]
    assert (offset, type(error)) == (-1, Unavailable)
    assert "t-0 takes no batches at present" in str(error)
    both = await log.append([PartitionBatches(T0, BATCH), PartitionBatches(T1, BATCH)], [])
    assert [type(each.error) for each in both] == [Unavailable, type(None)]
    backend.come_back()
    assert [await each for each in silent[:4]] == [[Appended(offset, None)] for offset in range(4)]
    assert (log.semaphore.acquired, log.semaphore.queued) == (0, 0)
    assert await append(log) == [Appended(4, None)], "it answers again"


async def test_a_request_larger_than_the_limit_is_written_when_it_is_alone() -> None:
    log, _ = await make(room=MEMORY)
    assert await append(log, 5) == [Appended(0, None)]


async def test_a_request_cancelled_in_flight_frees_its_bytes_only_when_it_ends() -> None:
    log, backend = await make(room=2 * MEMORY)
    backend.hold_appends()
    first, second = append(log, 2), append(log)
    await settle()
    first.cancel()
    await settle()
    assert backend.held_appends == 2
    backend.release_appends()
    assert await second == [Appended(2, None)]


async def test_a_request_cancelled_in_the_queue_writes_nothing() -> None:
    log, backend = await make(room=MEMORY)
    backend.hold_appends()
    first, second = append(log), append(log)
    await settle()
    second.cancel()
    backend.release_appends()
    await first
    await settle()
    assert (await backend.offset_ranges("t"))[0].end == 1
    assert await append(log) == [Appended(1, None)]


async def test_the_version_at_the_time_of_writing_applies() -> None:
    log, backend = await make(room=MEMORY)
    version = (await backend.describe_topic("t")).version
    backend.hold_appends()
    first, second = append(log, version=version), append(log, version=version)
    await settle()
    await backend.alter_topic("t", partitions=3)
    backend.release_appends()
    assert await first == [Appended(0, None)]
    with pytest.raises(StaleTopicVersion):
        await second
    assert await append(log) == [Appended(1, None)]


async def test_a_drain_waits_for_accepted_requests_and_rejects_queued_ones() -> None:
    log, backend = await make(room=MEMORY)
    backend.hold_appends()
    first, second = append(log), append(log)
    await settle()
    log.begin_drain()
    drained = asyncio.create_task(log.drained())
    await settle()
    assert not drained.done()
    backend.release_appends()
    await drained
    assert await first == [Appended(0, None)]
    with pytest.raises(ShuttingDown):
        await second
    await log.drained()


@pytest.mark.slow
async def test_the_drain_of_the_cluster_waits_for_appends_up_to_its_timeout() -> None:
    async with serve_cluster() as served:
        await served.backend.create_topic("t", 1)
        served.backend.hold_appends()
        appending = append(served.proxy.log)
        await settle()
        # One record is in doubt at the timeout.
        assert await served.proxy.drain(0.05) == 1
        assert not appending.done()
        drain = asyncio.create_task(served.proxy.drain(60))
        await settle()
        served.backend.release_appends()
        assert (await drain, await appending) == (0, [Appended(0, None)])


async def test_a_node_that_has_not_started_judges_no_timestamp_by_a_clock_that_may_be_wrong(
    tmp_path: Path,
) -> None:
    backend, config = make_embedded(tmp_path), ProxyConfig()
    log = Log(backend, config, TopicCreator(backend, config, fault), FakeClock())
    partitions = [PartitionBatches(T0, batch_of(b"value", timestamp_ms=EPOCH_MS + 7_200_000))]
    with pytest.raises(Unavailable):
        await log.append(partitions, [])
    with pytest.raises(Unavailable):
        await log.check_batches(partitions, "client")


async def test_a_topic_deleted_during_a_write_is_not_found() -> None:
    log, backend = await make()
    backend.hold_appends()
    appending = append(log)
    await settle()
    await backend.delete_topic("t")
    ((base_offset, error),) = await appending
    assert (base_offset, type(error)) == (-1, PartitionNotFound)


class _Refusing(FakeBackend):
    """A cluster that rejects a batch as it is handed over."""

    refused = 0

    def append(
        self,
        partition: TopicPartition,
        batch: bytearray,
        records: int,
        done: AppendDone,
        age_s: float = 0.0,
    ) -> None:
        if self.refused:
            self.refused -= 1
            done(-1, Unavailable("no leader"))
        else:
            super().append(partition, batch, records, done)


async def test_after_a_rejected_batch_no_later_one_of_its_partition_is_written() -> None:
    backend = _Refusing()
    log, _ = await make(backend)
    backend.refused = 1
    ((base_offset, error),) = await append(log, 3)
    assert (base_offset, type(error)) == (-1, Unavailable)
    assert (await backend.offset_ranges("t"))[0].end == 0


@pytest.mark.parametrize("partitions", [1, 2])
async def test_a_request_has_at_most_a_thousand_batches(partitions: int) -> None:
    log, backend = await make()
    share = 1000 // partitions
    of = [PartitionBatches(TopicPartition("t", number), BATCH * share) for number in range(partitions)]
    assert [result.error for result in await log.append(of, [])] == [None] * partitions
    of[-1] = PartitionBatches(of[-1].partition, BATCH * (share + 1))
    with pytest.raises(InvalidBatch, match="more than 1000 record batches in a request"):
        await log.append(of, [])
    with pytest.raises(InvalidBatch):
        await log.check_batches(of, "")
    assert [each.end for each in (await backend.offset_ranges("t")).values()] == [
        *[share] * partitions,
        *[0] * (2 - partitions),
    ]
    assert log.semaphore.acquired == 0


async def test_a_batch_that_fails_fails_its_partition() -> None:
    log, backend = await make()
    backend.hold_appends()
    appending = append(log, 3)
    await settle()
    backend.release_appends(1)
    await settle()
    await backend.delete_topic("t")
    ((base_offset, error),) = await appending
    assert (base_offset, type(error)) == (-1, PartitionNotFound)


async def test_missing_topics_are_not_created_if_disabled() -> None:
    log, backend = await make(auto_create=False)
    with pytest.raises(TopicMissing, match="topic new does not exist, and auto_create_topics is off"):
        await log.describe_topics(["new"], create_missing=True)
    assert [each.name for each in await log.describe_topics(["new", "t"], create_missing=False)] == ["t"]
    assert backend.topic("new") is None


async def test_ranges_behind_one_that_has_waited_in_vain_do_not_wait() -> None:
    backend, clock = FakeBackend(), FakeClock()
    await backend.start()
    await backend.create_topic("t", 1)
    log = Log(backend, ProxyConfig(), TopicCreator(backend, ProxyConfig(), fault), clock)
    readers = await log.readers([Range(T0, 0, -1)] * 1000, max_bytes=1, max_wait=10)
    first = next(readers)
    assert (await first.read()).state is RangeState.MORE
    clock.advance(10)
    assert (await first.read()).state is RangeState.END_OF_RANGE
    for reader in readers:
        await reader.wait()
        assert (await reader.read()).state is RangeState.END_OF_RANGE


async def test_each_range_has_its_full_wait_time() -> None:
    backend, clock = FakeBackend(), FakeClock()
    await backend.start()
    await backend.create_topic("t", 1)
    log = Log(backend, ProxyConfig(), TopicCreator(backend, ProxyConfig(), fault), clock)
    readers = await log.readers([Range(T0, 0, 0), Range(T0, 0, -1)], max_bytes=1, max_wait=10)
    assert (await next(readers).read()).state is RangeState.END_OF_RANGE
    clock.advance(100)
    reader = next(readers)
    clock.advance(9)
    assert (await reader.read()).state is RangeState.MORE
    clock.advance(1)
    assert (await reader.read()).state is RangeState.END_OF_RANGE


async def test_no_range_waits_longer_than_five_minutes() -> None:
    backend, clock = FakeBackend(), FakeClock()
    await backend.start()
    await backend.create_topic("t", 1)
    log = Log(backend, ProxyConfig(), TopicCreator(backend, ProxyConfig(), fault), clock)
    (reader,) = await log.readers([Range(T0, 0, -1)], max_bytes=1, max_wait=24 * 86400)
    clock.advance(299)
    assert (await reader.read()).state is RangeState.MORE
    clock.advance(1)
    assert (await reader.read()).state is RangeState.END_OF_RANGE


async def wide(partitions: int) -> tuple[Log, FakeBackend, list[PartitionBatches]]:
    """A log, and batches for each partition of a topic."""
    log, backend = await make()
    await backend.create_topic("wide", partitions)
    every = [PartitionBatches(TopicPartition("wide", number), BATCH) for number in range(partitions)]
    return log, backend, every


async def written(backend: FakeBackend) -> int:
    """Number of partitions with records."""
    return sum(served.end > 0 for served in (await backend.offset_ranges("wide")).values())


async def test_a_topic_that_changes_while_many_partitions_are_written_fails_the_rest() -> None:
    log, backend, every = await wide(200)
    appended = asyncio.create_task(log.append(every, [TopicVersion("wide", 1)]))
    await until(lambda: written(backend))
    await backend.alter_topic("wide", partitions=201)
    results = await appended
    refused = [isinstance(result.error, StaleTopicVersion) for result in results]
    assert refused == sorted(refused)
    assert {*refused} == {True, False}
    assert await written(backend) == refused.count(False)
    assert log.semaphore.acquired == 0


async def test_a_caller_that_goes_away_while_many_partitions_are_written_leaks_nothing() -> None:
    log, backend, every = await wide(200)
    appended = asyncio.create_task(log.append(every, []))
    await until(lambda: written(backend))
    appended.cancel()
    await log.drained()
    assert (await written(backend), log.semaphore.acquired) == (200, 0)


@pytest.mark.parametrize("place", [0, 150])
async def test_a_bug_while_many_partitions_are_written_fails_its_partition_alone(
    monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    log, backend, every = await wide(200)
    whole = backend.append

    def append(partition: TopicPartition, batch: bytearray, records: int, done: AppendDone) -> None:
        if partition.partition == place:
            raise ZeroDivisionError("a bug")
        whole(partition, batch, records, done)

    monkeypatch.setattr(backend, "append", append)
    bugs: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: bugs.append(context["exception"]))
    results = await log.append(every, [])
    failed = {number: type(result.error) for number, result in enumerate(results) if result.error}
    assert failed == {place: Internal}
    assert [str(bug) for bug in bugs] == ["a bug"]
    assert (await written(backend), log.semaphore.acquired) == (199, 0)


async def test_a_response_has_a_size_that_clients_accept_and_space_for_a_whole_batch() -> None:
    log, _ = await make()
    assert [log.fetch_bytes(size) for size in (0, 1, 4 << 20, 2**31 - 1)] == [1 << 20, 1, 4 << 20, 4 << 20]
    assert [log.held_bytes(size) for size in (1, 4 << 20)] == [1_000_000, 4 << 20]
    with pytest.raises(InvalidArgument, match="max_bytes is -1, expected 0 for 1048576, or above"):
        log.fetch_bytes(-1)


# --- records that are not what their batch says ---------------------------------------------------

LYING = raw_batch([raw_record(1000, b"x")])
NOW_MS = FakeClock().wall_ms()


async def test_wrong_records_fail_their_partition_alone() -> None:
    log, backend = await make()
    wrong, right = await log.append(
        [PartitionBatches(T0, BATCH + LYING), PartitionBatches(TopicPartition("t", 1), BATCH)], []
    )
    assert isinstance(wrong.error, InvalidRecords)
    place = (
        f"partition 0 of topic t: record batch 1 at byte {SIZE}: record 0 has offset delta 1000, expected 0"
    )
    assert (wrong.base_offset, str(wrong.error)) == (-1, place)
    assert right == Appended(0, None)
    ranges = await backend.offset_ranges("t")
    assert (ranges[0].end, ranges[1].end) == (0, 1)
    assert (log.semaphore.acquired, log.abandon()) == (0, 0)


@pytest.mark.parametrize("count", [1, 5000])
async def test_timestamps_are_compared_with_the_clock_and_the_option(count: int) -> None:
    log, _ = await make()
    hour_ms = 3_600_000
    allowed, late = (
        batch_of(*[b"x"] * count, timestamp_ms=NOW_MS + hour_ms + late - count) for late in (1, 2)
    )
    assert await log.append([PartitionBatches(T0, allowed)], []) == [Appended(0, None)]
    ((offset, error),) = await log.append([PartitionBatches(T0, late)], [])
    assert offset == -1
    assert f"record {count - 1} has timestamp {NOW_MS + hour_ms + 1}" in str(error)


async def test_small_requests_do_not_wait_for_the_checks_of_large_ones() -> None:
    log, backend = await make()
    many = batch_of(*[bytes(at % 2) for at in range(5000)])
    requests = [[PartitionBatches(T0, batches)] for batches in (BATCH, many, BATCH, BATCH * 3)]
    answers = await asyncio.gather(*(log.append(each, []) for each in requests))
    assert answers[1][0].base_offset == 5  # the small ones are before it, in any order
    assert (await backend.offset_ranges("t"))[0].end == 5005


async def test_small_requests_do_not_wait_behind_large_ones_that_wait_for_their_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_go = threading.Event()
    advance = SteppedCheck.advance

    def held(check: SteppedCheck) -> None:
        assert may_go.wait(60)
        advance(check)

    monkeypatch.setattr(SteppedCheck, "advance", held)
    large = batch_of(*[bytes(40 + at % 2) for at in range(5000)])
    log, backend = await make(room=len(large) * 5 // 2)
    answers = [asyncio.create_task(log.append([PartitionBatches(T0, large)], [])) for _ in range(4)]
    await until(lambda: log._large_checks.queued >= 2 * len(large))
    with pytest.raises(Unavailable, match=rf"{2 * len(large)} bytes of batches are being checked"):
        await log.append([PartitionBatches(T0, large)], [])
    assert await append(log) == [Appended(0, None)]
    may_go.set()
    assert [(await answer)[0].base_offset for answer in answers] == [1, 5001, 10_001, 15_001]
    assert (await backend.offset_ranges("t"))[0].end == 20_001
    assert log.semaphore.acquired == 0


async def test_a_request_cancelled_while_it_is_checked_writes_nothing_and_frees_its_bytes() -> None:
    log, _ = await make(room=1000)
    first = asyncio.create_task(
        log.append([PartitionBatches(T0, batch_of(*[bytes(at % 2) for at in range(5000)]))], [])
    )
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert log.semaphore.acquired == 0
    assert await append(log) == [Appended(0, None)]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["cancel, stop", "stop, cancel", "stop"])
async def test_a_stop_does_not_wait_for_a_request_in_its_check_which_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    begun, may_go = threading.Event(), threading.Event()
    advance = SteppedCheck.advance

    def held(check: SteppedCheck) -> None:
        begun.set()
        assert may_go.wait(60)
        advance(check)

    monkeypatch.setattr(SteppedCheck, "advance", held)
    log, backend = await make()
    large = raw_batch([raw_record(at, b"x%d" % at) for at in range(5000)], codec=4, last_delta=4999)
    requests = [asyncio.create_task(log.append([PartitionBatches(T0, large)], [])) for _ in range(3)]
    await asyncio.to_thread(begun.wait, 60)
    for act in order.split(", "):
        if act == "stop":
            log.begin_drain()
            await asyncio.wait_for(log.drained(), 60)
            assert log.abandon() == 0, "nothing is on its way"
        else:
            for request in requests[:2]:  # the one that is being checked, and one that waits
                request.cancel()
            await settle()
    may_go.set()
    ends = await asyncio.gather(*requests, return_exceptions=True)
    cancelled = 2 if "cancel" in order else 0
    assert [type(end) for end in ends] == [asyncio.CancelledError] * cancelled + [ShuttingDown] * (
        3 - cancelled
    )
    await until(lambda: log._checks.is_idle)
    assert (await backend.offset_ranges("t"))[0].end == 0
    for semaphore in (log.semaphore, log._small_checks, log._large_checks):
        assert (semaphore.acquired, semaphore.queued) == (0, 0)


async def test_searches_for_a_timestamp_take_turns_by_address(monkeypatch: pytest.MonkeyPatch) -> None:
    log, backend = await make()
    backend.gates["offset_for_timestamp"] = gate = asyncio.Event()
    searches: list[int] = []
    search = backend.offset_for_timestamp

    async def counted(partition: TopicPartition, timestamp_ms: int) -> int | None:
        searches.append(timestamp_ms)
        return await search(partition, timestamp_ms)

    monkeypatch.setattr(backend, "offset_for_timestamp", counted)

    def ask(timestamp_ms: int, peer: str) -> "asyncio.Task[list[int | None]]":
        return asyncio.create_task(log.list_offsets([OffsetQuery(T0, timestamp_ms)] * 2, peer))

    first, gone, second, other = (
        ask(1, "10.0.0.1:1"),
        ask(2, "10.0.0.1:1"),
        ask(3, "10.0.0.1:2"),
        ask(4, "10.0.0.2:1"),
    )
    await settle()
    assert searches == [1, 4]
    gone.cancel()
    gate.set()
    for asked in (first, second, other):
        assert await asked == [-1, -1]
    assert sorted(searches) == [1, 1, 3, 3, 4, 4]


async def test_the_ends_of_a_partition_need_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    log, backend = await make()
    ranges = backend.offset_ranges

    async def without_a_leader(
        topic: str, partitions: Collection[int] | None = None
    ) -> Mapping[int, OffsetRange]:
        if partitions is None or 1 in partitions:
            raise Unavailable("no leader of partition 1")
        return await ranges(topic, partitions)

    monkeypatch.setattr(backend, "offset_ranges", without_a_leader)
    assert (await log.append([PartitionBatches(T0, BATCH)], []))[0].error is None
    t0, t1 = T0, TopicPartition("t", 1)
    ends = [OffsetQuery(t0, OffsetPosition.EARLIEST), OffsetQuery(t0, OffsetPosition.LATEST)]
    assert await log.list_offsets(ends) == [0, 1]
    with pytest.raises(Unavailable):
        await log.list_offsets([*ends, OffsetQuery(t1, OffsetPosition.LATEST)])


async def test_what_is_checked_at_once_waits_for_no_room_of_the_checks_of_its_own_address() -> None:
    log, _ = await make(room=200_000)
    long = bytes(build_batch([(None, bytes(number % 2), (), 1000) for number in range(20_000)], 4))
    checks = [
        asyncio.create_task(log.append([PartitionBatches(T0, long)], [], "10.0.0.1:1")) for _ in range(4)
    ]
    await until(lambda: bool(log._small_checks.queued or log._large_checks.queued))
    assert (await log.append([PartitionBatches(T0, BATCH)], [], "10.0.0.1:2"))[0].error is None
    assert not all(each.done() for each in checks)
    await asyncio.gather(*checks)
