"""Offsets that are set at any node: the owners start over from them."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from pixy.backend import OffsetCommit, TopicPartition
from pixy.consume.core.resets import Resets
from pixy.consume.group import NEWEST, OLDEST
from pixy.errors import OwnedElsewhere, OwnerUndecided
from pixy.proto.consumer_calls_pb2 import ConsumerCall
from tests.consume.conftest import MakeNodes, MakeWorld
from tests.consume.fakes import Nodes
from tests.fakes.waiting import settle

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def two(make_nodes: MakeNodes, records: int = 10) -> Nodes:
    """Two nodes with a partition each, node 1 with partition 0, and records in each."""
    nodes = make_nodes(2, 2)
    await nodes.join(1, 2)
    assert (nodes.owned(1), nodes.owned(2)) == ([0], [1])
    await nodes.pass_time(1)  # of a question that nobody needs any more
    for partition in (0, 1):
        nodes.log(partition).append(*[b"%d" % partition] * records)
    await settle()
    nodes.links.calls.clear()
    return nodes


def setting(nodes: Nodes, number: int, **offsets: int) -> "asyncio.Task[None]":
    """Set offsets at a node: `p0=3` is that of partition 0."""
    commits = {int(name[1:]): OffsetCommit(offset) for name, offset in offsets.items()}
    return asyncio.create_task(nodes[number].consumers.set_offsets("g", "t", commits))


async def test_offsets_can_be_set_at_any_node_for_all_partitions_in_one_commit(
    make_nodes: MakeNodes,
) -> None:
    nodes = await two(make_nodes)
    nodes[1].backend.commit_calls.clear()
    await asyncio.wait_for(setting(nodes, 1, p0=3, p1=7), 5)
    assert nodes[1].backend.commit_calls == [{T0: OffsetCommit(3), T1: OffsetCommit(7)}]
    assert (await nodes[1].consume()).offsets == [3]
    assert (await nodes[2].consume()).offsets == [7]


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_the_owner_continues_at_the_offset_when_the_answer_comes(
    make_nodes: MakeNodes, number: int
) -> None:
    nodes = make_nodes(3, 1)
    await nodes.join(1)
    nodes.log().append(*[b"x"] * 10)
    assert (await nodes[1].consume(2)).offsets == [0, 1]
    await asyncio.wait_for(setting(nodes, number, p0=7), 5)
    assert nodes[1].consumers.outstanding == 0
    assert (await nodes[1].consume()).offsets == [7]


@pytest.mark.parametrize(("offset", "first"), [(OLDEST, 0), (NEWEST, None)])
async def test_special_offsets_are_those_of_the_log(
    make_nodes: MakeNodes, offset: int, first: int | None
) -> None:
    nodes = await two(make_nodes)
    await nodes[2].consume(3)
    await asyncio.wait_for(setting(nodes, 1, p1=offset), 5)
    assert nodes[2].committed(1) == OffsetCommit(first if first is not None else 10)
    answers = await nodes[2].consume()
    assert answers.offsets == ([] if first is None else [first])


async def test_acks_of_voided_offers_have_no_effect_at_the_owner(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    assert (await nodes[2].consume(3)).offsets == [0, 1, 2]
    await asyncio.wait_for(setting(nodes, 1, p1=0), 5)
    assert await nodes[1].ack(1, 1) == [None]
    assert await nodes[2].ack(1, 2) == [None]
    await nodes.pass_time(0.5)
    assert nodes[2].committed(1) == OffsetCommit(0)
    assert (await nodes[2].consume(3)).offsets == [0, 1, 2]
    assert await nodes[1].ack(1, 0) == [None]
    await nodes.pass_time(0.5)
    assert nodes[2].committed(1) == OffsetCommit(1)


async def test_offers_of_the_other_partitions_stay_valid(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    await nodes[1].consume()
    await asyncio.wait_for(setting(nodes, 2, p1=5), 5)
    assert nodes[1].consumers.outstanding == 1
    assert await nodes[1].ack(0, 0) == [None]
    await nodes.pass_time(0.5)
    assert nodes[1].committed(0) == OffsetCommit(1)


async def test_acks_before_the_reset_are_not_committed_over_it(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    await nodes[2].consume(3)
    await nodes[2].ack(1, 0)
    gate = nodes[2].backend.gates["commit"] = asyncio.Event()
    await nodes.pass_time(0.5)  # a commit is on its way
    with capture_logs() as logs:
        change = setting(nodes, 1, p1=0)
        await settle()
        gate.set()
        await asyncio.wait_for(change, 5)
        nodes[2].backend.create("u", 1)
        await nodes[2].consume(topic="u")  # commits what is left of partitions that were closed
        await nodes.pass_time(2)
    assert nodes[2].committed(1) == OffsetCommit(0)
    assert logs == []


async def test_a_record_that_is_delivered_after_the_reset_commits_no_earlier_position(
    make_nodes: MakeNodes,
) -> None:
    """Its answer was with the transport, or with another node, when the offsets were set."""
    nodes = await two(make_nodes)
    answers = await nodes[1].consume(slow=True)
    await asyncio.wait_for(setting(nodes, 2, p0=7), 5)
    answers.offers[0].delivered()
    nodes[1].backend.commit_calls.clear()
    await nodes.pass_time(3)
    assert [calls for calls in nodes[1].backend.commit_calls if T0 in calls and calls[T0].offset < 7] == []
    assert nodes[1].committed() == OffsetCommit(7)
    assert (await nodes[1].consume()).offsets == [7]


async def test_a_commit_that_the_reset_refuses_is_made_for_the_others_alone(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(2, 2)
    await nodes.join(1)
    for partition in (0, 1):
        nodes.log(partition).append(*[b"x"] * 3)
    await nodes[1].consume(6)
    for partition in (0, 1):
        assert await nodes[1].ack(partition, 0) == [None]
    gate = nodes[1].backend.gates["commit"] = asyncio.Event()
    await nodes.pass_time(0.5)  # a commit of both is on its way
    change = setting(nodes, 2, p0=0)
    await settle()
    gate.set()
    await asyncio.wait_for(change, 5)
    await nodes.pass_time(2)
    assert nodes[1].committed(0) == OffsetCommit(0)
    assert nodes[1].committed(1) == OffsetCommit(1)


async def test_a_partition_that_came_back_is_not_committed_as_it_was_before(
    make_nodes: MakeNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = make_nodes(2, 2)
    await nodes.join(1)
    for partition in (0, 1):
        nodes.log(partition).append(*[b"x"] * 3)
    await nodes[1].consume(6)
    for partition in (0, 1):
        assert await nodes[1].ack(partition, 0) == [None]
    groups = nodes[1].backend.groups
    commit = groups.commit

    def refuse_both(name: str, offsets: Mapping[TopicPartition, OffsetCommit], *rest: Any) -> None:
        if len(offsets) == 2:
            raise OwnedElsewhere("t/0 of g was owned by node 2")
        commit(name, offsets, *rest)

    monkeypatch.setattr(groups, "commit", refuse_both)
    gate = nodes[1].backend.gates["commit"] = asyncio.Event()
    await nodes.pass_time(0.5)  # a commit of both is on its way
    group = nodes[1].consumers._groups["g"]
    group._assigned({"t": [1]})
    groups.commits["g"][T0] = OffsetCommit(3)  # by another owner, who has left
    group._assigned({"t": [0, 1]})
    gate.set()
    await nodes.pass_time(2)
    assert nodes[1].committed(0) == OffsetCommit(3)
    assert nodes[1].committed(1) == OffsetCommit(1)


async def test_an_ack_during_the_reset_waits_for_it(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    for offset in (await nodes[2].consume(5)).offsets[3:]:
        await nodes[2].ack(1, offset)
    gate = nodes[2].backend.gates["offset_ranges"] = asyncio.Event()
    change = setting(nodes, 1, p1=0)
    await settle()
    here, passed = await nodes[2].ack(1, 3), await nodes[1].ack(1, 4)
    assert (here, passed, change.done()) == ([], [], False)
    gate.set()
    await settle()
    assert (here, passed, change.done()) == ([None], [None], True)
    await nodes.pass_time(0.5)
    assert nodes[2].committed(1) == OffsetCommit(0, "DC")


async def test_an_offset_beyond_the_end_stays_until_the_log_gets_there(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    await asyncio.wait_for(setting(nodes, 1, p1=50), 5)
    await nodes.pass_time(1)
    assert nodes[2].committed(1) == OffsetCommit(50)
    nodes.log(1).append(b"new")
    await nodes.pass_time(0.5)
    assert nodes[2].committed(1) == OffsetCommit(10)
    assert (await nodes[2].consume()).values == [b"new"]


async def test_metadata_that_is_no_ack_stays_until_there_is_an_ack(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    await nodes[1].consumers.set_offsets("g", "t", {1: OffsetCommit(2, "a note")})
    await nodes.pass_time(1)
    assert nodes[2].committed(1) == OffsetCommit(2, "a note")
    assert (await nodes[2].consume()).offsets == [2]
    await nodes.pass_time(1)
    assert nodes[2].committed(1) == OffsetCommit(2, "a note")
    await nodes[2].ack(1, 2)
    await nodes.pass_time(1)
    assert nodes[2].committed(1) == OffsetCommit(3)


@pytest.mark.slow
async def test_an_owner_that_does_not_answer_delays_for_two_seconds_and_commits_nothing(
    make_nodes: MakeNodes,
) -> None:
    nodes = await two(make_nodes)
    await nodes[2].consume(3)
    await nodes[2].ack(1, 0)
    nodes.links.delay_s = 60.0
    change = setting(nodes, 1, p1=0)
    await nodes.pass_time(1.9)
    assert not change.done()
    await nodes.pass_time(0.2)
    assert change.done()
    await nodes.pass_time(1)
    assert nodes[2].committed(1) == OffsetCommit(0)


async def test_an_owner_that_cannot_be_reached_delays_nothing(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes.links.cut(1, 2)
    await asyncio.wait_for(setting(nodes, 1, p1=4), 5)
    assert nodes[1].committed(1) == OffsetCommit(4)


async def test_a_node_that_owns_nothing_of_it_confirms_at_once(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes.links.calls.clear()
    await asyncio.wait_for(setting(nodes, 1, p0=4), 5)
    resets = [ConsumerCall.FromString(request) for _, _, request in nodes.links.calls]
    assert [list(each.reset.partitions) for each in resets if each.WhichOneof("call") == "reset"] == [[0]]


async def test_a_lone_node_asks_nobody(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(2, 2)
    await nodes.join(1)
    await asyncio.wait_for(setting(nodes, 1, p0=0, p1=0), 5)
    await asyncio.wait_for(setting(nodes, 1, p0=0, p1=0), 5)
    assert nodes.links.calls == []


async def test_a_partition_that_starts_while_its_offsets_are_set_starts_at_these(
    make_nodes: MakeNodes,
) -> None:
    nodes = make_nodes(2, 1)
    nodes.log().append(*[b"x"] * 10)
    gate = nodes[1].backend.gates["offset_ranges"] = asyncio.Event()
    answers = await nodes[1].consume()
    change = setting(nodes, 2, p0=6)
    await settle()
    gate.set()
    await asyncio.wait_for(change, 5)
    await settle()
    assert answers.offsets == [6]
    assert nodes[1].committed() == OffsetCommit(6)


async def test_a_first_position_that_comes_too_late_is_dropped_without_a_word(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(2, 1)
    nodes.log().append(*[b"x"] * 10)
    gate = nodes[1].backend.gates["commit"] = asyncio.Event()
    with capture_logs() as logs:
        answers = await nodes[1].consume()
        change = setting(nodes, 2, p0=6)
        await settle()
        gate.set()
        await asyncio.wait_for(change, 5)
        await settle()
    assert answers.offsets == [6]
    assert logs == []


async def test_a_reset_is_confirmed_by_a_node_that_knows_the_offsets(make_world: MakeWorld) -> None:
    world = make_world()
    gate = world.backend.gates["committed"] = asyncio.Event()
    confirmed = asyncio.create_task(Resets("g", world.backend).wait("t", [0]))
    await settle()
    assert not confirmed.done()
    gate.set()
    await settle()
    assert confirmed.done()


@pytest.mark.slow
async def test_the_position_of_a_subscription_that_ended_is_not_committed_over_offsets_set_later(
    make_nodes: MakeNodes,
) -> None:
    nodes = make_nodes(2, 1, long_polling_timeout=1.0)
    await nodes.join(1)
    nodes.log().append(b"a", b"b")
    await nodes[1].consume()
    await nodes.pass_time(14.5)
    nodes[1].backend.gates["commit"] = asyncio.Event()
    await nodes[1].ack(0, 0)
    await nodes.pass_time(1.5)  # closed, and its last commit is on its way
    change = setting(nodes, 2, p0=0)
    await settle()
    nodes[1].backend.gates.pop("commit").set()
    await nodes.pass_time(3)
    assert change.done()
    assert nodes[1].committed() == OffsetCommit(0)
    assert (await nodes[2].consume()).offsets == [0]


async def test_a_partition_that_leaves_while_it_is_reset_is_confirmed(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes[2].backend.gates["offset_ranges"] = asyncio.Event()
    change = setting(nodes, 1, p1=4)
    await settle()
    assert not change.done()
    member = nodes.groups.member("g", 2)
    assert member is not None
    member.assign({"t": ()}, again=True)
    await settle()
    assert change.done()


async def test_two_nodes_that_set_offsets_at_a_time_agree(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    await nodes[1].consume(2)
    await nodes[2].consume(2)
    changes = [setting(nodes, number, p0=number, p1=number) for number in (1, 2)]
    await asyncio.wait_for(asyncio.gather(*changes), 5)
    final = nodes[1].committed(0)
    assert final == nodes[1].committed(1)
    assert final is not None
    for number in (1, 2):
        assert (await nodes[number].consume()).offsets == [final.offset]


# --- where only members of a group may commit -----------------------------------------------------


def setters(nodes: Nodes) -> list[tuple[int, int]]:
    """Pairs of the node that has asked and the one that was asked to set offsets."""
    return [
        (asker, node_id)
        for asker, node_id, request in nodes.links.calls
        if ConsumerCall.FromString(request).WhichOneof("call") == "set_offsets"
    ]


async def test_an_owner_sets_its_own_offsets_where_others_may_not(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    assert (await nodes[2].consume(3)).offsets == [0, 1, 2]
    nodes[1].backend.failures["commit"] = OwnedElsewhere("consumed by node-2")
    await asyncio.wait_for(setting(nodes, 1, p1=7), 5)
    assert setters(nodes) == [(1, 2)]
    assert nodes[2].committed(1) == OffsetCommit(7)
    assert nodes[2].consumers.outstanding == 0
    assert (await nodes[2].consume()).offsets == [7]


async def test_offsets_that_an_owner_is_asked_to_set_are_not_passed_on(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    for number in (1, 2):
        nodes[number].backend.failures["commit"] = OwnedElsewhere("consumed elsewhere")
    change = setting(nodes, 1, p1=7)
    await nodes.pass_time(14.0)
    with pytest.raises(OwnerUndecided, match="consumed elsewhere"):
        await asyncio.wait_for(change, 5)
    assert set(setters(nodes)) == {(1, 2)}


async def test_an_owner_that_has_just_lost_a_partition_is_asked_again(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    for number in (1, 2):
        nodes[number].backend.failures["commit"] = OwnedElsewhere("consumed elsewhere")
    change = setting(nodes, 1, p1=7)
    await nodes.pass_time(0.5)
    assert not change.done()
    nodes[2].backend.failures.clear()
    await nodes.pass_time(2.0)
    await asyncio.wait_for(change, 5)
    assert nodes[2].committed(1) == OffsetCommit(7)


async def test_setting_offsets_waits_while_it_is_undecided_who_owns_the_partition(
    make_nodes: MakeNodes,
) -> None:
    nodes = await two(make_nodes)
    nodes[1].backend.failures["commit"] = OwnerUndecided("the group is being rebalanced")
    change = setting(nodes, 1, p0=7)
    await nodes.pass_time(1.0)
    assert not change.done()
    nodes[1].backend.failures.clear()
    await nodes.pass_time(1.0)
    await asyncio.wait_for(change, 5)
    assert nodes[1].committed(0) == OffsetCommit(7)


async def test_setting_offsets_does_not_wait_for_an_owner_without_end(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes[1].backend.failures["commit"] = OwnerUndecided("the group is being rebalanced")
    change = setting(nodes, 1, p0=7)
    await nodes.pass_time(10.0)  # as long as a rebalance may take
    assert not change.done()
    await nodes.pass_time(4.0)
    with pytest.raises(OwnerUndecided):
        await asyncio.wait_for(change, 5)
