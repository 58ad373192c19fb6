"""Proposals of one raft group, from the call to the result of the applied entry.

    waiting    for a leader, for the window, or for room in the node's budget; oldest first
    in flight  has a sequence, and was appended or forwarded at least once; the result is not known
    (gone)     the caller has the result, or the reason of the leader that has refused it

The result of a proposal is that of the applied entry with its identity, whichever node has appended
it. So a proposal survives the fall of its leader: everything in flight is proposed again to the
next one, in order and under the same identity, be that this node or another one. The leader finds
repetitions among the applied entries (`dedup_table`) and in its unapplied tail; what is found
there waits for its original.

A batch is final when it is proposed: it gets its offset and epoch there, and its bytes never change
afterwards, because journal and network may have taken checksums of them. Proposing it again takes a
copy.

Batches of a node are written in the order of the calls, also where a message is lost and a later
one is not: what is forwarded names the proposal in flight before it, without which a leader does
not take it. A leader appends nothing of its own while something is on its way to it as to another
node.

Batches of producers share entries with such ones alone. An entry of which a leader takes some and
not others comes back (`BatchesDivided`), and each of its batches is proposed alone.

Sequences ascend in the order of the calls, and the newest in flight is less than `WINDOW` above the
oldest. Invariant: what waits was proposed by nobody.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from pixy.entry_ids import ProposalId
from pixy.errors import BatchesDivided, DeadlineExceeded, PixyError, Unavailable
from pixy.multiraft.dedup_table import WINDOW, DedupTable, DedupVerdict
from pixy.raft import NONE
from pixy.records import has_producer, offsets_of
from pixy.storage import EntryType

Done = Callable[[Any], None]
"""Gets the result of a proposal: that of the applied entry, `Repeated`, or a `PixyError`."""

Stamp = Callable[[EntryType, bytes | bytearray, int], tuple[EntryType, bytes | bytearray]]
"""Makes the payload of the next entry final, which will have this term; changes it in place where
it can. Another entry may take the place of one that is not to be: its result is the proposal's.
"""

_RECORD_BATCH = EntryType.RECORD_BATCH
_RECORD_BATCHES = EntryType.RECORD_BATCHES
_ENTRY_BYTES_MAX = 1 << 20
"""Size up to which batches that wait share an entry."""
NEVER = float("inf")
_new = tuple.__new__


class Forwarded(NamedTuple):
    """A proposal for a raft group that the receiver leads; `after` is the sequence of the sender's
    proposal in flight before it, 0 for none.
    """

    raft_group: int
    kind: EntryType
    payload: bytes | bytearray
    proposal: ProposalId
    after: int = 0


class Repeated(NamedTuple):
    """Result of a command that an earlier attempt had brought through: the number that was kept of
    it. A record batch gets its offset, whichever attempt it was.
    """

    value: int


class Proposal(NamedTuple):
    """One proposal.

    Attributes:
        kind, payload: content of its entry.
        done: see `Done`.
        deadline: loop time after which its caller waits no longer.
        term: term in which this node has appended it last, 0 if never.
    """

    kind: EntryType
    payload: bytes | bytearray
    done: Done
    deadline: float
    term: int


class Sequences:
    """Sequences of this node's proposals to one raft group.

    Attributes:
        next: of the next one. Invariant: above all that were used by this process.
        in_flight: proposals in flight by sequence, ascending, of each way to propose. The window is
            one for all: the group remembers the last results of this node, whichever way they went.
        pumps: proposes what waits, of each way.
    """

    __slots__ = ("in_flight", "next", "pumps")

    def __init__(self) -> None:
        self.next = 1
        self.in_flight: list[dict[int, Proposal]] = []
        self.pumps: list[Callable[[], None]] = []

    def before(self, sequence: int) -> int:
        """The last one in flight before another, 0 if there is none."""
        newest = 0
        for way in self.in_flight:
            for each in way:  # ascending
                if each >= sequence:
                    break
                newest = max(newest, each)
        return newest

    def are_elsewhere(self, in_flight: dict[int, Proposal]) -> bool:
        """True while something is in flight in another way than this one."""
        return any(way and way is not in_flight for way in self.in_flight)

    @property
    def are_used_up(self) -> bool:
        """True while the next one would be outside of the window."""
        return any(each and self.next - next(iter(each)) >= WINDOW for each in self.in_flight)


class ProposalTarget(Protocol):
    """A raft group, as far as its proposals are concerned: one with a replica here, or one that
    somebody else leads for sure.
    """

    @property
    def raft_group(self) -> int:
        """Its id."""

    @property
    def leader(self) -> int:
        """Node that leads it, as far as this one knows."""

    @property
    def leads(self) -> bool:
        """True while this node leads it, and proposals are taken. The others are asked only then,
        `rows` also after a snapshot.
        """

    @property
    def term(self) -> int:
        """Term of its leadership."""

    @property
    def stamp(self) -> Stamp:
        """Makes the payload of the next entry final."""

    @property
    def rows(self) -> DedupTable:
        """Results of applied entries."""

    @property
    def tail_ids(self) -> Collection[ProposalId]:
        """Identities of entries whose result comes."""


_Target = TypeVar("_Target", bound=ProposalTarget)


class Proposer(NamedTuple, Generic[_Target]):
    """This node as a proposer.

    Attributes:
        node_id, incarnation: the first parts of its proposals' identities.
        has_room: True if a record batch of a size may be proposed; else the group is to be asked
            again.
        append: appends an entry to the log of a group that this node leads.
        forward: sends a proposal to the leader of a group, with the sequence of the one in flight
            before it, or 0; None if nodes cannot.
        sequences: by raft group. They are shared by all ways to propose: the group on its own
            replica, and the leader elsewhere while there is none that can be used. None: each
            `Proposals` has its own.
    """

    node_id: int
    incarnation: int
    has_room: Callable[[_Target, int], bool]
    append: Callable[[_Target, EntryType, bytes | bytearray, ProposalId], None]
    forward: Callable[[_Target, EntryType, bytes | bytearray, ProposalId, int], None] | None = None
    sequences: dict[int, Sequences] | None = None

    def sequences_of(self, raft_group: int) -> Sequences:
        """The sequences of a raft group."""
        return Sequences() if self.sequences is None else self.sequences.setdefault(raft_group, Sequences())


class Proposals(Generic[_Target]):
    """Proposals of this node to one raft group.

    Args:
        group: the raft group.
        proposer: this node.
    """

    __slots__ = (
        "_append",
        "_group",
        "_has_room",
        "_in_flight",
        "_incarnation",
        "_node_id",
        "_proposer",
        "_proposing",
        "_sequences",
        "_waiting",
    )

    def __init__(self, group: _Target, proposer: Proposer[_Target]) -> None:
        self._group = group
        self._proposer = proposer
        self._node_id, self._incarnation = proposer.node_id, proposer.incarnation
        self._has_room, self._append = proposer.has_room, proposer.append
        self._sequences = proposer.sequences_of(group.raft_group)
        # By sequence, ascending.
        self._in_flight: dict[int, Proposal] = {}
        self._sequences.in_flight.append(self._in_flight)
        self._sequences.pumps.append(self.pump)
        self._waiting: deque[Proposal] = deque()
        # True during `pump` and `propose_again`: what callers propose meanwhile comes behind.
        self._proposing = False

    def __len__(self) -> int:
        """Number of proposals without a result."""
        return len(self._in_flight) + len(self._waiting)

    def submit(
        self, kind: EntryType, payload: bytes | bytearray, done: Done, deadline: float = NEVER
    ) -> None:
        """Propose as soon as possible."""
        if self._waiting or self._proposing or not self._may_go(kind, len(payload)):
            self._waiting.append(Proposal(kind, payload, done, deadline, 0))
            return
        sequences = self._sequences
        sequence = sequences.next
        sequences.next = sequence + 1
        group = self._group
        if group.leads:
            term = group.term
            stamped, final = group.stamp(kind, payload, term)
            # A constructor in Python takes as long as all the rest.
            self._in_flight[sequence] = _new(Proposal, (kind, payload, done, deadline, term))
            self._append(
                group, stamped, final, _new(ProposalId, (self._node_id, self._incarnation, sequence))
            )
        else:
            proposal = self._in_flight[sequence] = Proposal(kind, payload, done, deadline, 0)
            self._forward(sequence, proposal)

    def before(self, sequence: int) -> int:
        """See `Sequences.before`."""
        return self._sequences.before(sequence)

    def awaits(self, sequence: int) -> bool:
        """True while somebody waits for the result of a proposal in flight."""
        return sequence in self._in_flight

    def pump(self) -> None:
        """Propose what waits and may go."""
        waiting = self._waiting
        if not waiting or self._proposing:
            return
        self._proposing = True
        try:
            while waiting and self._may_go(waiting[0].kind, len(waiting[0].payload)):
                proposal, sequence = self._take(), self._sequences.next
                self._sequences.next = sequence + 1
                self._in_flight[sequence] = proposal
                if self._group.leads:
                    self._append_first(sequence, proposal)
                else:
                    self._forward(sequence, proposal)
        finally:
            self._proposing = False

    def _take(self) -> Proposal:
        """Take the next waiting proposal, together with the record batches behind it if it is one.

        They become one entry: the window counts entries, and whoever appends batch by batch would
        have to wait for a sync once in a window.
        """
        waiting = self._waiting
        first = waiting.popleft()
        taken, size = [first], len(first.payload)
        while waiting and _may_share(first, waiting[0]):
            size += len(waiting[0].payload)
            if size > _ENTRY_BYTES_MAX:
                break
            taken.append(waiting.popleft())
        if len(taken) == 1:
            return first
        payload = bytearray().join([each.payload for each in taken])
        if self._group.leads:
            # The first one was admitted. The others come with it, and are counted.
            self._has_room(self._group, len(payload) - len(first.payload))
        callers = _EntryCallers(taken, self._divided)
        return Proposal(_RECORD_BATCHES, payload, callers, callers.deadline, 0)

    def _divided(self, batches: Sequence[Proposal]) -> None:
        """Nothing of a shared entry is written: propose each of its batches alone, before what
        waits.
        """
        self._waiting.extendleft(batch._replace(done=_AloneCaller(batch.done)) for batch in reversed(batches))

    def propose_again(self) -> None:
        """Propose everything in flight again, because there is another leader or a message may be
        lost, and then what waits.
        """
        self._proposing = True
        try:
            for sequence, proposal in list(self._in_flight.items()):
                if sequence not in self._in_flight:
                    continue  # answered meanwhile
                if not self._group.leads:
                    self._forward(sequence, proposal)
                elif proposal.term != self._group.term:
                    self._retry(sequence, proposal)
        finally:
            self._proposing = False
        self.pump()

    def overtaken(self) -> None:
        """A snapshot has replaced entries that were never applied here: answer what it includes."""
        for sequence, proposal in list(self._in_flight.items()):
            known = self._group.rows.judge(self._id(sequence))
            if known is not DedupVerdict.NEW and sequence in self._in_flight:
                self._repeated(sequence, proposal, known)

    def applied(self, sequence: int, result: Any) -> None:
        """The entry of a proposal was applied, or its result is known."""
        proposal = self._in_flight.pop(sequence, None)
        if proposal is not None:
            proposal[2](result)
        if self._waiting:
            self.pump()
        if len(self._sequences.pumps) > 1:
            self._pump_others()

    def refused(self, sequence: int, error: PixyError) -> None:
        """Nobody brings a proposal in flight through. Those behind it are proposed again: they were
        to follow it.
        """
        proposal = self._in_flight.pop(sequence, None)
        if proposal is not None:
            proposal.done(error)
            self.propose_again()
            self._pump_others()

    def _pump_others(self) -> None:
        """Propose what waits in other ways, perhaps for what was in flight in this one."""
        for pump in self._sequences.pumps:
            if pump != self.pump:
                pump()

    def expire(self, now: float) -> None:
        """Answer proposals that have not come through by their deadline. Those in flight still may;
        nobody has seen those that wait.
        """
        late: list[Done] = []
        for sequence, proposal in list(self._in_flight.items()):
            if proposal.deadline <= now:
                late += self._expired(sequence, proposal, now)
        unseen: list[Done] = []
        if any(each.deadline <= now for each in self._waiting):
            unseen = [each.done for each in self._waiting if each.deadline <= now]
            kept = [each for each in self._waiting if each.deadline > now]
            self._waiting.clear()
            self._waiting.extend(kept)
        for done in late:
            done(DeadlineExceeded("not known to be written by the deadline; it may be written"))
        for done in unseen:
            done(Unavailable("not written: no leader could take it by the deadline"))
        if late or unseen:
            self.pump()
            self._pump_others()

    def _expired(self, sequence: int, proposal: Proposal, now: float) -> list[Done]:
        """Callers of a proposal that wait no longer; it is in flight as long as others do."""
        callers = proposal.done
        if not isinstance(callers, _EntryCallers):
            del self._in_flight[sequence]
            return [callers]
        late = callers.take_late(now)
        if callers.are_waiting:
            self._in_flight[sequence] = proposal._replace(deadline=callers.deadline)
        else:
            del self._in_flight[sequence]
        return late

    def go_on_in(self, other: "Proposals[Any]") -> None:
        """Have another way to propose to the same group go on with everything, under the identities
        that it has.
        """
        moved, self._in_flight = self._in_flight, {}
        self._sequences.in_flight = [each for each in self._sequences.in_flight if each is not moved]
        self._sequences.pumps = [each for each in self._sequences.pumps if each != self.pump]
        in_flight = dict(sorted({**other._in_flight, **moved}.items()))
        other._in_flight.clear()
        other._in_flight.update(in_flight)
        other._waiting.extend(self._waiting)
        self._waiting.clear()
        for sequence, proposal in moved.items():
            if isinstance(proposal.done, _EntryCallers):
                proposal.done.divided = other._divided
            other._forward(sequence, proposal)
        other.pump()

    def fail(self, error: PixyError) -> None:
        """Answer everything with an error: the group is gone."""
        proposals = [*self._in_flight.values(), *self._waiting]
        self._in_flight.clear()
        self._waiting.clear()
        for proposal in proposals:
            proposal.done(error)

    def _may_go(self, kind: EntryType, size: int) -> bool:
        sequences, in_flight = self._sequences, self._in_flight
        if in_flight and sequences.next - next(iter(in_flight)) >= WINDOW:
            return False
        if len(sequences.in_flight) > 1 and sequences.are_used_up:
            return False
        if not self._group.leads:
            return self._leader_elsewhere()
        if len(sequences.in_flight) > 1 and sequences.are_elsewhere(in_flight):
            return False  # it is appended before what comes later
        return kind is not _RECORD_BATCH or self._has_room(self._group, size)

    def _append_first(self, sequence: int, proposal: Proposal) -> None:
        """Append a proposal whose payload nobody else has."""
        kind, payload, done, deadline, _ = proposal
        group = self._group
        stamped, final = group.stamp(kind, payload, group.term)
        self._in_flight[sequence] = Proposal(kind, payload, done, deadline, group.term)
        self._append(group, stamped, final, self._id(sequence))

    def _leader_elsewhere(self) -> bool:
        """True if another node leads, to which proposals can be forwarded."""
        leader = self._group.leader
        return self._proposer.forward is not None and leader not in (NONE, self._node_id)

    def _forward(self, sequence: int, proposal: Proposal) -> None:
        """Send a proposal to the leader. This node learns of the result by applying its entry."""
        if self._proposer.forward is not None and self._leader_elsewhere():
            id, after = self._id(sequence), self._sequences.before(sequence)
            self._proposer.forward(self._group, proposal.kind, proposal.payload, id, after)

    def _id(self, sequence: int) -> ProposalId:
        return ProposalId(self._node_id, self._incarnation, sequence)

    def _retry(self, sequence: int, proposal: Proposal) -> None:
        known = judge(self._group.rows, self._group.tail_ids, self._id(sequence))
        if known is DedupVerdict.NEW:
            # Journal and network may have the bytes of the earlier attempt.
            self._append_first(sequence, proposal._replace(payload=bytearray(proposal.payload)))
        elif known is not None:
            self._repeated(sequence, proposal, known)

    def _repeated(self, sequence: int, proposal: Proposal, known: int | PixyError | DedupVerdict) -> None:
        """Answer a proposal that was applied before, with the kept result. Nobody has kept it if a
        later start of this node has proposed something, which is that of a copy of its directory.
        """
        if isinstance(known, DedupVerdict):
            known = DeadlineExceeded(
                f"not known to be written: raft group {self._group.raft_group} has later proposals under the id of "
                f"this node, {self._node_id}, than those of its start {self._incarnation}"
            )
        is_command = proposal.kind not in (_RECORD_BATCH, _RECORD_BATCHES)
        self.applied(sequence, Repeated(known) if is_command and isinstance(known, int) else known)


class _EntryCallers:
    """Callers whose record batches share an entry: each batch has the offset behind the one before.

    Args:
        batches: their proposals, in the order of the batches.

    Attributes:
        divided: called with those that nobody has answered, if none of them is written.
    """

    __slots__ = ("_batches", "divided")

    def __init__(self, batches: Sequence[Proposal], divided: Callable[[Sequence[Proposal]], None]) -> None:
        # Invariant: those that were answered have `_ignore` as their caller, and no deadline.
        self._batches = batches
        self.divided = divided

    def __call__(self, result: Any) -> None:
        """Answer all of them."""
        if isinstance(result, BatchesDivided):
            self.divided([batch for batch in self._batches if batch.done is not _ignore])
            return
        for batch in self._batches:
            batch.done(result)
            if isinstance(result, int):
                begin, end = offsets_of(batch.payload)
                result += end - begin

    @property
    def are_waiting(self) -> bool:
        """True if one of them was not answered."""
        return any(batch.done is not _ignore for batch in self._batches)

    @property
    def deadline(self) -> float:
        """The earliest deadline."""
        return min(batch.deadline for batch in self._batches)

    def take_late(self, now: float) -> list[Done]:
        """Take those whose deadline is over: they are answered otherwise."""
        late = [batch.done for batch in self._batches if batch.deadline <= now]
        self._batches = [
            batch._replace(done=_ignore, deadline=NEVER) if batch.deadline <= now else batch
            for batch in self._batches
        ]
        return late


class _AloneCaller:
    """Caller whose record batch shares no entry.

    Args:
        done: gets the result.
    """

    __slots__ = ("_done",)

    def __init__(self, done: Done) -> None:
        self._done = done

    def __call__(self, result: Any) -> None:
        """Answer."""
        self._done(result)


def _may_share(first: Proposal, other: Proposal) -> bool:
    """True if two proposals may share an entry."""
    return (
        first.kind is _RECORD_BATCH
        and other.kind is _RECORD_BATCH
        and type(first.done) is not _AloneCaller
        and type(other.done) is not _AloneCaller
        and has_producer(first.payload) is has_producer(other.payload)
    )


def _ignore(_: object) -> None:
    """Caller that was answered before."""


def judge(
    rows: DedupTable, tail_ids: Collection[ProposalId], proposal: ProposalId
) -> int | PixyError | DedupVerdict | None:
    """Judge a proposal at the leader: by the applied entries, and by its unapplied tail; None if it
    is there, and its result comes.
    """
    return None if proposal in tail_ids else rows.judge(proposal)


def is_window_full(proposal: ProposalId, *under_way: Collection[ProposalId]) -> bool:
    """True if the node of a proposal has as many others under way as a correct one may.

    Args:
        under_way: disjoint proposals of all nodes to its raft group.
    """
    if sum(map(len, under_way)) < WINDOW or any(proposal in ids for ids in under_way):
        return False
    node_id = proposal.node_id
    return sum(each.node_id == node_id for ids in under_way for each in ids) >= WINDOW
