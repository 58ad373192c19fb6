"""pixy/proxy/kept_records.py: asynchronous records during an outage of the backend."""

import asyncio
from dataclasses import replace

import pytest
import structlog

from pixy.config import ProducerConfig
from pixy.errors import (
    DeadlineExceeded,
    Internal,
    MessageTooLarge,
    PixyError,
    ShuttingDown,
    Unavailable,
    UnknownPartition,
)
from tests.fakes.clock import FakeClock
from tests.fakes.waiting import until
from tests.proxy.producing import Answers, append, batches, flat, make

OPTIONS = ProducerConfig(timeout=10.0, retry_backoff=0.01, retry_max=6000)
"""Asynchronous records are kept for a minute, and tried again after 10 ms."""
KEEP_S = 60.0
OUTAGE = 100_000


async def test_they_are_written_in_order_when_the_outage_is_over() -> None:
    accumulators, backend, answers = await make(OPTIONS)
    backend.fail_appends(Unavailable("no leader"), OUTAGE)
    for number in range(5):
        append(accumulators, b"%d" % number, answers, sync=False)
        await asyncio.sleep(0.02)
    attempts = len(backend.ages)
    assert attempts > 2
    assert accumulators.buffered == 5
    backend.heal_appends()
    await accumulators.drained()
    assert flat(await batches(backend)) == [b"0", b"1", b"2", b"3", b"4"]
    assert accumulators.lost == accumulators.buffered == accumulators.buffered_bytes == 0


async def test_all_batches_of_a_flush_stay_in_order() -> None:
    """The first one is refused at once, the others come behind it."""
    accumulators, backend, answers = await make(replace(OPTIONS, flush_bytes=300))
    for failures in (1, 2, 3):
        backend.fail_appends(Unavailable("no leader"), failures)
        for number in range(30):
            append(accumulators, b"%d" % (100 * failures + number), answers, sync=False)
        await accumulators.drained()
    expected = [b"%d" % (100 * failures + number) for failures in (1, 2, 3) for number in range(30)]
    assert flat(await batches(backend)) == expected
    assert max(len(batch) for batch in await batches(backend)) < 30


async def test_they_are_given_up_after_retry_max_times_retry_backoff() -> None:
    clock = FakeClock()
    accumulators, backend, answers = await make(OPTIONS, clock=clock)
    backend.fail_appends(Unavailable("no leader"), OUTAGE)
    append(accumulators, b"early", answers, sync=False)
    await until(lambda: len(backend.ages) > 2)
    clock.advance(KEEP_S - 1)
    append(accumulators, b"late", answers, sync=False)
    attempts = len(backend.ages)
    await until(lambda: len(backend.ages) > attempts + 2)
    assert accumulators.lost == 0
    clock.advance(2)
    await until(lambda: accumulators.lost == 1)
    backend.heal_appends()
    await accumulators.drained()
    assert flat(await batches(backend)) == [b"late"]
    with structlog.testing.capture_logs() as logs:
        accumulators.report_lost()
    assert [(line["topic"], line["messages"], line["reason"]) for line in logs] == [
        ("letters", 1, "no leader")
    ]


@pytest.mark.slow
async def test_the_last_one_that_came_during_an_outage_is_kept_as_long_as_the_first() -> None:
    clock = FakeClock()
    accumulators, backend, answers = await make(OPTIONS, clock=clock)
    backend.fail_appends(Unavailable("no leader"), OUTAGE)
    for _ in range(20):  # twice the time
        append(accumulators, b"x", answers, sync=False)
        clock.advance(KEEP_S / 10)
        await asyncio.sleep(0.02)
    backend.heal_appends()
    await accumulators.drained()
    written = len(flat(await batches(backend)))
    assert written + accumulators.lost == 20
    assert written >= 10


async def test_a_time_limit_above_it_is_theirs_too() -> None:
    clock = FakeClock()
    accumulators, backend, answers = await make(replace(OPTIONS, retry_max=0), clock=clock)
    backend.fail_appends(Unavailable("no leader"), OUTAGE)
    append(accumulators, b"a", answers, sync=False)
    await until(lambda: len(backend.ages) > 2)
    clock.advance(9)
    await until(lambda: len(backend.ages) > 4)
    assert accumulators.lost == 0
    clock.advance(2)
    await accumulators.drained()
    assert accumulators.lost == 1


