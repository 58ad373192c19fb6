"""The sticky assignor: balance, moves, neighbourhood."""

from collections import Counter
from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.cluster.consumer_groups import sticky_assignor
from pixy.cluster.consumer_groups.sticky_assignor import AssignableTopic
from pixy.cluster.state.group_members import MemberId, Owners
from tests.fakes.steps import result_of


def member(node_id: int, number: int = 1) -> MemberId:
    return MemberId(node_id, 1, number)


ONE, TWO, THREE, FOUR = map(member, range(1, 5))


def topic(
    *members: MemberId,
    owners: Owners = (),
    targets: Owners = (),
    replicas: list[tuple[int, ...]] | None = None,
    count: int = 0,
) -> AssignableTopic:
    """A topic of as many partitions as there are owners or replicas."""
    count = count or max(len(owners), len(replicas or ()))
    nobody = (None,) * count
    return AssignableTopic(
        members, (*owners, *nobody)[:count], (*targets, *nobody)[:count], replicas or [()] * count
    )


def assigned(*args: MemberId, **options: object) -> list[int]:
    """Nodes of the owners of one topic."""
    (owners,) = assign([topic(*args, **options)])  # type: ignore[arg-type]  # as `topic` takes them
    return [owner.node_id for owner in owners if owner is not None]


def assign(topics: Sequence[AssignableTopic]) -> list[Owners]:
    """The result of all steps."""
    return result_of(sticky_assignor.assign(topics))


def moves(before: Owners, after: Owners) -> int:
    return sum(owner is not None and owner != now for owner, now in zip(before, after, strict=True))


def test_a_single_member_gets_everything() -> None:
    assert assigned(ONE, count=3) == [1, 1, 1]
    assert assign([]) == []


def test_a_member_that_comes_takes_as_few_as_possible_from_the_others() -> None:
    assert assigned(ONE, TWO, owners=(ONE,) * 4) == [1, 1, 2, 2]
    assert assigned(ONE, TWO, THREE, owners=(ONE, ONE, TWO, TWO)) == [1, 1, 2, 3]
    assert assigned(ONE, TWO, THREE, owners=(ONE, ONE, ONE, TWO, TWO, TWO)) == [1, 1, 3, 2, 2, 3]


def test_the_partitions_of_a_member_that_goes_are_spread_and_nothing_else_moves() -> None:
    assert assigned(ONE, TWO, owners=(ONE, ONE, THREE, TWO, TWO, THREE)) == [1, 1, 1, 2, 2, 2]


def test_whoever_has_more_than_its_share_by_one_keeps_it() -> None:
    assert assigned(ONE, TWO, owners=(TWO, TWO, ONE)) == [2, 2, 1]
    assert assigned(ONE, TWO, owners=(TWO, None, ONE, TWO, None)) == [2, 1, 1, 2, 1]


def test_free_partitions_go_where_they_are_led_or_at_least_have_a_replica() -> None:
    replicas = [(2, 1), (1, 2), (3, 2), (4, 3), (4, 5), (1, 4)]
    assert assigned(ONE, TWO, THREE, replicas=replicas) == [2, 1, 3, 3, 2, 1]
    assert assigned(ONE, TWO, replicas=[(1, 2), (1, 2), (1, 2), (2, 1)]) == [1, 1, 2, 2]


def test_of_partitions_that_have_to_go_those_with_a_replica_stay() -> None:
    replicas = [(2, 3), (1, 2), (2, 1), (2, 3)]
    assert assigned(ONE, TWO, owners=(ONE,) * 4, replicas=replicas) == [2, 1, 1, 2]


def test_a_partition_that_is_on_its_way_goes_on() -> None:
    targets = (TWO, ONE, ONE, TWO)
    assert assigned(ONE, TWO, owners=(ONE,) * 4, targets=targets) == [2, 1, 1, 2]
    assert assigned(ONE, TWO, owners=(None, ONE, ONE, None), targets=targets) == [2, 1, 1, 2]


def test_a_member_gets_only_topics_that_it_subscribes_to() -> None:
    found = assign([topic(ONE, TWO, count=2), topic(TWO, count=3), topic(ONE, THREE, count=1)])
    assert found[1] == (TWO, TWO, TWO)
    assert set(found[0]) == {ONE, TWO}
    assert found[2] == (THREE,), "who has least"


