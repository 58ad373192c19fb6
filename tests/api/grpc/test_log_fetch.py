"""pixy/api/grpc/log.py: fetches over a real gRPC server, on a real embedded log and on one in
memory that has gaps.
"""

import asyncio
import weakref

import grpc
import pytest

from pixy.backend import FetchResult, TopicPartition
from pixy.proto import pixy_log_pb2 as pb
from pixy.proxy.fetch_ranges import FetchRanges
from tests.api.grpc.bulk import PATIENCE, T0, ServedBulk, fails, offsets, range_of, serve
from tests.fakes.backend import FakeBackend
from tests.fakes.batches import batch_of, offsets_in, values_in
from tests.fakes.grpc_client import messages_in, open_client
from tests.fakes.waiting import until

CODE = grpc.StatusCode


# --- Fetch ----------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_appended_batches_are_fetched_byte_for_byte_except_for_base_offset_and_leader_epoch(
    bulk: ServedBulk,
) -> None:
    written = [batch_of(b"a", b"b"), batch_of(b"c", compression=1)]
    batches = pb.PartitionBatches(topic="t", batches=b"".join(written))
    (result,) = (await bulk.log.Append(pb.AppendRequest(partitions=[batches]))).results
    assert (result.base_offset, result.code, result.message) == (0, 0, "")
    (answer,) = await bulk.fetch(range_of())
    assert offsets([answer]) == [0, 1, 2]
    at = 0
    for base, batch in zip((0, 2), written, strict=True):
        assert answer.batches[at : at + 8] == base.to_bytes(8, "big")
        assert answer.batches[at + 8 : at + 12] == batch[8:12]
        assert answer.batches[at + 16 : at + len(batch)] == batch[16:]
        at += len(batch)
    assert at == len(answer.batches)
    assert (answer.range, answer.next_offset, answer.state) == (0, 3, pb.END_OF_RANGE)
    assert (answer.log_begin_offset, answer.log_end_offset) == (0, 3)


@pytest.mark.slow
async def test_ranges_are_returned_one_after_the_other_in_the_order_of_the_request(bulk: ServedBulk) -> None:
    await bulk.append(b"a", partition=0)
    await bulk.append(b"b", partition=1)
    answers = await bulk.fetch(range_of(partition=1), range_of(partition=0), range_of(partition=1))
    assert [(each.range, values_in(each.batches)) for each in answers] == [
        (0, [b"b"]),
        (1, [b"a"]),
        (2, [b"b"]),
    ]


