"""Fetched batches of all groups have one bound, and every group gets every message."""

import asyncio
import random
from collections import Counter

import pytest

from pixy.consume.memory.memory_turns import PATIENCE_S
from pixy.consume.partition.fetched_memory import memory_of
from pixy.errors import Unavailable
from pixy.records import COMPRESSION, NewRecord, build_batch, patch_batch
from tests.consume.bounds import consume_all, end_partition
from tests.consume.conftest import MakeWorld
from tests.consume.fakes import World
from tests.fakes.waiting import settle

RECORDS = 4
RECORD_BYTES = 50_000
BATCH = memory_of([bytes(RECORDS * RECORD_BYTES)]) + 10_000
"""Memory of a batch, and a little more."""


def add_batch(world: World, partition: int = 0, topic: str = "t", compression: str = "none") -> None:
    """A batch that is larger than a small fetch; decompressed on a thread, if it is compressed."""
    log = world.log(partition, topic)
    noise = random.Random(partition)
    values = [noise.randbytes(RECORD_BYTES * 9 // 10).ljust(RECORD_BYTES, b"x") for _ in range(RECORDS)]
    batch = build_batch([NewRecord(None, value, (), 1) for value in values], COMPRESSION[compression])
    patch_batch(batch, log.end, 0)
    log.batches.append(bytes(batch))
    log.end += RECORDS
    log.wake()


def held(world: World) -> int:
    """Memory of fetched batches."""
    world.consumers._environment.fetched.turns.check_invariants()
    return world.consumers.counts()["fetched_bytes"]


def really_held(world: World) -> int:
    """Bytes of batches and next records that the partitions have."""
    size = 0
    for subscription in world.consumers._subscriptions.values():
        for live in subscription.partitions:
            offers = live.offers
            offers.check_invariants()
            size += offers._buffered_bytes + (offers._head_bytes if offers._head is not None else 0)
            size += sum(len(batch) for batch in (offers._batch, offers.packed, offers.holding) if batch)
    return size


@pytest.mark.slow
@pytest.mark.parametrize("batches_held", [0, 2, 5])
@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_every_group_gets_every_message_once_whatever_the_bound(
    make_world: MakeWorld, batches_held: int, compression: str
) -> None:
    bytes_max = max(1, batches_held * BATCH)
    world = make_world(
        6, max_fetched_bytes=bytes_max, max_unpacked_bytes=bytes_max, subscription_timeout=1000.0
    )
    for partition in range(6):
        add_batch(world, partition, compression=compression)
        for _ in range(3):
            world.log(partition).append(b"between", b"them")
        add_batch(world, partition, compression=compression)
    groups = ["a", "b", "c"]

    def check() -> None:
        assert really_held(world) <= held(world) <= max(bytes_max, BATCH)

    got = await consume_all(world, groups, 6 * 14, check)
    every = {(partition, offset): 1 for partition in range(6) for offset in range(14)}
    assert {group: Counter(positions) for group, positions in got.items()} == dict.fromkeys(groups, every)
    await settle()
    assert held(world) == 0


async def test_a_request_has_no_more_fetched_than_the_bound_however_many_partitions_there_are(
    make_world: MakeWorld,
) -> None:
    world = make_world(100, max_fetched_bytes=10 * BATCH)
    for partition in range(100):
        add_batch(world, partition)
    for group in ("a", "b", "c"):
        assert len((await world.consume(group=group)).offers) == 1
        await world.pass_time(0.2)
        assert 5 * BATCH < held(world) <= 10 * BATCH
        assert really_held(world) <= held(world)


async def test_an_idle_group_gives_back_and_goes_on_where_it_was(make_world: MakeWorld) -> None:
    world = make_world(max_fetched_bytes=BATCH)
    add_batch(world)
    out = await world.consume(group="idle")
    other = await world.consume(group="other")
    assert (out.offsets, other.offsets) == ([0], [])
    await world.pass_time(0.2)
    assert other.offsets == [0]
    assert await world.ack(0, 0, "idle") == [None]
    again = await world.consume(2, group="idle")
    for _ in range(3):
        await world.pass_time(0.1)
    assert again.offsets == [1, 2]


async def test_acks_beyond_what_was_given_back_are_passed(make_world: MakeWorld) -> None:
    world = make_world(max_fetched_bytes=BATCH)
    world.handed_out_before(RECORDS, group="idle")
    add_batch(world)
    assert (await world.consume(group="idle", slow=True)).offsets == [0]
    assert await world.ack(0, 2, "idle") == [None]
    await world.consume(RECORDS, group="other")
    await world.pass_time(0.2)
    assert await world.ack(0, 1, "idle") == [None]
    answers = await world.consume(2, group="idle")
    await world.pass_time(0.2)
    assert answers.offsets == [3]


async def test_nothing_is_fetched_again_for_nobody(make_world: MakeWorld) -> None:
    world = make_world(12, max_fetched_bytes=2 * BATCH, subscription_timeout=1000.0)
    for partition in range(12):
        add_batch(world, partition)
    await world.consume(group="a")
    await world.pass_time(10)
    fetches = len(world.backend.fetched)
    for _ in range(100):
        await world.pass_time(1)
    assert len(world.backend.fetched) == fetches


async def test_what_comes_while_partitions_wait_for_records_is_counted_too(make_world: MakeWorld) -> None:
    world = make_world(20, max_fetched_bytes=3 * BATCH)
    await world.consume()
    await world.pass_time(4)
    for partition in range(20):
        add_batch(world, partition)
        assert held(world) <= 3 * BATCH
    await settle()
    assert really_held(world) <= held(world) <= 3 * BATCH
    assert len((await world.consume(9)).offers) == 9


async def test_a_group_with_many_partitions_is_in_front_of_another_one_once(make_world: MakeWorld) -> None:
    world = make_world(60, max_fetched_bytes=1, subscription_timeout=1000.0)
    world.backend.create("other", 1)
    for partition in range(60):
        add_batch(world, partition)
    add_batch(world, topic="other")
    await world.consume(1000, group="many")
    answers = await world.consume(group="few", topic="other")
    for _ in range(12):
        await world.pass_time(0.1)
    assert answers.offsets == [0]


async def test_batches_that_wait_for_their_decompression_are_kept_while_clients_want_them(
    make_world: MakeWorld,
) -> None:
    world = make_world(2, max_fetched_bytes=BATCH, subscription_timeout=1000.0)
    world.backend.create("other", 1)
    add_batch(world, compression="zstd")
    add_batch(world, topic="other")
    gate = world.backend.gates["unpack"] = asyncio.Event()
    answers = await world.consume(group="packed")
    other = await world.consume(group="plain", topic="other")
    await world.pass_time(5 * PATIENCE_S)
    assert (len(answers.errors), len(other.errors)) == (1, 1)
    answers = await world.consume(group="packed")
    fetches = len(world.backend.fetched)
    await world.pass_time(2)
    assert len(world.backend.fetched) == fetches
    gate.set()
    await world.pass_time(0.1)
    assert answers.offsets == [0]
    other = await world.consume(group="plain", topic="other")
    await world.pass_time(0.2)
    assert other.offsets == [0]


def next_unpacked(world: World) -> None:
    """End the decompressions in progress; the next ones wait for the next call."""
    done = world.backend.gates.get("unpack")
    world.backend.gates["unpack"] = asyncio.Event()
    if done is not None:
        done.set()


def add_small_batch(world: World, topic: str, compression: str) -> None:
    log = world.log(topic=topic)
    batch = build_batch([NewRecord(None, bytes(20_000), (), 1)], COMPRESSION[compression])
    patch_batch(batch, log.end, 0)
    log.batches.append(bytes(batch))
    log.end += 1
    log.wake()


@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_batches_that_wait_for_their_decompression_do_not_hold_up_others(
    make_world: MakeWorld, compression: str
) -> None:
    world = make_world(4, max_fetched_bytes=8 * BATCH, subscription_timeout=1000.0)
    for partition in range(4):
        add_batch(world, partition, compression="zstd")
    next_unpacked(world)
    waiting = [await world.consume(group=f"packed{number}") for number in range(10)]
    await world.pass_time(0.2)
    for number in range(3):
        world.backend.create(f"topic{number}", 1)
        add_small_batch(world, f"topic{number}", compression)
        answers = await world.consume(group="other", topic=f"topic{number}")
        for _ in range(10):
            await world.pass_time(0.1)
        next_unpacked(world)
        await settle()
        assert answers.offsets == [0]
        assert really_held(world) <= held(world) <= 8 * BATCH
    assert sum(not each.offers for each in waiting) >= 5


async def test_what_waits_for_its_decompression_has_its_turn_and_is_fetched_again_for_it_once(
    make_world: MakeWorld,
) -> None:
    world = make_world(max_fetched_bytes=8 * BATCH, subscription_timeout=1000.0, long_polling_timeout=100.0)
    add_batch(world, compression="zstd")
    world.backend.create("other", 8)
    for partition in range(8):
        add_batch(world, partition, "other")
    next_unpacked(world)
    packed = [await world.consume(group=f"packed{number}") for number in range(20)]
    others = []
    for step in range(22):
        if step % 5 == 0:
            others.append(await world.consume(group=f"other{step}", topic="other"))
        await world.pass_time(0.2)
        next_unpacked(world)
        await settle()
    assert [answers.offsets for answers in packed] == [[0]] * 20
    assert [answers.offsets for answers in others] == [[0]] * 5
    assert len(world.unpacked) == 20  # none was dropped while it was decompressed
    fetched = [offset for partition, offset, _ in world.backend.fetched if partition.topic == "t"]
    assert fetched.count(0) <= 3 * 20


@pytest.mark.parametrize("groups", [["g"], ["first", "g"]], ids=["held", "queued"])
@pytest.mark.parametrize("how", ["reset", "timeout", "revocation", "deletion", "drain"])
async def test_whatever_ends_a_partition_gives_its_bytes_back(
    make_world: MakeWorld, how: str, groups: list[str]
) -> None:
    world = make_world(max_fetched_bytes=BATCH)
    add_batch(world)
    for group in groups:
        for offer in (await world.consume(group=group, auto_ack=True)).offers:
            offer.delivered()
    bound = world.consumers._environment.fetched.turns
    assert (held(world) > 0, len(bound.waiting)) == (True, len(groups) - 1)
    await end_partition(world, how, groups, RECORDS)
    bound.check_invariants()
    assert (held(world), bound.waiting, bound.filling) == (0, [], False)


async def test_a_turn_whose_fetch_fails_is_over(make_world: MakeWorld) -> None:
    world = make_world(max_fetched_bytes=BATCH, subscription_timeout=1000.0)
    add_batch(world)
    await world.consume(group="first")
    second = await world.consume(group="second")
    world.backend.failures["fetch"] = Unavailable("no leader")
    await world.pass_time(0.2)
    await world.consume(group="third")
    await world.pass_time(0.2)
    assert (held(world), second.offsets) == (0, [])
    world.backend.failures.clear()
    for _ in range(20):
        await world.pass_time(0.2)
    assert [str(error) for error in second.errors] + second.offsets in ([0], ["no leader"])
    first = await world.consume(group="first")
    await world.pass_time(0.2)
    assert first.offsets == [1]
