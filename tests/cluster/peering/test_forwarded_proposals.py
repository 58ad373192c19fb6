"""Large batches that other nodes forward: checked to the last record on another thread, in order,
and refused if they lie.
"""

import asyncio
import threading

import pytest
from structlog.testing import capture_logs

from pixy.check_turns import SteppedCheck
from pixy.cluster.peering import forwarded_proposals
from pixy.cluster.peering.forwarded_proposals import ForwardedProposals
from pixy.cluster.state.proposable import why_not_proposable
from pixy.entry_ids import ProposalId
from pixy.errors import VoidEntry
from pixy.multiraft.dedup_table import WINDOW
from pixy.records import CheckEffort, LongCheckError
from pixy.storage import EntryType
from tests.cluster.drivers import BATCH, GROUP, DriverNode, batch_of, forwarded_proposal, forwarded_to
from tests.fakes.batches import raw_batch, raw_record
from tests.fakes.waiting import until

COUNT = 5000
CODECS = pytest.mark.parametrize("codec", [0, 4], ids=["plain", "zstd"])
VALUES = [b"%d" % number * (1 + number % 2) for number in range(COUNT)]


def large(last_delta: int = COUNT - 1, codec: int = 0) -> bytes:
    """A batch of records that differ in length, with the offset delta of the last one."""
    deltas = [*range(COUNT - 1), last_delta]
    return raw_batch(
        [raw_record(delta, value) for delta, value in zip(deltas, VALUES, strict=True)],
        codec=codec,
        last_delta=COUNT - 1,
    )


LIE = large(7)


def id_of(sequence: int, node: int = 77) -> ProposalId:
    return ProposalId(node, 1, sequence)


