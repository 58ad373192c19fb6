"""Proposals of one node to a raft group: window, back-pressure, retries under one identity."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import pytest

from pixy.entry_ids import ProposalId
from pixy.errors import BatchesDivided, DeadlineExceeded, TopicExists, Unavailable, UnknownPartition
from pixy.multiraft.dedup_table import WINDOW, DedupTable
from pixy.multiraft.driver_options import RAFT_CONFIG
from pixy.multiraft.proposals import Proposal, Proposals, Proposer, Repeated
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.raft_storage import RaftStorage
from pixy.raft import ConfState, Entry, RaftNode
from pixy.records import NewRecord, build_batch
from pixy.storage import EntryType
from tests.fakes.batches import batch_of, batch_of_producer

BATCH = EntryType.RECORD_BATCH
COMMAND = EntryType.COMMAND


class Stamping:
    """An application that writes the term into the first byte of a payload."""

    def __init__(self) -> None:
        self.rows = DedupTable()

    def may_have_replica(self, node_id: int) -> bool:
        return True

    def lead(self, tail: Sequence[Entry]) -> None: ...

    def stamp(
        self, kind: EntryType, payload: bytes | bytearray, term: int
    ) -> tuple[EntryType, bytes | bytearray]:
        if isinstance(payload, bytearray):
            payload[0] = term
        return kind, payload


@dataclass
class Bench:
    """Proposals of node 1 in its incarnation 4, and everything that they do."""

    group: RaftGroup = field(default_factory=lambda: RaftGroup(1000, RaftStorage(ConfState((1, 2, 3))), 1))
    appended: list[tuple[bytes, ProposalId]] = field(default_factory=list)
    forwarded: list[tuple[bytes, ProposalId]] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    results: dict[bytes, Any] = field(default_factory=dict)
    room: bool = True
    asked: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.application = Stamping()
        self.group.application = self.application
        self.group.stamp = self.application.stamp
        self.proposer = Proposer(1, 4, self._has_room, self._append, self._forward, {})
        self.proposals = Proposals(self.group, self.proposer)

    def _has_room(self, _: RaftGroup, size: int) -> bool:
        self.asked.append(size)
        return self.room

    def _append(self, _: RaftGroup, __: EntryType, payload: bytes | bytearray, proposal: ProposalId) -> None:
        self.appended.append((bytes(payload), proposal))

    def _forward(
        self, _: RaftGroup, __: EntryType, payload: bytes | bytearray, proposal: ProposalId, after: int
    ) -> None:
        self.after.append(after)
        self.forwarded.append((bytes(payload), proposal))

    def lead(self, term: int, *tail: ProposalId) -> None:
        self.group.leads, self.group.term, self.group.tail_ids = True, term, set(tail)
        self.proposals.propose_again()

    def follow(self, leader: int) -> None:
        """Node `leader` leads; 0 if nobody does."""
        group = self.group
        if group.node is None:
            group.node = RaftNode(1, group.storage, RAFT_CONFIG, Random(1))
        group.leads = False
        group.node.raft.become_follower(5, leader)
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


@pytest.mark.parametrize("other", [ProposalId(1, 5, 1), ProposalId(1, 4, 1 + WINDOW)])
def test_a_proposal_is_answered_although_another_process_has_proposed_as_this_node(other: ProposalId) -> None:
    bench = Bench()
    bench.submit(b"batch", BATCH)
    bench.lead(3)
    bench.follow(0)
    bench.application.rows.record(other, 0)
    bench.lead(6)
    (result,) = bench.results.values()
    assert isinstance(result, DeadlineExceeded)
    assert len(bench.appended) == 1
    assert "raft group 1000 has later proposals under the id of this node, 1" in str(result)


def test_another_way_goes_on_with_everything_under_the_same_identities() -> None:
    bench = Bench()
    bench.follow(2)
    other = Proposals(bench.group, bench.proposer)
    bench.submit(b"a")
    other.submit(COMMAND, b"b", lambda result: bench.results.update({b"b": result}))
    bench.submit(b"c")
    bench.follow(0)
    bench.submit(b"waits")
    bench.follow(2)
    bench.proposals.applied(1, "first")
    for number in range(WINDOW):
        bench.submit(b"%d" % number)
    bench.forwarded.clear()
    bench.proposals.go_on_in(other)
    again = [(b"c", id_of(3)), (b"waits", id_of(4))]
    again += [(b"%d" % number, id_of(5 + number)) for number in range(WINDOW - 3)]
    assert bench.forwarded == again, "in their order, as far as the window goes"
    assert (len(bench.proposals), len(other)) == (0, WINDOW + 3)
    assert [other.before(sequence) for sequence in (2, 3, 4)] == [0, 2, 3]
    other.applied(2, "second")
    assert bench.forwarded[-1] == (b"%d" % (WINDOW - 3), id_of(WINDOW + 2)), "the next one"
    other.applied(4, "fourth")
    assert bench.results == {b"a": "first", b"b": "second", b"waits": "fourth"}
    assert bench.proposer.sequences is not None
    assert len(bench.proposer.sequences[1000].in_flight) == 1, "the window is the other's alone"


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
    bench.group.stamp = lambda kind, payload, _: (kind, payload)
    bench.lead(3)
    assert [payload for payload, _ in bench.appended] == [b"before", b"".join(batches), b"behind"]
    bench.proposals.applied(2, 70)
    assert offsets == [70, 71, 74]


@pytest.mark.parametrize(("beyond", "entries"), [(0, 1), (1, 2)])
def test_batches_share_an_entry_of_1_mib_at_most(beyond: int, entries: int) -> None:
    bench = Bench()
    for size in (1 << 19, (1 << 19) + beyond):
        bench.submit(bytes(size - 1), BATCH)
    bench.lead(3)
    assert len(bench.appended) == entries


def test_a_batch_that_waits_alone_is_proposed_as_it_is() -> None:
    bench = Bench()
    waiting = bench.submit(b"batch", BATCH)
    bench.submit(b"behind")
    bench.lead(3)
    assert bench.appended[0] == (b"\x03batch", id_of(1))
    assert bytes(waiting) == b"\x03batch", "nobody else has the bytes"


def test_room_is_asked_for_all_batches_of_an_entry() -> None:
    bench = Bench()
    for size in (60, 80):
        bench.submit(bytes(size - 1), BATCH)
    bench.lead(3)
    assert (len(bench.appended), sum(bench.asked)) == (1, 140)


def test_the_batches_of_an_entry_share_its_error() -> None:
    bench = Bench()
    results: list[Any] = []
    for _ in range(2):
        bench.proposals.submit(BATCH, build_batch([NewRecord(None, b"x", (), 1)]), results.append)
    bench.group.stamp = lambda kind, payload, _: (kind, payload)
    bench.lead(3)
    bench.proposals.applied(1, UnknownPartition("deleted"))
    assert [type(result) for result in results] == [UnknownPartition] * 2


def test_batches_of_producers_share_entries_with_such_ones_alone() -> None:
    bench = Bench()
    plain, of_producer = batch_of(b"x"), batch_of_producer(7, 0, 0, b"x")
    for batch in (plain, plain, of_producer, of_producer, plain):
        bench.proposals.submit(BATCH, bytearray(batch), lambda _: None)
    bench.group.stamp = lambda kind, payload, _: (kind, payload)
    bench.lead(3)
    assert [payload for payload, _ in bench.appended] == [2 * plain, 2 * bytes(of_producer), plain]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_batches_of_an_entry_that_comes_back_are_proposed_alone(elsewhere: bool) -> None:
    bench, results = Bench(), dict[int, Any]()
    batches = [bytes(batch_of_producer(number, 0, 0, b"x")) for number in range(3)]
    for number, batch in enumerate(batches):
        deadline = 10.0 if number == 1 else float("inf")
        bench.proposals.submit(BATCH, bytearray(batch), partial(results.__setitem__, number), deadline)
    bench.group.stamp = lambda kind, payload, _: (kind, payload)
    bench.lead(3)
    proposals = bench.proposals
    if elsewhere:
        proposals = Proposals(bench.group, bench.proposer)
        bench.proposals.go_on_in(proposals)
    proposals.expire(10.0)
    bench.submit(b"behind")
    bench.appended.clear()
    proposals.applied(1, BatchesDivided("one of them is not new"))
    assert [payload for payload, _ in bench.appended if payload != b"behind"] == [batches[0], batches[2]]
    assert type(results.pop(1)) is DeadlineExceeded
    assert results == {}
    for _, proposal in bench.appended:
        proposals.applied(proposal.sequence, proposal.sequence)
    assert list(results) == [0, 2]


@pytest.mark.parametrize("end", ["applied", "refused", "expired"])
def test_what_waits_for_another_way_goes_when_nothing_is_in_flight_there(end: str) -> None:
    """A node that has got the only vote hears of nothing else by which it would go."""
    bench = Bench()
    bench.follow(2)
    other = Proposals(bench.group, bench.proposer)
    other.submit(COMMAND, b"elsewhere", lambda _: None, 10.0)
    bench.group.leads, bench.group.term = True, 3
    bench.submit(b"here")
    assert bench.appended == []
    match end:
        case "applied":
            other.applied(1, 70)
        case "refused":
            other.refused(1, Unavailable("no"))
        case _:
            other.expire(10.0)
    assert bench.appended == [(b"here", id_of(2))]


def shared_entry(*deadlines: float) -> tuple[Bench, dict[float, Any]]:
    """Batches with these deadlines in one entry in flight, and their results."""
    bench, results = Bench(), dict[float, Any]()
    for deadline in deadlines:

        def done(result: Any, deadline: float = deadline) -> None:
            assert deadline not in results
            results[deadline] = result

        bench.proposals.submit(BATCH, build_batch([NewRecord(None, b"x", (), 1)]), done, deadline)
    bench.group.stamp = lambda kind, payload, _: (kind, payload)
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


def test_the_deadline_says_whether_the_outcome_is_unknown() -> None:
    bench = Bench()
    bench.lead(3)
    bench.submit(b"in flight", deadline=10.0)
    bench.group.leads = False
    bench.submit(b"waiting", deadline=10.0)
    bench.submit(b"patient", deadline=20.0)
    bench.proposals.expire(10.0)
    assert {name: type(result) for name, result in bench.results.items()} == {
        b"in flight": DeadlineExceeded,
        b"waiting": Unavailable,
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


def test_a_deadline_ends_the_place_in_the_window() -> None:
    bench = Bench()
    bench.lead(3)
    bench.submit(b"late", deadline=10.0)
    for number in range(WINDOW):
        bench.submit(b"%d" % number)
    assert len(bench.appended) == WINDOW
    bench.proposals.expire(10.0)
    assert bench.appended[-1] == (b"7", id_of(WINDOW + 1))


def test_waiting_proposals_keep_their_order_when_one_of_them_expires() -> None:
    bench = Bench()
    for name, deadline in ((b"a", 20.0), (b"b", 10.0), (b"c", 20.0)):
        bench.submit(name, deadline=deadline)
    bench.proposals.expire(10.0)
    bench.lead(3)
    assert [payload for payload, _ in bench.appended] == [b"a", b"c"]


# --- leaders elsewhere ----------------------------------------------------------------------------


def test_a_proposal_goes_to_the_leader_on_another_node() -> None:
    bench = Bench(room=False)
    bench.follow(2)
    bench.submit(b"batch", BATCH)
    assert bench.forwarded == [(b"_batch", id_of(1))], "its leader asks for room"
    assert (bench.appended, bench.asked) == ([], [])
    bench.proposals.applied(1, 70)
    assert bench.results == {b"batch": 70}


def test_waiting_proposals_go_to_the_leader_when_there_is_one() -> None:
    bench = Bench()
    bench.follow(0)
    batch = batch_of(b"x")
    for _ in range(2):
        bench.proposals.submit(BATCH, bytearray(batch), lambda _: None)
    bench.submit(b"command")
    assert bench.forwarded == []
    bench.follow(2)
    assert bench.forwarded == [(2 * batch, id_of(1)), (b"command", id_of(2))]


def test_at_most_a_window_is_on_its_way_to_the_leader() -> None:
    bench = Bench()
    bench.follow(2)
    for number in range(WINDOW + 1):
        bench.submit(b"%d" % number)
    assert len(bench.forwarded) == WINDOW
    bench.proposals.applied(1, None)
    assert bench.forwarded[-1] == (b"8", id_of(WINDOW + 1))


def test_a_new_leader_elsewhere_gets_everything_in_flight_again() -> None:
    bench = Bench()
    bench.follow(2)
    for name in (b"a", b"b"):
        bench.submit(name)
    bench.follow(3)
    assert bench.forwarded == [(b"a", id_of(1)), (b"b", id_of(2))] * 2


def test_a_forwarded_batch_does_not_change_when_this_node_leads() -> None:
    bench = Bench()
    bench.follow(2)
    payload = bench.submit(b"batch", BATCH)
    bench.lead(6)
    assert bench.appended == [(b"\x06batch", id_of(1))]
    assert bytes(payload) == b"_batch"


def test_a_forwarded_proposal_names_the_one_in_flight_before_it() -> None:
    bench = Bench()
    bench.follow(2)
    bench.submit(b"a", deadline=5.0)
    bench.submit(b"b")
    bench.submit(b"c")
    assert bench.after == [0, 1, 2]
    bench.proposals.expire(5.0)
    bench.after.clear()
    bench.proposals.propose_again()
    assert bench.after == [0, 2], "nobody waits for the first one"
    bench.proposals.applied(2, None)
    bench.after.clear()
    bench.proposals.propose_again()
    assert bench.after == [0]


def test_proposals_wait_while_the_own_leadership_is_transferred() -> None:
    bench = Bench()
    bench.follow(1)
    bench.submit(b"a")
    assert (bench.forwarded, bench.appended) == ([], [])


def test_a_node_that_cannot_forward_waits_until_it_leads() -> None:
    bench = Bench()
    bench.proposals = Proposals(bench.group, Proposer(1, 4, bench._has_room, bench._append))
    bench.follow(2)
    bench.submit(b"a")
    bench.lead(6)
    assert bench.appended == [(b"a", id_of(1))]


# --- snapshots ------------------------------------------------------------------------------------


def test_what_a_snapshot_includes_is_answered_from_its_rows() -> None:
    bench = Bench()
    bench.follow(2)
    bench.submit(b"batch", BATCH)
    for name in (b"command", b"refused", b"not applied"):
        bench.submit(name)
    rows = bench.application.rows
    for sequence, result in ((1, 70), (2, 5), (3, TopicExists("there"))):
        rows.record(id_of(sequence), result)
    bench.proposals.overtaken()
    assert isinstance(bench.results.pop(b"refused"), TopicExists)
    assert bench.results == {b"batch": 70, b"command": Repeated(5)}
    assert len(bench.proposals) == 1


def test_a_batch_that_was_applied_gets_its_offset() -> None:
    bench = Bench()
    bench.lead(3)
    bench.submit(b"batch", BATCH)
    bench.group.leads = False
    bench.application.rows.record(id_of(1), 70)
    bench.lead(5)
    assert bench.results == {b"batch": 70}


def test_batches_of_one_entry_that_was_applied_get_their_offsets() -> None:
    bench, results = shared_entry(10.0, 20.0)
    bench.group.leads = False
    bench.application.rows.record(id_of(1), 70)
    bench.lead(5)
    assert results == {10.0: 70, 20.0: 71}


def test_two_ways_to_propose_share_a_window() -> None:
    bench = Bench()
    bench.follow(2)
    elsewhere = in_flight_elsewhere(bench)
    for number in range(WINDOW):
        bench.submit(b"%d" % number)
    assert len(bench.forwarded) == WINDOW - 1, "the group keeps the results of the last WINDOW sequences"
    elsewhere.clear()
    bench.proposals.pump()
    assert [proposal.sequence for _, proposal in bench.forwarded] == list(range(2, WINDOW + 2))


def test_a_leader_appends_nothing_before_what_is_in_flight_in_the_other_way() -> None:
    bench = Bench()
    bench.lead(3)
    elsewhere = in_flight_elsewhere(bench)
    bench.submit(b"later")
    assert not bench.appended
    elsewhere.clear()
    bench.proposals.propose_again()
    assert bench.appended == [(b"later", id_of(2))]


def in_flight_elsewhere(bench: Bench) -> dict[int, Proposal]:
    """One proposal in flight in another way than that of the bench, under sequence 1."""
    sequences = bench.proposer.sequences_of(bench.group.raft_group)
    elsewhere = dict.fromkeys([1], Proposal(COMMAND, b"elsewhere", lambda _: None, float("inf"), 0))
    sequences.in_flight.append(elsewhere)
    sequences.next = 2
    return elsewhere
