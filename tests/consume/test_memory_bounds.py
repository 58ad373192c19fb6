"""Tests of both bounds of memory of all groups: of fetched batches, and of decompressed ones."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from pixy.errors import LongPollTimeout, Unavailable
from tests.consume import test_bounded_unpacking as unpacked
from tests.consume import test_fetched_memory as fetched
from tests.consume.conftest import MakeNodes, MakeWorld
from tests.consume.fakes import World


class Bound(NamedTuple):
    """An option, a batch that it bounds, and the memory of one."""

    option: str
    add_batch: Callable[[World, int], None]
    batch_bytes: int
    records: int


BOUNDS = [
    Bound("max_fetched_bytes", fetched.add_batch, fetched.BATCH, fetched.RECORDS),
    Bound("max_unpacked_bytes", unpacked.add_large_batch, unpacked.BATCH_BYTES, unpacked.RECORDS),
]


@pytest.fixture(params=BOUNDS, ids=lambda bound: bound.option)
def bound(request: pytest.FixtureRequest) -> Bound:
    found: Bound = request.param
    return found


@pytest.mark.slow
async def test_a_partition_beside_one_that_always_has_records_has_its_turn(
    make_world: MakeWorld, bound: Bound
) -> None:
    world = make_world(2, subscription_timeout=1000.0, **{bound.option: bound.batch_bytes})
    bound.add_batch(world, 1)
    await world.consume(group="idle")
    world.log(0).append(*[b"small"] * 200)
    got = set()
    for _ in range(150):
        answers = await world.consume(group="busy", auto_ack=True)
        for offer in answers.offers:
            offer.delivered()
            got.add((offer.partition, offer.record.offset))
        await world.pass_time(0.1)
    assert {(1, offset) for offset in range(bound.records)} <= got


async def test_a_request_that_times_out_meanwhile_is_answered_with_the_limit(
    make_world: MakeWorld, bound: Bound
) -> None:
    world = make_world(**{bound.option: bound.batch_bytes})
    bound.add_batch(world, 0)
    await world.consume(group="first")
    deadline = world.clock.monotonic() + 0.05
    answers = await world.consume(group="second", deadline=deadline)
    await world.pass_time(0.06)
    (error,) = answers.errors
    assert isinstance(error, Unavailable)
    assert error.limit == f"consumer.{bound.option}"
    answers = await world.consume(bound.records, group="second")
    await world.pass_time(0.2)
    assert answers.offsets == [0, 1, 2, 3]
    answers = await world.consume(group="second")
    await world.pass_time(4)
    assert [type(error) for error in answers.errors] == [LongPollTimeout]


async def test_other_nodes_clients_are_demand_too(make_nodes: MakeNodes, bound: Bound) -> None:
    nodes = make_nodes(2, 1, **{bound.option: 1})
    await nodes.join(1)
    bound.add_batch(nodes[1], 0)
    await nodes[1].consume(group="idle")
    answers = await nodes[2].consume(bound.records)
    await nodes.pass_time(3)
    assert answers.offsets == [0, 1, 2, 3]
