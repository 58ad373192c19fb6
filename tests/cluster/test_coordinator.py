"""Assignment of partitions: ranges, joins, leaves, subscriptions, topics created later."""

from collections.abc import Iterator, Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from pixy.cluster import Coordinator, Member

PARTITIONS = {"a": 4, "b": 1}


class Consumer(Member):
    """A member that records its assignments."""

    def __init__(self, client_id: str, *topics: str, group: str = "group") -> None:
        self.told: list[dict[str, list[int]]] = []
        super().__init__(group, client_id, topics, self._remember)

    def _remember(self, assigned: Mapping[str, Sequence[int]]) -> None:
        self.told.append({topic: list(partitions) for topic, partitions in assigned.items()})


def told(steps: Iterator[None]) -> int:
    """Notify all consumer groups; returns their number."""
    return sum(1 for _ in steps)


def coordinator() -> Coordinator:
    return Coordinator(lambda topic: PARTITIONS.get(topic, 0))


def test_a_single_member_gets_all_and_a_second_one_half() -> None:
    shared = coordinator()
    one, two = Consumer("one", "a", "b"), Consumer("two", "a")
    shared.join(one)
    assert one.told == [{"a": [0, 1, 2, 3], "b": [0]}]
    shared.join(two)
    assert one.told[1:] == [{"a": [0, 1], "b": [0]}]
    assert two.told == [{"a": [2, 3]}]
    assert shared.consumers("a") == {"group": {"one": [0, 1], "two": [2, 3]}}
    assert shared.consumers("b") == {"group": {"one": [0]}}


def test_partitions_of_a_leaving_member_go_to_the_others_without_a_callback_for_it() -> None:
    shared = coordinator()
    one, two = Consumer("one", "a"), Consumer("two", "a")
    shared.join(one)
    shared.join(two)
    shared.leave(one)
    shared.leave(one)
    assert two.told[-1] == {"a": [0, 1, 2, 3]}
    assert len(one.told) == 2
    assert shared.exists("group")
    shared.leave(two)
    assert not shared.exists("group")
    assert shared.consumers("a") == {}


def test_a_member_with_unchanged_partitions_gets_no_callback() -> None:
    shared = coordinator()
    one, two = Consumer("one", "a"), Consumer("two", "b")
    shared.join(one)
    shared.join(two)
    shared.subscribe(one, ["a"])
    assert len(one.told) == 1


def test_subscribing_replaces_the_topics() -> None:
    shared = coordinator()
    one, two = Consumer("one", "a"), Consumer("two", "a")
    shared.join(one)
    shared.join(two)
    shared.subscribe(one, ["b"])
    assert one.told[-1] == {"b": [0]}
    assert two.told[-1] == {"a": [0, 1, 2, 3]}


def test_a_topic_created_later_is_assigned_once_it_exists() -> None:
    partitions: dict[str, int] = {}
    shared = Coordinator(lambda topic: partitions.get(topic, 0))
    one, other = Consumer("one", "new"), Consumer("other", "old", group="other")
    shared.join(one)
    shared.join(other)
    assert one.told == [{"new": []}]
    partitions["new"] = 2
    told(shared.topic_changed("new"))
    assert one.told[1:] == [{"new": [0, 1]}]
    assert len(other.told) == 1


def test_groups_share_nothing() -> None:
    shared = coordinator()
    one, two = Consumer("one", "a"), Consumer("two", "a", group="other")
    shared.join(one)
    shared.join(two)
    assert one.told == two.told == [{"a": [0, 1, 2, 3]}]
    assert set(shared.consumers("a")) == {"group", "other"}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["join", "leave", "subscribe"]),
            st.integers(0, 4),
            st.sets(st.sampled_from("abx")),
        ),
        max_size=30,
    )
)
def test_every_subscribed_partition_has_one_owner(steps: list[tuple[str, int, set[str]]]) -> None:
    shared = coordinator()
    members = [Consumer(str(number)) for number in range(5)]
    inside: set[int] = set()
    for what, number, topics in steps:
        member = members[number]
        if what == "join" and number not in inside:
            member.topics = tuple(topics)
            member.assigned = {}
            inside.add(number)
            shared.join(member)
        elif what == "leave":
            inside.discard(number)
            shared.leave(member)
        elif what == "subscribe" and number in inside:
            shared.subscribe(member, sorted(topics))
        for topic, count in PARTITIONS.items():
            wanting = [members[each] for each in inside if topic in members[each].topics]
            owned = sorted(each for m in wanting for each in m.assigned[topic])
            assert owned == (list(range(count)) if wanting else [])
        for each in inside:
            assert set(members[each].assigned) == set(members[each].topics)