@pytest.mark.parametrize(
    "error",
    [
        MessageTooLarge("too large"),
        UnknownPartition("deleted"),
        Internal("damaged"),
        ShuttingDown(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_for_good_is_not_tried_again(error: PixyError) -> None:
    accumulators, backend, answers = await make(OPTIONS)
    backend.fail_appends(error, 1)
    append(accumulators, b"a", answers, sync=False)
    await accumulators.drained()
    assert (accumulators.lost, len(backend.ages)) == (1, 1)


@pytest.mark.parametrize(
    "error", [Unavailable("no leader"), DeadlineExceeded("in doubt")], ids=["Unavailable", "DeadlineExceeded"]
)
async def test_synchronous_records_of_their_batch_get_the_error_and_are_not_written(error: PixyError) -> None:
    accumulators, backend, answers = await make(OPTIONS)
    backend.fail_appends(error, 1)
    nobody = Answers()
    for number in range(6):
        sync = number % 2 == 0
        append(accumulators, b"%d" % number, answers if sync else nobody, sync=sync)
    await accumulators.drained()
    assert answers.all == [(-1, -1, error)] * 3
    assert flat(await batches(backend)) == [b"1", b"3", b"5"]
    assert accumulators.lost == accumulators.buffered == accumulators.buffered_bytes == 0


async def test_a_part_of_a_larger_flush_outlives_the_limit_of_the_synchronous_ones_in_it() -> None:
    accumulators, backend, nobody = await make(replace(OPTIONS, flush_bytes=1000))
    backend.fail_appends(DeadlineExceeded("in doubt"), 2)
    values = [b"%d" % number * 300 for number in range(8)]
    for value in values:
        append(accumulators, value, nobody, sync=value is values[-1])
    await accumulators.drained()
    assert len(backend.ages) > 4
    written = flat(await batches(backend))
    assert [each for each in written if each != values[-1]] == values[:-1]
    assert accumulators.lost == 0


async def test_the_backend_has_their_whole_time_unless_somebody_waits_for_the_batch() -> None:
    """The backend alone can repeat a batch whose outcome is unknown without writing it twice."""
    accumulators, backend, answers = await make(OPTIONS)
    append(accumulators, b"a", answers, sync=False)
    await accumulators.drained()
    append(accumulators, b"b", answers, sync=False)
    append(accumulators, b"c", answers)
    await accumulators.drained()
    append(accumulators, b"d", answers)
    await accumulators.drained()
    append(accumulators, b"e", answers, sync=False)
    await accumulators.drained()
    assert backend.ages == [OPTIONS.timeout - KEEP_S, 0, 0, OPTIONS.timeout - KEEP_S]


async def test_they_count_against_the_buffer_until_they_are_written() -> None:
    accumulators, backend, answers = await make(replace(OPTIONS, channel_buffer_size=2, waiting_requests=1))
    backend.fail_appends(Unavailable("no leader"), OUTAGE)
    for value in (b"a", b"b", b"c"):
        append(accumulators, value, answers, sync=False)
        await asyncio.sleep(0.02)
    assert len(answers.all) == 2  # the third one is not accepted yet
    with pytest.raises(Unavailable, match=r"producer\.channel_buffer_size"):
        append(accumulators, b"d", answers, sync=False)
    backend.heal_appends()
    await accumulators.drained()
    assert flat(await batches(backend)) == [b"a", b"b", b"c"]


async def test_other_partitions_go_on_meanwhile() -> None:
    accumulators, backend, answers = await make(OPTIONS, partitions=4)
    backend.fail_appends(Unavailable("no leader"), 3)
    append(accumulators, b"kept", Answers(), key=b"foo", sync=False)
    await until(lambda: accumulators._kept and backend.ages)
    backend.heal_appends()
    append(accumulators, b"other", answers, key=b"bar")
    await answers.wait(1)
    assert answers.all[0][2] is None
    await accumulators.drained()


async def test_nothing_is_sent_after_they_are_abandoned() -> None:
    accumulators, backend, answers = await make(OPTIONS)
    backend.fail_appends(Unavailable("no leader"), OUTAGE)
    append(accumulators, b"a", answers, sync=False)
    await until(lambda: backend.ages)
    with structlog.testing.capture_logs() as logs:
        assert accumulators.abandon() == 1
    assert [(line["messages"], line["topics"]) for line in logs] == [(1, {"letters": 1})]
    attempts = len(backend.ages)
    await asyncio.sleep(0.05)
    assert len(backend.ages) == attempts
