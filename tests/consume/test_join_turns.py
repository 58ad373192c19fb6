"""pixy/consume/core/join_turns.py: consumer groups join and leave in turns of client addresses."""

import asyncio
from typing import NamedTuple

import pytest

from pixy.backend import TopicPartition
from tests.consume.conftest import MakeWorld
from tests.fakes.waiting import settle, until


class Peer(NamedTuple):
    """A client."""

    peer: str


HOSTILE, HONEST = Peer("10.0.0.1:1"), Peer("10.0.0.2:1")


@pytest.mark.slow
async def test_new_groups_join_in_turns_and_other_clients_wait_for_few_of_them(make_world: MakeWorld) -> None:
    world = make_world(client_share_percent=50)
    world.log().append(b"a")
    world.backend.gates["join"] = asyncio.Event()
    await asyncio.gather(*(world.consume(group=f"g{number}", client=HOSTILE) for number in range(200)))
    assert world.backend.joins == 32, "half of the turns"
    honest = await world.consume(group="h", client=HONEST)
    assert world.backend.joins == 33
    world.backend.gates["join"].set()
    await settle()
    assert honest.values == [b"a"]
    await until(lambda: world.backend.joins == 201)


async def test_joins_that_take_long_hold_up_no_others(make_world: MakeWorld) -> None:
    world = make_world(client_share_percent=50)
    world.backend.gates["join"] = asyncio.Event()
    await asyncio.gather(*(world.consume(group=f"g{number}", client=HOSTILE) for number in range(50)))
    await world.pass_time(1)
    assert world.backend.joins == 50


async def test_a_group_that_nobody_wants_any_more_when_its_turn_comes_does_not_join(
    make_world: MakeWorld,
) -> None:
    world = make_world(client_share_percent=1, subscription_timeout=0.5)
    world.backend.gates["join"] = asyncio.Event()
    await world.consume(group="first", client=HOSTILE)
    (request,) = (await world.consume(client=HOSTILE)).waiting
    request.cancel()
    await world.pass_time(0.6)
    world.backend.gates["join"].set()
    await settle()
    assert world.backend.joins == 1
    assert (await world.consume(client=HOSTILE)).waiting
    assert world.backend.joins == 2


async def test_a_group_that_is_wanted_again_when_its_turn_to_leave_comes_stays(make_world: MakeWorld) -> None:
    world = make_world(client_share_percent=1, subscription_timeout=0.5)
    world.backend.create("u", 1)
    (request,) = (await world.consume(client=HOSTILE)).waiting
    request.cancel()
    world.backend.gates["join"] = asyncio.Event()
    await world.consume(group="first", client=HOSTILE)
    await world.pass_time(0.6)
    world.backend.log(TopicPartition("u", 0)).append(b"u")
    answers = await world.consume(topic="u", client=HOSTILE)
    world.backend.gates["join"].set()
    await settle()
    assert (answers.values, world.backend.joins) == ([b"u"], 2)
