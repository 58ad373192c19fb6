"""Drivers of three nodes: replication, retries over a change of leaders, transfers of leadership,
entries that are not in memory, snapshots.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from pixy.entry_ids import ProposalId
from pixy.errors import DeadlineExceeded, FailedPrecondition, UnknownTopic
from pixy.multiraft.entry_cache import ENTRY_BYTES, ROW_BYTES
from pixy.multiraft.proposals import Repeated
from pixy.raft import (
    ConfChangeSingle,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
    EntriesNotLoaded,
    Entry,
    Message,
    MessageType,
    RaftEntryType,
    Snapshot,
    StateType,
)
from pixy.raft.wire import encode_conf_change
from tests.cluster.drivers import (
    BATCH,
    COMMAND,
    GROUP,
    DriverNetwork,
    DriverNode,
    NodeSetup,
    PayloadLog,
    batch_of,
    forwarded_proposal,
)
from tests.fakes.waiting import until


def applied(network: DriverNetwork) -> list[list[bytes]]:
    return [node.application.applied for node in network.nodes.values()]


def term_of(node: DriverNode) -> int:
    assert node.group.node is not None
    return node.group.node.raft.term


# --- replication ----------------------------------------------------------------------------------


async def test_an_entry_is_applied_by_all_and_answered_by_its_proposer(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    leader.propose(b"batch", BATCH)
    await network.run()
    assert applied(network) == [[b"batch"]] * 3
    assert leader.results == {b"batch": 0}
    assert [node.driver.unapplied_bytes for node in network.nodes.values()] == [0, 0, 0]


async def test_followers_get_an_entry_while_the_leader_writes_it(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    leader.holds_writes = True
    leader.propose(b"command")
    await network.run()
    assert applied(network) == [[], [b"command"], [b"command"]], "a majority without the leader"


async def test_an_entry_is_not_answered_before_it_is_durable_on_a_majority(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    network[2].holds_writes = network[3].holds_writes = True
    leader.propose(b"command")
    await network.run()
    assert leader.results == {}
    network[3].holds_writes = False
    await network.run()
    assert leader.results == {b"command": None}


async def test_a_leader_tells_its_followers_of_a_new_commit_index_at_once(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    leader.propose(b"command")
    await network.run()
    assert {node.group.applied_index for node in network.nodes.values()} == {2}, "without a tick"


async def test_a_commit_index_goes_with_the_next_entry_of_a_caller_that_was_just_answered(
    network: DriverNetwork,
) -> None:
    leader = await network.elect(1)
    commits: list[tuple[int, int, int]] = []

    def noted(message: Message) -> bool:
        if message.type is MessageType.APP:
            commits.append((message.to, len(message.entries), message.commit))
        return False

    def proposes_next(_: object) -> None:
        leader.propose(b"second")

    network.lost = noted
    leader.driver.propose(leader.group, COMMAND, b"first", proposes_next)
    await network.run()
    assert commits == [(2, 1, 1), (3, 1, 1), (2, 1, 2), (3, 1, 2), (2, 0, 3), (3, 0, 3)]
    assert applied(network) == [[b"first", b"second"]] * 3


@pytest.fixture
async def delayed(tmp_path: Path) -> AsyncIterator[DriverNetwork]:
    """Nodes that pass a commit index on after a minute."""
    made = DriverNetwork(tmp_path, 1, 2, 3, setup=NodeSetup(commit_delay_s=60.0))
    yield made
    made.close()


async def test_followers_that_wait_for_nothing_hear_of_a_commit_index_later(delayed: DriverNetwork) -> None:
    leader = await delayed.elect(1)
    leader.propose(b"first")
    await delayed.run()
    assert (leader.results, applied(delayed)) == ({b"first": None}, [[b"first"], [], []])
    leader.propose(b"second")
    await delayed.run()
    assert applied(delayed) == [[b"first", b"second"], [b"first"], [b"first"]], "with the next entry"


async def test_a_follower_that_waits_for_a_result_hears_of_the_commit_index_at_once(
    delayed: DriverNetwork,
) -> None:
    leader = await delayed.elect(1)
    leader.propose(b"first")
    await delayed.run()
    assert leader.driver.propose_for(
        *forwarded_proposal(leader.group, COMMAND, b"theirs", ProposalId(2, 1, 1))
    )
    await delayed.run()
    assert applied(delayed) == [[b"first", b"theirs"]] * 3
    leader.propose(b"last")
    await delayed.run()
    assert applied(delayed)[1:] == [[b"first", b"theirs"]] * 2, "nobody else waits"


async def test_a_commit_index_is_not_delayed_for_ever(tmp_path: Path) -> None:
    network = DriverNetwork(tmp_path, 1, 2, 3, setup=NodeSetup(commit_delay_s=0.001))
    try:
        leader = await network.elect(1)
        for name in (b"first", b"second"):
            leader.propose(name)

            async def all_have_applied(count: int = len(leader.application.applied) + 1) -> bool:
                await network.run()
                return [len(names) for names in applied(network)] == [count] * 3

            await until(all_have_applied)
    finally:
        network.close()


async def test_a_driver_that_has_stopped_tells_nobody_of_a_commit_index(network: DriverNetwork) -> None:
    leader = await network.elect(1)

    def stop(_: object) -> None:
        leader.driver.stop()

    leader.driver.propose(leader.group, COMMAND, b"last", stop)
    await network.run()
    assert applied(network) == [[b"last"], [], []]


async def test_a_removed_group_tells_nobody_of_a_commit_index(network: DriverNetwork) -> None:
    leader = await network.elect(1)

    def remove(_: object) -> None:
        asyncio.get_running_loop().call_soon(leader.driver.remove, leader.group, UnknownTopic("gone"))

    leader.driver.propose(leader.group, COMMAND, b"last", remove)
    await network.run()
    assert network[1].faults == []


# --- retries --------------------------------------------------------------------------------------


async def lost_leadership(network: DriverNetwork, name: bytes, *, reaches: int = 0) -> DriverNode:
    """Node 1, which proposed a batch as the leader and was then cut off; at most node `reaches` has
    the batch.
    """
    leader = await network.elect(1)
    network.lost = lambda m: m.to != reaches and m.type in (MessageType.APP, MessageType.APP_RESP)
    leader.propose(name, BATCH)
    await network.run()
    network.cut.add(1)
    assert leader.results == {}
    network.lost = lambda _: False
    return leader


async def test_a_leader_that_is_elected_again_proposes_what_was_lost_again(network: DriverNetwork) -> None:
    first = await lost_leadership(network, b"lost")
    await network.elect(2)
    network.cut.clear()
    await network.tick()
    assert first.results == {}
    await network.elect(1)
    assert first.results == {b"lost": 0}
    assert applied(network) == [[b"lost"]] * 3


async def test_what_a_deposed_leader_proposed_is_forwarded_to_the_new_one(network: DriverNetwork) -> None:
    first = await lost_leadership(network, b"lost")
    second = await network.elect(2)
    network.cut.clear()
    await network.tick()
    [(kind, payload, proposal)] = first.forwarded
    assert second.driver.propose_for(*forwarded_proposal(second.group, kind, payload, proposal))
    await network.run()
    assert first.results == {b"lost": 0}
    assert second.results == {}


async def test_a_retry_that_the_leader_finds_in_its_tail_waits_for_its_original(
    network: DriverNetwork,
) -> None:
    first = await lost_leadership(network, b"batch", reaches=2)
    network.lost = lambda m: m.type is MessageType.APP and bool(m.entries)
    second = await network.elect(2)
    network.cut.clear()
    await network.tick()
    [(kind, payload, proposal)] = first.forwarded
    assert second.group.tail_ids == {proposal}
    assert second.driver.propose_for(*forwarded_proposal(second.group, kind, payload, proposal))
    network.lost = lambda _: False
    await network.tick()
    assert applied(network) == [[b"batch"]] * 3
    assert first.results == {b"batch": 0}
    assert second.group.tail_ids == set()


async def test_a_retry_in_the_own_tail_waits_for_its_original(network: DriverNetwork) -> None:
    first = await lost_leadership(network, b"batch")
    network.cut.clear()
    # The same node, in a later term: its tail has the entry.
    assert first.group.node is not None
    first.driver.step(GROUP, Message(MessageType.HEARTBEAT_RESP, 1, 2, term_of(first) + 1))
    await network.elect(1)
    assert first.application.tails[-1] == [2, 3]
    assert applied(network) == [[b"batch"]] * 3
    assert first.results == {b"batch": 0}


async def test_a_proposer_that_learns_of_its_entry_by_applying_it_proposes_it_no_more(
    network: DriverNetwork,
) -> None:
    first = await lost_leadership(network, b"batch", reaches=2)
    await network.elect(2)
    network.cut.clear()
    await network.tick()
    assert first.results == {b"batch": 0}
    first.forwarded.clear()
    await network.tick(10)
    assert first.forwarded == []


async def test_what_is_forwarded_is_forwarded_again_each_election_timeout(network: DriverNetwork) -> None:
    await network.elect(2)
    network[1].propose(b"command")
    assert len(network[1].forwarded) == 1
    await network.tick(10)
    assert [proposal.sequence for _, _, proposal in network[1].forwarded] == [1, 1]


async def test_proposals_without_a_leader_are_forwarded_when_there_is_one(network: DriverNetwork) -> None:
    network[1].propose(b"command")
    assert network[1].forwarded == []
    await network.elect(2)
    assert [payload for _, payload, _ in network[1].forwarded] == [b"command"]


# --- transfers ------------------------------------------------------------------------------------


async def test_a_transfer_holds_proposals_back_until_another_node_leads(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    leader.driver.transfer(leader.group, 3)
    leader.propose(b"command")
    assert not leader.group.leads
    assert leader.forwarded == []
    await network.run()
    assert network[3].group.leads
    assert [payload for _, payload, _ in leader.forwarded] == [b"command"]


async def test_what_waits_for_room_is_not_appended_during_a_transfer(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    leader.room = -1
    proposal = ProposalId(2, 1, 1)
    assert leader.driver.propose_for(*forwarded_proposal(leader.group, BATCH, batch_of(b"a"), proposal))
    network[3].holds_writes = True
    leader.driver.transfer(leader.group, 3)
    leader.room = 1 << 20
    leader.driver.resume()
    assert proposal not in leader.group.tail_ids
    network[3].holds_writes = False
    await network.run()
    assert network[3].group.leads


async def test_a_transfer_that_fails_ends_after_an_election_timeout(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    network.lost = lambda m: m.type is MessageType.TIMEOUT_NOW
    leader.driver.transfer(leader.group, 3)
    leader.propose(b"command")
    await network.tick(9)
    assert leader.results == {}
    await network.tick()
    assert leader.results == {b"command": None}
    assert leader.group.leads


async def test_what_waited_for_a_transfer_that_fails_is_sent_in_the_same_tick(network: DriverNetwork) -> None:
    await network.tick(3)  # the election timeouts of core and driver end in different ticks
    leader = await network.elect(1)
    network.lost = lambda m: m.type is MessageType.TIMEOUT_NOW
    leader.driver.transfer(leader.group, 3)
    leader.propose(b"command")
    await network.tick(9)
    leader.driver.tick()
    await asyncio.sleep(0)
    appends = network.sent(MessageType.APP, 1)
    assert [[entry.data for entry in append.entries] for append in appends] == [[b"command"]] * 2


async def test_a_node_that_does_not_lead_transfers_nothing(network: DriverNetwork) -> None:
    await network.elect(1)
    network[2].driver.transfer(network[2].group, 3)
    await network.run()
    assert network[1].group.leads


async def test_the_follower_that_is_closest_behind_gets_the_leadership(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    network.lost = lambda m: m.to == 3 and m.type is MessageType.APP
    leader.propose(b"command")
    await network.run()
    network.lost = lambda _: False
    leader.driver.hand_over(leader.group)
    await network.run()
    assert [node.group.leads for node in network.nodes.values()] == [False, True, False]


async def test_only_active_voters_get_the_leadership(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    assert leader.group.node is not None
    for progress in leader.group.node.raft.tracker.progress.values():
        progress.recently_active = False
    leader.driver.hand_over(leader.group)
    await network.run()
    assert leader.group.leads
    leader.group.node.raft.tracker.progress[3].recently_active = True
    leader.driver.hand_over(leader.group)
    await network.run()
    assert network[3].group.leads


async def test_a_node_that_does_not_lead_has_nothing_to_hand_over(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    network[2].driver.hand_over(network[2].group)
    leader.driver.hand_over(leader.other_group()[0])
    await network.run()
    assert [node.group.leads for node in network.nodes.values()] == [True, False, False]


# --- elections ------------------------------------------------------------------------------------


async def test_a_campaign_needs_no_election_timeout(network: DriverNetwork) -> None:
    network[2].driver.campaign(network[2].group)
    await network.run()
    assert [node.group.leads for node in network.nodes.values()] == [False, True, False]


async def test_a_leader_does_not_campaign(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    term = term_of(leader)
    leader.driver.campaign(leader.group)
    await network.run()
    assert (term_of(leader), leader.group.leads) == (term, True)


async def test_a_campaign_against_a_leader_that_lives_changes_nothing(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    network[3].driver.campaign(network[3].group)
    await network.run()
    assert (leader.group.leads, network[3].group.leads) == (True, False)
    leader.propose(b"command")
    await network.run()
    assert leader.results == {b"command": None}


# --- configurations -------------------------------------------------------------------------------

THREE_TO_TWO = ConfChangeV2((ConfChangeSingle(ConfChangeType.REMOVE_NODE, 3),))


async def test_a_leader_changes_the_configuration(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    assert leader.driver.change_configuration(leader.group, THREE_TO_TWO)
    await network.run()
    assert {node.group.storage.conf_state for node in (leader, network[2])} == {ConfState((1, 2))}
    assert leader.application.conf_changes == 1


def newcomer(network: DriverNetwork, directory: Path) -> DriverNode:
    """Node 4, which knows nothing of the group."""
    setup = replace(network[1].setup, voters=())
    network.nodes[4] = DriverNode(directory / "4", 4, setup).bind()
    return network[4]


ADD_LEARNER = ConfChangeV2((ConfChangeSingle(ConfChangeType.ADD_LEARNER_NODE, 4),))


async def test_a_learner_of_a_partition_gets_a_snapshot_and_never_its_first_entries(
    network: DriverNetwork, tmp_path: Path
) -> None:
    leader, learner = await network.elect(1), newcomer(network, tmp_path)
    leader.propose(b"command")
    await network.run()
    assert leader.group.storage.start.index == 0

    def offered() -> Snapshot:
        applied = leader.group.applied
        return Snapshot(applied.index, applied.term, leader.group.storage.conf_state)

    leader.driver.snapshots.offer(leader.group, offered)
    assert leader.driver.change_configuration(leader.group, ADD_LEARNER)
    await network.run()
    await network.tick(10)
    assert [snapshot.conf_state for _, snapshot in learner.fetches] == [ConfState((1, 2, 3), (4,))]
    assert (learner.group.storage.last_index(), learner.application.applied) == (0, [])
    assert learner.driver.snapshots.arrived(learner.group, learner.fetches[0][1])
    await network.tick()
    leader.propose(b"next")
    await network.run()
    assert learner.application.applied == [b"next"]
    assert learner.group.storage.conf_state == ConfState((1, 2, 3), (4,))


async def test_a_learner_of_a_state_group_gets_its_first_entries(tmp_path: Path) -> None:
    node = DriverNode(tmp_path / "1")
    group = node.driver.group(2, ConfState((1,)))
    node.driver.bind(group, PayloadLog(), PayloadLog.apply)
    node.driver.seek_leader(group)
    await node.settle()
    assert node.driver.change_configuration(group, ADD_LEARNER)
    await node.settle()
    assert (group.storage.conf_state, group.storage.start.index) == (ConfState((1,), (4,)), 0)
    node.close()


async def test_a_replica_that_knows_no_members_neither_votes_nor_takes_first_entries(
    network: DriverNetwork, tmp_path: Path
) -> None:
    node = newcomer(network, tmp_path)
    change = Entry(1, 2, RaftEntryType.CONF_CHANGE_V2, encode_conf_change(ADD_LEARNER))
    node.driver.step(GROUP, Message(MessageType.APP, 4, 1, 1, entries=[Entry(1, 1), change], commit=2))
    node.driver.step(GROUP, Message(MessageType.APP, 4, 1, 1, commit=0))
    await node.settle()
    storage = node.group.storage
    assert (storage.last_index(), storage.conf_state, network.wire) == (0, ConfState(), [])
    # What does not begin with the first entry is refused, so that a snapshot comes.
    node.driver.step(GROUP, Message(MessageType.APP, 4, 1, 1, 1, 7, [Entry(1, 8)], 2))
    await node.settle()
    [refusal] = network.sent(MessageType.APP_RESP, 4)
    assert (refusal.reject, refusal.reject_hint) == (True, 0)
    assert node.group.node is not None
    node.group.node.forget_leader()
    for kind in (MessageType.VOTE, MessageType.PRE_VOTE):
        node.driver.step(GROUP, Message(kind, 4, 2, 5, 4, 9))
    await node.settle()
    assert [letter.message.type for letter in network.wire] == [MessageType.APP_RESP]
    assert storage.hard_state.vote == 0
    for _ in range(50):
        node.driver.tick()
    await node.settle()
    assert network.sent(MessageType.PRE_VOTE, 4) == []
    assert not node.group.decides


async def test_a_follower_gets_the_snapshot_that_there_was_not_within_a_change(
    network: DriverNetwork, tmp_path: Path
) -> None:
    leader = await network.elect(1)
    network.cut.add(3)
    leader.propose(b"command")
    await network.run()
    leader.group.compact(leader.group.applied_index)
    leader.driver.snapshots.offer(leader.group, lambda: None)
    network.cut.clear()
    await network.tick(4)
    snapshot = Snapshot(leader.group.applied_index, leader.group.applied_term, ConfState((1, 2, 3)))
    leader.driver.snapshots.offer(leader.group, lambda: snapshot)
    assert leader.driver.change_configuration(leader.group, ADD_LEARNER)
    newcomer(network, tmp_path)
    await network.run()
    assert [each for _, each in network[3].fetches] == [snapshot]


async def test_only_one_change_of_the_configuration_is_under_way(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    network.cut.update((2, 3))
    assert leader.driver.change_configuration(leader.group, THREE_TO_TWO)
    assert leader.driver.change_configuration(leader.group, THREE_TO_TWO), "taken, as an empty entry"
    network.cut.clear()
    await network.tick()
    await network.tick()
    assert leader.application.conf_changes == 1
    assert leader.group.storage.conf_state == ConfState((1, 2))


async def test_a_node_that_does_not_lead_changes_no_configuration(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    assert not network[2].driver.change_configuration(network[2].group, THREE_TO_TWO)
    assert not leader.driver.change_configuration(leader.other_group()[0], THREE_TO_TWO)
    network.cut.add(2)
    leader.driver.transfer(leader.group, 2)
    assert not leader.driver.change_configuration(leader.group, THREE_TO_TWO), "it hands over"


# --- entries that are not in memory ---------------------------------------------------------------


async def lagging(network: DriverNetwork, count: int = 3) -> DriverNode:
    """Leader with entries that are not in memory any more and that node 3 lacks."""
    leader = await network.elect(1)
    network.cut.add(3)
    for number in range(count):
        leader.propose(b"%d" % number)
    await network.run()
    leader.group.storage.release(leader.group.applied_index)
    network.cut.clear()
    await network.tick()
    return leader


def entries(leader: DriverNode, lo: int, hi: int) -> list[Entry]:
    """Entries as the journal has them."""
    records = [record for unit in leader.journal.units for record in unit if lo <= record[3] < hi]
    return [
        Entry(term, index, data=bytes(payload), kind=kind, proposal=None)
        for _, kind, _, index, term, _, _, payload in records
    ]


async def test_entries_that_are_not_in_memory_are_asked_for_once(network: DriverNetwork) -> None:
    leader = await lagging(network)
    await network.tick(3)
    assert leader.wanted == [(leader.group, (2, 5, 1 << 20))]


async def test_loaded_entries_are_sent_and_dropped(network: DriverNetwork) -> None:
    leader = await lagging(network)
    leader.driver.loaded(leader.group, entries(leader, 2, 5))
    assert leader.group.storage.wanted is None
    await network.run()
    assert network[3].application.applied == [b"0", b"1", b"2"]
    assert len(leader.wanted) == 1
    with pytest.raises(EntriesNotLoaded):
        leader.group.storage.entries(2, 5, 1000)


async def test_entries_that_were_loaded_in_part_are_asked_for_from_there_on(network: DriverNetwork) -> None:
    leader = await lagging(network)
    leader.driver.loaded(leader.group, entries(leader, 2, 4))
    await network.run()
    assert [(lo, hi) for _, (lo, hi, _) in leader.wanted] == [(2, 5), (4, 5)]
    leader.driver.loaded(leader.group, entries(leader, 4, 5))
    await network.run()
    assert network[3].application.applied == [b"0", b"1", b"2"]


async def test_unreadable_entries_compact_the_log_so_that_a_snapshot_is_needed(
    network: DriverNetwork,
) -> None:
    leader = await lagging(network)
    leader.group.storage.make_snapshot = lambda: Snapshot(4, 1, ConfState((1, 2, 3)))
    leader.driver.loaded(leader.group, None)
    assert leader.group.storage.start == (1, 4)
    await network.tick()
    assert network[3].fetches == [(network[3].group, Snapshot(4, 1, ConfState((1, 2, 3))))]


async def test_entries_loaded_for_a_removed_group_are_dropped(network: DriverNetwork) -> None:
    leader = await lagging(network)
    loaded = entries(leader, 2, 5)
    leader.driver.remove(leader.group, DeadlineExceeded("gone"))
    leader.driver.loaded(leader.group, loaded)
    assert network.sent(MessageType.APP, 1) == []


async def test_applied_entries_in_the_cache_need_no_loading(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    network.cut.add(3)
    leader.propose(b"command")
    await network.run()
    network.cut.clear()
    await network.tick()
    assert leader.wanted == []
    assert network[3].application.applied == [b"command"]


async def test_entries_beyond_the_cache_have_to_be_loaded(tmp_path: Path) -> None:
    network = DriverNetwork(tmp_path, 1, 2, 3, setup=NodeSetup(cache_bytes=ENTRY_BYTES + ROW_BYTES + 10))
    leader = await network.elect(1)
    network.cut.add(3)
    for name in (b"old command", b"new one"):
        leader.propose(name)
    await network.run()
    network.cut.clear()
    await network.tick()
    assert leader.wanted == [(leader.group, (2, 3, 1 << 20))]
    network.close()


# --- snapshots ------------------------------------------------------------------------------------


async def test_a_proposal_overtaken_by_a_snapshot_is_answered_from_the_rows(network: DriverNetwork) -> None:
    leader = await network.elect(2)
    proposer = network[1]
    names = (b"kept", b"command", b"not proposed")
    for name, kind in zip(names, (BATCH, COMMAND, COMMAND), strict=True):
        proposer.propose(name, kind)
    network.cut.add(1)
    for forwarded in proposer.forwarded[:2]:
        assert leader.driver.propose_for(*forwarded_proposal(leader.group, *forwarded))
    await network.run()
    snapshot = Snapshot(leader.group.applied_index, leader.group.applied_term, ConfState((1, 2, 3)))
    # The state of the snapshot has the rows.
    proposer.application.rows = leader.application.rows
    message = Message(MessageType.SNAP, 1, 2, term_of(leader), snapshot=snapshot)
    proposer.driver.step(GROUP, message)
    assert proposer.driver.snapshots.arrived(proposer.group, snapshot)
    await network.run()
    assert proposer.results == {b"kept": 0, b"command": Repeated(0)}
    assert proposer.group.applied == (snapshot.term, snapshot.index)


async def test_the_log_that_a_snapshot_replaces_is_unapplied_no_longer(network: DriverNetwork) -> None:
    follower = network[1]
    entry = Entry(1, 1, data=b"unapplied", kind=COMMAND)
    follower.driver.step(GROUP, Message(MessageType.APP, 1, 2, 1, entries=[entry]))
    follower.write()
    await network.run()
    assert follower.driver.unapplied_bytes == len(b"unapplied")
    snapshot = Snapshot(9, 2, ConfState((1, 2, 3)))
    follower.driver.step(GROUP, Message(MessageType.SNAP, 1, 2, 2, snapshot=snapshot))
    assert follower.driver.snapshots.arrived(follower.group, snapshot)
    await network.run()
    assert follower.driver.unapplied_bytes == 0
    assert follower.group.storage.last_index() == 9
    assert follower.group.hard_state_file == follower.group.reset_file == 1


async def test_a_leader_that_steps_down_takes_no_proposals(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    network.cut.add(1)
    await network.tick()
    network.cut.clear()
    await network.elect(2)
    assert not leader.group.leads
    assert leader.group.node is not None
    assert leader.group.node.raft.state is StateType.FOLLOWER


# --- refusals of leaders --------------------------------------------------------------------------


async def refused(
    network: DriverNetwork, *, term: int = 0, leader: int = 1, incarnation: int = 1
) -> DriverNode:
    """A follower with two proposals in flight, whose first one is refused so."""
    await network.elect(1)
    follower = network[2]
    follower.propose(b"bad")
    follower.propose(b"behind")
    follower.forwarded.clear()
    proposal, term = ProposalId(2, incarnation, 1), network[1].group.term + term
    follower.driver.refused(follower.group, leader, term, proposal, "it is bad")
    return follower


async def test_a_refusal_of_the_leader_is_the_answer_and_what_is_behind_goes_again(
    network: DriverNetwork,
) -> None:
    follower = await refused(network)
    assert isinstance(follower.results.pop(b"bad"), FailedPrecondition)
    assert follower.results == {}
    assert [payload for _, payload, _ in follower.forwarded] == [b"behind"]


@pytest.mark.parametrize("wrong", [{"term": -1}, {"term": 1}, {"leader": 3}, {"incarnation": 2}])
async def test_a_refusal_that_is_not_the_leaders_present_one_is_none(
    network: DriverNetwork, wrong: dict[str, int]
) -> None:
    follower = await refused(network, **wrong)
    assert (follower.results, follower.forwarded) == ({}, [])


async def test_a_refusal_of_what_is_answered_already_changes_nothing(network: DriverNetwork) -> None:
    follower = await refused(network)
    follower.forwarded.clear()
    follower.results.clear()
    follower.driver.refused(follower.group, 1, network[1].group.term, ProposalId(2, 1, 1), "again")
    assert (follower.results, follower.forwarded) == ({}, [])