@pytest.mark.slow
async def test_a_response_holds_max_bytes_and_at_least_one_whole_batch(bulk: ServedBulk) -> None:
    for number in range(4):
        await bulk.append(bytes(1000), str(number).encode())
    one = len(batch_of(bytes(1000), b"0"))
    by_size = {size: await bulk.fetch(range_of(), max_bytes=size) for size in (1, 2 * one, 0)}
    counts = {
        size: [len(offsets_in(each.batches)) // 2 for each in answers] for size, answers in by_size.items()
    }
    assert counts == {1: [1, 1, 1, 1], 2 * one: [2, 2], 0: [4]}
    assert [each.state for each in by_size[1]] == [pb.MORE] * 3 + [pb.END_OF_RANGE]
    assert [each.next_offset for each in by_size[1]] == [2, 4, 6, 8]


@pytest.mark.slow
async def test_a_range_is_split_at_batches(bulk: ServedBulk) -> None:
    for _ in range(3):
        await bulk.append(b"a", b"b", b"c")
    (answer,) = await bulk.fetch(range_of(1, 5))
    assert offsets([answer]) == [0, 1, 2, 3, 4, 5]
    assert (answer.next_offset, answer.state) == (6, pb.END_OF_RANGE)
    (answer,) = await bulk.fetch(range_of(3, 6))
    assert (offsets([answer]), answer.next_offset) == ([3, 4, 5], 6)
    (answer,) = await bulk.fetch(range_of(4, 7))
    assert (offsets([answer]), answer.next_offset) == ([3, 4, 5, 6, 7, 8], 9)


@pytest.mark.slow
async def test_an_empty_range_is_complete_and_has_the_range_of_the_log(bulk: ServedBulk) -> None:
    await bulk.append(b"a", b"b")
    (answer,) = await bulk.fetch(range_of(1, 1))
    assert (answer.batches, answer.next_offset, answer.state) == (b"", 1, pb.END_OF_RANGE)
    assert (answer.log_begin_offset, answer.log_end_offset) == (0, 2)
    for missing in (range_of(1, 1, partition=9), range_of(1, 1, topic="none")):
        (answer,) = await bulk.fetch(missing)
        assert answer.state == pb.UNKNOWN_PARTITION


async def test_a_log_that_ends_before_the_range_is_reported(bulk: ServedBulk) -> None:
    await bulk.append(b"a")
    (answer,) = await bulk.fetch(range_of(0, 5))
    assert (offsets([answer]), answer.next_offset, answer.state) == ([0], 1, pb.END_OF_LOG)
    (answer,) = await bulk.fetch(range_of(1, 5), max_wait_ms=1)
    assert (answer.batches, answer.next_offset, answer.state) == (b"", 1, pb.END_OF_LOG)
    (answer,) = await bulk.fetch(range_of(1))
    assert (answer.batches, answer.next_offset, answer.state) == (b"", 1, pb.END_OF_RANGE)


@pytest.mark.slow
async def test_a_range_waits_at_the_end_of_the_log_until_its_end_is_written(bulk: ServedBulk) -> None:
    await bulk.append(b"a")
    async with asyncio.timeout(PATIENCE):
        call = bulk.log.Fetch(pb.FetchRequest(ranges=[range_of(0, 3)], max_wait_ms=600_000))
        answers = aiter(call)
        first = await anext(answers)
        assert (offsets([first]), first.state) == ([0], pb.MORE)
        await bulk.append(b"b")
        second = await anext(answers)
        assert (offsets([second]), second.state) == ([1], pb.MORE)
        await bulk.append(b"c")
        third = await anext(answers)
        assert (offsets([third]), third.state) == ([2], pb.END_OF_RANGE)
        assert [answer async for answer in answers] == []


async def test_offsets_out_of_range_are_reported_with_the_range_of_the_log(
    fake: tuple[ServedBulk, FakeBackend],
) -> None:
    bulk, backend = fake
    for _ in range(4):
        await bulk.append(b"a")
    backend.move_log_begin(T0, 2)
    for begin in (1, 5):
        answer, after = await bulk.fetch(range_of(begin), range_of(2))
        assert (answer.batches, answer.next_offset, answer.state) == (b"", begin, pb.OFFSET_OUT_OF_RANGE)
        assert (answer.log_begin_offset, answer.log_end_offset) == (2, 4)
        assert offsets([after]) == [2, 3]


@pytest.mark.slow
async def test_a_missing_partition_ends_only_its_range(bulk: ServedBulk) -> None:
    await bulk.append(b"a")
    answers = await bulk.fetch(
        range_of(partition=2), range_of(partition=-1), range_of(topic="none"), range_of()
    )
    assert [each.state for each in answers] == [pb.UNKNOWN_PARTITION] * 3 + [pb.END_OF_RANGE]
    assert offsets(answers) == [0]


@pytest.mark.slow
async def test_a_topic_with_another_id_is_not_the_requested_one(bulk: ServedBulk) -> None:
    await bulk.append(b"a")
    known = bulk.backend.topic("t")
    assert known is not None
    right, wrong = range_of(), range_of()
    right.topic_id, wrong.topic_id = known.topic_id, bytes(16)
    answers = await bulk.fetch(wrong, right)
    assert [(each.state, len(each.batches) > 0) for each in answers] == [
        (pb.UNKNOWN_PARTITION, False),
        (pb.END_OF_RANGE, True),
    ]
    await bulk.backend.delete_topic("t")
    await bulk.backend.create_topic("t", 1)
    await bulk.append(b"b")
    (answer,) = await bulk.fetch(right)
    assert (answer.state, answer.batches) == (pb.UNKNOWN_PARTITION, b"")


@pytest.mark.slow
@pytest.mark.parametrize("topic_id", [False, True])
async def test_a_range_never_continues_in_a_later_topic_of_the_same_name(
    bulk: ServedBulk, topic_id: bool
) -> None:
    await bulk.append(b"a")
    wanted = range_of()
    known = bulk.backend.topic("t")
    if topic_id and known is not None:
        wanted.topic_id = known.topic_id
    async with asyncio.timeout(PATIENCE):
        call = bulk.log.Fetch(pb.FetchRequest(ranges=[wanted], max_wait_ms=600_000))
        answers = aiter(call)
        assert offsets([await anext(answers)]) == [0]
        await bulk.backend.delete_topic("t")
        await bulk.backend.create_topic("t", 1)
        await bulk.append(b"b")
        await bulk.append(b"c")
        (last,) = [answer async for answer in answers]
    assert (last.state, last.batches) == (pb.UNKNOWN_PARTITION, b"")


async def test_gaps_are_skipped_wherever_they_are(fake: tuple[ServedBulk, FakeBackend]) -> None:
    bulk, backend = fake
    await bulk.append(b"a", b"b")
    backend.add_gap(T0, 3)
    await bulk.append(b"c")
    backend.add_gap(T0, 2)
    answers = await bulk.fetch(range_of(), max_bytes=1)
    assert offsets(answers) == [0, 1, 5]
    assert (answers[-1].next_offset, answers[-1].log_end_offset, answers[-1].state) == (
        8,
        8,
        pb.END_OF_RANGE,
    )
    for begin, end, expected in [(2, 4, []), (2, 5, []), (0, 4, [0, 1]), (3, 6, [5]), (6, 8, []), (7, 8, [])]:
        answers = await bulk.fetch(range_of(begin, end))
        assert (offsets(answers), answers[-1].state) == (expected, pb.END_OF_RANGE), (begin, end)
        assert answers[-1].next_offset >= end


async def test_a_gap_at_the_end_of_the_log_is_progress(fake: tuple[ServedBulk, FakeBackend]) -> None:
    bulk, backend = fake
    await bulk.append(b"a")
    async with asyncio.timeout(PATIENCE):
        call = bulk.log.Fetch(pb.FetchRequest(ranges=[range_of(0, 4)], max_wait_ms=600_000))
        answers = aiter(call)
        assert offsets([await anext(answers)]) == [0]
        backend.add_gap(T0, 3)
        (last,) = [answer async for answer in answers]
    assert (last.batches, last.next_offset, last.state) == (b"", 4, pb.END_OF_RANGE)


async def test_compacted_and_control_batches_are_returned_as_stored(
    fake: tuple[ServedBulk, FakeBackend],
) -> None:
    bulk, backend = fake
    await bulk.append(b"a", b"b", b"c")
    backend.compact(T0, 1, 2)
    backend.add_control_batch(T0)
    await bulk.append(b"d")
    (answer,) = await bulk.fetch(range_of())
    assert offsets([answer]) == [0, 4]
    assert answer.next_offset == 5


@pytest.mark.slow
async def test_an_invalid_fetch_is_rejected(bulk: ServedBulk) -> None:
    bad = CODE.INVALID_ARGUMENT
    for request, text in [
        (pb.FetchRequest(), "no ranges, expected at least one"),
        (pb.FetchRequest(cluster="x", ranges=[range_of()]), "proxy `x` does not exist"),
        (
            pb.FetchRequest(ranges=[range_of(), range_of(5, 4)]),
            "to_offset of t-0 is 4, expected from_offset 5 or above, or -1",
        ),
        (pb.FetchRequest(ranges=[range_of(0, -2)]), "to_offset of t-0 is -2"),
        (pb.FetchRequest(ranges=[range_of(-1)]), "from_offset of t-0 is -1, expected 0 or above"),
        (pb.FetchRequest(ranges=[range_of(topic="a b")]), "invalid topic name 'a b'"),
        (
            pb.FetchRequest(ranges=[pb.FetchRange(topic="t", topic_id=b"short")]),
            "topic_id of t-0 has 5 bytes, expected none or 16",
        ),
        (pb.FetchRequest(ranges=[range_of()], max_bytes=-1), "max_bytes is -1"),
        (pb.FetchRequest(ranges=[range_of()], max_wait_ms=-1), "max_wait_ms is -1, expected 0 or above"),
    ]:
        await fails(anext(aiter(bulk.log.Fetch(request))), bad, text)


async def test_damaged_batches_end_the_fetch_with_internal(fake: tuple[ServedBulk, FakeBackend]) -> None:
    bulk, backend = fake
    await bulk.append(b"a")
    await bulk.append(b"b")
    backend.corrupt(T0, 1)
    answers = aiter(bulk.log.Fetch(pb.FetchRequest(ranges=[range_of()])))
    assert offsets([await anext(answers)]) == [0]
    await fails(anext(answers), CODE.INTERNAL, "CRC")


async def test_a_cancelled_fetch_leaves_nothing_behind(fake: tuple[ServedBulk, FakeBackend]) -> None:
    bulk, backend = fake
    call = bulk.log.Fetch(pb.FetchRequest(ranges=[range_of()], max_wait_ms=600_000))
    async with asyncio.timeout(PATIENCE):
        await until(lambda: backend.waiting_fetches(T0))
        call.cancel()
        await until(lambda: not backend.waiting_fetches(T0))


async def test_ranges_of_waiting_fetches_are_bounded(fake: tuple[ServedBulk, FakeBackend]) -> None:
    bulk, backend = fake
    bulk.proxy.log.fetches = FetchRanges(50, limit=100)
    many = pb.FetchRequest(ranges=[range_of()] * 40, max_wait_ms=600_000)
    call = bulk.log.Fetch(many)
    async with asyncio.timeout(PATIENCE):
        await until(lambda: backend.waiting_fetches(T0))
        refused = aiter(bulk.log.Fetch(many))
        await fails(anext(refused), CODE.RESOURCE_EXHAUSTED, "39 more exceed 50, their share")
        assert offsets(await bulk.fetch(range_of())) == []
        call.cancel()
        await until(lambda: not bulk.proxy.log.fetches.running)


# --- flow control ---------------------------------------------------------------------------------


class _Counting(FakeBackend):
    """A cluster that counts its fetches."""

    fetches = 0

    async def fetch(
        self, partition: TopicPartition, offset: int, *, max_bytes: int, max_wait: float | None = None
    ) -> FetchResult:
        result = await super().fetch(partition, offset, max_bytes=max_bytes, max_wait=max_wait)
        self.fetches += 1
        return result


FETCH, DESCRIBE = "/pixy.log.v1.Log/Fetch", "/pixy.log.v1.Log/DescribeTopics"


async def test_nothing_is_read_before_the_client_has_taken_earlier_responses() -> None:
    backend = _Counting()
    async with serve(backend) as bulk, open_client(bulk.address, window=10_000) as client:
        for _ in range(4):
            await bulk.append(bytes(50_000))
        request = pb.FetchRequest(ranges=[range_of()], max_bytes=1)
        stream_id = client.request(FETCH, request.SerializeToString())
        answer = client.answers[stream_id]
        await client.until(lambda: len(answer.body) == 10_000)
        await client.call(DESCRIBE, b"")
        assert backend.fetches == 1
        client.open_window(0, 1_000_000)
        client.open_window(stream_id, 60_000)
        await client.until(lambda: len(answer.body) == 70_000)
        await client.call(DESCRIBE, b"")
        assert backend.fetches == 2
        client.open_window(stream_id, 1_000_000)
        await client.answer(stream_id)
        assert (answer.status, backend.fetches) == (0, 4)
        responses = [pb.FetchResponse.FromString(body) for _, body in messages_in(answer.body)]
        assert offsets(responses) == [0, 1, 2, 3]


class _Copied(bytearray):
    """A batch that can be watched."""


class _Watched(FakeBackend):
    """A cluster that knows which of the batches that it has returned are in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.returned: list[weakref.ref[_Copied]] = []

    async def fetch(
        self, partition: TopicPartition, offset: int, *, max_bytes: int, max_wait: float | None = None
    ) -> FetchResult:
        result = await super().fetch(partition, offset, max_bytes=max_bytes, max_wait=max_wait)
        copied = [_Copied(batch) for batch in result.batches]
        self.returned += map(weakref.ref, copied)
        return result._replace(batches=copied)

    @property
    def kept(self) -> int:
        return sum(ref() is not None for ref in self.returned)


@pytest.mark.parametrize(("size", "sent", "kept"), [(10_000, 0, 0), (100_000, 750_000, 3)])
async def test_an_unread_response_is_in_memory_once_and_what_was_sent_is_not(
    size: int, sent: int, kept: int
) -> None:
    """Small batches are copied into it, large ones are part of it."""
    backend = _Watched()
    async with serve(backend) as bulk, open_client(bulk.address, window=1_000) as client:
        for _ in range(1_000_000 // size):
            await bulk.append(bytes(size - 100))
        request = pb.FetchRequest(ranges=[range_of()], max_bytes=1_000_000)
        stream_id = client.request(FETCH, request.SerializeToString())
        client.open_window(0, 1_000_000)
        client.open_window(stream_id, 1_000 + sent)
        answer = client.answers[stream_id]
        await client.until(lambda: len(answer.body) == 2_000 + sent)
        await client.call(DESCRIBE, b"")
        assert len(backend.returned) == 1_000_000 // size
        assert backend.kept <= kept


@pytest.mark.slow
async def test_unread_fetches_of_one_connection_hold_bounded_memory_and_all_complete() -> None:
    backend = _Counting()
    async with serve(backend) as bulk, open_client(bulk.address, window=1_000) as client:
        for _ in range(3):
            await bulk.append(bytes(300_000))
        request = pb.FetchRequest(ranges=[range_of(1, 3)], max_bytes=1_000_000)
        streams = [client.request(FETCH, request.SerializeToString()) for _ in range(30)]
        # Half of `grpc.output_buffer_bytes`, for responses of 1 MB each: of whichever streams.
        at_once = (8 << 20) // 2 // 1_000_000
        await client.until(
            lambda: sum(len(client.answers[each].body) == 1_000 for each in streams) == at_once
        )
        await client.call(DESCRIBE, b"")
        assert backend.fetches == at_once
        client.open_window(0, 2**30)
        for stream_id in streams:
            client.open_window(stream_id, 10_000_000)
        for stream_id in streams:
            answer = await client.answer(stream_id)
            assert (answer.reset, answer.status) == (None, 0)
            ((_, body),) = messages_in(answer.body)
            assert offsets([pb.FetchResponse.FromString(body)]) == [1, 2]
        assert backend.fetches == 30


@pytest.mark.slow
async def test_a_fetch_that_waits_for_records_holds_no_buffer_space() -> None:
    async with serve(FakeBackend()) as bulk:
        waiting = [
            bulk.log.Fetch(pb.FetchRequest(ranges=[range_of()], max_bytes=4_000_000, max_wait_ms=600_000))
            for _ in range(20)
        ]
        reading = [asyncio.ensure_future(anext(aiter(call))) for call in waiting]
        await bulk.append(b"a", partition=1)
        assert offsets(await bulk.fetch(range_of(partition=1), max_bytes=4_000_000)) == [0]
        await bulk.append(b"b", partition=0)
        async with asyncio.timeout(PATIENCE):
            assert [offsets([each]) for each in await asyncio.gather(*reading)] == [[0]] * 20
        for call in waiting:
            call.cancel()
