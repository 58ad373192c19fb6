"""Proposals of one raft group, from the call to the result of the applied entry.

    waiting    for a leader, for the window, or for room in the node's budget; oldest first
    in flight  has a sequence, and was appended at least once; the result is not known
    (gone)     the caller has the result

The result of a proposal is that of the applied entry with its identity, whichever node has appended
it. So a proposal survives the fall of its leader: everything in flight is proposed again to the next
one, in order and under the same identity, whether that is this node or another one. The leader finds
repetitions among the applied entries (`proposer_rows`) and in its unapplied tail; what is found there
waits for its original.

A batch is final when it is proposed: it gets its offset and epoch there, and its bytes never change
afterwards, because journal and network may have taken checksums of them. Proposing it again takes a
copy.

Sequences ascend in the order of the calls, and the newest in flight is less than `WINDOW` above the
oldest. Invariant: what waits was proposed by nobody.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from pixy.cluster.proposer_rows import WINDOW, Novelty, ProposerRows
from pixy.errors import DeadlineExceeded, PixyError
from pixy.proposal_id import ProposalId
from pixy.raft import NONE
from pixy.storage import EntryType

if TYPE_CHECKING:
    from pixy.cluster.raft_group import RaftGroup

__all__ = ["Done", "Proposal", "Proposals", "Proposer", "Repeated"]

Done = Callable[[Any], None]
"""Gets the result of a proposal: that of the applied entry, `Repeated`, or a `PixyError`."""

_RECORD_BATCH = EntryType.RECORD_BATCH
NEVER = float("inf")


class Repeated(NamedTuple):
    """Result of a proposal that an earlier attempt had brought through: the number that was kept of
    it.
    """

    value: int


class Proposal:
    """One proposal.

    Attributes:
        kind, payload: content of its entry.
        done: see `Done`.
        deadline: loop time after which its caller waits no longer.
        sequence: its number, 0 while it waits.
        term: term in which this node has appended it last, 0 if never.
    """

    __slots__ = ("deadline", "done", "kind", "payload", "sequence", "term")

    def __init__(
        self, kind: EntryType, payload: bytes | bytearray, done: Done, deadline: float = NEVER
    ) -> None:
        self.kind = kind
        self.payload = payload
        self.done = done
        self.deadline = deadline
        self.sequence = 0
        self.term = 0


class Proposer(NamedTuple):
    """This node as a proposer.

    Attributes:
        node_id, incarnation: the first parts of its proposals' identities.
        has_room: True if record batches may be proposed; else the group is to be asked again.
        append: appends an entry to the log of a group that this node leads.
        forward: sends a proposal to the leader of a group; None if nodes cannot.
    """

    node_id: int
    incarnation: int
    has_room: Callable[["RaftGroup"], bool]
    append: Callable[["RaftGroup", EntryType, bytes | bytearray, ProposalId], None]
    forward: Callable[["RaftGroup", EntryType, bytes | bytearray, ProposalId], None] | None = None


class Proposals:
    """Proposals of this node to one raft group.

    Args:
        group: the raft group.
        proposer: this node.
    """

    __slots__ = ("_group", "_in_flight", "_next", "_proposer", "_pumping", "_waiting")

    def __init__(self, group: "RaftGroup", proposer: Proposer) -> None:
        self._group = group
        self._proposer = proposer
        self._next = 1
        # By sequence, ascending.
        self._in_flight: dict[int, Proposal] = {}
        self._waiting: deque[Proposal] = deque()
        self._pumping = False

    def __len__(self) -> int:
        """Number of proposals without a result."""
        return len(self._in_flight) + len(self._waiting)

    def submit(self, proposal: Proposal) -> None:
        """Propose as soon as possible."""
        if self._waiting or not self._may_go(proposal.kind):
            self._waiting.append(proposal)
        else:
            self._go(proposal)

    def pump(self) -> None:
        """Propose what waits and may go."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._waiting and self._may_go(self._waiting[0].kind):
                self._go(self._waiting.popleft())
        finally:
            self._pumping = False

    def propose_again(self) -> None:
        """Propose everything in flight again, because there is another leader or a message may be
        lost, and then what waits.
        """
        for proposal in list(self._in_flight.values()):
            if proposal.sequence not in self._in_flight:
                continue  # answered meanwhile
            if not self._group.leads:
                self._forward(proposal)
            elif proposal.term != self._group.term:
                self._retry(proposal)
        self.pump()

    def applied(self, sequence: int, result: Any) -> None:
        """The entry of a proposal was applied, or its result is known."""
        proposal = self._in_flight.pop(sequence, None)
        if proposal is not None:
            proposal.done(result)
        if self._waiting:
            self.pump()

    def expire(self, now: float) -> None:
        """Answer proposals that have not come through by their deadline: they still may."""
        late = [proposal for proposal in self._in_flight.values() if proposal.deadline <= now]
        for proposal in late:
            del self._in_flight[proposal.sequence]
        if any(proposal.deadline <= now for proposal in self._waiting):
            late += [proposal for proposal in self._waiting if proposal.deadline <= now]
            self._waiting = deque([proposal for proposal in self._waiting if proposal.deadline > now])
        for proposal in late:
            proposal.done(DeadlineExceeded("not known to be written by the deadline; it may be written"))
        if late:
            self.pump()

    def fail(self, error: PixyError) -> None:
        """Answer everything with an error: the group is gone."""
        proposals = [*self._in_flight.values(), *self._waiting]
        self._in_flight.clear()
        self._waiting.clear()
        for proposal in proposals:
            proposal.done(error)

    def _may_go(self, kind: EntryType) -> bool:
        leads = self._group.leads
        if not leads and not self._leader_elsewhere():
            return False
        if len(self._in_flight) > 0 and self._next - next(iter(self._in_flight)) >= WINDOW:
            return False
        return kind is not _RECORD_BATCH or not leads or self._proposer.has_room(self._group)

    def _go(self, proposal: Proposal) -> None:
        proposal.sequence = sequence = self._next
        self._next = sequence + 1
        self._in_flight[sequence] = proposal
        if self._group.leads:
            self._append(proposal)
        else:
            self._forward(proposal)

    def _append(self, proposal: Proposal) -> None:
        group, payload, kind = self._group, proposal.payload, proposal.kind
        if proposal.term:
            # Others may have the bytes of the earlier attempt.
            payload = bytearray(payload)
        proposal.term = group.term
        proposal.payload = payload = group.stamp(kind, payload)
        node_id, incarnation, _, append, _ = self._proposer
        append(group, kind, payload, ProposalId(node_id, incarnation, proposal.sequence))

    def _leader_elsewhere(self) -> bool:
        """True if another node leads, to which proposals can be forwarded."""
        leader = self._group.leader
        return self._proposer.forward is not None and leader not in (NONE, self._proposer.node_id)

    def _forward(self, proposal: Proposal) -> None:
        """Send a proposal to the leader. This node learns of the result by applying its entry."""
        if self._proposer.forward is not None and self._leader_elsewhere():
            self._proposer.forward(self._group, proposal.kind, proposal.payload, self._id(proposal))

    def _id(self, proposal: Proposal) -> ProposalId:
        return ProposalId(self._proposer.node_id, self._proposer.incarnation, proposal.sequence)

    def _retry(self, proposal: Proposal) -> None:
        known = judge(self._group.rows, self._group.tail_ids, self._id(proposal))
        if known is Novelty.NEW:
            self._append(proposal)
        elif known is Novelty.OUTDATED:
            raise AssertionError(f"{self._id(proposal)} waits for a result that nobody kept")
        elif known is not None:
            self.applied(proposal.sequence, known if isinstance(known, PixyError) else Repeated(known))


def judge(
    rows: ProposerRows, tail_ids: set[ProposalId], proposal: ProposalId
) -> int | PixyError | Novelty | None:
    """Judge a proposal at the leader: by the applied entries, and by its unapplied tail; None if it
    is there, and its result comes.
    """
    return None if proposal in tail_ids else rows.judge(proposal)
