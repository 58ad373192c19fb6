"""pixy/consume/unpacked_bytes.py: who decompresses next, and who gives back for it."""

import random

import pytest

from pixy.consume.unpacked_bytes import (
    IDLE_S,
    PATIENCE_S,
    TURN_S,
    Demand,
    UnpackedBatch,
    UnpackedBytes,
    UnpackedHolder,
)


class Partition:
    """A partition whose demand and position the test sets."""

    def __init__(self, demand: Demand = Demand.WAITING, group: str = "") -> None:
        self.wanted = demand
        self.group = group or str(id(self))
        self.position = 0

    def demand(self, now: float) -> Demand:
        return self.wanted


class Bound(UnpackedBytes):
    """Decompresses at once."""

    def run(self, now: float, size: int = 10) -> UnpackedBatch | None:
        """Begin and end the next decompression; the batch, if it is held then."""
        turn = self.begin(now)
        if turn is None:
            return None
        held = self.unpacked(turn.batch, turn.batch.size or size, now)
        self.check_invariants()
        return held.batch if held is not None else None

    def fill(self, *holders: UnpackedHolder, size: int = 10, now: float = 0.0) -> list[UnpackedBatch]:
        """Have partitions hold batches."""
        batches = [self.ask(holder, 0, now) for holder in holders]
        assert [self.run(now, size) for _ in batches] == batches
        return batches

    def in_turns(self, held: UnpackedBatch, count: int) -> list[UnpackedBatch]:
        """The next batches, each of which gets the memory of the one before."""
        order = []
        for _ in range(count):
            self.release(held)
            following = self.run(0.05)
            assert following is not None
            order.append(following)
            held = following
        return order


def test_one_batch_at_a_time_is_decompressed_and_all_that_fit_are_held() -> None:
    bound = Bound(20)
    first, second, third = (bound.ask(Partition(), 0, 0.0) for _ in range(3))
    turn = bound.begin(0.0)
    assert turn is not None
    assert turn.batch is first
    assert bound.begin(0.0) is None
    assert bound.unpacked(first, 10, 0.0) is not None
    assert bound.run(0.0) is second
    assert bound.run(0.0) is None
    assert (bound.held_bytes, bound.waiting) == (20, [third])


def test_a_batch_larger_than_the_bound_is_held_alone() -> None:
    bound = Bound(5)
    (first,) = bound.fill(Partition(), size=100)
    second = bound.ask(Partition(), 0, 0.0)
    assert bound.begin(0.0) is None
    bound.release(first)
    assert bound.run(0.0, 100) is second
    assert bound.held_bytes == 100


def test_a_batch_that_turns_out_too_large_is_dropped_and_waits_in_front_with_its_size() -> None:
    bound = Bound(25)
    held = bound.fill(Partition(), Partition())
    large, small = bound.ask(Partition(), 0, 0.0), bound.ask(Partition(), 0, 0.0)
    assert bound.run(0.0, 10) is None
    assert (bound.held_bytes, bound.waiting, large.size) == (20, [large, small], 10)
    assert bound.begin(0.0) is None
    bound.release(held[0])
    assert bound.run(0.0) is large


def test_waiting_partitions_are_served_in_fifo_order_after_those_without_demand() -> None:
    bound = Bound(10)
    (held,) = bound.fill(Partition())
    idle = bound.ask(Partition(Demand.NONE), 0, 0.0)
    waiting = [bound.ask(Partition(), 0, 0.0) for _ in range(3)]
    assert bound.in_turns(held, 4) == [*waiting, idle]


def test_memory_is_given_back_by_those_that_were_not_read_for_longest() -> None:
    bound = Bound(30)
    partitions = [Partition() for _ in range(3)]
    batches = bound.fill(*partitions)
    late = bound.ask(Partition(), 20, 0.0)
    partitions[1].position = 1
    assert bound.begin(0.05) is None
    partitions[0].position = 1
    assert bound.begin(0.08) is None
    assert bound.begin(0.1) is None  # one of them is idle: not enough
    turn = bound.begin(0.05 + IDLE_S)
    assert turn is not None
    assert (turn.batch, turn.given_back) == (late, [batches[2], batches[1]])
    assert bound.held_bytes == 10


