"""pixy/byte_room.py: room is bounded, given out in order, and never lost."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from pixy.byte_room import ByteRoom
from tests.fakes.waiting import settle


async def start(*work: Coroutine[Any, Any, None]) -> list[asyncio.Task[None]]:
    """Tasks that have gone as far as they can."""
    tasks = [asyncio.create_task(each) for each in work]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def test_there_is_so_much_room_and_no_more() -> None:
    room = ByteRoom(10)
    await room.take(6)
    await room.take(4)
    (waiting,) = await start(room.take(1))
    assert (waiting.done(), room.taken, room.waiting) == (False, 10, 1)
    room.give_back(4)
    await waiting
    assert (room.taken, room.waiting) == (7, 0)


async def test_nobody_overtakes_even_if_it_would_fit() -> None:
    room = ByteRoom(10)
    await room.take(8)
    large, small = await start(room.take(5), room.take(1))
    assert not room.has(1)
    assert (large.done(), small.done()) == (False, False)
    room.give_back(8)
    await settle()
    assert (large.done(), small.done(), room.taken) == (True, True, 6)


async def test_more_than_there_is_in_all_is_given_to_who_is_alone() -> None:
    room = ByteRoom(10)
    assert room.has(100)
    await room.take(1)
    (waiting,) = await start(room.take(100))
    assert not waiting.done()
    room.give_back(1)
    await waiting
    assert (room.taken, room.has(1)) == (100, False)


async def test_who_gives_up_makes_way_for_those_behind() -> None:
    room = ByteRoom(10)
    await room.take(8)
    large, small = await start(room.take(5), room.take(2))
    large.cancel()
    await small
    assert (room.taken, room.waiting) == (10, 0)


async def test_room_that_was_given_to_who_gives_up_in_the_same_turn_is_not_lost() -> None:
    room = ByteRoom(10)
    await room.take(10)
    first, second = await start(room.take(10), room.take(3))
    room.give_back(10)
    first.cancel()
    await second
    assert (first.cancelled(), room.taken, room.waiting) == (True, 3, 0)


async def test_room_goes_past_a_waiter_that_was_cancelled_in_the_same_turn() -> None:
    room = ByteRoom(10)
    await room.take(10)
    first, second = await start(room.take(10), room.take(3))
    first.cancel()
    room.give_back(10)
    await second
    assert (first.cancelled(), room.taken, room.waiting) == (True, 3, 0)


@pytest.mark.parametrize("cancelled", ["before", "after"])
async def test_room_comes_back_however_a_waiter_is_cancelled_around_its_turn(cancelled: str) -> None:
    room = ByteRoom(10)
    await room.take(10)
    (only,) = await start(room.take(10))
    if cancelled == "before":
        only.cancel()
    room.give_back(10)
    only.cancel()
    await asyncio.wait({only})
    assert (room.taken, room.waiting, room.has(10)) == (0, 0, True)


async def test_a_block_has_its_room_until_it_ends_or_is_cancelled() -> None:
    room = ByteRoom(10)
    entered = asyncio.Event()

    async def block() -> None:
        async with room.of(7):
            entered.set()
            await asyncio.Event().wait()

    (task,) = await start(block())
    assert (entered.is_set(), room.taken) == (True, 7)
    task.cancel()
    await asyncio.wait({task})
    assert room.taken == 0
    async with room.of(3):
        assert room.taken == 3
    assert room.taken == 0
