"""pixy/proxy/late_records.py: synchronous records behind others that are not written."""

import asyncio
from dataclasses import replace

import pytest

from pixy.config import ProducerConfig
from pixy.errors import Unavailable
from tests.fakes.clock import FakeClock
from tests.fakes.waiting import until
from tests.proxy.producing import Answers, append, batches, flat, make

OPTIONS = ProducerConfig(timeout=0.1, retry_backoff=0.01, retry_max=1_000_000)
"""Synchronous records have 0.1 s by the fake clock; they are looked at every 5 ms."""
PAUSE_S = 0.005
OUTAGE = 100_000


async def advance(clock: FakeClock, seconds: float) -> None:
    for _ in range(round(seconds / PAUSE_S)):
        clock.advance(PAUSE_S)
        await asyncio.sleep(2 * PAUSE_S)


@pytest.mark.slow
@pytest.mark.parametrize("held", [True, False], ids=["in flight", "kept"])
async def test_they_are_answered_at_their_own_limit_and_not_written(held: bool) -> None:
    clock = FakeClock()
    accumulators, backend, answers = await make(OPTIONS, clock=clock)
    if held:
        backend.hold_appends()
    else:
        backend.fail_appends(Unavailable("no leader"), OUTAGE)
    nobody = Answers()
    append(accumulators, b"a", nobody, sync=False)
    await until(lambda: backend.ages)
    append(accumulators, b"early", answers)
    append(accumulators, b"b", nobody, sync=False)
    await advance(clock, 0.06)
    append(accumulators, b"late", answers)
    append(accumulators, b"c", nobody, sync=False)
    await advance(clock, 0.06)
    reason = "messages before it are not written yet" if held else "no leader"
    assert [(type(error), str(error)) for _, _, error in answers.all] == [
        (Unavailable, f"letters-0 could not be written within 0.1 s: {reason}")
    ]
    if held:
        backend.release_appends()
    else:
        backend.heal_appends()
    await accumulators.drained()
    assert flat(await batches(backend)) == [b"a", b"b", b"late", b"c"]
    assert answers.all[1:] == [(0, 2, None)]
    assert accumulators.lost == accumulators.buffered == accumulators.buffered_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("sync", [True, False])
async def test_callers_that_queue_for_room_behind_them_have_the_limit_too(sync: bool) -> None:
    clock = FakeClock()
    accumulators, backend, answers = await make(replace(OPTIONS, channel_buffer_size=1), clock=clock)
    backend.hold_appends()
    append(accumulators, b"a", Answers(), sync=False)
    await until(lambda: backend.ages)
    append(accumulators, b"b", answers, sync=sync)
    await advance(clock, 0.12)
    assert [str(error) for _, _, error in answers.all] == ["the producer's buffer has been full for 0.1 s"]
    backend.release_appends()
    await accumulators.drained()
    assert flat(await batches(backend)) == [b"a"]


@pytest.mark.slow
async def test_nobody_is_answered_early_behind_records_that_are_not_late() -> None:
    clock = FakeClock()
    accumulators, backend, answers = await make(OPTIONS, clock=clock)
    backend.hold_appends()
    append(accumulators, b"a", Answers(), sync=False)
    await until(lambda: backend.ages)
    append(accumulators, b"b", answers)
    await advance(clock, 0.09)
    assert not answers.all
    backend.release_appends()
    await answers.wait(1)
    assert answers.all == [(0, 1, None)]


@pytest.mark.slow
@pytest.mark.parametrize("late", [[], [b"late"], [b"late", b"later"]], ids=len)
async def test_those_that_come_after_an_outage_have_their_whole_time(late: list[bytes]) -> None:
    """They are written with asynchronous ones that have waited for long."""
    clock = FakeClock()
    accumulators, backend, answers = await make(OPTIONS, clock=clock)
    backend.hold_appends()
    append(accumulators, b"a", Answers(), sync=False)
    await until(lambda: backend.ages)
    append(accumulators, b"b", Answers(), sync=False)
    for value in late:
        append(accumulators, value, answers)
    await advance(clock, 0.2)
    assert len(answers.all) == len(late)
    append(accumulators, b"new", answers)
    await advance(clock, 0.03)
    append(accumulators, b"newer", answers)
    backend.release_appends()
    await answers.wait(len(late) + 2)
    assert answers.all[len(late) :] == [(0, 2, None), (0, 3, None)]
    assert backend.ages[1:] == [pytest.approx(0.03), pytest.approx(0.0, abs=2 * PAUSE_S)]


