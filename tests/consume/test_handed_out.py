"""pixy/consume/core/handed_out.py: acks of records that were handed out before a restart or a
move, and of records that never were.
"""

import asyncio

import pytest

from pixy.backend import OffsetCommit, TopicPartition
from pixy.consume.core.handed_out import HandedOut
from pixy.errors import Unavailable
from tests.consume.conftest import MakeNodes, MakeWorld
from tests.consume.fakes import World
from tests.fakes.waiting import settle

T0 = TopicPartition("t", 0)
INTERVAL_S = 0.5
"""Of the commits."""


def test_a_mark_only_grows() -> None:
    handed_out = HandedOut()
    assert handed_out.of("g", T0, b"id") == 0
    handed_out.put("g", T0, b"id", 5)
    handed_out.put("g", T0, b"id", 3)
    assert handed_out.of("g", T0, b"id") == 5
    assert handed_out.of("h", T0, b"id") == 0


def test_a_mark_is_of_one_topic() -> None:
    handed_out = HandedOut()
    handed_out.put("g", T0, b"old", 5)
    assert handed_out.of("g", T0, b"new") == 0
    handed_out.put("g", T0, b"new", 1)
    assert (handed_out.of("g", T0, b"new"), handed_out.of("g", T0, b"old")) == (1, 0)


def test_the_marks_that_changed_first_are_forgotten_at_the_limit() -> None:
    handed_out = HandedOut(limit=2)
    for group in ("a", "b", "a", "c"):
        handed_out.put(group, T0, b"id", 1)
    assert [handed_out.of(group, T0, b"id") for group in "abc"] == [1, 0, 1]


def test_a_mark_is_forgotten_when_the_group_begins_anew() -> None:
    handed_out = HandedOut()
    for group in ("g", "h"):
        handed_out.put(group, T0, b"id", 5)
    handed_out.forget("g", T0)
    handed_out.forget("none", T0)
    assert [handed_out.of(group, T0, b"id") for group in "gh"] == [0, 5]


async def acked(world: World, *offsets: int) -> None:
    for offset in offsets:
        assert await world.ack(0, offset) == [None]


async def restart(world: World, how: str) -> None:
    """Stop the process and start it again, or kill it after its last commit."""
    if how == "stopped":
        await world.consumers.drain(0)
        world.restarted()
    else:
        await world.pass_time(INTERVAL_S)
        await world.kill()


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_after_a_restart_acks_count_for_what_was_handed_out_and_for_nothing_else(
    make_world: MakeWorld, how: str
) -> None:
    world = make_world()
    world.log().append(*[b"x"] * 10)
    assert (await world.consume(4)).offsets == [0, 1, 2, 3]
    await acked(world, 1)
    await restart(world, how)
    await acked(world, 2, 3, 4, 7)
    assert (await world.consume(7)).offsets == [0, 4, 5, 6, 7, 8, 9]
    await acked(world, 4, 7)
    await world.pass_time(INTERVAL_S)
    assert world.committed() == OffsetCommit(0, "BECB")


