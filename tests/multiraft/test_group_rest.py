"""Raft groups at rest: when they rest, and what wakes them."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from pixy.entry_ids import ProposalId
from pixy.errors import UnknownTopic
from pixy.multiraft.group_rest import QUIET_TIMEOUTS
from pixy.multiraft.raft_group import RaftGroup
from pixy.raft import ConfChange, ConfChangeType, Message, MessageType, RaftNode, StateType
from tests.cluster.drivers import COMMAND, GROUP, DriverNetwork, DriverNode, NodeSetup, forwarded_proposal

ELECTION_TICKS = 10
REST_TICKS = (QUIET_TIMEOUTS + 3) * ELECTION_TICKS


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[DriverNetwork]:
    made = DriverNetwork(tmp_path, 1, 2, 3, setup=NodeSetup(rests=True))
    yield made
    made.close()


def core(node: DriverNode) -> RaftNode:
    assert node.group.node is not None
    return node.group.node


def at_rest(network: DriverNetwork) -> list[int]:
    resting = [node_id for node_id, node in network.nodes.items() if node.group.resting]
    assert resting == [node_id for node_id, node in network.nodes.items() if core(node).raft.resting]
    return resting


async def resting(network: DriverNetwork) -> DriverNode:
    """Node 1, which leads the group at rest."""
    leader = await network.elect(1)
    leader.propose(b"before")
    await network.tick(REST_TICKS)
    assert at_rest(network) == [1, 2, 3]
    return leader


async def test_a_group_in_which_nothing_happens_rests_without_messages(network: DriverNetwork) -> None:
    await resting(network)
    sent: list[Message] = []
    network.lost = lambda message: bool(sent.append(message))  # type: ignore[func-returns-value]  # a spy
    await network.tick(10 * ELECTION_TICKS)
    assert sent == []
    assert at_rest(network) == [1, 2, 3]
    assert core(network[1]).raft.state is StateType.LEADER


async def test_a_busy_group_does_not_rest(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    for number in range(2 * REST_TICKS // ELECTION_TICKS):
        leader.propose(b"%d" % number)
        await network.tick(ELECTION_TICKS)
        assert at_rest(network) == []


async def test_a_state_group_does_not_rest(network: DriverNetwork) -> None:
    assert GROUP >= 1000
    for node in network.nodes.values():
        node.group.raft_group = 7
        node.driver.groups[7] = node.driver.groups.pop(GROUP)
    await network.elect(1)
    await network.tick(REST_TICKS)
    assert at_rest(network) == []


# --- who keeps a group awake ----------------------------------------------------------------------


def waits_for_a_read(node: DriverNode) -> None:
    node.driver.reads.begin(node.group, lambda: None)


def has_a_proposal(node: DriverNode) -> None:
    node.propose(b"waiting")


def loads_entries(node: DriverNode) -> None:
    node.group.loading = True


def is_written(node: DriverNode) -> None:
    node.group.writing += 1


def is_not_known(node: DriverNode) -> None:
    node.group.application = None


def is_not_connected(node: DriverNode) -> None:
    node.down.add(1 if node.node_id != 1 else 3)


@pytest.mark.parametrize("node_id", [1, 3])
@pytest.mark.parametrize("busy", [loads_entries, is_written, is_not_known, is_not_connected])
async def test_a_node_that_has_something_to_do_keeps_all_awake(
    network: DriverNetwork, node_id: int, busy: Callable[[DriverNode], None]
) -> None:
    leader = await network.elect(1)
    busy(network[node_id])
    await network.tick(REST_TICKS)
    assert at_rest(network) in ([], [2]), "at most until the next heartbeat"
    await network.tick()
    assert at_rest(network) == []
    assert core(leader).raft.state is StateType.LEADER


async def test_a_node_of_a_former_release_keeps_all_awake(network: DriverNetwork) -> None:
    await network.elect(1)

    def take_names(message: Message) -> bool:
        if message.sender == 3:
            message.index = 0 if message.type is MessageType.HEARTBEAT_RESP else message.index
        return False

    network.lost = take_names
    network[3].setup.rests = False
    network[3].driver.rest._hooks = None
    await network.tick(REST_TICKS)
    await network.tick()
    assert at_rest(network) == []


async def test_a_follower_without_the_last_entry_keeps_all_awake(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    network.lost = lambda m: m.to == 3 and m.type is MessageType.APP
    leader.propose(b"missing")
    await network.tick(REST_TICKS)
    assert at_rest(network) == []


async def test_answers_that_are_lost_only_delay_the_rest(network: DriverNetwork) -> None:
    await network.elect(1)
    lost: list[Message] = []

    def lose_two(message: Message) -> bool:
        loses = message.type is MessageType.HEARTBEAT_RESP and message.index > 0 and len(lost) < 2
        if loses:
            lost.append(message)
        return loses

    network.lost = lose_two
    await network.tick(REST_TICKS)
    assert len(lost) == 2
    assert at_rest(network) == [1, 2, 3]


# --- what wakes it --------------------------------------------------------------------------------


def propose_at_the_leader(network: DriverNetwork) -> None:
    network[1].propose(b"after")


def propose_at_a_follower(network: DriverNetwork) -> None:
    network[2].propose(b"after")


def propose_for_a_follower(network: DriverNetwork) -> None:
    assert network[1].driver.propose_for(
        *forwarded_proposal(network[1].group, COMMAND, b"after", ProposalId(2, 1, 1))
    )


def read_at_the_leader(network: DriverNetwork) -> None:
    waits_for_a_read(network[1])


def read_at_a_follower(network: DriverNetwork) -> None:
    waits_for_a_read(network[2])


def transfer(network: DriverNetwork) -> None:
    network[1].driver.transfer(network[1].group, 2)


def hand_over(network: DriverNetwork) -> None:
    network[1].driver.hand_over(network[1].group)


def campaign(network: DriverNetwork) -> None:
    network[2].driver.campaign(network[2].group)


def change_members(network: DriverNetwork) -> None:
    leader = network[1]
    change = ConfChange(ConfChangeType.ADD_LEARNER_NODE, 3).as_v2()
    assert leader.driver.change_configuration(leader.group, change)


def lose_the_connection(network: DriverNetwork) -> None:
    network[2].driver.rest.node_changed(1)


def lose_a_follower(network: DriverNetwork) -> None:
    network[1].driver.rest.node_changed(3)


def repeat_a_heartbeat(network: DriverNetwork) -> None:
    term = core(network[1]).raft.term
    network[2].driver.step(GROUP, Message(MessageType.HEARTBEAT, 2, 1, term))


def ask_for_a_vote(network: DriverNetwork) -> None:
    raft = core(network[1]).raft
    term, last = raft.term + 1, raft.log.last_position()
    vote = Message(MessageType.PRE_VOTE, 2, 3, term, last.term, last.index)
    network[2].driver.step(GROUP, vote)


EVENTS = [
    propose_at_the_leader,
    propose_at_a_follower,
    propose_for_a_follower,
    read_at_the_leader,
    read_at_a_follower,
    transfer,
    hand_over,
    campaign,
    change_members,
    lose_the_connection,
    lose_a_follower,
    repeat_a_heartbeat,
    ask_for_a_vote,
]


@pytest.mark.slow
@pytest.mark.parametrize("event", EVENTS)
async def test_whatever_wakes_a_node_wakes_all(
    network: DriverNetwork, event: Callable[[DriverNetwork], None]
) -> None:
    await resting(network)
    term = core(network[1]).raft.term
    event(network)
    await network.tick()
    await network.tick()
    assert at_rest(network) == []
    led = [node_id for node_id, node in network.nodes.items() if node.group.leads]
    assert len(led) == 1
    assert (led == [1]) == (event not in (transfer, hand_over))
    assert core(network[1]).raft.term == term + (led != [1]), "nobody else has campaigned in vain"
    # Outstanding reads and proposals of the followers end it only when they are answered.
    for node in network.nodes.values():
        if node.group.proposals is not None:
            node.driver.end_proposals()
    await network.tick(2 * REST_TICKS)
    assert at_rest(network) == [1, 2, 3], "and afterwards it rests again"


@pytest.mark.slow
@pytest.mark.parametrize("event", EVENTS)
async def test_what_wakes_a_node_wakes_all_although_its_message_is_lost(
    network: DriverNetwork, event: Callable[[DriverNetwork], None]
) -> None:
    await resting(network)
    event(network)
    network.wire.clear()
    await network.tick(3 * ELECTION_TICKS)
    assert len([node_id for node_id, node in network.nodes.items() if node.group.leads]) == 1
    network[1].propose(b"last")
    await network.tick(3 * ELECTION_TICKS)
    if network[1].group.leads:
        assert b"last" in network[3].application.applied


async def test_a_removed_group_rests_no_more(network: DriverNetwork) -> None:
    leader = await resting(network)
    leader.driver.remove(leader.group, UnknownTopic("gone"))
    assert len(leader.driver.rest) == 0
    leader.driver.rest.node_changed(2)
    await network.tick(2)
    assert leader.faults == []


# --- leaders and followers that are gone ----------------------------------------------------------


async def test_followers_elect_another_leader_when_the_claims_cease(network: DriverNetwork) -> None:
    await resting(network)
    network.cut.add(1)
    await network.tick(ELECTION_TICKS + 1)
    assert [network[node_id].group.resting for node_id in (2, 3)] == [False, False]
    await network.tick(2 * ELECTION_TICKS)
    assert [node_id for node_id in (2, 3) if network[node_id].group.leads] != []


async def test_a_leader_whose_followers_are_silent_steps_down(network: DriverNetwork) -> None:
    leader = await resting(network)
    network.cut |= {2, 3}
    await network.tick(ELECTION_TICKS + 1)
    assert not leader.group.resting
    await network.tick(ELECTION_TICKS + 1)
    assert core(leader).raft.state is not StateType.LEADER


async def test_a_leader_with_a_majority_goes_on(network: DriverNetwork) -> None:
    leader = await resting(network)
    network.cut.add(3)
    await network.tick(4 * ELECTION_TICKS)
    assert leader.group.leads
    await network.tick(2 * ELECTION_TICKS)
    assert leader.group.leads
    assert not leader.group.resting


async def test_a_follower_wakes_if_its_leader_says_no_more_that_it_leads(network: DriverNetwork) -> None:
    """Another process of the leader's node, or one with a fault."""
    leader = await resting(network)
    leader.driver.rest.end(leader.group)
    leader.group.raft_group = 7  # its core says nothing either
    await network.tick(ELECTION_TICKS + 2)
    assert [network[node_id].group.resting for node_id in (2, 3)] == [False, False]


async def test_a_process_that_was_paused_wakes_nothing(network: DriverNetwork) -> None:
    await resting(network)
    for _ in range(3):
        network[2].driver.tick()
    await network.tick(ELECTION_TICKS)
    assert at_rest(network) == [1, 2, 3]


async def test_groups_rest_one_by_one(network: DriverNetwork) -> None:
    others: list[RaftGroup] = []
    for node in network.nodes.values():
        group, _ = node.other_group()
        others.append(group)
        node.driver.open(group)
    network[2].driver.campaign(others[1])
    await network.run()
    assert others[1].leads
    leader = await network.elect(1)
    await network.tick(REST_TICKS)
    assert at_rest(network) == [1, 2, 3]
    assert [group.resting for group in others] == [True] * 3
    leader.propose(b"awake")
    await network.tick(2)
    assert at_rest(network) == []
    assert [group.resting for group in others] == [True] * 3
    assert [len(node.driver.rest) for node in network.nodes.values()] == [1, 1, 1]
