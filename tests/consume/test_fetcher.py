import asyncio

import pytest
from structlog.testing import capture_logs

from pixy.backend import FetchResult, OffsetCommit
from pixy.consume import ConsumeRequest
from pixy.consume.partition.partition_offers import PartitionOffers
from pixy.errors import LongPollTimeout, Unavailable, UnpackedTooLarge
from pixy.records import COMPRESSION, NewRecord, build_batch, patch_batch
from tests.consume.conftest import MakeWorld
from tests.consume.fakes import Answers, make_batch
from tests.consume.test_partition_offers import patch_crc
from tests.fakes.batches import bomb
from tests.fakes.waiting import settle


async def test_waiting_for_records_takes_one_fetch(make_world: MakeWorld) -> None:
    world = make_world()
    answers = await world.consume()
    await world.pass_time(2.0)
    assert len(world.backend.fetched) == 1
    world.log().append(b"a")
    await world.pass_time(0)
    assert answers.values == [b"a"]
    assert len(world.backend.fetched) == 2


async def test_prefetch_is_bounded(make_world: MakeWorld) -> None:
    world = make_world(fetch_max_bytes=10_000, max_pending_messages=10)
    for _ in range(100):
        world.log().append(*[b"x" * 100] * 10)
    await world.consume(1)
    size = len(world.log().batches[0])
    held = sum(max_bytes // size * size for _, _, max_bytes in world.backend.fetched)
    assert held <= 10_000 + size
    fetches = len(world.backend.fetched)
    await world.consume(1)
    assert len(world.backend.fetched) == fetches


async def test_everything_is_delivered_once_through_a_small_buffer(make_world: MakeWorld) -> None:
    world = make_world(fetch_max_bytes=2000)
    for _ in range(50):
        world.log().append(*[b"x" * 100] * 10)
    answers = await world.consume(10)
    for _ in range(49):
        for offer in answers.offers[-10:]:
            offer.auto_ack = True
            offer.delivered()
        answers.offers += (await world.consume(10)).offers
    assert answers.offsets == list(range(500))


async def test_a_record_larger_than_a_fetch_is_delivered(make_world: MakeWorld) -> None:
    world = make_world(fetch_max_bytes=100, max_pending_bytes=50)
    world.log().append(b"x" * 5000)
    world.log().append(b"small")
    assert (await world.consume()).offsets == [0]


async def test_deleted_records_are_skipped_and_logged_once(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"old")
    assert (await world.consume()).offsets == [0]
    log = world.log()
    log.begin = log.end = 20
    log.batches.clear()
    log.append(b"new")
    with capture_logs() as logs:
        assert (await world.consume()).values == [b"new"]
    assert [entry["begin"] for entry in logs if "log begin offset" in entry["event"]] == [20]
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(20)


async def test_a_truncated_log_is_followed_and_logged_once(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a", b"b")
    world.log().append(b"c", b"d", b"e")
    answers = await world.consume(5, auto_ack=True)
    for offer in answers.offers:
        offer.delivered()
    log = world.log()
    del log.batches[1]
    log.end = 2
    log.wake()
    with capture_logs() as logs:
        await world.pass_time(1)
    assert [entry["end"] for entry in logs if "beyond the end" in entry["event"]] == [2]
    assert world.committed() == OffsetCommit(2)
    log.append(b"new")
    assert (await world.consume()).values == [b"new"]


@pytest.mark.slow
async def test_a_failing_fetch_is_logged_once_and_retried_with_increasing_delay(
    make_world: MakeWorld,
) -> None:
    world = make_world(subscription_timeout=60.0)
    world.log().append(b"a")
    world.backend.failures["fetch"] = Unavailable("no leader")
    with capture_logs() as logs:
        answers = await world.consume()
        for _ in range(100):
            await world.pass_time(0.1)
        assert 8 <= len(world.backend.fetched) <= 16
        assert [entry["error"] for entry in logs if "cannot fetch" in entry["event"]] == ["no leader"]
        assert len(answers.errors) == 1
        world.backend.failures.clear()
        await world.pass_time(5)
        assert [entry["event"] for entry in logs].count("fetching again") == 1
    assert (await world.consume()).values == [b"a"]


async def test_polls_report_a_failing_partition_until_it_can_be_read_even_if_it_is_empty(
    make_world: MakeWorld,
) -> None:
    world = make_world(subscription_timeout=60.0, long_polling_timeout=3.0)
    world.backend.failures["fetch"] = Unavailable("no leader")
    answers = await world.consume()
    await world.pass_time(3)
    assert [str(error) for error in answers.errors] == ["no leader"]
    world.backend.failures.clear()
    await world.pass_time(1)
    answers = await world.consume()
    await world.pass_time(3)
    assert [type(error) for error in answers.errors] == [LongPollTimeout]


async def test_a_deleted_topic_is_not_reported_before_the_assignment_changes(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    answers = await world.consume()
    with capture_logs() as logs:
        world.backend.delete("t", silently=True)
        await world.pass_time(0.3)
        fetches = len(world.backend.fetched)
        world.backend.groups.assign_all(again=True)
        await world.pass_time(10)
    assert logs == []
    assert (len(world.backend.fetched), len(answers.errors)) == (fetches, 1)


async def test_damaged_data_stops_the_fetcher_there_until_it_is_repaired(make_world: MakeWorld) -> None:
    world = make_world()
    good = make_batch(0, [b"abc"] * 4)
    bad = bytearray(good)
    bad[61 + 2 * ((len(bad) - 61) // 4)] = 0x7F
    patch_crc(bad)
    log = world.log()
    log.batches, log.end = [bytes(bad)], 4
    with capture_logs() as logs:
        answers = await world.consume(3)
        assert answers.offsets == [0, 1]
        await world.pass_time(1)
    assert sum("cannot fetch" in entry["event"] for entry in logs) == 1
    log.batches = [good]
    await world.pass_time(1.9)
    assert answers.offsets == [0, 1, 2]


async def test_damage_found_while_the_fetcher_waits_at_the_end_is_fetched_again(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    good = make_batch(0, [b"abc"] * 4)
    bad = bytearray(good)
    bad[61 + 2 * ((len(bad) - 61) // 4)] = 0x7F
    patch_crc(bad)
    log = world.log()
    log.batches, log.end = [bytes(bad)], 4
    assert (await world.consume()).offsets == [0]
    log.batches = [good]
    answers = await world.consume(3)
    await world.pass_time(1)
    assert answers.offsets == [1, 2, 3]


@pytest.mark.slow
async def test_a_batch_that_decompresses_too_far_stops_only_its_partition_and_is_reported_with_its_offset(
    make_world: MakeWorld,
) -> None:
    world = make_world(2)
    bad = bytearray(bomb())
    patch_batch(bad, 1, 0)
    log, other = world.log(0), world.log(1)
    log.append(b"before")
    log.batches.append(bytes(bad))
    log.end = 2
    log.append(b"behind")
    with capture_logs() as logs:
        answers = await world.consume(3)
        assert answers.values == [b"before"]
        other.append(b"elsewhere")
        await world.pass_time(0.1)
        assert answers.values == [b"before", b"elsewhere"]
        await world.pass_time(10)
    where = "partition 0 of topic t: record batch at offset 1 cannot be decoded, the next batch is at 2: "
    (said,) = [entry for entry in logs if "cannot fetch" in entry["event"]]
    assert (said["group"], said["topic"], said["partition"], said["offset"]) == ("g", "t", 0, 1)
    assert said["error"].startswith(where)
    (told,) = answers.errors
    assert isinstance(told, UnpackedTooLarge)
    assert str(told).startswith(where)
    await world.consumers.set_offsets("g", "t", {0: OffsetCommit(2)})
    assert (await world.consume()).values == [b"behind"]


def large_batch(base: int) -> bytes:
    """A compressed batch of three records, too large to unpack in place."""
    batch = build_batch([NewRecord(None, b"x" * 50_000, (), 1)] * 3, COMPRESSION["zstd"])
    patch_batch(batch, base, 0)
    return bytes(batch)


async def test_a_large_batch_is_unpacked_on_a_thread_and_nothing_overtakes_it(make_world: MakeWorld) -> None:
    world = make_world(2)
    log, other = world.log(0), world.log(1)
    log.append(b"before")
    log.batches.append(large_batch(1))
    log.end = 4
    log.append(b"behind")
    gate = world.backend.gates["unpack"] = asyncio.Event()
    answers = await world.consume(6)
    assert answers.offsets == [0]
    other.append(b"elsewhere")
    await world.pass_time(0.1)
    assert answers.values == [b"before", b"elsewhere"]
    gate.set()
    await world.pass_time(0)
    assert answers.offsets == [0, 0, 1, 2, 3, 4]
    assert len(world.unpacked) == 1


@pytest.mark.parametrize("behind", [0, 3000], ids=["for records", "for room"])
async def test_a_large_batch_reached_while_the_fetcher_waits_is_unpacked_then(
    make_world: MakeWorld, behind: int
) -> None:
    world = make_world(fetch_max_bytes=4000)
    log = world.log()
    log.append(b"before")
    log.batches.append(large_batch(1))
    log.end = 4
    if behind:
        log.append(b"x" * behind)
    assert (await world.consume()).offsets == [0]
    assert (await world.consume(3)).offsets == [1, 2, 3]


async def test_a_reset_while_a_large_batch_is_unpacked_discards_it(make_world: MakeWorld) -> None:
    world = make_world()
    log = world.log()
    log.batches.append(large_batch(0))
    log.end = 3
    log.append(b"behind")
    gate = world.backend.gates["unpack"] = asyncio.Event()
    answers = await world.consume(2)
    await world.consumers.set_offsets("g", "t", {0: OffsetCommit(3)})
    gate.set()
    await world.pass_time(0)
    assert answers.offsets == [3]
    await world.consumers.set_offsets("g", "t", {0: OffsetCommit(1)})
    await world.pass_time(0)
    assert answers.offsets == [3, 1]


async def test_the_answer_to_a_fetch_from_before_a_reset_is_dropped(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(*[b"x"] * 5)
    gate = world.backend.gates["fetch"] = asyncio.Event()
    answers = await world.consume()
    await world.consumers.set_offsets("g", "t", {0: OffsetCommit(3)})
    gate.set()
    await world.pass_time(0)
    assert answers.offsets == [3]


# --- the event loop's time ------------------------------------------------------------------------


@pytest.fixture
async def fed_at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Batches of each call of `feed`, of which each takes ten milliseconds of the loop's time."""
    fed: list[int] = []
    loop, feed = asyncio.get_running_loop(), PartitionOffers.feed
    begun = loop.time()

    def slow(offers: PartitionOffers, result: FetchResult, memory: int, *, more: bool) -> None:
        fed.append(len(result.batches))
        feed(offers, result, memory, more=more)

    monkeypatch.setattr(PartitionOffers, "feed", slow)
    monkeypatch.setattr(loop, "time", lambda: begun + len(fed) / 100)
    return fed


async def test_a_fetch_of_many_batches_is_fed_in_parts(make_world: MakeWorld, fed_at_once: list[int]) -> None:
    world = make_world(max_pending_messages=1000)
    for number in range(450):
        world.log().append(b"%d" % number)
    await world.consume()
    assert fed_at_once == [200, 200, 50]
    assert (await world.consume(450)).offsets == list(range(1, 450))


async def test_partitions_that_have_records_at_once_are_fed_one_after_the_other(
    make_world: MakeWorld, fed_at_once: list[int]
) -> None:
    world = make_world(20)
    answers = await world.consume(20)
    fed_at_once.clear()
    for partition in range(20):
        world.log(partition).append(b"%d" % partition)
    most = 0
    while len(fed_at_once) < 20:
        before = len(fed_at_once)
        await asyncio.sleep(0)
        most = max(most, len(fed_at_once) - before)
    assert most == 1
    await settle()
    assert len(answers.offers) == 20


async def test_a_request_has_little_fetched_from_each_partition(make_world: MakeWorld) -> None:
    world = make_world(30)
    for partition in range(30):
        for _ in range(40):
            world.log(partition).append(b"x" * 10_000)
    assert len((await world.consume()).offers) == 1
    (subscription,) = world.consumers._subscriptions.values()
    buffered = sorted(live.offers._buffered_bytes for live in subscription.partitions)
    assert buffered[-2] <= 64 << 10 < buffered[-1]


async def test_what_is_left_of_a_fetch_is_not_fed_after_a_reset(
    make_world: MakeWorld, fed_at_once: list[int]
) -> None:
    world = make_world(max_pending_messages=1000)
    for number in range(450):
        world.log().append(b"%d" % number)
    answers = Answers()
    world.consumers.consume(ConsumeRequest("g", "t"), answers)
    for _ in range(100):
        if not fed_at_once:
            await asyncio.sleep(0)
    assert fed_at_once == [200]
    await world.consumers.set_offsets("g", "t", {0: OffsetCommit(448)})
    assert (await world.consume(2)).offsets == [448, 449]
