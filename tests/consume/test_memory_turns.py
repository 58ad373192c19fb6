"""pixy/consume/memory/memory_turns.py: who has memory next, and who gives back for it."""

import random

import pytest

from pixy.consume.memory.memory_turns import (
    IDLE_S,
    PATIENCE_S,
    TURN_S,
    Demand,
    MemoryHolder,
    MemoryPlace,
    MemoryTurns,
    Turn,
)
from pixy.errors import Unavailable


class Partition:
    """A partition whose demand and position the test sets."""

    def __init__(self, demand: Demand = Demand.WAITING, group: str = "") -> None:
        self.wanted = demand
        self.group = group or str(id(self))
        self.position = 0
        self.pinned = False

    def demand(self, now: float) -> Demand:
        return self.wanted

    def is_pinned(self, now: float) -> bool:
        return self.pinned

    def give_back(self) -> None:
        """The test looks at turns."""

    def memory_waits(self, error: Unavailable) -> None:
        """Likewise."""


class Bound(MemoryTurns):
    """Fills places at once."""

    def want(self, holder: MemoryHolder, size: int, now: float) -> MemoryPlace:
        """Queue a new place."""
        place = MemoryPlace(holder)
        self.ask(place, size, now)
        return place

    def run(self, now: float, size: int = 10) -> MemoryPlace | None:
        """Begin and end the next decompression; the batch, if it is held then."""
        turn = self.begin(now)
        if turn is None or turn.place is None:
            return None
        held = self.filled(turn.place, turn.place.size or size, now)
        self.check_invariants()
        return held.place

    def fill(self, *holders: MemoryHolder, size: int = 10, now: float = 0.0) -> list[MemoryPlace]:
        """Have partitions hold batches."""
        batches = [self.want(holder, 0, now) for holder in holders]
        assert [self.run(now, size) for _ in batches] == batches
        return batches

    def in_turns(self, held: MemoryPlace, count: int) -> list[MemoryPlace]:
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
    first, second, third = (bound.want(Partition(), 0, 0.0) for _ in range(3))
    turn = bound.begin(0.0)
    assert turn is not None
    assert turn.place is first
    assert bound.begin(0.0) is None
    assert bound.filled(first, 10, 0.0).place is not None
    assert bound.run(0.0) is second
    assert bound.run(0.0) is None
    assert (bound.held_bytes, bound.waiting) == (20, [third])


def test_a_batch_larger_than_the_bound_is_held_alone() -> None:
    bound = Bound(5)
    (first,) = bound.fill(Partition(), size=100)
    second = bound.want(Partition(), 0, 0.0)
    assert bound.begin(0.0) is None
    bound.release(first)
    assert bound.run(0.0, 100) is second
    assert bound.held_bytes == 100


def test_a_batch_that_turns_out_too_large_is_dropped_and_waits_in_front_with_its_size() -> None:
    bound = Bound(25)
    held = bound.fill(Partition(), Partition())
    large, small = bound.want(Partition(), 0, 0.0), bound.want(Partition(), 0, 0.0)
    assert bound.run(0.0, 10) is None
    assert (bound.held_bytes, bound.waiting, large.size) == (20, [large, small], 10)
    assert bound.begin(0.0) is None
    bound.release(held[0])
    assert bound.run(0.0) is large


def test_waiting_partitions_are_served_in_fifo_order_after_those_without_demand() -> None:
    bound = Bound(10)
    (held,) = bound.fill(Partition())
    idle = bound.want(Partition(Demand.NONE), 0, 0.0)
    waiting = [bound.want(Partition(), 0, 0.0) for _ in range(3)]
    assert bound.in_turns(held, 4) == [*waiting, idle]


def test_memory_is_given_back_by_those_that_were_not_read_for_longest() -> None:
    bound = Bound(30)
    partitions = [Partition() for _ in range(3)]
    batches = bound.fill(*partitions)
    late = bound.want(Partition(), 20, 0.0)
    partitions[1].position = 1
    assert bound.begin(0.05) is None
    partitions[0].position = 1
    assert bound.begin(0.08) is None
    assert bound.begin(0.1) is None  # one of them is idle: not enough
    turn = bound.begin(0.05 + IDLE_S)
    assert turn is not None
    assert (turn.place, turn.given_back) == (late, [batches[2], batches[1]])
    assert bound.held_bytes == 10 + late.size


