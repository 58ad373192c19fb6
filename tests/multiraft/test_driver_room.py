"""Back-pressure of a node's raft groups: batches wait while there is no room, nothing else does."""

import pytest

from pixy.entry_ids import ProposalId
from pixy.errors import UnknownPartition
from pixy.multiraft.dedup_table import WINDOW, DedupVerdict
from pixy.multiraft.raft_group import RaftGroup
from pixy.raft import Entry, Message, MessageType
from pixy.storage import EntryType
from tests.cluster.drivers import BATCH, BATCHES, COMMAND, GROUP, DriverNode, batch_of, forwarded_proposal
from tests.fakes.waiting import settle

KIB = 1 << 10


async def full(node: DriverNode) -> DriverNode:
    """A leader without room for batches."""
    await node.lead()
    node.room = -1
    return node


async def test_a_batch_waits_while_there_is_no_room_and_goes_on_when_there_is(node: DriverNode) -> None:
    await full(node)
    node.propose(b"batch", BATCH)
    await node.settle()
    assert node.results == {}
    node.room = 0
    node.driver.resume()
    await node.settle()
    assert node.results == {b"batch": 0}


async def test_batches_that_wait_resume_when_a_write_is_durable_and_there_is_room(node: DriverNode) -> None:
    await full(node)
    node.propose(b"batch", BATCH)
    node.room = 0
    node.propose(b"command", group=node.other_group()[0])
    await node.settle()
    assert node.results[b"batch"] == 0


async def test_commands_pass_while_there_is_no_room(node: DriverNode) -> None:
    await full(node)
    node.propose(b"command")
    await node.settle()
    assert node.results == {b"command": None}


async def test_the_group_that_waits_longest_goes_on_first(node: DriverNode) -> None:
    groups = {b"first": node.group, b"second": node.other_group(2000)[0], b"third": node.other_group(1500)[0]}
    for group in groups.values():
        node.driver.seek_leader(group)
    await full(node)
    for name, group in groups.items():
        node.propose(name, BATCH, group=group)
    node.propose(b"first again", BATCH)
    node.journal.units.clear()
    node.room = 0
    node.driver.resume()
    assert [unit[0][2] for unit in node.journal.units] == [GROUP, 2000, 1500]


async def test_groups_that_stall_again_keep_their_order(node: DriverNode) -> None:
    second = node.other_group()[0]
    node.driver.seek_leader(second)
    await full(node)
    node.propose(b"first", BATCH)
    node.propose(b"second", BATCH, group=second)
    node.journal.units.clear()
    for _ in range(2):
        node.driver.resume()
    assert node.journal.units == []
    node.room = 0
    node.driver.resume()
    assert [unit[0][2] for unit in node.journal.units] == [GROUP, second.raft_group]


async def test_the_node_is_asked_for_room_again_after_64_kib_at_the_latest(node: DriverNode) -> None:
    await node.lead()
    node.room = 1 << 30
    node.propose(b"x" * (32 * KIB), BATCH)
    node.room = -1
    node.propose(b"y" * (16 * KIB), BATCH)
    node.propose(b"z" * (32 * KIB), BATCH)
    await node.settle()
    assert [name[:1] for name in node.results] == [b"x", b"y"]


async def test_no_more_than_the_room_is_proposed_without_asking_again(node: DriverNode) -> None:
    await node.lead()
    node.room = 0
    node.propose(b"x", BATCH)
    node.room = -1
    node.propose(b"y", BATCH)
    await node.settle()
    assert list(node.results) == [b"x"]


async def test_a_group_that_is_not_applied_leaves_half_of_the_room(node: DriverNode) -> None:
    other = node.other_group()[0]
    node.driver.seek_leader(other)
    await node.lead()
    # Nothing becomes durable, so nothing is applied.
    node.room = 100 * KIB
    node.propose(b"x" * (60 * KIB), BATCH)
    node.room -= 60 * KIB
    for group in (node.group, other):
        node.propose(b"%d" % group.raft_group, BATCH, group=group)
    assert node.group.unapplied_bytes < 61 * KIB, "the second one waits"
    assert other.unapplied_bytes > 0
    await node.settle()
    assert len(node.results) == 3, "it goes on once the first one is applied"
    assert node.group.unapplied_bytes == other.unapplied_bytes == 0


