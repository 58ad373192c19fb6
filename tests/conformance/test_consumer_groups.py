"""Consumer groups: atomic commits, and assignment of partitions."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

import pytest

from pixy.backend import Backend, ConsumerMembership, OffsetCommit, TopicPartition
from pixy.errors import FailedPrecondition, PixyError, UnknownGroup, UnknownTopic
from tests.conformance.implementations import Capability
from tests.conformance.support import PATIENCE, Assignments
from tests.fakes.waiting import until


@pytest.fixture(autouse=True)
async def _topics(backend: Backend) -> None:
    await backend.create_topic("orders", 4)
    await backend.create_topic("bills", 1)


async def join(
    backend: Backend, assignments: Assignments, topics: Sequence[str] = ("orders",), client_id: str = "me"
) -> ConsumerMembership:
    async with asyncio.timeout(PATIENCE):
        return await backend.join_consumer_group("group", client_id, topics, assignments)


# --- commits --------------------------------------------------------------------------------------


async def test_a_group_without_commits_has_none(backend: Backend) -> None:
    assert await backend.committed_offsets("group", "orders") == {}


async def test_commits_are_read_back_with_their_metadata(backend: Backend) -> None:
    await backend.commit_offsets(
        "group",
        {
            TopicPartition("orders", 0): OffsetCommit(5, "BBCA"),
            TopicPartition("orders", 3): OffsetCommit(0),
            TopicPartition("bills", 0): OffsetCommit(2**62, "x" * 2000),
        },
    )
    assert await backend.committed_offsets("group", "orders") == {0: (5, "BBCA"), 3: (0, "")}
    assert await backend.committed_offsets("group", "bills") == {0: (2**62, "x" * 2000)}


async def test_committed_offsets_of_all_groups_are_visited(backend: Backend) -> None:
    await backend.commit_offsets("one", {TopicPartition("orders", 1): OffsetCommit(5, "BBCA")})
    both = {TopicPartition("orders", 3): OffsetCommit(1), TopicPartition("bills", 0): OffsetCommit(2)}
    await backend.commit_offsets("two", both)
    expected = {("one", "orders"): {1: 5}, ("two", "orders"): {3: 1}, ("two", "bills"): {0: 2}}
    visited: dict[tuple[str, str], Mapping[int, int]] = {}

    def visit(group: str, topic: str, offsets: Mapping[int, int]) -> None:
        visited[group, topic] = offsets

    async with asyncio.timeout(PATIENCE):
        while visited != expected:
            visited.clear()
            await backend.visit_positions(visit)


async def test_a_commit_replaces_only_the_offsets_it_names(backend: Backend) -> None:
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    await backend.commit_offsets("group", {first: OffsetCommit(5, "BB"), second: OffsetCommit(7, "BB")})
    await backend.commit_offsets("group", {first: OffsetCommit(3)})
    assert await backend.committed_offsets("group", "orders") == {0: (3, ""), 1: (7, "BB")}


async def test_groups_do_not_see_each_others_commits(backend: Backend) -> None:
    await backend.commit_offsets("one", {TopicPartition("orders", 0): OffsetCommit(1)})
    await backend.commit_offsets("two", {TopicPartition("orders", 0): OffsetCommit(2)})
    assert await backend.committed_offsets("one", "orders") == {0: (1, "")}
    assert await backend.committed_offsets("two", "orders") == {0: (2, "")}


async def test_a_commit_is_stored_as_a_whole_or_not_at_all(backend: Backend) -> None:
    good, bad = TopicPartition("orders", 0), TopicPartition("orders", 99)
    try:
        await backend.commit_offsets("group", {good: OffsetCommit(1), bad: OffsetCommit(1)})
    except PixyError:
        assert await backend.committed_offsets("group", "orders") == {}
    else:
        assert await backend.committed_offsets("group", "orders") == {0: (1, ""), 99: (1, "")}


async def test_concurrent_commits_are_never_mixed(backend: Backend) -> None:
    every = [TopicPartition("orders", number) for number in range(4)]
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(
            *(backend.commit_offsets("group", dict.fromkeys(every, OffsetCommit(at))) for at in range(20))
        )
    assert len(set((await backend.committed_offsets("group", "orders")).values())) == 1


async def test_committing_needs_no_member_and_creates_none(backend: Backend) -> None:
    await backend.commit_offsets("group", {TopicPartition("orders", 0): OffsetCommit(1)})
    assert not await backend.consumer_group_exists("group")
    assert await backend.list_consumers("orders") == {}


async def test_commits_stay_when_the_last_member_leaves(backend: Backend) -> None:
    assignments = Assignments()
    membership = await join(backend, assignments)
    await assignments.wait({"orders": [0, 1, 2, 3]})
    await backend.commit_offsets("group", {TopicPartition("orders", 0): OffsetCommit(1)})
    await membership.leave()
    assert await backend.committed_offsets("group", "orders") == {0: (1, "")}


# --- deletion -------------------------------------------------------------------------------------


async def test_a_deleted_group_has_no_offsets_and_is_not_listed(backend: Backend) -> None:
    for group in ("one", "two"):
        await backend.commit_offsets(
            group,
            {TopicPartition("orders", 3): OffsetCommit(5, "BB"), TopicPartition("bills", 0): OffsetCommit(1)},
        )
    await backend.delete_group("one")
    assert await backend.committed_offsets("one", "orders") == {}
    assert await backend.committed_offsets("one", "bills") == {}
    assert await backend.committed_offsets("two", "orders") == {3: (5, "BB")}
    assert "one" not in await backend.list_groups()
    await backend.commit_offsets("one", {TopicPartition("orders", 0): OffsetCommit(2)})
    assert await backend.committed_offsets("one", "orders") == {0: (2, "")}


async def test_the_offsets_of_a_group_in_one_topic_are_deleted(backend: Backend) -> None:
    await backend.commit_offsets(
        "group", {TopicPartition("orders", 3): OffsetCommit(5), TopicPartition("bills", 0): OffsetCommit(1)}
    )
    await backend.delete_group("group", "orders")
    assert await backend.committed_offsets("group", "orders") == {}
    assert await backend.committed_offsets("group", "bills") == {0: (1, "")}


async def test_what_a_group_does_not_have_cannot_be_deleted(backend: Backend) -> None:
    await backend.commit_offsets("group", {TopicPartition("orders", 0): OffsetCommit(5)})
    for group, topic, error in (
        ("other", "", UnknownGroup),
        ("group", "bills", UnknownGroup),
        ("group", "missing", UnknownTopic),
    ):
        with pytest.raises(error):
            await backend.delete_group(group, topic)
    assert await backend.committed_offsets("group", "orders") == {0: (5, "")}


async def test_a_group_with_members_is_not_deleted(backend: Backend) -> None:
    assignments = Assignments()
    membership = await join(backend, assignments)
    await assignments.wait({"orders": [0, 1, 2, 3]})
    await backend.commit_offsets("group", {TopicPartition("orders", 0): OffsetCommit(5)})
    for topic in ("", "orders"):
        with pytest.raises(FailedPrecondition, match="consumers"):
            await backend.delete_group("group", topic)
    assert await backend.committed_offsets("group", "orders") == {0: (5, "")}
    await membership.leave()
    await backend.delete_group("group")
    assert await backend.committed_offsets("group", "orders") == {}


# --- one member -----------------------------------------------------------------------------------


async def test_a_single_member_gets_every_partition(backend: Backend) -> None:
    assignments = Assignments()
    await join(backend, assignments, ["orders", "bills"])
    await assignments.wait({"orders": [0, 1, 2, 3], "bills": [0]})


async def test_a_member_of_an_unknown_topic_gets_an_empty_assignment(backend: Backend) -> None:
    assignments = Assignments()
    await join(backend, assignments, ["missing"])
    await assignments.wait({})
    assert backend.topic("missing") is None


async def test_an_unknown_topic_does_not_delay_the_others(backend: Backend) -> None:
    assignments = Assignments()
    await join(backend, assignments, ["missing", "bills"])
    await assignments.wait({"bills": [0]})


async def test_a_topic_created_later_is_assigned_then(backend: Backend) -> None:
    assignments = Assignments()
    await join(backend, assignments, ["later", "bills"])
    await assignments.wait({"bills": [0]})
    await backend.create_topic("later", 2)
    await assignments.wait({"bills": [0], "later": [0, 1]})


async def test_subscribing_replaces_the_topics(backend: Backend) -> None:
    assignments = Assignments()
    membership = await join(backend, assignments, ["orders"])
    await assignments.wait({"orders": [0, 1, 2, 3]})
    await membership.subscribe(["orders", "bills"])
    await assignments.wait({"orders": [0, 1, 2, 3], "bills": [0]})
    await membership.subscribe(["bills"])
    await assignments.wait({"bills": [0]})
    assert await backend.list_consumers("orders") == {}


async def test_subscribing_to_nothing_keeps_the_member(backend: Backend) -> None:
    assignments = Assignments()
    membership = await join(backend, assignments, ["bills"])
    await assignments.wait({"bills": [0]})
    await membership.subscribe([])
    await assignments.wait({})
    assert await backend.consumer_group_exists("group")


async def test_a_member_that_left_has_no_partitions_and_no_notifications(backend: Backend) -> None:
    assignments = Assignments()
    membership = await join(backend, assignments, ["orders", "later"])
    await assignments.wait({"orders": [0, 1, 2, 3]})
    heard = len(assignments.calls)
    async with asyncio.timeout(PATIENCE):
        await membership.leave()
    assert not await backend.consumer_group_exists("group")
    assert await backend.list_consumers("orders") == {}
    # A notification of the change would have reached the next member before it has its partitions.
    await backend.create_topic("later", 1)
    following = Assignments()
    await join(backend, following, ["orders", "later"])
    await following.wait({"orders": [0, 1, 2, 3], "later": [0]})
    assert len(assignments.calls) == heard


async def test_leaving_twice_is_no_error(backend: Backend) -> None:
    membership = await join(backend, Assignments())
    await membership.leave()
    await membership.leave()
    assert not await backend.consumer_group_exists("group")


async def test_a_group_exists_while_it_has_a_member(backend: Backend) -> None:
    assert not await backend.consumer_group_exists("group")
    membership = await join(backend, Assignments())
    assert await backend.consumer_group_exists("group")
    assert not await backend.consumer_group_exists("other")
    await membership.leave()
    assert not await backend.consumer_group_exists("group")


async def test_consumers_are_listed_by_group_and_client(backend: Backend) -> None:
    one, two = Assignments(), Assignments()
    await backend.join_consumer_group("one", "alice", ["orders"], one)
    await backend.join_consumer_group("two", "bob", ["orders", "bills"], two)
    await one.wait({"orders": [0, 1, 2, 3]})
    await two.wait({"orders": [0, 1, 2, 3], "bills": [0]})
    listed = {
        group: {client: list(partitions) for client, partitions in clients.items()}
        for group, clients in (await backend.list_consumers("orders")).items()
    }
    assert listed == {"one": {"alice": [0, 1, 2, 3]}, "two": {"bob": [0, 1, 2, 3]}}
    assert set(await backend.list_consumers("bills")) == {"two"}
    assert await backend.list_consumers("missing") == {}


@pytest.mark.slow
async def test_groups_are_listed_with_members_or_with_offsets_only(backend: Backend) -> None:
    await backend.commit_offsets("committed", {TopicPartition("orders", 0): OffsetCommit(1)})
    assignments = Assignments()
    membership = await backend.join_consumer_group("joined", "alice", ["orders"], assignments)
    await assignments.wait({"orders": [0, 1, 2, 3]})
    assert {"committed", "joined"} <= set(await backend.list_groups())
    await membership.leave()
    assert "committed" in await backend.list_groups()
    assert "unknown" not in await backend.list_groups()


async def test_the_owner_of_a_partition_is_reported(backend: Backend) -> None:
    partition = TopicPartition("orders", 3)
    assert await backend.partition_owner("group", partition) is None
    assignments = Assignments()
    membership = await join(backend, assignments, client_id="alice")
    await assignments.wait({"orders": [0, 1, 2, 3]})
    owner = await backend.partition_owner("group", partition)
    assert owner is not None
    assert owner.client_id == "alice"
    assert await backend.partition_owner("other", partition) is None
    assert await backend.partition_owner("group", TopicPartition("orders", 4)) is None
    assert await backend.partition_owner("group", TopicPartition("bills", 0)) is None
    await membership.leave()

    async def is_free() -> bool:
        return await backend.partition_owner("group", partition) is None

    await until(is_free)  # another node hears of it a moment later


async def test_groups_are_independent(backend: Backend) -> None:
    one, two = Assignments(), Assignments()
    first = await backend.join_consumer_group("one", "me", ["bills"], one)
    await backend.join_consumer_group("two", "me", ["bills"], two)
    await one.wait({"bills": [0]})
    await two.wait({"bills": [0]})
    await first.leave()
    assert await backend.consumer_group_exists("two")
    assert two.last == {"bills": [0]}


# --- several members ------------------------------------------------------------------------------


@pytest.mark.needs(Capability.SECOND_MEMBER)
async def test_two_members_share_the_partitions(backend: Backend) -> None:
    first, second = Assignments(), Assignments()
    await join(backend, first, client_id="first")
    await first.wait({"orders": [0, 1, 2, 3]})
    await join(backend, second, client_id="second")
    await first.wait_until(lambda owned: len(owned["orders"]) == 2)
    await second.wait_until(bool)
    assert first.last is not None
    assert second.last is not None
    assert sorted(first.last["orders"] + second.last["orders"]) == [0, 1, 2, 3]


@pytest.mark.needs(Capability.SECOND_MEMBER)
async def test_the_partitions_of_a_member_that_left_are_reassigned(backend: Backend) -> None:
    first, second = Assignments(), Assignments()
    leaving = await join(backend, first, client_id="first")
    await join(backend, second, client_id="second")
    await second.wait_until(lambda owned: len(owned.get("orders", ())) == 2)
    await leaving.leave()
    await second.wait({"orders": [0, 1, 2, 3]})


@pytest.mark.needs(Capability.SECOND_MEMBER)
async def test_a_member_gets_only_its_subscribed_topics(backend: Backend) -> None:
    first, second = Assignments(), Assignments()
    await join(backend, first, ["orders"], "first")
    await join(backend, second, ["orders", "bills"], "second")
    await second.wait_until(lambda owned: owned.get("bills") == [0] and len(owned.get("orders", ())) == 2)
    await first.wait_until(lambda owned: len(owned["orders"]) == 2)
    assert all("bills" not in call for call in first.calls)


@pytest.mark.needs(Capability.SECOND_MEMBER)
async def test_with_more_members_than_partitions_some_have_none(backend: Backend) -> None:
    members = [Assignments() for _ in range(3)]
    for at, each in enumerate(members):
        await join(backend, each, ["bills"], f"client-{at}")
        await each.wait_until(lambda _: True)
    owners = [each for each in members if each.last == {"bills": [0]}]
    assert len(owners) == 1
    listed = (await backend.list_consumers("bills"))["group"]
    assert sorted(number for partitions in listed.values() for number in partitions) == [0]


@pytest.mark.needs(Capability.SECOND_MEMBER)
async def test_no_partition_has_two_owners_at_any_moment(backend: Backend) -> None:
    owners: dict[int, str] = {}
    violations: list[str] = []

    class Watch(Assignments):
        def __init__(self, name: str) -> None:
            super().__init__()
            self._name = name

        async def revoke(self, _: float, __: object) -> None:
            for number in [number for number, owner in owners.items() if owner == self._name]:
                del owners[number]

        def __call__(self, assigned: object) -> None:
            assert isinstance(assigned, dict)
            for number in [number for number, owner in owners.items() if owner == self._name]:
                del owners[number]
            for number in assigned.get("orders", ()):
                if number in owners:
                    violations.append(f"{number} of {owners[number]} went to {self._name}")
                owners[number] = self._name
            super().__call__(assigned)

    def fair(members: int, owned: dict[str, list[int]]) -> bool:
        return len(owned.get("orders", ())) in {4 // members, -(-4 // members)}

    watches = [Watch(f"client-{at}") for at in range(3)]
    for joined, watch in enumerate(watches, start=1):
        client_id = f"client-{joined}"
        await backend.join_consumer_group("group", client_id, ["orders"], watch, watch.revoke)
        # The newest member last: it gets its partitions when the others have revoked them.
        for each in watches[:joined]:
            await each.wait_until(partial(fair, joined))
    # Any of the three may be notified last.
    await until(lambda: sorted(owners) == [0, 1, 2, 3])
    assert violations == []
