"""Raft's safety properties (figure 3), checked against everything that any node has ever shown.

Each check compares what has just changed on one node with what is known of all, so its cost does
not grow with the length of a run. The full property follows by induction: two logs with the same
entry, preceded by the same entry, are equal up to there.
"""

from collections.abc import Sequence

from pixy.entry_ids import ProposalId
from pixy.raft import (
    NONE,
    Entry,
    LogPosition,
    Message,
    MessageType,
    NotAppended,
    RaftNode,
    StateType,
    StorageError,
)
from tests.sim.raft.disk import SimulatedStorage


class RaftFailure(AssertionError):
    """A safety property was violated."""


class Checks:
    """Knowledge about the group, independent of the nodes' own memory."""

    def __init__(self) -> None:
        self.leaders: dict[int, int] = {}
        """Leader by term."""
        self.committed: dict[int, Entry] = {}
        """Every entry known as committed by some node."""
        self.last_committed = LogPosition(0, 0)
        self._votes: dict[tuple[int, int], int] = {}
        self._entries: dict[LogPosition, tuple[Entry, int]] = {}
        self._applied: dict[int, int] = {}
        self._commit_indexes: dict[int, int] = {}
        self._proposed: dict[LogPosition, bytes] = {}
        self._labels: dict[bytes, tuple[int, ProposalId | None]] = {}
        self._dropped: set[bytes] = set()

    def bootstrap(self, position: LogPosition) -> None:
        """The log of the group begins after this position."""
        self.last_committed = position

    def restarted(self, node_id: int) -> None:
        """A restarted node may have lost its commit index."""
        self._commit_indexes.pop(node_id, None)

    def stepped(self, node: RaftNode) -> None:
        """Check a node after any event."""
        raft = node.raft
        if raft.state is StateType.LEADER and self.leaders.get(raft.term) != raft.id:
            self._elected(node)
        known = self._commit_indexes.get(raft.id, 0)
        if raft.log.committed > known:
            self._committed(node, known + 1)
            self._commit_indexes[raft.id] = raft.log.committed

    def _elected(self, node: RaftNode) -> None:
        raft = node.raft
        self._voted(raft.id, raft.term, raft.id)
        other = self.leaders.setdefault(raft.term, raft.id)
        if other != raft.id:
            raise RaftFailure(f"election safety: {raft.id} and {other} both lead in term {raft.term}")
        term, index = self.last_committed
        if index >= raft.log.first_index() and raft.log.term_or_zero(index) != term:
            raise RaftFailure(
                f"leader completeness: {raft.id} leads in term {raft.term} without the committed entry {term}/{index}; "
                f"its log: {raft.log}"
            )

    def _committed(self, node: RaftNode, first: int) -> None:
        log = node.raft.log
        first, end = max(first, log.first_index()), log.committed + 1
        offset = min(max(log.unstable.offset, first), end)
        storage = log.storage
        assert isinstance(storage, SimulatedStorage)
        try:
            entries = storage.stored(first, offset) if first < offset else []
            entries = entries + log.unstable.slice(offset, end) if offset < end else entries
        except StorageError as error:
            raise RaftFailure(
                f"{node.raft.id} cannot read its committed entries from {first} on: {error}"
            ) from error
        for entry in entries:
            other = self.committed.setdefault(entry.index, entry)
            if other != entry:
                raise RaftFailure(
                    f"state machine safety: {node.raft.id} committed {entry}, another node {other}"
                )
            position = LogPosition(entry.term, entry.index)
            if (
                self._proposed.get(position, entry.data) != entry.data
                or self._labels.get(bytes(entry.data), (0, None)) != (entry.kind, entry.proposal)
                or entry.data in self._dropped
            ):
                raise RaftFailure(f"proposals: {entry} is not what was answered to its proposer")
            if entry.index > self.last_committed.index:
                self.last_committed = position

    def proposed(
        self,
        node_id: int,
        payloads: Sequence[bytes],
        kind: int,
        proposal: ProposalId | None,
        outcome: LogPosition | NotAppended,
    ) -> None:
        """Check the answer to a proposal: a position holds its payload or another term's entry, and
        a dropped proposal is never committed. Each payload is proposed once.
        """
        self._labels.update(dict.fromkeys(payloads, (kind, proposal)))
        if isinstance(outcome, LogPosition):
            for index, payload in enumerate(payloads, outcome.index):
                other = self._proposed.setdefault(LogPosition(outcome.term, index), payload)
                if other != payload:
                    raise RaftFailure(
                        f"proposals: {node_id} gave two of them the position {outcome.term}/{index}"
                    )
        elif outcome is not NotAppended.FORWARDED:
            self._dropped.update(payloads)

    def appended(self, node: RaftNode, entries: list[Entry]) -> None:
        """Check entries that a node is about to store."""
        if not entries:
            return
        before = node.raft.log.term_or_zero(entries[0].index - 1)
        for entry in entries:
            known, term = self._entries.setdefault(LogPosition(entry.term, entry.index), (entry, before))
            if known != entry or (term != before and term and before):
                raise RaftFailure(
                    f"log matching: {node.raft.id} has {entry} behind term {before}, another node {known} behind term {term}"
                )
            before = entry.term

    def sent(self, message: Message) -> None:
        """Check a message that has left its node, so its promise must be kept.

        A vote request promises nothing.
        """
        if message.type is MessageType.VOTE_RESP and not message.reject:
            self._voted(message.sender, message.term, message.to)

    def _voted(self, voter: int, term: int, candidate: int) -> None:
        other = self._votes.setdefault((voter, term), candidate)
        if candidate not in (NONE, other):
            raise RaftFailure(f"one vote: {voter} voted for {other} and for {candidate} in term {term}")

    def applied(self, node_id: int, index: int, digest: int) -> None:
        """Check the state of a node after it has applied the entry at `index`."""
        other = self._applied.setdefault(index, digest)
        if other != digest:
            raise RaftFailure(f"state machine safety: {node_id} differs after applying {index}")

    def read(self, node_id: int, asked_at: int, answer: int) -> None:
        """Check a read that was requested at commit index `asked_at` and may be served from
        `answer` on.
        """
        if answer < asked_at:
            raise RaftFailure(
                f"linearizable reads: {node_id} may read at {answer}, but {asked_at} was committed before it asked"
            )