async def test_acks_count_at_the_next_owner(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(2, 1)
    await nodes.join(1)
    nodes.log().append(*[b"x"] * 10)
    assert (await nodes[1].consume(4)).offsets == [0, 1, 2, 3]
    await nodes.pass_time(INTERVAL_S)
    nodes.kill(1)
    nodes.groups.end(1)
    for offset in (1, 3, 4, 8):
        assert await nodes[2].ack(0, offset) == [None]
    assert (await nodes[2].consume(8)).offsets == [0, 2, 4, 5, 6, 7, 8, 9]


async def test_what_was_handed_out_is_committed_without_an_ack_and_moves_nothing(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.log().append(*[b"x"] * 10)
    await world.consumers.set_offsets("g", "t", {0: OffsetCommit(2, "CB")})
    assert (await world.consume(3)).offsets == [2, 3, 5]
    await world.pass_time(INTERVAL_S)
    assert world.backend.groups.of("g").handed_out == {T0: 6}
    assert world.committed() == OffsetCommit(2, "CB")
    commits = len(world.backend.commit_calls)
    await world.pass_time(10 * INTERVAL_S)
    assert len(world.backend.commit_calls) == commits


async def test_a_failed_commit_of_it_is_repeated(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(*[b"x"] * 10)
    await world.consume()
    world.backend.failures["commit"] = Unavailable("no leader")
    await world.pass_time(INTERVAL_S)
    assert world.backend.groups.of("g").handed_out == {T0: 0}
    del world.backend.failures["commit"]
    await world.pass_time(INTERVAL_S)
    assert world.backend.groups.of("g").handed_out == {T0: 1}


async def test_an_ack_of_what_was_handed_out_after_the_last_commit_of_a_process_that_died_has_no_effect(
    make_world: MakeWorld,
) -> None:
    """Nobody knows that it was, and it comes again."""
    world = make_world()
    world.log().append(*[b"x"] * 4)
    assert (await world.consume(1)).offsets == [0]
    await restart(world, "killed")
    assert (await world.consume(4)).offsets == [0, 1, 2, 3]
    await world.kill()
    await acked(world, 0, 2)
    assert (await world.consume(3)).offsets == [1, 2, 3]


@pytest.mark.parametrize("how", ["stopped", "killed", "lives on"])
async def test_acks_of_the_old_topic_have_no_effect_on_one_that_was_made_again(
    make_world: MakeWorld, how: str
) -> None:
    world = make_world()
    world.log().append(*[b"old"] * 5)
    await world.consume(5)
    await world.pass_time(INTERVAL_S)
    world.backend.delete("t")
    if how != "lives on":
        await restart(world, how)
    world.backend.create("t", 1)
    world.log().append(*[b"new"] * 5)
    await acked(world, 0, 1, 4)
    assert (await world.consume(2)).offsets == [0, 1]
    await acked(world, 3, 4)
    assert (await world.consume(3)).offsets == [2, 3, 4]


@pytest.mark.parametrize("keeps", [True, False], ids=["an earlier release", "Kafka"])
async def test_without_a_mark_acks_count_as_far_as_records_can_be_out(
    make_world: MakeWorld, keeps: bool
) -> None:
    world = make_world(max_pending_messages=4)
    world.backend.keeps_handed_out = keeps
    world.log().append(*[b"x"] * 20)
    world.backend.groups.of("g").commits[T0] = OffsetCommit(2, "CB")  # 4 is acked too
    await acked(world, 3, 8, 9, 15)
    assert (await world.consume(4)).offsets == [2, 5, 6, 7]
    await acked(world, 2, 5, 6, 7)
    assert (await world.consume(4)).offsets == [9, 10, 11, 12]


async def test_without_a_place_for_marks_nothing_is_committed_for_them(make_world: MakeWorld) -> None:
    world = make_world()
    world.backend.keeps_handed_out = False
    world.log().append(*[b"x"] * 4)
    await world.consume(2)
    commits = len(world.backend.commit_calls)
    await world.pass_time(10 * INTERVAL_S)
    assert len(world.backend.commit_calls) == commits
    await world.pass_time(400)
    await settle()


async def test_a_partition_that_is_closed_while_it_is_committed_does_not_move_back(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.log().append(*[b"x"] * 4)
    await world.consume()
    await acked(world, 0)
    gate = world.backend.gates["commit"] = asyncio.Event()
    await world.pass_time(INTERVAL_S)
    assert (await world.consume()).offsets == [1]
    stopping = asyncio.create_task(world.consumers.drain(0))
    await settle()
    gate.set()
    await stopping
    assert world.committed() == OffsetCommit(1)
    assert world.backend.groups.of("g").handed_out == {T0: 2}


@pytest.mark.parametrize("keeps", [True, False], ids=["embedded", "Kafka"])
@pytest.mark.parametrize("begins", ["by itself", "where a client sets it"])
async def test_acks_of_a_deleted_group_have_no_effect_on_the_next_one(
    make_world: MakeWorld, keeps: bool, begins: str
) -> None:
    """Offsets that expire go in the same way."""
    world = make_world(subscription_timeout=1.0)
    world.backend.keeps_handed_out = keeps
    world.log().append(*[b"x"] * 5)
    assert (await world.consume(5)).offsets == [0, 1, 2, 3, 4]
    await acked(world, 0, 1, 2, 3, 4)
    await world.pass_time(INTERVAL_S)
    await world.pass_time(10.0)
    await world.backend.delete_group("g")
    if begins == "where a client sets it":
        await world.consumers.set_offsets("g", "t", {0: OffsetCommit(0)})
    await acked(world, 1, 2, 4)
    assert (await world.consume(5)).offsets == [0, 1, 2, 3, 4]


async def test_acks_of_a_deleted_group_have_no_effect_at_a_former_owner_of_the_partition(
    make_nodes: MakeNodes,
) -> None:
    nodes = make_nodes(2, 1, subscription_timeout=1.0)
    await nodes.join(1)
    nodes.log().append(*[b"x"] * 5)
    assert (await nodes[1].consume(3)).offsets == [0, 1, 2]
    for offset in range(3):
        assert await nodes[1].ack(0, offset) == [None]
    await nodes.pass_time(INTERVAL_S)
    await nodes.pass_time(10.0)
    await nodes[1].backend.delete_group("g")
    assert (await nodes[2].consume(1)).offsets == [0]
    await nodes.pass_time(INTERVAL_S)
    nodes.kill(2)
    nodes.groups.end(2)
    for offset in (1, 2):
        assert await nodes[1].ack(0, offset) == [None]
    assert (await nodes[1].consume(5)).offsets == [0, 1, 2, 3, 4]