class Held:
    """Checks on the other thread that wait for the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_go, self.begun = threading.Event(), threading.Event()
        advance = SteppedCheck.advance

        def held(check: SteppedCheck) -> None:
            self.begun.set()
            assert self.may_go.wait(60)
            advance(check)

        monkeypatch.setattr(SteppedCheck, "advance", held)


@pytest.fixture
async def forwarded(node: DriverNode) -> ForwardedProposals:
    await node.lead()
    return forwarded_to(node)


@CODECS
async def test_a_large_batch_that_lies_is_refused_with_the_record_and_others_go_on(
    node: DriverNode, forwarded: ForwardedProposals, codec: int
) -> None:
    lie = large(7, codec)
    with pytest.raises(LongCheckError):
        why_not_proposable(GROUP + 1000, BATCH, lie, 77)
    with pytest.raises(VoidEntry, match=f"record {COUNT - 1} has offset delta 7, expected {COUNT - 1}"):
        await forwarded.propose(*forwarded_proposal(node.group, BATCH, lie, id_of(1), 0))
    assert await forwarded.propose(*forwarded_proposal(node.group, BATCH, large(codec=codec), id_of(2), 0))
    await node.settle()
    assert node.application.applied == VALUES
    assert node.faults == []


async def test_a_refusal_that_nobody_waits_for_is_logged_and_appends_nothing(
    node: DriverNode, forwarded: ForwardedProposals
) -> None:
    with capture_logs() as logs:
        forwarded.propose_nowait(*forwarded_proposal(node.group, BATCH, LIE, id_of(1)))
        # The answer to what comes behind it is that it was checked.
        assert await forwarded.propose(
            *forwarded_proposal(node.group, BATCH, batch_of(b"after"), id_of(2), 0)
        )
    (line,) = [each for each in logs if "ignored" in each["event"]]
    assert line["node"] == 77
    assert line["reason"].endswith(f"record {COUNT - 1} has offset delta 7, expected {COUNT - 1}")
    await node.settle()
    assert node.application.applied == [b"after"]


async def test_what_the_node_proposes_to_the_group_keeps_its_order_and_others_do_not_wait(
    node: DriverNode, forwarded: ForwardedProposals, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    group, application = node.other_group()
    node.driver.seek_leader(group)
    await node.settle()
    forwarded.propose_nowait(*forwarded_proposal(node.group, BATCH, large(), id_of(1)))
    forwarded.propose_nowait(*forwarded_proposal(node.group, BATCH, batch_of(b"behind"), id_of(2), 1))
    await asyncio.to_thread(held.begun.wait, 60)
    # Another node, and another group.
    forwarded.propose_nowait(*forwarded_proposal(node.group, BATCH, batch_of(b"other node"), id_of(1, 78)))
    forwarded.propose_nowait(*forwarded_proposal(group, BATCH, batch_of(b"other group"), id_of(1)))
    await node.settle()
    assert node.application.applied == [b"other node"]
    assert application.applied == [b"other group"]
    held.may_go.set()
    assert await forwarded.propose(*forwarded_proposal(node.group, BATCH, batch_of(b"last"), id_of(3), 2))
    await node.settle()
    assert node.application.applied == [b"other node", *VALUES, b"behind", b"last"]


@pytest.mark.slow
async def test_a_long_check_waits_for_a_turn_of_another_and_not_for_its_end(
    node: DriverNode, forwarded: ForwardedProposals
) -> None:
    order: list[str] = []

    async def propose(name: str, kind: EntryType, payload: bytes, sender: int) -> None:
        assert await forwarded.propose(*forwarded_proposal(node.group, kind, payload, id_of(1, sender), 0))
        order.append(name)

    many = b"".join([large(codec=4)] * 30)
    await asyncio.gather(
        propose("many", EntryType.RECORD_BATCHES, many, 77), propose("one", BATCH, large(codec=4), 78)
    )
    assert order == ["one", "many"]


async def test_a_proposal_that_costs_too_much_is_refused_where_it_exceeds_that(
    node: DriverNode, forwarded: ForwardedProposals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pixy.check_turns.effort_of", lambda _: CheckEffort(3 * COUNT, 1 << 30))
    many = b"".join([large(codec=4)] * 10)
    with pytest.raises(
        VoidEntry, match=r"batches of the proposal decompress to more than .* or have more than 15000"
    ):
        await forwarded.propose(*forwarded_proposal(node.group, EntryType.RECORD_BATCHES, many, id_of(1), 0))
    assert await forwarded.propose(*forwarded_proposal(node.group, BATCH, large(codec=4), id_of(2), 0))


async def test_one_batch_is_one_however_large_it_is(node: DriverNode, forwarded: ForwardedProposals) -> None:
    with pytest.raises(VoidEntry, match="2 batches for one"):
        await forwarded.propose(*forwarded_proposal(node.group, BATCH, large() * 2, id_of(1), 0))


async def test_a_flood_of_proposals_that_wait_is_bounded(
    node: DriverNode, forwarded: ForwardedProposals, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    small = bytes(batch_of(b"x"))
    monkeypatch.setattr(forwarded_proposals, "WAITING_BYTES_MAX", len(large()) + len(small))
    first = asyncio.ensure_future(
        forwarded.propose(*forwarded_proposal(node.group, BATCH, large(), id_of(1), 0))
    )
    second = asyncio.ensure_future(
        forwarded.propose(*forwarded_proposal(node.group, BATCH, small, id_of(2), 0))
    )
    await asyncio.to_thread(held.begun.wait, 60)
    assert not await forwarded.propose(*forwarded_proposal(node.group, BATCH, small, id_of(3), 0))
    held.may_go.set()
    assert [*await asyncio.gather(first, second)] == [True, True]
    assert await forwarded.propose(*forwarded_proposal(node.group, BATCH, small, id_of(3), 0))


async def test_few_proposals_of_a_node_to_a_group_wait_however_small_they_are(
    node: DriverNode, forwarded: ForwardedProposals, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    first = asyncio.ensure_future(
        forwarded.propose(*forwarded_proposal(node.group, BATCH, large(), id_of(1), 0))
    )
    await asyncio.to_thread(held.begun.wait, 60)
    small = bytes(batch_of(b"x"))
    others = [
        asyncio.ensure_future(
            forwarded.propose(*forwarded_proposal(node.group, BATCH, small, id_of(number), 0))
        )
        for number in range(2, 1000)
    ]
    for _ in range(3):
        await asyncio.sleep(0)
    assert sum(not each.done() for each in others) < 2 * WINDOW
    held.may_go.set()
    taken = await asyncio.gather(first, *others)
    assert taken[:WINDOW] == [True] * WINDOW
    await node.settle()
    assert node.application.applied[: len(VALUES) + WINDOW - 1] == [*VALUES, *[b"x"] * (WINDOW - 1)]


async def test_a_stop_takes_nothing_that_is_being_checked(
    node: DriverNode, forwarded: ForwardedProposals, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    first = asyncio.ensure_future(
        forwarded.propose(*forwarded_proposal(node.group, BATCH, large(), id_of(1), 0))
    )
    await asyncio.to_thread(held.begun.wait, 60)
    await forwarded.stop()
    held.may_go.set()
    assert not await first
    await node.settle()
    assert node.application.applied == []


# --- refusals -------------------------------------------------------------------------------------

REASON = f"record {COUNT - 1} has offset delta 7, expected {COUNT - 1}"


async def test_a_node_is_told_of_the_refusal_and_of_that_of_each_copy(
    node: DriverNode, forwarded: ForwardedProposals
) -> None:
    forwarded.propose_nowait(*forwarded_proposal(node.group, BATCH, LIE, id_of(1)))
    await until(lambda: node.refused)
    # What decides may have changed meanwhile, but not the answer.
    forwarded.propose_nowait(*forwarded_proposal(node.group, BATCH, batch_of(b"good"), id_of(1)))
    await until(lambda: len(node.refused) == 2)
    first, second = node.refused
    assert first == second
    assert (first.raft_group, first.term, first.proposal) == (GROUP, node.group.term, id_of(1))
    assert first.reason.endswith(REASON)
    assert await forwarded.propose(*forwarded_proposal(node.group, BATCH, batch_of(b"next"), id_of(2), 0))
    await node.settle()
    assert node.application.applied == [b"next"]


async def test_what_was_taken_is_not_refused_afterwards(
    node: DriverNode, forwarded: ForwardedProposals
) -> None:
    forwarded.propose_nowait(*forwarded_proposal(node.group, BATCH, batch_of(b"good"), id_of(1)))
    for _ in range(2):  # in the tail, and applied
        assert not await forwarded.propose(*forwarded_proposal(node.group, BATCH, LIE, id_of(1), 0))
        await node.settle()
    assert (node.application.applied, node.refused) == ([b"good"], [])


async def test_a_leader_that_may_lack_what_is_committed_refuses_nothing_for_good(node: DriverNode) -> None:
    await node.lead()
    node.group.term += 1  # the entry of this term is not committed
    forwarded = forwarded_to(node)
    assert not await forwarded.propose(*forwarded_proposal(node.group, BATCH, LIE, id_of(1), 0))
    assert node.refused == []


async def test_what_waits_while_the_leader_changes_is_not_taken(
    node: DriverNode, forwarded: ForwardedProposals, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    taken = [
        asyncio.ensure_future(
            forwarded.propose(*forwarded_proposal(node.group, BATCH, batch, id_of(sequence), 0))
        )
        for sequence, batch in enumerate([large(), bytes(batch_of(b"behind")), LIE], start=1)
    ]
    await asyncio.to_thread(held.begun.wait, 60)
    node.group.term += 1  # it leads again
    held.may_go.set()
    assert await asyncio.gather(*taken) == [False, False, False]
    await node.settle()
    assert node.application.applied == []


async def test_copies_of_refused_proposals_are_known_for_a_while(
    node: DriverNode, forwarded: ForwardedProposals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarded_proposals, "REFUSED_MAX", 2)
    bad = batch_of(b"bad")[:-1]
    for sequence in (1, 2, 3):
        forwarded.propose_nowait(*forwarded_proposal(node.group, BATCH, bad, id_of(sequence)))
    assert [each.proposal.sequence for each in node.refused] == [1, 2, 3]
    assert [sequence for _, (_, _, sequence) in forwarded._refused[77]] == [2, 3]
