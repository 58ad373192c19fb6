"""Checks of requests take turns, end with their call, and cost no more than a maximum."""

import asyncio

import pytest

from pixy.aio.one_thread import OneThread
from pixy.backend import TopicPartition
from pixy.check_turns import effort_of
from pixy.errors import MessageTooLarge
from pixy.proxy.batch_check_turns import BatchChecks, PartitionBatches
from pixy.records import BatchLimits, build_batch
from tests.fakes.batches import raw_batch, raw_record

LIMITS = BatchLimits(1 << 20)
LONG = bytes(build_batch([(None, bytes(number % 2), (), 1000) for number in range(20_000)], 4))
SMALL = raw_batch([raw_record(0, bytes(100_000))], codec=4)
ZEROS = raw_batch([raw_record(number, bytes(999_900)) for number in range(4)], codec=4)


def request(*batches: bytes) -> list[PartitionBatches]:
    return [PartitionBatches(TopicPartition("t", 0), b"".join(batches))]


async def test_a_request_waits_for_a_slice_of_another_one_and_not_for_its_end() -> None:
    checks = BatchChecks()
    long = asyncio.create_task(checks.check(request(*[LONG] * 20), LIMITS))
    await asyncio.sleep(0)
    (batches,) = await checks.check(request(LONG), LIMITS)
    assert isinstance(batches, list)
    assert [batch.records for batch in batches] == [20_000]
    assert not long.done()
    (all_of_them,) = await long
    assert isinstance(all_of_them, list)
    assert len(all_of_them) == 20


async def test_addresses_take_turns_however_many_checks_one_has() -> None:
    checks = BatchChecks()
    hostile = [asyncio.create_task(checks.check(request(*[LONG] * 5), LIMITS, "a")) for _ in range(5)]
    await asyncio.sleep(0)
    await checks.check(request(*[LONG] * 5), LIMITS, "b")
    assert not any(each.done() for each in hostile)
    await asyncio.gather(*hostile)


async def test_a_small_request_waits_for_nobody() -> None:
    checks = BatchChecks()
    long = asyncio.create_task(checks.check(request(*[LONG] * 5), LIMITS))
    await asyncio.sleep(0)
    small = checks.check(request(raw_batch([raw_record(0, b"x")])), LIMITS)
    with pytest.raises(StopIteration):
        small.send(None)
    await long


async def test_small_batches_are_checked_on_the_event_loop_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OneThread, "run", None)
    several = [bytes(build_batch([(None, bytes(at % 7), (), 1000) for at in range(500)]))] * 40
    checks, turns = BatchChecks(), 0
    found = [asyncio.create_task(checks.check(request(*several), LIMITS)) for _ in range(2)]
    while not all(each.done() for each in found):
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 5
    for each in found:
        (batches,) = each.result()
        assert isinstance(batches, list)
        assert len(batches) == 40
    assert checks.is_idle


async def test_the_check_of_a_call_that_has_ended_stops() -> None:
    checks = BatchChecks()
    long = asyncio.create_task(checks.check(request(*[LONG] * 40), LIMITS))
    await asyncio.sleep(0)
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long
    await checks.check(request(LONG), LIMITS)
    assert checks.is_idle


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "count"), [(ZEROS, 110), (LONG, 110), (SMALL, 1500)], ids=["bytes", "records", "turns"]
)
async def test_a_request_that_costs_too_much_is_refused_as_soon_as_it_does(batch: bytes, count: int) -> None:
    checks = BatchChecks()
    with pytest.raises(MessageTooLarge, match="the batches of the request decompress to more than 134217728"):
        await checks.check(request(*[batch] * count, b"not a batch, and never looked at"), LIMITS)


def test_uncompressed_records_never_cost_too_much() -> None:
    smallest = raw_batch([raw_record(0, b"")])
    many = build_batch([(None, None, (), 1000)] * 10_000)
    for batch, records in ((smallest, 1), (many, 10_000)):
        for size in (1 << 20, 1 << 26):
            cost = size // len(batch) * (64 + records + records // 8)
            assert cost <= effort_of(size).records
