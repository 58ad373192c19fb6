"""Placement of replicas: even, deterministic, and quick for many partitions."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.cluster.state.placement import ReplicaCounts, ReplicaSets, place, replication_of

NODES = [1, 2, 3, 4, 5, 6, 7]


def spread(counter: Counter[int], nodes: list[int]) -> int:
    """Difference between the nodes with the most and the fewest."""
    return max(counter[node] for node in nodes) - min(counter[node] for node in nodes)


def leaders(placed: ReplicaSets) -> Counter[int]:
    return Counter([replicas[0] for replicas in placed])


def one_by_one(count: int, replication: int, nodes: list[int], counts: ReplicaCounts) -> ReplicaSets:
    """The same partitions, each added by a call of its own."""
    placed: ReplicaSets = ()
    for _ in range(count):
        more = place(1, replication, nodes, counts, placed)
        counts.add(more)
        placed += more
    return placed


TOPICS = st.lists(st.integers(1, 30), min_size=1, max_size=8)


@pytest.mark.slow
@given(st.integers(1, 7), st.integers(1, 7), TOPICS)
def test_nodes_that_came_before_the_topics_have_equally_many_replicas_and_leaders(
    nodes: int, replication: int, topics: list[int]
) -> None:
    counts, ids = ReplicaCounts(), NODES[:nodes]
    for partitions in topics:
        placed = place(partitions, replication, ids, counts)
        counts.add(placed)
        assert {len(set(replicas)) for replicas in placed} == {min(replication, nodes)}
        assert spread(leaders(placed), ids) <= 1
        assert spread(counts.replicas, ids) <= 1
        assert spread(counts.leaders, ids) <= 1


@pytest.mark.slow
@given(st.integers(1, 7), st.lists(st.tuples(st.integers(1, 30), st.integers(1, 7)), max_size=8))
def test_leaders_are_even_whatever_the_replication_of_each_topic(
    nodes: int, topics: list[tuple[int, int]]
) -> None:
    counts, ids = ReplicaCounts(), NODES[:nodes]
    for partitions, replication in topics:
        counts.add(place(partitions, replication, ids, counts))
        assert spread(counts.leaders, ids) <= 1


@pytest.mark.slow
@given(st.integers(2, 7), st.integers(1, 7), TOPICS, TOPICS)
def test_partitions_next_to_each_other_have_different_leaders(
    nodes: int, replication: int, before: list[int], growth: list[int]
) -> None:
    counts, present = ReplicaCounts(), ()
    for partitions in before:
        counts.add(place(partitions, replication, NODES[:1], counts))
    placed: ReplicaSets = present
    for partitions in growth:
        more = place(partitions, replication, NODES[:nodes], counts, placed)
        counts.add(more)
        placed += more
    assert all(left[0] != right[0] for left, right in pairwise(placed))


@pytest.mark.slow
@given(st.integers(1, 7), st.integers(1, 7), st.integers(0, 60), TOPICS, st.integers(0, 20))
def test_many_partitions_are_placed_as_if_one_by_one(
    nodes: int, replication: int, count: int, before: list[int], uneven: int
) -> None:
    together, alone = ReplicaCounts(), ReplicaCounts()
    for counts in (together, alone):
        counts.add(place(uneven, 1, NODES[:1], counts))
        for partitions in before:
            counts.add(place(partitions, replication, NODES[: nodes - 1] or NODES[:1], counts))
    assert place(count, replication, NODES[:nodes], together) == one_by_one(
        count, replication, NODES[:nodes], alone
    )


@pytest.mark.slow
@given(st.integers(1, 7), st.integers(1, 7), st.integers(0, 60), TOPICS, st.sets(st.integers(1, 7)))
def test_partitions_of_nodes_that_cannot_be_reached_are_placed_as_if_one_by_one(
    nodes: int, replication: int, count: int, before: list[int], unreachable: set[int]
) -> None:
    together, alone = ReplicaCounts(), ReplicaCounts()
    for counts in (together, alone):
        for partitions in before:
            counts.add(place(partitions, replication, NODES[:nodes], counts))
    placed: ReplicaSets = ()
    for _ in range(count):
        more = place(1, replication, NODES[:nodes], alone, placed, unreachable)
        alone.add(more)
        placed += more
    assert place(count, replication, NODES[:nodes], together, (), unreachable) == placed


@pytest.mark.slow
@given(st.integers(2, 7), st.integers(1, 7), TOPICS, st.sets(st.integers(1, 7)))
def test_most_replicas_are_on_nodes_that_can_be_reached_and_so_is_the_first(
    nodes: int, replication: int, topics: list[int], unreachable: set[int]
) -> None:
    counts, ids = ReplicaCounts(), NODES[:nodes]
    reached = {*ids} - unreachable
    if len(reached) < 2:
        reached = {*ids}  # whoever reaches nobody adds nothing
    for partitions in topics:
        placed = place(partitions, replication, ids, counts, (), unreachable)
        counts.add(placed)
        for replicas in placed:
            assert replicas[0] in reached
            assert 2 * len(reached.intersection(replicas)) > len(replicas) == len({*replicas})
            assert len(replicas) == min(replication, nodes, 2 * len(reached) - 1)
            assert reached.issuperset(replicas) or reached.issubset(replicas)
        assert spread(leaders(placed), sorted(reached)) <= 1


def test_a_node_that_came_later_gets_its_share_of_leaders_and_replicas_first() -> None:
    counts = ReplicaCounts()
    counts.add(place(12, 2, [1, 2, 3], counts))
    placed = place(8, 2, [1, 2, 3, 4], counts)
    assert leaders(placed) == {1: 2, 2: 2, 3: 2, 4: 2}
    assert Counter(node for replicas in placed for node in replicas)[4] == 8


def test_the_first_replicas_of_a_topic_go_on_where_it_ended() -> None:
    counts = ReplicaCounts()
    assert place(2, 3, [1, 2, 3], counts) == ((1, 2, 3), (2, 1, 3))
    assert place(2, 3, [1, 2, 3], counts, ((1, 2, 3), (2, 1, 3))) == ((3, 1, 2), (1, 2, 3))


def test_replicas_that_are_gone_count_no_longer() -> None:
    counts = ReplicaCounts()
    placed = place(5, 2, [1, 2, 3], counts)
    counts.add(placed)
    counts.remove(placed)
    assert place(5, 2, [1, 2, 3], counts) == placed


@pytest.mark.parametrize("unreachable", [(), (4, 5), (2, 3, 4)])
def test_ten_thousand_partitions_share_their_sets(unreachable: tuple[int, ...]) -> None:
    placed = place(10_000, 3, [1, 2, 3, 4, 5], ReplicaCounts(), (), unreachable)
    assert len(placed) == 10_000
    assert len({id(replicas) for replicas in placed}) <= 15


@pytest.mark.parametrize(
    ("config", "replication"),
    [
        ({}, 3),
        ({"replication": "1"}, 1),
        ({"replication": "5"}, 5),
        ({"replication": "x"}, 3),
        ({"replication": "0"}, 3),
    ],
)
def test_a_topic_has_three_replicas_unless_it_says_otherwise(
    config: dict[str, str], replication: int
) -> None:
    assert replication_of(config) == replication
