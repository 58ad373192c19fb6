"""Linearizable reads: everything that was committed before is applied, as the leader has proven."""

import asyncio

import pytest

from pixy.errors import UnknownPartition
from pixy.multiraft.raft_group import RaftGroup
from pixy.raft import (
    ConfChangeSingle,
    ConfChangeTransition,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
    Message,
    MessageType,
)
from tests.cluster.drivers import GROUP, DriverNetwork, DriverNode, PayloadLog

APP, READ_INDEX, READ_INDEX_RESP = MessageType.APP, MessageType.READ_INDEX, MessageType.READ_INDEX_RESP
STATE_GROUP = 5


class StateSeen:
    """State that reads of a node have seen when they ended, by their names."""

    def __init__(self, node: DriverNode) -> None:
        self._node = node
        self.by_name: dict[str, list[bytes]] = {}

    def read(self, name: str = "read") -> None:
        def done() -> None:
            assert name not in self.by_name
            self.by_name[name] = list(self._node.application.applied)

        self._node.driver.reads.begin(self._node.group, done)


# --- a sole voter ---------------------------------------------------------------------------------


async def test_a_read_makes_a_sole_voter_campaign(node: DriverNode) -> None:
    seen = StateSeen(node)
    seen.read()
    await node.settle()
    assert seen.by_name == {"read": []}
    assert node.group.leads


async def test_a_read_sees_what_was_proposed_and_committed_before(node: DriverNode) -> None:
    seen = StateSeen(node)
    node.propose(b"before")
    await node.settle()
    seen.read()
    assert seen.by_name == {"read": [b"before"]}


async def test_a_read_does_not_end_before_the_application_is_known(node: DriverNode) -> None:
    group, application = node.other_group()
    unbound = node.driver.group(3000, group.storage.conf_state)
    ended: list[int] = []
    node.driver.reads.begin(unbound, lambda: ended.append(unbound.applied_index))
    await node.settle()
    assert ended == []
    node.driver.bind(unbound, application, type(application).apply)
    assert ended == [1]


# --- with peers -----------------------------------------------------------------------------------


async def test_a_read_waits_for_a_leader(network: DriverNetwork) -> None:
    seen = StateSeen(network[1])
    seen.read()
    await network.run()
    assert seen.by_name == {}
    await network.elect(2)
    assert seen.by_name == {"read": []}


async def test_a_read_of_a_follower_sees_what_the_leader_had_committed(network: DriverNetwork) -> None:
    leader = await network.elect(2)
    network.lost = lambda m: m.type is APP and m.to == 1
    leader.propose(b"before")
    await network.run()
    seen = StateSeen(network[1])
    seen.read()
    await network.run()
    assert (leader.results, seen.by_name) == ({b"before": None}, {}), "the entry is not applied here"
    network.lost = lambda _: False
    await network.tick()
    assert seen.by_name == {"read": [b"before"]}


async def test_a_read_at_the_leader_waits_for_a_quorum(network: DriverNetwork) -> None:
    seen = StateSeen(await network.elect(1))
    network.cut.add(1)
    seen.read()
    await network.run()
    assert seen.by_name == {}, "another node may lead"
    network.cut.clear()
    await network.tick()
    assert seen.by_name == {"read": []}


async def test_a_read_is_asked_again_after_a_change_of_the_leader(network: DriverNetwork) -> None:
    await network.elect(2)
    seen = StateSeen(network[1])
    network.lost = lambda m: m.type is READ_INDEX
    seen.read()
    await network.run()
    network.lost = lambda _: False
    await network.elect(3)
    assert seen.by_name == {"read": []}


async def test_a_lost_request_is_repeated_each_election_timeout(network: DriverNetwork) -> None:
    await network.elect(2)
    seen = StateSeen(network[1])
    network.lost = lambda m: m.type in (READ_INDEX, READ_INDEX_RESP)
    seen.read()
    await network.run()
    network.lost = lambda _: False
    await network.tick(9)
    assert seen.by_name == {}
    await network.tick()
    assert seen.by_name == {"read": []}


async def test_a_late_answer_to_an_earlier_attempt_is_ignored(network: DriverNetwork) -> None:
    await network.elect(2)
    seen = StateSeen(network[1])
    late: list[Message] = []

    def hold(message: Message) -> bool:
        if message.type is READ_INDEX_RESP:
            late.append(message)
        return message.type is READ_INDEX_RESP

    network.lost = hold
    seen.read()
    await network.run()
    [first] = late
    network.lost = lambda m: m.type is READ_INDEX
    await network.elect(3)
    network[1].driver.step(GROUP, Message(READ_INDEX_RESP, 1, 2, 0, index=first.index, entries=first.entries))
    assert seen.by_name == {}
    network.lost = lambda _: False
    await network.tick(10)
    assert seen.by_name == {"read": []}


def state_groups(network: DriverNetwork) -> dict[int, tuple[RaftGroup, PayloadLog]]:
    """A state group, at each node."""
    return {number: node.other_group(STATE_GROUP) for number, node in network.nodes.items()}


async def lead(network: DriverNetwork, group: RaftGroup, node_id: int) -> None:
    """Make a node the leader of a state group, with its first entry committed."""
    network[node_id].driver.campaign(group)
    await network.run()
    await network.tick(10)
    assert group.leads