async def stall_many(node: DriverNode) -> list[RaftGroup]:
    """A hundred groups in which a batch of another node waits, and one of this node."""
    groups = [node.other_group(2000 + at)[0] for at in range(100)]
    for group in groups:
        node.driver.seek_leader(group)
    await full(node)
    for group in groups:
        batch, proposal = batch_of(b"%d" % group.raft_group), ProposalId(2, 1, 1)
        assert node.driver.propose_for(*forwarded_proposal(group, BATCH, batch, proposal))
        node.propose(b"own %d" % group.raft_group, BATCH, group=group)
    node.journal.units.clear()
    return groups


async def test_many_proposals_that_wait_go_on_in_steps(node: DriverNode) -> None:
    groups = await stall_many(node)
    node.room = 1 << 30
    node.driver.resume()
    at_once = len(node.journal.units)
    assert 0 < at_once < len(groups) / 4
    node.driver.resume()
    assert len(node.journal.units) == at_once, "the steps are under way"
    await settle()
    written = [unit[0][2] for unit in node.journal.units]
    assert written == [group.raft_group for group in groups for _ in range(2)]


async def test_all_that_waits_goes_on_before_a_stop_but_of_a_group_that_is_gone(node: DriverNode) -> None:
    groups = await stall_many(node)
    node.room = 1 << 30
    node.driver.resume()
    node.driver.remove(groups[50], UnknownPartition("deleted"))
    await node.driver.resume_all()
    written = [unit[0][2] for unit in node.journal.units]
    assert written == [group.raft_group for group in groups for _ in range(2) if group is not groups[50]]


async def test_batches_go_on_once_those_of_an_earlier_start_that_waited_are_dropped(node: DriverNode) -> None:
    await full(node)
    assert node.driver.propose_for(
        *forwarded_proposal(node.group, BATCH, batch_of(b"outdated"), ProposalId(2, 1, 1))
    )
    assert node.driver.propose_for(*forwarded_proposal(node.group, COMMAND, b"command", ProposalId(2, 2, 1)))
    node.room = 1 << 30
    node.driver.resume()
    assert node.driver.propose_for(
        *forwarded_proposal(node.group, BATCH, batch_of(b"batch"), ProposalId(2, 2, 2))
    )
    await node.settle()
    assert node.application.applied == [b"command", b"batch"]


async def test_what_lacks_room_again_waits_for_the_next_time(node: DriverNode) -> None:
    groups = await stall_many(node)
    node.room = 0
    node.driver.resume()
    node.room = -1
    await settle()
    assert len(node.journal.units) < 2 * len(groups)
    node.room = 1 << 30
    node.driver.resume()
    await settle()
    written = [unit[0][2] for unit in node.journal.units]
    assert sorted(written) == sorted(group.raft_group for group in groups for _ in range(2))


async def test_a_removed_group_waits_for_room_no_longer(node: DriverNode) -> None:
    await full(node)
    node.propose(b"batch", BATCH)
    node.driver.remove(node.group, UnknownPartition("deleted"))
    node.room = 0
    node.driver.resume()
    await node.settle()
    assert isinstance(node.results[b"batch"], UnknownPartition)
    assert node.application.applied == []


async def test_the_room_that_a_removed_group_leaves_is_used_at_once(node: DriverNode) -> None:
    other = node.other_group()[0]
    await full(node)
    node.propose(b"batch", BATCH)
    node.room = 0
    node.driver.remove(other, UnknownPartition("deleted"))
    await node.settle()
    assert node.results == {b"batch": 0}


# --- followers ------------------------------------------------------------------------------------


def append_to(group: int, follower: DriverNode) -> bool:
    """Step an append with an entry; True if it was taken."""
    before = len(follower.journal.units)
    entry = Entry(1, 1, data=b"x", kind=COMMAND)
    follower.driver.step(group, Message(MessageType.APP, 1, 2, 1, entries=[entry]))
    return len(follower.journal.units) > before