@pytest.mark.slow
async def test_a_batch_has_the_age_of_those_that_were_not_late() -> None:
    clock = FakeClock()
    accumulators, backend, answers = await make(OPTIONS, clock=clock)
    backend.hold_appends()
    append(accumulators, b"a", Answers(), sync=False)
    await until(lambda: backend.ages)
    append(accumulators, b"late", answers)
    await advance(clock, 0.05)
    append(accumulators, b"not late", answers)
    await advance(clock, 0.06)
    assert len(answers.all) == 1
    backend.release_appends()
    await answers.wait(2)
    assert backend.ages[1] == pytest.approx(0.06, abs=2 * PAUSE_S)


@pytest.mark.slow
async def test_those_that_come_late_behind_a_write_that_hangs_have_their_own_time() -> None:
    clock = FakeClock()
    options = replace(OPTIONS, flush_bytes=300)
    accumulators, backend, answers = await make(options, clock=clock)
    backend.hold_appends()
    append(accumulators, b"hangs", answers)
    await until(lambda: backend.ages)
    append(accumulators, b"old", answers)
    await advance(clock, 0.05)
    for number in range(8):
        append(accumulators, b"%d" % number, answers)
    await advance(clock, 0.04)
    append(accumulators, b"young", answers)
    append(accumulators, b"youngest", answers)
    backend.release_appends()
    await answers.wait(12)
    assert answers.all == [(0, offset, None) for offset in range(12)]
    found = await batches(backend)
    assert found[:2] == [[b"hangs"], [b"old"]]
    assert (len(found), found[-1]) == (5, [b"young", b"youngest"]), "as many as one batch takes"
    assert backend.ages[1:] == [pytest.approx(age, abs=2 * PAUSE_S) for age in (0.09, 0.04, 0.04, 0.0)]


@pytest.mark.slow
async def test_those_with_more_time_are_not_written_before_older_ones_that_have_failed() -> None:
    clock = FakeClock()
    accumulators, backend, answers = await make(OPTIONS, clock=clock)
    backend.hold_appends()
    append(accumulators, b"hangs", answers)
    await until(lambda: backend.ages)
    append(accumulators, b"a0", Answers(), sync=False)
    append(accumulators, b"s0", answers)
    await advance(clock, 0.05)
    append(accumulators, b"a1", Answers(), sync=False)
    append(accumulators, b"s1", answers)
    backend.fail_appends(Unavailable("no leader"), 1)
    backend.release_appends()
    await accumulators.drained()
    assert flat(await batches(backend)) == [b"hangs", b"a0", b"a1", b"s1"]
    assert [str(error) for _, _, error in answers.all] == ["None", "no leader", "None"]
    assert accumulators.lost == accumulators.buffered == accumulators.buffered_bytes == 0


@pytest.mark.parametrize("sync", [True, False])
async def test_batches_of_a_flush_that_nobody_sends_again_are_sent_at_once(sync: bool) -> None:
    accumulators, backend, answers = await make(replace(OPTIONS, flush_bytes=300))
    backend.hold_appends()
    append(accumulators, b"first", answers)
    await until(lambda: backend.ages)
    for number in range(30):
        append(accumulators, b"%d" % number, answers, sync=sync or number != 15)
    backend.release_appends(1)
    await until(lambda: len(backend.ages) > 1)
    assert backend.held_appends == (5 if sync else 1)
    backend.release_appends()
    await accumulators.drained()
    assert flat(await batches(backend)) == [b"first", *[b"%d" % number for number in range(30)]]


@pytest.mark.slow
async def test_the_time_in_the_queue_counts() -> None:
    clock = FakeClock()
    options = replace(OPTIONS, channel_buffer_size=3)
    accumulators, backend, answers = await make(options, partitions=4, clock=clock)
    backend.hold_appends()
    append(accumulators, b"other", Answers(), key=b"foo", sync=False)
    append(accumulators, b"a", Answers(), key=b"bar", sync=False)
    await until(lambda: len(backend.ages) == 2)
    append(accumulators, b"b", Answers(), key=b"bar", sync=False)
    append(accumulators, b"queued", answers, key=b"bar")
    await advance(clock, 0.06)
    assert accumulators.waiting == 1
    backend.release_appends(1)
    await until(lambda: not accumulators.waiting)
    assert not answers.all
    await advance(clock, 0.06)
    assert [type(error) for _, _, error in answers.all] == [Unavailable]
    backend.release_appends()
    await accumulators.drained()
    assert flat(await batches(backend, 2)) == [b"a", b"b"]
