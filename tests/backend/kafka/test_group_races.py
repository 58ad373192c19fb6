"""pixy/backend/kafka: groups during a rebalance or a transaction, on scripted brokers."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pixy.backend import OffsetCommit, TopicPartition
from pixy.backend.kafka.client import KafkaClient
from pixy.backend.kafka.coordinators import Coordinators
from pixy.backend.kafka.group_list import GroupList
from pixy.backend.kafka.groups import GroupEnvironment, Groups
from pixy.backend.kafka.offsets import GroupOffsets
from pixy.errors import OwnerUndecided, Unavailable, UnknownPartition
from pixy.kafka_protocol.consumer import encode_assignment
from tests.fakes.brokers import DESCRIBE_GROUPS, OFFSET_COMMIT, OFFSET_FETCH, Brokers

T0 = TopicPartition("t", 0)
_UNKNOWN_TOPIC, _UNSTABLE = 3, 88


@asynccontextmanager
async def open_groups(brokers: Brokers) -> AsyncIterator[tuple[GroupList, GroupOffsets]]:
    options = brokers.options()
    client = KafkaClient(options, brokers.dial)
    await client.start()
    coordinators = Coordinators(client)
    groups = Groups(GroupEnvironment(client, coordinators, options, lambda _: None), lambda *_: None)
    group_list = GroupList(client, coordinators)
    try:
        yield group_list, GroupOffsets(client, coordinators, groups, group_list)
    finally:
        await client.stop()


def described(state: str, assigned: Mapping[str, list[int]] | None = None) -> tuple[Any, ...]:
    """A group with one member, by default without an assignment."""
    assignment = b"" if assigned is None else encode_assignment(assigned)
    member: Any = ("id", None, "pixy-b", "/127.0.0.1", b"", assignment, {})
    return 0, [(0, "g", state, "consumer", "range", [member], 0, {})], {}


@pytest.mark.parametrize("state", ["PreparingRebalance", "CompletingRebalance"])
def test_the_owner_is_undecided_during_a_rebalance(virtual: asyncio.Runner, state: str) -> None:
    virtual.run(_undecided(state))


async def _undecided(state: str) -> None:
    brokers = Brokers({"t": [0]})
    brokers.on(DESCRIBE_GROUPS, lambda _: described(state))
    async with open_groups(brokers) as (group_list, _):
        with pytest.raises(OwnerUndecided, match="consumer group g is being rebalanced"):
            await group_list.owner("g", T0)


def test_partitions_not_assigned_in_a_stable_group_have_no_owner(virtual: asyncio.Runner) -> None:
    virtual.run(_nobody())


async def _nobody() -> None:
    brokers = Brokers({"t": [0]})
    brokers.on(DESCRIBE_GROUPS, lambda _: described("Stable"))
    async with open_groups(brokers) as (group_list, _):
        assert await group_list.owner("g", T0) is None


def test_the_owners_of_many_partitions_are_asked_for_once(virtual: asyncio.Runner) -> None:
    virtual.run(_many_owners())


async def _many_owners() -> None:
    brokers = Brokers({"t": [0]})
    brokers.on(
        DESCRIBE_GROUPS,
        lambda _: described("PreparingRebalance", {"t": list(range(100)), "other": list(range(200))}),
    )
    asked = [TopicPartition("t", number) for number in range(50, 150)]
    async with open_groups(brokers) as (group_list, _):
        assert await group_list.owners("g", asked) == dict.fromkeys(asked[:50], "pixy-b")
        assert brokers.count(DESCRIBE_GROUPS) == 1
        with pytest.raises(OwnerUndecided):
            await group_list.owners("g", asked[50:])


def test_pending_transactional_offsets_are_waited_for(virtual: asyncio.Runner) -> None:
    virtual.run(_settled())


async def _settled() -> None:
    brokers = Brokers({"t": [0, 0]})
    codes = [_UNSTABLE, _UNSTABLE, 0]

    def offsets(request: Any) -> tuple[Any, ...]:
        assert request.require_stable
        partitions: list[Any] = [(0, 3, -1, "", 0, {}), (1, 4, -1, "", codes.pop(0), {})]
        return 0, [("t", partitions, {})], 0, {}

    brokers.on(OFFSET_FETCH, offsets)
    async with open_groups(brokers) as (_, group_offsets):
        assert await group_offsets.committed("g", "t") == {0: (3, ""), 1: (4, "")}
    assert codes == []


def test_offsets_of_a_transaction_without_end_are_not_read(virtual: asyncio.Runner) -> None:
    virtual.run(_never_settled())


async def _never_settled() -> None:
    brokers = Brokers({"t": [0]})
    brokers.on(OFFSET_FETCH, lambda _: (0, [("t", [(0, 3, -1, "", _UNSTABLE, {})], {})], 0, {}))
    async with open_groups(brokers) as (_, group_offsets):
        with pytest.raises(Unavailable, match="UnstableOffsetCommit"):
            await group_offsets.committed("g", "t")


def test_a_commit_of_a_topic_that_its_coordinator_does_not_know_can_be_repeated(
    virtual: asyncio.Runner,
) -> None:
    virtual.run(_coordinator_lags())


async def _coordinator_lags() -> None:
    brokers = Brokers({"t": [0]})
    codes = [_UNKNOWN_TOPIC, 0, _UNKNOWN_TOPIC]
    brokers.on(OFFSET_COMMIT, lambda _: (0, [("t", [(0, codes.pop(0))])]))
    commit = {T0: OffsetCommit(1)}
    async with open_groups(brokers) as (_, group_offsets):
        with pytest.raises(Unavailable, match="the coordinator of g does not know of topic t"):
            await group_offsets.commit("g", commit)
        await group_offsets.commit("g", commit)
        del brokers.topics["t"]
        with pytest.raises(Unavailable):
            await group_offsets.commit("g", commit)
        await asyncio.sleep(1)
        with pytest.raises(UnknownPartition):
            await group_offsets.commit("g", commit)