def test_topics_of_one_partition_are_spread_over_the_members() -> None:
    found = assign([topic(ONE, TWO, THREE, count=1) for _ in range(9)])
    assert Counter(owner for owners in found for owner in owners) == {ONE: 3, TWO: 3, THREE: 3}
    # Somebody who comes later gets its share of them, and the rest stays.
    found = assign([topic(ONE, TWO, owners=(ONE,)) for _ in range(9)])
    assert Counter(owner for owners in found for owner in owners) == {ONE: 5, TWO: 4}


@st.composite
def inputs(draw: st.DrawFn) -> list[AssignableTopic]:
    members = draw(
        st.lists(st.builds(member, st.integers(1, 4), st.integers(1, 2)), min_size=1, max_size=6, unique=True)
    )
    anybody = st.none() | st.sampled_from([*members, member(9)])
    topics = []
    for _ in range(draw(st.integers(0, 3))):
        count = draw(st.integers(0, 9))
        some = st.lists(st.sampled_from(members), min_size=1, unique=True)
        owners, targets = [tuple(draw(st.lists(anybody, min_size=count, max_size=count))) for _ in range(2)]
        replicas = draw(
            st.lists(
                st.lists(st.integers(1, 4), max_size=3, unique=True).map(tuple),
                min_size=count,
                max_size=count,
            )
        )
        topics.append(AssignableTopic(draw(some), owners, targets, replicas))
    return topics


@pytest.mark.slow
@given(inputs())
def test_every_partition_has_one_owner_and_each_topic_is_balanced(topics: list[AssignableTopic]) -> None:
    totals: Counter[MemberId] = Counter()
    found = assign(topics)
    counts = []
    for of, owners in zip(topics, found, strict=True):
        assert len(owners) == len(of.replicas)
        assert set(owners) <= set(of.members)
        count = Counter(dict.fromkeys(of.members, 0))
        count.update(owner for owner in owners if owner is not None)
        assert max(count.values()) - min(count.values()) <= 1
        totals.update(count)
        counts.append(count)
    for count in counts:
        # No move within a topic would make the whole more even.
        floor = min(count.values())
        for giver, taker in permutations(count, 2):
            if count[giver] > floor == count[taker]:
                assert totals[giver] - totals[taker] < 2


@pytest.mark.slow
@given(inputs())
def test_an_assignment_is_its_own_and_does_not_depend_on_the_order_of_members(
    topics: list[AssignableTopic],
) -> None:
    found = assign(topics)
    reordered = [of._replace(members=list(reversed(of.members))) for of in topics]
    assert assign(reordered) == found
    reached = [of._replace(owners=owners) for of, owners in zip(topics, found, strict=True)]
    assert assign(reached) == found
    settled = [of._replace(targets=owners) for of, owners in zip(reached, found, strict=True)]
    assert assign(settled) == found
    on_the_way = [of._replace(targets=owners) for of, owners in zip(topics, found, strict=True)]
    if len(topics) == 1:
        assert assign(on_the_way) == found


@pytest.mark.slow
@given(inputs())
def test_a_single_topic_moves_as_little_as_balance_allows(topics: list[AssignableTopic]) -> None:
    for of in topics:
        (owners,) = assign([of])
        floor, extras = divmod(len(of.replicas), len(of.members))
        counts = Counter(owner for owner in of.owners if owner in of.members)
        kept = sum(min(count, floor) for count in counts.values())
        kept += min(extras, sum(count > floor for count in counts.values()))
        lost = sum(owner is not None and owner not in of.members for owner in of.owners)
        assert moves(of.owners, owners) == sum(counts.values()) - kept + lost


@pytest.mark.slow
@pytest.mark.parametrize("steps", [5])
@given(data=st.data())
def test_members_that_come_and_go_move_only_their_share(steps: int, data: st.DataObject) -> None:
    members = [ONE]
    owners: Owners = (None,) * 12
    for _ in range(steps):
        come = [each for each in (ONE, TWO, THREE, FOUR) if each not in members]
        goes = data.draw(st.booleans()) if come and len(members) > 1 else len(members) > 1
        changed = data.draw(st.sampled_from(members if goes else come))
        members = [each for each in members if each != changed] if goes else [*members, changed]
        before = owners
        (owners,) = assign([topic(*members, owners=before)])
        if before != (None,) * 12:
            share = max(before.count(changed), owners.count(changed))
            assert moves(before, owners) == share
