"""Proposals of one node to a raft group: window, back-pressure, retries under one identity."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from pixy.cluster.proposals import Proposals, Proposer, Repeated
from pixy.cluster.proposer_rows import WINDOW, ProposerRows
from pixy.cluster.raft_group import RaftGroup
from pixy.cluster.raft_storage import RaftStorage
from pixy.errors import DeadlineExceeded, TopicExists, UnknownPartition
from pixy.proposal_id import ProposalId
from pixy.raft import ConfState, Entry
from pixy.records import NewRecord, build_batch
from pixy.storage import EntryType

BATCH = EntryType.RECORD_BATCH
COMMAND = EntryType.COMMAND


class Stamping:
    """An application that writes the term into the first byte of a payload."""

    def __init__(self) -> None:
        self.rows = ProposerRows()

    def lead(self, tail: Sequence[Entry]) -> None: ...

    def stamp(self, kind: EntryType, payload: bytes | bytearray, term: int) -> bytes | bytearray:
        if isinstance(payload, bytearray):
            payload[0] = term
        return payload


@dataclass
class Bench:
    """Proposals of node 1 in its incarnation 4, and everything that they do."""

    group: RaftGroup = field(default_factory=lambda: RaftGroup(1000, RaftStorage(ConfState((1, 2, 3)))))
    appended: list[tuple[bytes, ProposalId]] = field(default_factory=list)
    forwarded: list[tuple[bytes, ProposalId]] = field(default_factory=list)
    results: dict[bytes, Any] = field(default_factory=dict)
    room: bool = True
    leader: int = 0

    def __post_init__(self) -> None:
        self.application = Stamping()
        self.group.application = self.application
        self.group.stamp = self.application.stamp
        proposer = Proposer(1, 4, lambda _, __: self.room, self._append, self._forward)
        self.proposals = Proposals(self.group, proposer)

    def _append(self, _: RaftGroup, __: EntryType, payload: bytes | bytearray, proposal: ProposalId) -> None:
        self.appended.append((bytes(payload), proposal))

    def _forward(self, _: RaftGroup, __: EntryType, payload: bytes | bytearray, proposal: ProposalId) -> None:
        self.forwarded.append((bytes(payload), proposal))

    def lead(self, term: int, *tail: ProposalId) -> None:
        self.group.leads, self.group.term, self.group.tail_ids = True, term, set(tail)
        self.proposals.propose_again()

    def submit(
        self, name: bytes, kind: EntryType = COMMAND, deadline: float = float("inf")
    ) -> bytes | bytearray:
        payload = bytearray(b"_" + name) if kind is BATCH else name
        self.proposals.submit(kind, payload, lambda result: self.results.update({name: result}), deadline)
        return payload


def id_of(sequence: int) -> ProposalId:
    return ProposalId(1, 4, sequence)


def test_proposals_wait_for_a_leader_and_keep_their_order() -> None:
    bench = Bench()
    bench.submit(b"a")
    bench.submit(b"b")
    assert bench.appended == []
    bench.lead(3)
    bench.submit(b"c")
    assert bench.appended == [(b"a", id_of(1)), (b"b", id_of(2)), (b"c", id_of(3))]


def test_at_most_a_window_is_in_flight() -> None:
    bench = Bench()
    bench.lead(3)
    for number in range(WINDOW + 2):
        bench.submit(b"%d" % number)
    assert len(bench.appended) == WINDOW
    bench.proposals.applied(2, None)
    assert len(bench.appended) == WINDOW, "the oldest has no result yet"
    bench.proposals.applied(1, None)
    assert [proposal.sequence for _, proposal in bench.appended] == list(range(1, WINDOW + 3))


def test_batches_that_share_an_entry_keep_their_deadlines() -> None:
    bench = Bench()
    for name, deadline in ((b"a", 5.0), (b"b", float("inf")), (b"c", 7.0)):
        payload = build_batch([NewRecord(None, name, (), 0)] * 2)
        done = partial(bench.results.__setitem__, name)
        bench.proposals.submit(BATCH, payload, done, deadline)
    bench.lead(3)
    assert len(bench.appended) == 1
    bench.proposals.expire(4.9)
    assert bench.results == {}
    bench.proposals.expire(5.0)
    assert isinstance(bench.results.pop(b"a"), DeadlineExceeded)
    assert bench.results == {}
    bench.proposals.applied(1, 10)
    assert bench.results == {b"b": 12, b"c": 14}


def test_an_entry_whose_callers_are_all_answered_leaves_the_window() -> None:
    bench = Bench()
    for deadline in (1.0, 2.0):
        bench.proposals.submit(BATCH, build_batch([NewRecord(None, b"", (), 0)]), lambda _: None, deadline)
    bench.lead(3)
    bench.proposals.expire(1.0)
    assert len(bench.proposals) == 1
    bench.proposals.expire(2.0)
    assert len(bench.proposals) == 0


def test_batches_wait_for_room_and_commands_do_not() -> None:
    bench = Bench(room=False)
    bench.lead(3)
    bench.submit(b"command")
    bench.submit(b"batch", BATCH)
    bench.submit(b"behind")
    assert [payload for payload, _ in bench.appended] == [b"command"], (
        "what is behind a batch keeps its place"
    )
    bench.room = True
    bench.proposals.pump()
    assert [payload for payload, _ in bench.appended] == [b"command", b"\x03batch", b"behind"]


def test_the_result_is_that_of_the_applied_entry() -> None:
    bench = Bench()
    bench.lead(3)
    bench.submit(b"a")
    bench.proposals.applied(1, 70)
    assert bench.results == {b"a": 70}
    assert len(bench.proposals) == 0


def test_a_new_leadership_proposes_again_under_the_same_identity() -> None:
    bench = Bench()
    bench.lead(3)
    sent = bench.submit(b"batch", BATCH)
    bench.group.leads = False
    bench.submit(b"later")
    bench.lead(5)
    assert bench.appended == [(b"\x03batch", id_of(1)), (b"\x05batch", id_of(1)), (b"later", id_of(2))]
    assert bytes(sent) == b"\x03batch", "bytes that were proposed never change"


def test_the_same_leadership_proposes_nothing_twice() -> None:
    bench = Bench()
    bench.lead(3)
    bench.submit(b"a")
    bench.group.leads = False  # a transfer that failed
    bench.lead(3)
    assert len(bench.appended) == 1


def test_what_is_in_the_leaders_tail_waits_for_its_original() -> None:
    bench = Bench()
    bench.lead(3)
    bench.submit(b"a")
    bench.group.leads = False
    bench.lead(5, id_of(1))
    assert len(bench.appended) == 1
    bench.proposals.applied(1, 70)
    assert bench.results == {b"a": 70}


@pytest.mark.parametrize(("kept", "answer"), [(70, Repeated(70)), (None, Repeated(0))])
def test_what_was_applied_is_answered_as_it_was(kept: int | None, answer: Repeated) -> None:
    bench = Bench()
    bench.lead(3)
    bench.submit(b"a")
    bench.group.leads = False
    bench.application.rows.record(id_of(1), kept)
    bench.lead(5)
    assert bench.results == {b"a": answer}
    assert len(bench.appended) == 1


def test_a_command_that_was_refused_is_refused_again() -> None:
    bench = Bench()
    bench.lead(3)
    bench.submit(b"a")
    bench.group.leads = False
    bench.application.rows.record(id_of(1), TopicExists("there"))
    bench.lead(5)
    assert isinstance(bench.results[b"a"], TopicExists)


def test_a_proposal_that_another_result_has_answered_is_not_proposed_again() -> None:
    bench = Bench()
    bench.lead(3)
    bench.submit(b"a")
    bench.submit(b"b")
    bench.group.leads = False
    bench.application.rows.record(id_of(1), 5)
    bench.results.clear()

    class Answering(dict[bytes, Any]):
        def update(self, other: Any) -> None:
            super().update(other)
            if b"a" in other:
                bench.proposals.applied(2, 6)

    bench.results = Answering()
    bench.lead(5)
    assert bench.results == {b"a": Repeated(5), b"b": 6}
    assert len(bench.appended) == 2


def test_what_waits_comes_behind_what_is_proposed_again() -> None:
    bench = Bench()
    bench.lead(3)
    names = [b"%d" % number for number in range(1, WINDOW + 2)]
    for name in names:
        bench.submit(name)
    bench.group.leads = False
    bench.appended.clear()
    # The result of the first one ends the window, and its caller goes on.
    bench.application.rows.record(id_of(1), None)
    bench.lead(5)
    assert [proposal.sequence for _, proposal in bench.appended] == list(range(2, WINDOW + 2))


def test_what_a_caller_proposes_when_answered_comes_behind_what_is_proposed_again() -> None:
    bench = Bench()
    bench.lead(3)

    def answered(_: object) -> None:
        bench.submit(b"next")

    bench.proposals.submit(COMMAND, b"first", answered)
    bench.submit(b"second")
    bench.group.leads = False
    bench.appended.clear()
    bench.application.rows.record(id_of(1), None)
    bench.lead(5)
    assert [proposal for _, proposal in bench.appended] == [id_of(2), id_of(3)]
    assert bench.appended[1][0] == b"next"


def test_batches_that_wait_share_an_entry_and_each_gets_its_offset() -> None:
    bench = Bench()
    batches = [build_batch([NewRecord(None, b"x" * 20, (), 1)] * count) for count in (1, 3, 2)]
    offsets: list[Any] = []
    bench.submit(b"before")
    for batch in batches:
        bench.proposals.submit(BATCH, batch, offsets.append)
    bench.submit(b"behind")
    bench.group.stamp = lambda _, payload, __: payload
    bench.lead(3)
    assert [payload for payload, _ in bench.appended] == [b"before", b"".join(batches), b"behind"]
    bench.proposals.applied(2, 70)
    assert offsets == [70, 71, 74]


def test_batches_share_an_entry_of_limited_size() -> None:
    bench = Bench()
    for _ in range(3):
        bench.proposals.submit(BATCH, build_batch([NewRecord(None, bytes(600_000), (), 1)]), lambda _: None)
    bench.group.stamp = lambda _, payload, __: payload
    bench.lead(3)
    assert len(bench.appended) == 3


def test_the_batches_of_an_entry_share_its_error() -> None:
    bench = Bench()
    results: list[Any] = []
    for _ in range(2):
        bench.proposals.submit(BATCH, build_batch([NewRecord(None, b"x", (), 1)]), results.append)
    bench.group.stamp = lambda _, payload, __: payload
    bench.lead(3)
    bench.proposals.applied(1, UnknownPartition("deleted"))
    assert [type(result) for result in results] == [UnknownPartition] * 2


def shared_entry(*deadlines: float) -> tuple[Bench, dict[float, Any]]:
    """Batches with these deadlines in one entry in flight, and their results."""
    bench, results = Bench(), dict[float, Any]()
    for deadline in deadlines:

        def done(result: Any, deadline: float = deadline) -> None:
            assert deadline not in results
            results[deadline] = result

        bench.proposals.submit(BATCH, build_batch([NewRecord(None, b"x", (), 1)]), done, deadline)
    bench.group.stamp = lambda _, payload, __: payload
    bench.lead(3)
    assert len(bench.appended) == 1
    return bench, results


def test_a_batch_that_shares_an_entry_has_its_own_deadline() -> None:
    bench, results = shared_entry(20.0, 10.0, 30.0)
    bench.proposals.expire(10.0)
    assert {deadline: type(result) for deadline, result in results.items()} == {10.0: DeadlineExceeded}
    bench.proposals.expire(19.0)
    bench.proposals.applied(1, 70)
    assert (results[20.0], results[30.0]) == (70, 72)


def test_a_shared_entry_leaves_the_window_with_its_last_deadline() -> None:
    bench, results = shared_entry(10.0, 20.0)
    bench.proposals.expire(10.0)
    assert len(bench.proposals) == 1
    bench.proposals.expire(20.0)
    assert [type(result) for result in results.values()] == [DeadlineExceeded] * 2
    assert len(bench.proposals) == 0


def test_the_deadline_says_that_the_outcome_is_unknown() -> None:
    bench = Bench()
    bench.lead(3)
    bench.submit(b"in flight", deadline=10.0)
    bench.group.leads = False
    bench.submit(b"waiting", deadline=10.0)
    bench.submit(b"patient", deadline=20.0)
    bench.proposals.expire(10.0)
    assert {name: type(result) for name, result in bench.results.items()} == {
        b"in flight": DeadlineExceeded,
        b"waiting": DeadlineExceeded,
    }
    bench.proposals.applied(1, 70)
    assert isinstance(bench.results[b"in flight"], DeadlineExceeded), "a caller has one answer"
    bench.lead(5)
    assert bench.appended[1:] == [(b"patient", id_of(2))]


def test_a_group_that_is_gone_answers_everything() -> None:
    bench = Bench()
    bench.lead(3)
    bench.submit(b"a")
    bench.group.leads = False
    bench.submit(b"b")
    bench.proposals.fail(UnknownPartition("deleted"))
    assert {type(result) for result in bench.results.values()} == {UnknownPartition}
    assert len(bench.proposals) == 0
