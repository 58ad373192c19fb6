"""Decompressed batches of all groups have one bound, and every group gets every message."""

import asyncio
import random
from collections import Counter

import pytest

from pixy.backend import OffsetCommit
from pixy.errors import Unavailable
from pixy.records import COMPRESSION, NewRecord, build_batch, patch_batch
from tests.consume.bounds import consume_all, end_partition
from tests.consume.conftest import MakeWorld
from tests.consume.fakes import World
from tests.fakes.waiting import settle

RECORDS = 4
RECORD_BYTES = 100_000
BATCH_BYTES = 400_200
"""Decompressed, nearly."""


def add_large_batch(world: World, partition: int = 0, topic: str = "t") -> None:
    """A batch that is decompressed on a thread."""
    log = world.log(partition, topic)
    noise = random.Random(0)
    values = [noise.randbytes(RECORD_BYTES // 4).ljust(RECORD_BYTES, b"x") for _ in range(RECORDS)]
    batch = build_batch([NewRecord(None, value, (), 1) for value in values], COMPRESSION["zstd"])
    patch_batch(batch, log.end, 0)
    log.batches.append(bytes(batch))
    log.end += RECORDS
    log.wake()


def held(world: World) -> int:
    """Bytes of decompressed batches."""
    return world.consumers.counts()["unpacked_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("batches_held", [0, 2, 5])
async def test_every_group_gets_every_message_once_whatever_the_bound(
    make_world: MakeWorld, batches_held: int
) -> None:
    bytes_max = max(1, batches_held * BATCH_BYTES)
    world = make_world(6, max_unpacked_bytes=bytes_max, subscription_timeout=1000.0)
    for partition in range(6):
        add_large_batch(world, partition)
        world.log(partition).append(b"between")
        add_large_batch(world, partition)
    groups = ["a", "b", "c"]

    def check() -> None:
        assert held(world) <= max(bytes_max, BATCH_BYTES)

    got = await consume_all(world, groups, 6 * 9, check)
    every = {(partition, offset): 1 for partition in range(6) for offset in range(9)}
    assert {group: Counter(positions) for group, positions in got.items()} == dict.fromkeys(groups, every)
    await settle()
    assert held(world) == 0


async def test_an_idle_group_gives_back_and_goes_on_where_it_was(make_world: MakeWorld) -> None:
    world = make_world(max_unpacked_bytes=BATCH_BYTES)
    add_large_batch(world)
    out = await world.consume(group="idle")
    other = await world.consume(group="other")
    assert (out.offsets, other.offsets) == ([0], [])
    await world.pass_time(0.2)
    assert other.offsets == [0]
    assert 0 < held(world) <= BATCH_BYTES
    assert await world.ack(0, 0, "idle") == [None]
    again = await world.consume(2, group="idle")
    await world.pass_time(0.2)
    assert again.offsets == [1, 2]
    for offer in (*out.offers, *again.offers):
        assert len(offer.record.value or b"") == RECORD_BYTES


async def test_what_has_been_read_is_not_decompressed_again(make_world: MakeWorld) -> None:
    world = make_world(max_unpacked_bytes=BATCH_BYTES)
    add_large_batch(world)
    for group in ("a", "b"):
        await world.consume(RECORDS, group=group)
    await world.pass_time(10)
    assert (held(world), len(world.unpacked)) == (0, 2)


async def test_nothing_is_decompressed_for_nobody(make_world: MakeWorld) -> None:
    world = make_world(12, max_unpacked_bytes=2 * BATCH_BYTES, subscription_timeout=1000.0)
    for partition in range(12):
        add_large_batch(world, partition)
    await world.consume(group="a")
    await world.pass_time(10)
    unpacked = len(world.unpacked)
    await world.pass_time(100)
    assert len(world.unpacked) == unpacked


async def test_a_request_that_times_out_behind_others_hears_that_it_waited_for_them(
    make_world: MakeWorld,
) -> None:
    world = make_world(max_unpacked_bytes=BATCH_BYTES, long_polling_timeout=3)
    add_large_batch(world)
    gate = world.backend.gates["unpack"] = asyncio.Event()
    await world.consume(group="first")
    answers = await world.consume(group="second")
    for _ in range(31):
        await world.pass_time(0.1)
    assert [type(error) for error in answers.errors] == [Unavailable]
    gate.set()


async def test_a_group_with_many_partitions_is_in_front_of_another_one_once(make_world: MakeWorld) -> None:
    world = make_world(30, max_unpacked_bytes=1, subscription_timeout=1000.0)
    world.backend.create("other", 1)
    for partition in range(30):
        add_large_batch(world, partition)
    add_large_batch(world, topic="other")
    await world.consume(1000, group="many")
    answers = await world.consume(group="few", topic="other")
    for _ in range(30):
        await world.pass_time(0.1)
    assert answers.offsets == [0]


@pytest.mark.parametrize("groups", [["g"], ["first", "g"]], ids=["held", "queued"])
@pytest.mark.parametrize("how", ["reset", "timeout", "revocation", "deletion", "drain", "trimmed"])
async def test_whatever_ends_a_partition_gives_its_bytes_back(
    make_world: MakeWorld, how: str, groups: list[str]
) -> None:
    world = make_world(max_unpacked_bytes=BATCH_BYTES)
    add_large_batch(world)
    for group in groups:
        for offer in (await world.consume(group=group, auto_ack=True)).offers:
            offer.delivered()
    bound = world.consumers._environment.unpacking._large._memory.turns
    assert (held(world) > 0, len(bound.waiting)) == (True, len(groups) - 1)
    await end_partition(world, how, groups, RECORDS)
    bound.check_invariants()
    assert (held(world), bound.waiting, bound.filling) == (0, [], False)


def small_batch(kind: str) -> bytes:
    """A batch of one record that takes memory, and few bytes of the log."""
    if kind == "headers":
        return bytes(build_batch([NewRecord(None, b"", [("", b"")] * 1000, 1)]))
    size = {"mean": 20_000, "largest": 250_000}[kind]
    return bytes(build_batch([NewRecord(None, bytes(size), (), 1)], COMPRESSION["zstd"]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["headers", "mean", "largest"])
async def test_small_batches_have_a_bound_too(make_world: MakeWorld, kind: str) -> None:
    world = make_world(max_unpacked_bytes=4 << 20, subscription_timeout=1000.0, max_pending_messages=1)
    log = world.log()
    for base in range(2):
        batch = bytearray(small_batch(kind))
        patch_batch(batch, base, 0)
        log.batches.append(bytes(batch))
        log.end += 1
    log.wake()
    groups = [f"g{number}" for number in range(20)]
    answers = {group: await world.consume(group=group) for group in groups}
    assert 128 << 10 < held(world) <= 1 << 20
    for _ in range(50):
        await world.pass_time(0.2)
        assert held(world) <= 1 << 20
    assert {group: answer.offsets for group, answer in answers.items()} == {group: [0] for group in groups}


async def test_small_batches_do_not_wait_behind_large_ones(make_world: MakeWorld) -> None:
    world = make_world(max_unpacked_bytes=2 * BATCH_BYTES, subscription_timeout=1000.0)
    world.backend.create("small", 1)
    small = world.log(topic="small")
    small.batches.append(small_batch("mean"))
    small.end += 1
    add_large_batch(world)
    waiting = [await world.consume(group=f"g{number}") for number in range(20)]
    assert sum(len(answers.offers) for answers in waiting) == 2
    assert (await world.consume(topic="small")).offsets == [0]


async def test_a_wait_that_is_cancelled_keeps_no_place(make_world: MakeWorld) -> None:
    world = make_world(max_unpacked_bytes=BATCH_BYTES)
    add_large_batch(world)
    gate = world.backend.gates["unpack"] = asyncio.Event()
    await world.consume(group="first")
    second = await world.consume(group="second")
    await world.consumers.set_offsets("first", "t", {0: OffsetCommit(RECORDS)})
    gate.set()
    await world.pass_time(0.2)
    assert second.offsets == [0]