async def test_a_follower_without_room_takes_no_entries_of_partitions(follower: DriverNode) -> None:
    follower.room = -1
    assert not append_to(GROUP, follower)
    follower.room = 0
    assert append_to(GROUP, follower)


async def test_a_follower_without_room_takes_entries_of_state_groups(follower: DriverNode) -> None:
    follower.other_group(1)
    follower.room = -1
    assert append_to(1, follower)


async def test_a_follower_without_room_learns_of_leader_and_commit_index(follower: DriverNode) -> None:
    append_to(GROUP, follower)
    await follower.settle()
    follower.room = -1
    follower.driver.step(GROUP, Message(MessageType.APP, 1, 2, 1, 1, 1, commit=1))
    assert (follower.group.leader, follower.application.applied) == (2, [b"x"])


# --- proposals for other nodes --------------------------------------------------------------------

THEIRS = ProposalId(2, 9, 1)


def forwarded(node: DriverNode, kind: EntryType, payload: bytes | bytearray) -> bool:
    return node.driver.propose_for(*forwarded_proposal(node.group, kind, payload, THEIRS))


async def test_a_proposal_for_another_node_is_applied_under_its_identity(node: DriverNode) -> None:
    await node.lead()
    assert forwarded(node, BATCH, batch_of(b"theirs"))
    await node.settle()
    assert node.application.applied == [b"theirs"]
    assert node.application.rows.judge(THEIRS) == 0
    assert node.results == {}


async def test_a_node_that_does_not_lead_proposes_nothing_for_others(node: DriverNode) -> None:
    assert not forwarded(node, COMMAND, b"theirs")
    await node.settle()
    assert node.journal.units == []


@pytest.mark.parametrize("kind", [BATCH, BATCHES])
async def test_batches_of_other_nodes_wait_while_there_is_no_room(node: DriverNode, kind: EntryType) -> None:
    await full(node)
    before = list(node.application.applied)
    for _ in range(2):  # it is sent again meanwhile
        assert forwarded(node, kind, batch_of(b"theirs"))
    await node.settle()
    assert node.application.applied == before
    node.room = 1 << 20
    node.driver.resume()
    await node.settle()
    assert [value for value in node.application.applied if value == b"theirs"] == [b"theirs"]


async def test_batches_of_another_node_keep_their_order_while_some_wait_for_room(node: DriverNode) -> None:
    await full(node)
    ids = [ProposalId(2, 9, sequence) for sequence in (1, 2, 3)]
    for id in ids[:2]:
        assert node.driver.propose_for(
            *forwarded_proposal(node.group, BATCH, batch_of(b"%d" % id.sequence), id)
        )
    node.room = 1 << 20
    assert node.driver.propose_for(*forwarded_proposal(node.group, BATCH, batch_of(b"3"), ids[2]))
    await node.settle()
    assert node.application.applied == []
    node.driver.resume()
    await node.settle()
    assert node.application.applied == [b"1", b"2", b"3"]


async def test_a_batch_of_another_node_is_not_taken_before_the_one_that_it_names(node: DriverNode) -> None:
    await node.lead()
    first, second, third = (ProposalId(2, 9, sequence) for sequence in (4, 5, 7))
    propose = node.driver.propose_for
    assert not propose(*forwarded_proposal(node.group, BATCH, batch_of(b"second"), second, 4))
    assert propose(*forwarded_proposal(node.group, BATCH, batch_of(b"first"), first, 0))
    assert propose(*forwarded_proposal(node.group, BATCH, batch_of(b"second"), second, 4))
    await node.settle()
    assert propose(*forwarded_proposal(node.group, BATCH, batch_of(b"third"), third, 5)), (
        "nobody waits for 6 any more"
    )
    await node.settle()
    assert node.application.applied == [b"first", b"second", b"third"]