def test_a_partition_that_is_read_all_the_time_gives_back_after_its_turn() -> None:
    bound = Bound(10)
    busy = Partition()
    (held,) = bound.fill(busy)
    late = bound.ask(Partition(), 0, 0.0)
    now = 0.0
    while (turn := bound.begin(now)) is None and now < 2 * TURN_S:
        busy.position += 1
        now += 0.03
    assert turn is not None
    assert TURN_S <= now < TURN_S + 0.1
    assert (turn.batch, turn.given_back) == (late, [held])


def test_nothing_is_given_back_without_demand() -> None:
    bound = Bound(10)
    bound.fill(Partition())
    partition = Partition(Demand.NONE)
    late = bound.ask(partition, 0, 0.0)
    assert bound.begin(1000.0) is None
    partition.wanted = Demand.SERVED
    assert bound.begin(late.asked_at + PATIENCE_S - 0.1) is None
    turn = bound.begin(late.asked_at + PATIENCE_S)
    assert turn is not None
    assert turn.batch is late


def test_groups_have_turns_whatever_the_number_of_their_partitions() -> None:
    bound = Bound(10)
    (held,) = bound.fill(Partition())
    many = [bound.ask(Partition(group="many"), 0, 0.0) for _ in range(1000)]
    few = [bound.ask(Partition(group="few"), 0, 0.0) for _ in range(2)]
    assert bound.in_turns(held, 5) == [many[0], few[0], many[1], few[1], many[2]]


def test_few_of_many_waiting_partitions_are_asked_for_their_demand_at_a_time() -> None:
    asked = 0

    class Idle(Partition):
        def demand(self, now: float) -> Demand:
            nonlocal asked
            asked += 1
            return super().demand(now)

    bound = Bound(10)
    bound.fill(Partition())
    idle = [Idle(Demand.NONE) for _ in range(5000)]
    for each in idle:
        bound.ask(each, 0, 0.0)
    late = Partition()
    batch = bound.ask(late, 0, 0.0)
    asked = 0
    assert bound.begin(0.0) is None
    assert 0 < asked <= 500
    turn = bound.begin(1.0)
    assert turn is not None
    assert turn.batch is batch
    assert bound.unpacked(batch, 10, 1.0) is not None
    idle[3000].wanted = Demand.WAITING
    turns = [bound.begin(3.0) for _ in range(10)]
    assert [turn.batch.holder for turn in turns if turn is not None] == [idle[3000]]
    bound.check_invariants()


@pytest.mark.parametrize("place", ["queue", "unpacking", "held"])
def test_a_release_gives_everything_back_wherever_the_batch_is(place: str) -> None:
    bound = Bound(10)
    batch = bound.ask(Partition(), 0, 0.0)
    if place != "queue":
        assert bound.begin(0.0) is not None
    if place == "held":
        assert bound.unpacked(batch, 10, 0.0) is not None
    for _ in range(2):
        bound.release(batch)
        assert (bound.held_bytes, bound.waiting, bound.unpacking) == (0, [], False)
        bound.check_invariants()
    bound.fill(Partition())


@pytest.mark.parametrize("bytes_max", [1, 25, 60])
def test_everybody_has_a_turn_in_bounded_time_whatever_the_others_do(bytes_max: int) -> None:
    chooser = random.Random(7)
    bound, now = Bound(bytes_max), 0.0
    partitions = [Partition() for _ in range(12)]
    sizes = {each: chooser.randrange(1, 40) for each in partitions}
    places = {bound.ask(each, 0, now): each for each in partitions}
    asked_at = dict.fromkeys(partitions, now)
    for _ in range(5000):
        now += 0.01
        given_back = []
        if (turn := bound.begin(now)) is not None:
            given_back += turn.given_back
            partition = places[turn.batch]
            if (held := bound.unpacked(turn.batch, sizes[partition], now)) is not None:
                given_back += held.given_back
                del asked_at[partition]
        for place in given_back:
            partition = places.pop(place)
            places[bound.ask(partition, place.size, now)] = partition
            asked_at[partition] = now
        for partition in partitions:
            if partition not in asked_at:  # it is read, more or less
                partition.position += chooser.randrange(2)
        bound.check_invariants()
        assert all(now - since <= len(partitions) * (TURN_S + IDLE_S) for since in asked_at.values())