def test_added_partitions_are_rebalanced() -> None:
    partitions = {"a": 2, "b": 1}
    shared = Coordinator(lambda topic: partitions.get(topic, 0))
    one, two, other = Consumer("one", "a"), Consumer("two", "a"), Consumer("other", "b", group="other")
    for member in (one, two, other):
        shared.join(member)
    partitions["a"] = 5
    told(shared.topic_changed("a"))
    assert (one.told[-1], two.told[-1]) == ({"a": [0, 1, 2]}, {"a": [3, 4]})
    assert len(other.told) == 1


def test_members_that_lose_partitions_are_told_before_those_that_gain_them() -> None:
    partitions = {"a": 3}
    shared = Coordinator(lambda topic: partitions["a"])
    order: list[str] = []

    class Ordered(Consumer):
        def _remember(self, assigned: Mapping[str, Sequence[int]]) -> None:
            super()._remember(assigned)
            order.append(self.client_id)

    one, two = Ordered("one", "a"), Ordered("two", "a")
    shared.join(one)
    shared.join(two)
    partitions["a"] = 6
    order.clear()
    told(shared.topic_changed("a"))  # partition 2 moves from the second to the first
    assert order == ["two", "one"]


def test_partitions_of_a_deleted_topic_are_revoked_even_if_it_was_recreated() -> None:
    shared = coordinator()
    one, two, other = Consumer("one", "a", "b"), Consumer("two", "a"), Consumer("other", "b", group="other")
    for member in (one, two, other):
        shared.join(member)
    told(shared.topic_deleted("a"))
    assert (one.told[-1], two.told[-1]) == ({"a": [], "b": [0]}, {"a": []})
    told(shared.topic_changed("a"))
    assert (one.told[-1], two.told[-1]) == ({"a": [0, 1], "b": [0]}, {"a": [2, 3]})
    assert len(other.told) == 1


def test_a_topic_without_subscribers_changes_nothing() -> None:
    shared = coordinator()
    one = Consumer("one", "a")
    shared.join(one)
    told(shared.topic_deleted("b"))
    told(shared.topic_changed("b"))
    assert len(one.told) == 1


def test_each_step_rebalances_one_consumer_group_that_subscribes_to_the_topic() -> None:
    shared = coordinator()
    wanting = [Consumer("one", "a", "b", group=f"g{number}") for number in range(5)]
    others = [Consumer("one", "b", group=f"h{number}") for number in range(5)]
    for member in (*wanting, *others):
        shared.join(member)
        member.told.clear()
    steps = shared.topic_deleted("a")
    for count in range(1, 6):
        next(steps)
        assert sum(bool(member.told) for member in wanting) == count
    assert next(steps, None) is None
    assert not any(member.told for member in others)


def test_a_topic_without_subscribers_has_no_consumer_groups() -> None:
    shared = coordinator()
    one, two = Consumer("one", "a", "b"), Consumer("two", "a")
    shared.join(one)
    shared.join(two)
    shared.subscribe(one, ["b"])
    assert set(shared.consumers("a")["group"]) == {"two"}
    shared.leave(two)
    assert (shared.consumers("a"), told(shared.topic_changed("a"))) == ({}, 0)
    shared.subscribe(one, ["a"])
    assert (shared.consumers("b"), set(shared.consumers("a"))) == ({}, {"group"})
    shared.leave(one)
    assert (shared.consumers("a"), shared._by_topic) == ({}, {})


def test_a_restart_takes_all_partitions_and_assigns_them_anew() -> None:
    shared = coordinator()
    one, two, other = Consumer("one", "a"), Consumer("two", "a"), Consumer("three", "a", group="other")
    for member in (one, two, other):
        shared.join(member)
    before = [list(member.told) for member in (one, two, other)]
    shared.restart("group")
    shared.restart("unknown")
    assert one.told[len(before[0]) :] == [{}, {"a": [0, 1]}]
    assert two.told[len(before[1]) :] == [{}, {"a": [2, 3]}]
    assert other.told == before[2]