def test_a_partition_that_is_read_all_the_time_gives_back_after_its_turn() -> None:
    bound = Bound(10)
    busy = Partition()
    (held,) = bound.fill(busy)
    late = bound.want(Partition(), 0, 0.0)
    now = 0.0
    while (turn := bound.begin(now)) is None and now < 2 * TURN_S:
        busy.position += 1
        now += 0.03
    assert turn is not None
    assert TURN_S <= now < TURN_S + 0.1
    assert (turn.place, turn.given_back) == (late, [held])


def test_nothing_is_given_back_without_demand() -> None:
    bound = Bound(10)
    bound.fill(Partition())
    partition = Partition(Demand.NONE)
    late = bound.want(partition, 0, 0.0)
    assert bound.begin(1000.0) is None
    partition.wanted = Demand.SERVED
    assert bound.begin(late.asked_at + PATIENCE_S - 0.1) is None
    turn = bound.begin(late.asked_at + PATIENCE_S)
    assert turn is not None
    assert turn.place is late


def test_groups_have_turns_whatever_the_number_of_their_partitions() -> None:
    bound = Bound(10)
    (held,) = bound.fill(Partition())
    many = [bound.want(Partition(group="many"), 0, 0.0) for _ in range(1000)]
    few = [bound.want(Partition(group="few"), 0, 0.0) for _ in range(2)]
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
        bound.want(each, 0, 0.0)
    late = Partition()
    batch = bound.want(late, 0, 0.0)
    asked = 0
    assert bound.begin(0.0) is None
    assert 0 < asked <= 500
    turn = bound.begin(1.0)
    assert turn is not None
    assert turn.place is batch
    assert bound.filled(batch, 10, 1.0).place is not None
    idle[3000].wanted = Demand.WAITING
    for _ in range(10):
        bound.look(3.0)
    turns = [bound.begin(3.0) for _ in range(10)]
    assert [turn.place.holder for turn in turns if turn is not None and turn.place is not None] == [
        idle[3000]
    ]
    bound.check_invariants()


@pytest.mark.parametrize("place", ["queue", "filling", "held"])
def test_a_release_gives_everything_back_wherever_the_batch_is(place: str) -> None:
    bound = Bound(10)
    batch = bound.want(Partition(), 0, 0.0)
    if place != "queue":
        assert bound.begin(0.0) is not None
    if place == "held":
        assert bound.filled(batch, 10, 0.0).place is not None
    for _ in range(2):
        bound.release(batch)
        assert (bound.held_bytes, bound.waiting, bound.filling) == (0, [], False)
        bound.check_invariants()
    bound.fill(Partition())


@pytest.mark.slow
@pytest.mark.parametrize("bytes_max", [1, 25, 60])
def test_everybody_has_a_turn_in_bounded_time_whatever_the_others_do(bytes_max: int) -> None:
    chooser = random.Random(7)
    bound, now = Bound(bytes_max), 0.0
    partitions = [Partition() for _ in range(12)]
    sizes = {each: chooser.randrange(1, 40) for each in partitions}
    places = {bound.want(each, 0, now): each for each in partitions}
    asked_at = dict.fromkeys(partitions, now)
    for _ in range(5000):
        now += 0.01
        given_back = []
        if (turn := bound.begin(now)) is not None and turn.place is not None:
            given_back += turn.given_back
            partition = places[turn.place]
            held = bound.filled(turn.place, sizes[partition], now)
            given_back += held.given_back
            if held.place is not None:
                del asked_at[partition]
        for place in given_back:
            partition = places.pop(place)
            places[bound.want(partition, place.size, now)] = partition
            asked_at[partition] = now
        for partition in partitions:
            if partition not in asked_at:  # it is read, more or less
                partition.position += chooser.randrange(2)
        bound.check_invariants()
        assert all(now - since <= len(partitions) * (TURN_S + IDLE_S) for since in asked_at.values())


# --- what has come without a turn -----------------------------------------------------------------


def place_of(holder: Partition) -> MemoryPlace:
    return MemoryPlace(holder)


def test_what_has_come_is_held_if_it_fits_and_counted_as_it_changes() -> None:
    bound = Bound(30)
    first, second = place_of(Partition()), place_of(Partition(Demand.NONE))
    assert bound.maybe_hold(first, 10, 0.0)
    assert bound.maybe_hold(first, 20, 0.0)
    assert not bound.maybe_hold(second, 11, 0.0)
    assert bound.hold(second, 11, 1.0).place is None
    assert bound.maybe_hold(second, 10, 0.0)
    bound.shrink(first, 5)
    bound.check_invariants()
    assert bound.held_bytes == 15


