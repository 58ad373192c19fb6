"""Large batches that other nodes forward: checked to the last record on another thread, in order,
and refused if they lie.
"""

import asyncio
import threading

import pytest
from structlog.testing import capture_logs

from pixy.cluster import forwarded_proposals
from pixy.cluster.forwarded_proposals import ForwardedProposals
from pixy.cluster.proposable import why_not_batches, why_not_proposable
from pixy.cluster.proposer_rows import WINDOW
from pixy.errors import VoidEntry
from pixy.proposal_id import ProposalId
from pixy.records import LongCheckError
from tests.cluster.drivers import BATCH, GROUP, DriverNode, batch_of, forwarded_to
from tests.fakes.batches import raw_batch, raw_record

COUNT = 5000
CODECS = pytest.mark.parametrize("codec", [0, 4], ids=["plain", "zstd"])
VALUES = [b"%d" % number for number in range(COUNT)]


def large(last_delta: int = COUNT - 1, codec: int = 0) -> bytes:
    """A batch of records that differ, with the offset delta of the last one."""
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
        monkeypatch.setattr(forwarded_proposals, "why_not_batches", self._check)

    def _check(self, kind: int, payload: bytes) -> str:
        self.begun.set()
        assert self.may_go.wait(60)
        return why_not_batches(kind, payload)


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
        await forwarded.propose(node.group, BATCH, lie, id_of(1), 0)
    assert await forwarded.propose(node.group, BATCH, large(codec=codec), id_of(2), 0)
    await node.settle()
    assert node.application.applied == VALUES
    assert node.faults == []


async def test_a_refusal_that_nobody_waits_for_is_logged_and_appends_nothing(
    node: DriverNode, forwarded: ForwardedProposals
) -> None:
    with capture_logs() as logs:
        forwarded.propose_nowait(node.group, BATCH, LIE, id_of(1))
        # The answer to what comes behind it is that it was checked.
        assert await forwarded.propose(node.group, BATCH, batch_of(b"after"), id_of(2), 0)
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
    forwarded.propose_nowait(node.group, BATCH, large(), id_of(1))
    forwarded.propose_nowait(node.group, BATCH, batch_of(b"behind"), id_of(2), 1)
    await asyncio.to_thread(held.begun.wait, 60)
    # Another node, and another group.
    forwarded.propose_nowait(node.group, BATCH, batch_of(b"other node"), id_of(1, 78))
    forwarded.propose_nowait(group, BATCH, batch_of(b"other group"), id_of(1))
    await node.settle()
    assert node.application.applied == [b"other node"]
    assert application.applied == [b"other group"]
    held.may_go.set()
    assert await forwarded.propose(node.group, BATCH, batch_of(b"last"), id_of(3), 2)
    await node.settle()
    assert node.application.applied == [b"other node", *VALUES, b"behind", b"last"]


async def test_a_flood_of_proposals_that_wait_is_bounded(
    node: DriverNode, forwarded: ForwardedProposals, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    small = bytes(batch_of(b"x"))
    monkeypatch.setattr(forwarded_proposals, "WAITING_BYTES_MAX", len(large()) + len(small))
    first = asyncio.ensure_future(forwarded.propose(node.group, BATCH, large(), id_of(1), 0))
    second = asyncio.ensure_future(forwarded.propose(node.group, BATCH, small, id_of(2), 0))
    await asyncio.to_thread(held.begun.wait, 60)
    assert not await forwarded.propose(node.group, BATCH, small, id_of(3), 0)
    held.may_go.set()
    assert [*await asyncio.gather(first, second)] == [True, True]
    assert await forwarded.propose(node.group, BATCH, small, id_of(3), 0)


async def test_few_proposals_of_a_node_to_a_group_wait_however_small_they_are(
    node: DriverNode, forwarded: ForwardedProposals, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    first = asyncio.ensure_future(forwarded.propose(node.group, BATCH, large(), id_of(1), 0))
    await asyncio.to_thread(held.begun.wait, 60)
    small = bytes(batch_of(b"x"))
    others = [
        asyncio.ensure_future(forwarded.propose(node.group, BATCH, small, id_of(number), 0))
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
    first = asyncio.ensure_future(forwarded.propose(node.group, BATCH, large(), id_of(1), 0))
    await asyncio.to_thread(held.begun.wait, 60)
    await forwarded.stop()
    held.may_go.set()
    assert not await first
    await node.settle()
    assert node.application.applied == []