async def test_a_read_of_a_state_group_waits_for_what_the_leader_has_appended(network: DriverNetwork) -> None:
    groups = state_groups(network)
    await lead(network, groups[2][0], 2)
    ended: list[list[bytes]] = []
    network.lost = lambda m: m.type is APP
    network[2].propose(b"being decided", group=groups[2][0])
    await network.run()
    network[1].driver.reads.begin(groups[1][0], lambda: ended.append([*groups[1][1].applied]))
    await network.run()
    assert ended == []
    network.lost = lambda _: False
    await network.tick(10)
    assert ended == [[b"being decided"]]


async def test_a_read_does_not_wait_for_ever_for_an_entry_that_is_lost(network: DriverNetwork) -> None:
    groups = state_groups(network)
    await lead(network, groups[2][0], 2)
    ended: list[bool] = []
    network.lost = lambda m: m.type is APP
    for _ in range(3):  # more entries than the next leader appends
        network[2].propose(b"lost", group=groups[2][0])
    await network.run()
    network[1].driver.reads.begin(groups[1][0], lambda: ended.append(True))
    await network.run()
    assert groups[1][0].reads
    assert groups[1][0].reads[0].index > groups[3][0].applied_index + 1
    network.cut = {2}
    network.lost = lambda _: False
    await network.tick(60)
    assert groups[1][0].leads or groups[3][0].leads
    assert ended == [True]


async def test_every_read_ends_once_whatever_is_asked_again(network: DriverNetwork) -> None:
    await network.elect(2)
    seen = StateSeen(network[1])
    for name in ("one", "other"):
        seen.read(name)
    network[1].driver.reads.request_again(network[1].group)
    network[1].driver.drive(network[1].group)
    await network.run()
    assert seen.by_name == {"one": [], "other": []}
    assert network[1].group.reads is None


async def test_the_end_of_a_read_may_begin_another_one(network: DriverNetwork) -> None:
    node = await network.elect(1)
    seen = StateSeen(node)
    node.driver.reads.begin(node.group, lambda: seen.read("behind"))
    await network.run()
    assert seen.by_name == {"behind": []}


async def test_the_end_of_a_read_may_propose_while_the_leader_leaves_a_joint_configuration(
    network: DriverNetwork,
) -> None:
    leader = await network.elect(1)
    demoted = ConfChangeSingle(ConfChangeType.ADD_LEARNER_NODE, 3)
    change = ConfChangeV2((demoted,), ConfChangeTransition.JOINT_IMPLICIT)
    assert leader.group.node is not None
    leader.holds_writes = True
    leader.group.node.propose_conf_change(change)
    leader.driver.drive(leader.group)
    await network.run()

    def ended() -> None:
        leader.propose(b"command")

    leader.driver.reads.begin(leader.group, ended)
    await network.run()
    leader.holds_writes = False
    await network.run()
    assert leader.faults == []
    assert leader.results == {b"command": None}
    assert leader.group.storage.conf_state == ConfState((1, 2), (3,))


async def test_a_read_ends_as_soon_as_its_entry_is_applied(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    leader.holds_writes = True
    leader.propose(b"before")
    await network.run()
    seen = StateSeen(leader)
    seen.read()
    await network.run()
    assert seen.by_name == {}, "others have committed the entry"
    leader.holds_writes = False
    leader.write()
    assert seen.by_name == {"read": [b"before"]}


# --- groups that catch up -------------------------------------------------------------------------


async def catching_up(node: DriverNode, *names: int) -> "asyncio.Task[None]":
    groups = [node.other_group(name)[0] for name in names]
    task = asyncio.create_task(node.driver.reads.catch_up(groups))
    await asyncio.sleep(0)
    return task


async def test_groups_have_caught_up_when_all_have(node: DriverNode) -> None:
    node.holds_writes = True
    task = await catching_up(node, 2000, 2001)
    await node.settle()
    assert not task.done()
    node.holds_writes = False
    await node.settle()
    assert task.done()
    await task
    assert [node.driver.groups[name].applied_index for name in (2000, 2001)] == [1, 1]


async def test_a_group_that_is_removed_has_caught_up(node: DriverNode) -> None:
    node.holds_writes = True
    task = await catching_up(node, 2000, 2001)
    for name in (2000, 2001):
        node.driver.remove(node.driver.groups[name], UnknownPartition("gone"))
    await node.settle()
    assert task.done()
    await task


async def test_a_group_that_was_removed_before_has_caught_up_and_stays_removed(node: DriverNode) -> None:
    group, _ = node.other_group(2000)
    node.driver.remove(group, UnknownPartition("gone"))
    async with asyncio.timeout(5):
        await node.driver.reads.catch_up([group])
    assert (group.node, node.journal.units) == (None, [])


async def test_without_groups_there_is_nothing_to_catch_up_with(node: DriverNode) -> None:
    await node.driver.reads.catch_up([])
    assert node.journal.units == []


async def test_a_fault_ends_the_wait_of_groups_that_catch_up(node: DriverNode) -> None:
    task = await catching_up(node, 2000)
    node.driver.stop(OSError("the disk is gone"))
    with pytest.raises(OSError, match="gone"):
        await task


async def test_after_a_fault_no_group_waits_to_catch_up(node: DriverNode) -> None:
    node.driver.stop(OSError("the disk is gone"))
    task = await catching_up(node, 2000)
    async with asyncio.timeout(5):
        with pytest.raises(OSError, match="gone"):
            await task