def test_for_what_has_come_and_is_in_demand_others_give_back() -> None:
    bound = Bound(30)
    idle, late = place_of(Partition()), place_of(Partition())
    assert bound.maybe_hold(idle, 20, 0.0)
    assert bound.hold(late, 20, 0.05).place is None
    assert bound.hold(place_of(Partition(Demand.SERVED)), 20, 1000.0).place is None
    turn = bound.hold(late, 20, IDLE_S)
    assert (turn.place, turn.given_back, bound.held_bytes) == (late, [idle], 20)
    bound.check_invariants()


def test_what_has_come_is_not_held_in_front_of_those_that_wait() -> None:
    bound = Bound(30)
    (held,) = bound.fill(Partition(), size=30)
    waiting = bound.want(Partition(), 20, 0.0)
    bound.shrink(held, 15)
    late = place_of(Partition())
    assert bound.hold(late, 5, 0.0).place is None
    bound.release(held)
    assert bound.run(0.0) is waiting
    assert bound.hold(late, 5, 0.0).place is late


def test_what_is_pinned_is_not_given_back() -> None:
    bound, partition = Bound(10), Partition()
    (held,) = bound.fill(partition)
    partition.pinned = True
    late = bound.want(Partition(), 10, 0.0)
    assert bound.begin(1000.0) is None
    partition.pinned = False
    turn = bound.begin(1000.0)
    assert turn is not None
    assert (turn.place, turn.given_back) == (late, [held])


def test_a_partition_whose_group_is_served_takes_from_those_that_nobody_reads_or_that_held_long() -> None:
    bound, reader = Bound(10), Partition()
    (held,) = bound.fill(reader)
    bound.want(Partition(Demand.SERVED), 10, -PATIENCE_S)
    assert bound.begin(PATIENCE_S - 0.1) is None
    reader.wanted = Demand.NONE
    turn = bound.begin(PATIENCE_S - 0.1)
    assert turn is not None
    assert turn.given_back == [held]
    bound, reader = Bound(10), Partition()
    (held,) = bound.fill(reader)
    bound.want(Partition(Demand.SERVED), 10, -PATIENCE_S)
    turn = bound.begin(PATIENCE_S)
    assert turn is not None
    assert turn.given_back == [held]


def test_a_request_that_waits_is_in_front_of_partitions_beside_served_ones_for_a_while() -> None:
    bound, reader = Bound(10), Partition(Demand.SERVED)
    (held,) = bound.fill(reader)
    beside = bound.want(Partition(Demand.SERVED), 10, -PATIENCE_S)
    assert bound.begin(IDLE_S) is None
    late = bound.want(Partition(), 10, IDLE_S)
    turn = bound.begin(IDLE_S)
    assert turn is not None
    assert (turn.place, turn.given_back) == (late, [held])
    assert bound.filled(late, 10, IDLE_S).place is late
    later = bound.want(Partition(), 10, IDLE_S)
    turn = bound.begin(PATIENCE_S)
    assert turn is not None
    assert (turn.place, turn.given_back) == (beside, [late])
    assert bound.waiting == [later]


def test_a_group_has_few_turns_at_a_time_and_their_bytes_are_reserved() -> None:
    bound = Bound(100, filling_max=10, filling_per_group_max=2)
    many = [bound.want(Partition(group="many"), 10, 0.0) for _ in range(5)]
    few = bound.want(Partition(group="few"), 10, 0.0)
    turns = [bound.begin(0.0) for _ in range(4)]
    assert [None if turn is None else turn.place for turn in turns] == [many[0], few, many[1], None]
    bound.check_invariants()
    assert bound.held_bytes == 30
    assert bound.filled(many[0], 5, 0.0).place is many[0]
    turn = bound.begin(0.0)
    assert turn is not None
    assert (turn.place, bound.held_bytes) == (many[2], 35)
    bound.release(few)
    bound.check_invariants()
    assert bound.held_bytes == 25


def test_many_small_places_give_back_for_a_large_one_bit_by_bit() -> None:
    bound = Bound(1000)
    small = [place_of(Partition()) for _ in range(1000)]
    for each in small:
        assert bound.maybe_hold(each, 1, 0.0)
    large = bound.want(Partition(), 950, 0.0)
    turns: list[Turn] = []
    while not turns or turns[-1].place is not large:
        turn = bound.begin(1.0)
        assert turn is not None
        bound.check_invariants()
        turns.append(turn)
    assert [len(turn.given_back) for turn in turns] == [100] * 9 + [50]
