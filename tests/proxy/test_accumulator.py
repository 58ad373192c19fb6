"""pixy/proxy/accumulator.py: batching, the bounded buffer, failed writes."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
import structlog

from pixy.backend import TopicPartition
from pixy.config import ProducerConfig
from pixy.errors import Internal, PixyError, Unavailable
from pixy.proxy.produce_answers import ProduceDone
from pixy.proxy.topic_accumulators import record_size
from pixy.records import read_header, read_records
from tests.fakes.clock import FakeClock
from tests.fakes.waiting import settle, until
from tests.proxy.producing import TOPIC, Answers, append, batches, flat, make


async def test_records_of_one_loop_iteration_share_a_batch_with_consecutive_offsets() -> None:
    accumulators, backend, answers = await make()
    for value in (b"a", b"b", b"c"):
        append(accumulators, value, answers)
    await answers.wait(3)
    assert answers.all == [(0, 0, None), (0, 1, None), (0, 2, None)]
    assert await batches(backend) == [[b"a", b"b", b"c"]]


async def test_records_gather_while_a_batch_of_their_partition_is_in_flight() -> None:
    accumulators, backend, answers = await make()
    backend.hold_appends()
    append(accumulators, b"first", answers)
    await until(lambda: backend.held_appends)
    for value in (b"a", b"b"):
        append(accumulators, value, answers)
        await asyncio.sleep(0)
    backend.release_appends()
    await answers.wait(3)
    assert await batches(backend) == [[b"first"], [b"a", b"b"]]


async def test_a_lone_record_is_sent_at_the_end_of_the_loop_iteration() -> None:
    accumulators, backend, answers = await make()
    backend.hold_appends()
    append(accumulators, b"a", answers)
    await settle(2)
    assert backend.held_appends == 1
    backend.release_appends()
    await answers.wait(1)


async def test_concurrent_records_linger_until_as_many_are_there_as_were_outstanding() -> None:
    accumulators, backend, answers = await make()
    accumulators._linger_s = 1000.0
    for value in (b"a", b"b", b"c"):
        append(accumulators, value, answers)
    await answers.wait(3)
    backend.hold_appends()
    for value in (b"d", b"e"):
        append(accumulators, value, answers)
        await settle(3)
    assert backend.held_appends == 0
    append(accumulators, b"f", answers)
    await settle(2)
    assert backend.held_appends == 1
    backend.release_appends()
    await answers.wait(6)
    assert await batches(backend) == [[b"a", b"b", b"c"], [b"d", b"e", b"f"]]


async def test_a_linger_target_that_is_not_reached_delays_one_flush_for_a_short_time() -> None:
    accumulators, backend, answers = await make()
    for value in (b"a", b"b", b"c"):
        append(accumulators, value, answers)
    await answers.wait(3)
    append(accumulators, b"d", answers)
    await answers.wait(4)
    backend.hold_appends()
    append(accumulators, b"e", answers)
    await settle(2)
    assert backend.held_appends == 1
    backend.release_appends()
    await answers.wait(5)


async def rounds_without_a_key(options: ProducerConfig) -> list[list[int]]:
    """Partitions of ten records that arrive together, 20 times."""
    accumulators, _, _ = await make(options, partitions=4)
    rounds = []
    for _ in range(20):
        answers = Answers()
        for _ in range(10):
            append(accumulators, b"v", answers, key=None)
        await answers.wait(10)
        rounds.append([partition for partition, _, _ in answers.all])
    return rounds


@pytest.mark.parametrize("partitioner", ["hash", "murmur2"])
async def test_records_without_a_key_that_arrive_together_share_a_newly_chosen_partition(
    partitioner: str,
) -> None:
    rounds = await rounds_without_a_key(ProducerConfig(partitioner=partitioner))
    assert all(len(set(partitions)) == 1 for partitions in rounds)
    assert {partitions[0] for partitions in rounds} == {0, 1, 2, 3}


@pytest.mark.parametrize("partitioner", ["hash", "murmur2"])
async def test_asynchronous_records_without_a_key_are_spread_also_behind_a_batch_in_flight(
    partitioner: str,
) -> None:
    accumulators, backend, answers = await make(ProducerConfig(partitioner=partitioner), partitions=4)
    backend.hold_appends()
    append(accumulators, b"first", answers, key=None, sync=False)
    await until(lambda: backend.held_appends)
    for number in range(100):  # as one client sends them, and kafka-pixy's tests do
        append(accumulators, b"%d" % number, answers, key=None, sync=False)
    backend.release_appends()
    await accumulators.drained()
    spread = [len(flat(await batches(backend, partition))) for partition in range(4)]
    assert (sum(spread), min(spread) > 10) == (101, True)


@pytest.mark.parametrize("partitioner", ["random", "roundrobin"])
async def test_random_and_roundrobin_choose_for_each_record(partitioner: str) -> None:
    rounds = await rounds_without_a_key(ProducerConfig(partitioner=partitioner))
    assert all(len(set(partitions)) > 1 for partitions in rounds)


async def test_records_with_a_key_keep_their_partition_beside_those_without() -> None:
    async def where(keys: list[bytes | None]) -> dict[bytes | None, int]:
        accumulators, backend, answers = await make(partitions=4)
        for key in keys:
            append(accumulators, key or b"no key", answers, key=key)
        await answers.wait(len(keys))
        return {
            value: partition for partition in range(4) for value in flat(await batches(backend, partition))
        }

    mixed = await where([b"foo", None, b"bar", None, b"A"])
    del mixed[b"no key"]
    assert mixed == await where([b"foo", b"bar", b"A"])


async def test_a_batch_is_closed_at_flush_bytes() -> None:
    accumulators, backend, answers = await make(ProducerConfig(flush_bytes=220))
    for _ in range(5):
        append(accumulators, b"x" * 39, answers)
    await answers.wait(5)
    assert [len(batch) for batch in await batches(backend)] == [2, 2, 1]


@pytest.mark.slow
@pytest.mark.parametrize("headers", [0, 1, 50])
@pytest.mark.parametrize("size", [0, 1, 100, 10_000])
async def test_no_batch_of_several_records_is_larger_than_flush_bytes(size: int, headers: int) -> None:
    """Brokers reject larger batches as a whole, and count the header and the numbers of records
    too.
    """
    limit = 20_000
    accumulators, backend, answers = await make(ProducerConfig(flush_bytes=limit))
    topic = await backend.describe_topic(TOPIC)
    for _ in range(2000):
        named = [("h", b"")] * headers
        bytes_ = record_size((b"", b"x" * size, named, 0))
        accumulators.append(topic, b"", b"x" * size, named, bytes_, answers, None, True)
    await answers.wait(2000)
    stored = (await backend.fetch(TopicPartition(TOPIC, 0), 0, max_bytes=1 << 30)).batches
    assert sum(read_header(batch).records for batch in stored) == 2000
    assert max(len(batch) for batch in stored) <= limit
    # And not much smaller, except for overestimated sizes.
    assert len(stored) == 1 or len(stored[0]) > limit / 7


async def test_one_record_larger_than_flush_bytes_is_a_batch_of_its_own() -> None:
    accumulators, backend, answers = await make(ProducerConfig(flush_bytes=10))
    append(accumulators, b"x" * 1000, answers)
    await answers.wait(1)
    assert [len(batch) for batch in await batches(backend)] == [1]


@pytest.mark.slow
async def test_flush_frequency_batches_records_of_several_loop_iterations() -> None:
    accumulators, backend, answers = await make(ProducerConfig(flush_frequency=0.2))
    for value in (b"a", b"b", b"c"):
        append(accumulators, value, answers)
        for _ in range(50):
            await asyncio.sleep(0)
    assert answers.all == []
    await answers.wait(3)
    assert await batches(backend) == [[b"a", b"b", b"c"]]


async def test_a_full_buffer_queues_requests_in_order_until_there_is_space() -> None:
    accumulators, backend, answers = await make(ProducerConfig(channel_buffer_size=2))
    backend.hold_appends()
    waiting = [append(accumulators, b"%d" % n, answers) for n in range(5)]
    assert [handle is not None for handle in waiting] == [False, False, True, True, True]
    assert accumulators.buffered == 2
    backend.release_appends()
    await answers.wait(5)
    assert [offset for _, offset, _ in answers.all] == [0, 1, 2, 3, 4]
    assert flat(await batches(backend)) == [b"0", b"1", b"2", b"3", b"4"]


async def test_the_age_of_a_batch_is_that_of_its_oldest_record_wherever_it_waited() -> None:
    clock = FakeClock()
    accumulators, backend, answers = await make(ProducerConfig(channel_buffer_size=3), clock=clock)
    backend.hold_appends()
    append(accumulators, b"at once", answers)
    await until(lambda: backend.held_appends)
    for value in (b"gathers", b"gathers too", b"waits for room", b"waits too"):
        append(accumulators, value, answers)
        clock.advance(2.0)
    backend.release_appends(1)
    await answers.wait(1)
    clock.advance(1.0)
    backend.release_appends()
    await answers.wait(5)
    assert await batches(backend) == [
        [b"at once"],
        [b"gathers", b"gathers too", b"waits for room"],
        [b"waits too"],
    ]
    assert backend.ages == [0.0, 9.0, 3.0]


async def test_the_buffer_is_bounded_in_bytes_too_but_accepts_one_record_of_any_size() -> None:
    accumulators, backend, answers = await make(ProducerConfig(buffer_bytes=1_000_000))
    backend.hold_appends()
    assert append(accumulators, b"x" * 2_000_000, answers) is None
    assert append(accumulators, b"x", answers) is not None
    backend.release_appends()
    await answers.wait(2)


async def test_a_request_cancelled_while_queued_is_not_written() -> None:
    accumulators, backend, answers = await make(ProducerConfig(channel_buffer_size=1))
    backend.hold_appends()
    append(accumulators, b"a", answers)
    gone = append(accumulators, b"gone", answers)
    append(accumulators, b"b", answers)
    gone.cancel()  # type: ignore[attr-defined]
    backend.release_appends()
    await answers.wait(2)
    assert flat(await batches(backend)) == [b"a", b"b"]


async def test_a_cancelled_request_gives_its_place_in_the_queue_back_at_once() -> None:
    accumulators, backend, answers = await make(ProducerConfig(channel_buffer_size=1, waiting_requests=1))
    backend.hold_appends()
    append(accumulators, b"a", answers)
    for _ in range(3):
        append(accumulators, b"gone", answers).cancel()  # type: ignore[attr-defined]
    append(accumulators, b"b", answers)
    backend.release_appends()
    await answers.wait(2)
    assert flat(await batches(backend)) == [b"a", b"b"]


async def test_the_buffer_is_empty_again_after_batches_are_split() -> None:
    accumulators, backend, answers = await make(ProducerConfig(flush_bytes=100))
    topic = await backend.describe_topic(TOPIC)
    for _ in range(7):
        accumulators.append(topic, b"k", b"v", [("\u00fc" * 20, b"x")], 43 + 160, answers, None, True)
    await answers.wait(7)
    assert (accumulators.buffered, accumulators.buffered_bytes) == (0, 0)


async def test_requests_beyond_the_configured_queue_are_unavailable_and_change_nothing() -> None:
    accumulators, backend, answers = await make(ProducerConfig(channel_buffer_size=1, waiting_requests=1))
    backend.hold_appends()
    append(accumulators, b"a", answers)
    append(accumulators, b"b", answers)
    with pytest.raises(Unavailable, match=r"producer\.channel_buffer_size"):
        append(accumulators, b"c", answers)
    backend.release_appends()
    await answers.wait(2)
    assert flat(await batches(backend)) == [b"a", b"b"]


async def test_an_asynchronous_record_is_answered_at_once_with_minus_one_and_written_later() -> None:
    accumulators, backend, answers = await make()
    backend.hold_appends()
    append(accumulators, b"a", answers, sync=False)
    assert answers.all == [(-1, -1, None)]
    backend.release_appends()
    await accumulators.drained()
    assert await batches(backend) == [[b"a"]]


async def test_an_asynchronous_record_waits_for_space_before_it_is_answered() -> None:
    accumulators, backend, answers = await make(ProducerConfig(channel_buffer_size=1))
    backend.hold_appends()
    append(accumulators, b"a", answers, sync=False)
    append(accumulators, b"b", answers, sync=False)
    assert len(answers.all) == 1
    backend.release_appends()
    await answers.wait(2)
    await accumulators.drained()


async def test_a_failed_append_fails_every_record_of_the_batch() -> None:
    accumulators, backend, answers = await make()
    backend.fail_appends(Unavailable("no disk"), 1)
    append(accumulators, b"a", answers)
    append(accumulators, b"b", answers)
    await answers.wait(2)
    assert [(partition, offset, str(error)) for partition, offset, error in answers.all] == [
        (-1, -1, "no disk")
    ] * 2
    append(accumulators, b"c", answers)
    await answers.wait(3)
    assert answers.all[-1] == (0, 0, None)
    assert accumulators.buffered == accumulators.buffered_bytes == 0


async def test_failed_asynchronous_records_are_counted_and_logged_together() -> None:
    accumulators, backend, answers = await make()
    backend.fail_appends(Internal("no disk"), 3)
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            append(accumulators, b"a", answers, sync=False)
            await accumulators.drained()
        accumulators.report_lost()
    assert accumulators.lost == 3
    assert [(line["event"], line["messages"]) for line in logs] == [
        ("asynchronous messages could not be written", 3)
    ]


async def test_stored_batches_are_compressed() -> None:
    for number, name in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        accumulators, backend, answers = await make(replace(ProducerConfig(), compression=name))
        append(accumulators, b"x" * 1000, answers)
        await answers.wait(1)
        fetched = await backend.fetch(TopicPartition(TOPIC, 0), 0, max_bytes=1 << 20, max_wait=0)
        assert read_header(fetched.batches[0]).codec == number
        assert await batches(backend) == [[b"x" * 1000]]


async def test_records_go_to_the_partition_of_the_partitioner() -> None:
    accumulators, backend, answers = await make(partitions=4)
    for key in (b"", b"foo", b"bar", b"A"):
        append(accumulators, b"v-" + key, answers, key=key)
    await answers.wait(4)
    assert {partition: await batches(backend, partition) for partition in range(4)} == {
        0: [[b"v-A"]],
        1: [[b"v-foo"]],
        2: [[b"v-bar"]],
        3: [[b"v-"]],
    }


async def test_drained_waits_until_everything_is_answered() -> None:
    accumulators, backend, answers = await make(ProducerConfig(flush_frequency=3600.0))
    append(accumulators, b"a", answers, sync=False)
    await accumulators.drained()
    assert await batches(backend) == [[b"a"]]
    assert accumulators.buffered == 0


async def test_drained_waits_for_a_record_that_arrived_after_a_rejection() -> None:
    accumulators, backend, answers = await make()
    backend.fail_appends(Unavailable("no disk"), 1)
    append(accumulators, b"a", answers)
    await accumulators.drained()
    append(accumulators, b"b", answers, sync=False)
    await accumulators.drained()
    assert await batches(backend) == [[b"b"]]


async def test_giving_up_reports_the_number_of_messages_in_doubt() -> None:
    accumulators, backend, answers = await make()
    backend.hold_appends()
    append(accumulators, b"a", answers, sync=False)
    with structlog.testing.capture_logs() as logs:
        accumulators.abandon()
    assert logs[0]["messages"] == 1
    backend.release_appends()
    await accumulators.drained()


async def test_a_loop_iteration_sends_a_bounded_number_of_batches() -> None:
    accumulators, backend, answers = await make(ProducerConfig(partitioner="roundrobin"), partitions=100)
    for number in range(100):
        append(accumulators, b"%d" % number, answers, key=None)
    accumulators._flush_dirty()
    assert accumulators._in_flight == 64
    await accumulators.drained()
    assert [len(await batches(backend, number)) for number in range(100)] == [1] * 100
    assert sorted(answers.all) == [(number, 0, None) for number in range(100)]


async def test_a_loop_iteration_answers_a_bounded_number_of_records() -> None:
    accumulators, backend, answers = await make()
    for number in range(1200):
        append(accumulators, b"%d" % number, answers)
    accumulators._flush_dirty()
    sizes: list[int] = []
    while len(answers.all) < 1200:
        await asyncio.sleep(0)
        if not sizes or len(answers.all) > sizes[-1]:
            sizes.append(len(answers.all))
    assert [size for size in sizes if size] == [512, 1024, 1200]
    assert answers.all == [(0, offset, None) for offset in range(1200)]
    assert (accumulators.buffered, accumulators.buffered_bytes) == (0, 0)
    assert len(await batches(backend)) == 1


async def test_nothing_of_a_partition_is_sent_before_its_batch_is_answered_to_the_last_record() -> None:
    accumulators, backend, answers = await make()
    for number in range(600):
        append(accumulators, b"%d" % number, answers)
    accumulators._flush_dirty()
    append(accumulators, b"behind", answers)
    await answers.wait(512)
    assert len(await batches(backend)) == 1
    await accumulators.drained()
    assert [len(batch) for batch in await batches(backend)] == [600, 1]
    assert [each.in_flight for each in accumulators._topics[TOPIC].accumulators.values()] == [0]


async def test_the_wall_clock_may_step_backwards_between_two_records() -> None:
    clock = FakeClock()
    accumulators, backend, answers = await make(clock=clock)
    append(accumulators, b"a", answers)
    clock.step_wall(-3_600_000)
    append(accumulators, b"b", answers)
    await answers.wait(2)
    fetched = await backend.fetch(TopicPartition(TOPIC, 0), 0, max_bytes=1 << 20, max_wait=0)
    first, second = (record for batch in fetched.batches for record in read_records(batch))
    assert first.timestamp - second.timestamp == 3_600_000


async def told(*, fails: bool) -> dict[str, list[tuple[list[object], int, int, bool]]]:
    """Calls of two `done` callbacks for one batch of records: a a b, an asynchronous one, b a."""
    accumulators, backend, answers = await make()
    description = backend.topic(TOPIC)
    assert description is not None
    calls: dict[str, list[tuple[list[object], int, int, bool]]] = {"a": [], "b": []}

    def by(name: str) -> ProduceDone:
        def done(waiters: Sequence[object], partition: int, offset: int, error: PixyError | None) -> None:
            calls[name].append((list(waiters), partition, offset, error is not None))

        return done

    a, b = by("a"), by("b")
    for waiter, done in ((1, a), (2, a), (3, b), (None, answers), (4, b), (5, a)):
        accumulators.append(description, b"k", b"v", (), 2, done, waiter, waiter is not None)
    if fails:
        backend.fail_appends(Internal("no disk"), 1)
    await accumulators.drained()
    assert answers.all == [(-1, -1, None)]
    assert accumulators.lost == (1 if fails else 0)
    return calls


async def test_adjacent_callers_in_a_batch_are_answered_by_one_call() -> None:
    calls = await told(fails=False)
    assert calls == {
        "a": [([1, 2], 0, 0, False), ([5], 0, 5, False)],
        "b": [([3], 0, 2, False), ([4], 0, 4, False)],
    }


async def test_adjacent_callers_in_a_failed_batch_get_the_error_by_one_call() -> None:
    calls = await told(fails=True)
    assert calls == {
        "a": [([1, 2], -1, -1, True), ([5], -1, -1, True)],
        "b": [([3], -1, -1, True), ([4], -1, -1, True)],
    }