@pytest.mark.parametrize("kind", [COMMAND, BATCH], ids=["in the tail", "waiting for room"])
async def test_another_node_has_its_window_of_proposals_under_way_and_no_more(
    node: DriverNode, kind: EntryType
) -> None:
    await (node.lead() if kind is COMMAND else full(node))

    def payload_of(number: int) -> bytes | bytearray:
        return batch_of(b"%d" % number) if kind is BATCH else b"%d" % number

    def propose(number: int, node_id: int = 2, incarnation: int = 9) -> bool:
        id = ProposalId(node_id, incarnation, number)
        return node.driver.propose_for(*forwarded_proposal(node.group, kind, payload_of(number), id))

    taken = [number for number in range(1, 100) if propose(number)]
    assert taken == list(range(1, WINDOW + 1))
    assert not propose(1, incarnation=10), "whichever start it names"
    assert propose(WINDOW), "one that comes again is none more"
    assert propose(200, 3), "another node has a window of its own"
    node.room = 1 << 20
    node.driver.resume()
    await node.settle()
    assert node.application.applied == [b"%d" % number for number in [*taken, 200]]
    assert propose(WINDOW + 1)


async def test_a_batch_that_waits_is_dropped_with_the_start_of_its_node(node: DriverNode) -> None:
    await full(node)
    assert node.driver.propose_for(
        *forwarded_proposal(node.group, BATCH, batch_of(b"of the start before"), ProposalId(2, 1, 1))
    )
    assert node.driver.propose_for(
        *forwarded_proposal(node.group, COMMAND, b"of another node", ProposalId(3, 1, 1))
    )
    assert node.driver.propose_for(*forwarded_proposal(node.group, COMMAND, b"command", ProposalId(2, 2, 1)))
    node.room = 1 << 20
    node.driver.resume()
    await node.settle()
    assert node.application.applied == [b"of another node", b"command"]


@pytest.mark.parametrize("kind", [BATCH, COMMAND])
async def test_an_entry_of_an_earlier_start_behind_one_of_a_later_start_ends_no_node(
    node: DriverNode, kind: EntryType
) -> None:
    await node.lead()
    payload = batch_of(b"earlier") if kind is BATCH else b"earlier"
    assert node.driver.propose_for(*forwarded_proposal(node.group, COMMAND, b"later", ProposalId(2, 2, 1)))
    assert node.driver.propose_for(*forwarded_proposal(node.group, kind, payload, ProposalId(2, 1, 1)))
    await node.settle()
    again = node.restarted().bind()
    try:
        await again.lead()
        for each in (node, again):
            assert each.application.applied == [b"later", b"earlier"]
            assert each.application.rows.judge(ProposalId(2, 2, 1)) == 0
            assert each.application.rows.judge(ProposalId(2, 1, 2)) is DedupVerdict.OUTDATED
    finally:
        again.close()


async def test_batches_that_wait_are_dropped_with_the_leadership(node: DriverNode) -> None:
    await full(node)
    assert forwarded(node, BATCH, batch_of(b"theirs"))
    assert node.group.node is not None
    node.group.node.raft.become_follower(2, 0)
    node.driver.drive(node.group)
    node.room = 1 << 20
    await node.lead()
    node.driver.resume()
    await node.settle()
    assert node.application.applied == [], "the other node sends it again"


async def test_commands_of_other_nodes_need_no_room(node: DriverNode) -> None:
    await full(node)
    assert forwarded(node, COMMAND, b"theirs")
    await node.settle()
    assert b"theirs" in node.application.applied


async def test_a_proposal_that_comes_twice_is_appended_once(node: DriverNode) -> None:
    await node.lead()
    for _ in range(2):
        assert forwarded(node, BATCH, batch_of(b"in the tail"))
    await node.settle()
    assert forwarded(node, BATCH, batch_of(b"in the rows"))
    await node.settle()
    assert node.application.applied == [b"in the tail"]
    assert node.group.tail_ids == set()


async def test_the_bytes_of_another_nodes_proposal_do_not_change(node: DriverNode) -> None:
    await node.lead()
    node.propose(b"own", BATCH)
    payload = batch_of(b"theirs")
    before = bytes(payload)
    assert forwarded(node, BATCH, payload)
    await node.settle()
    assert node.application.applied == [b"own", b"theirs"]
    assert payload == before
