"""The promises of Raft (figure 3), checked against everything that any node has ever shown.

Each check looks at what just changed on one node, and compares it with what is known of all: so the cost does not grow with the
length of a run. By induction the whole follows: two logs that hold the same entry, with the same entry before it, everywhere,
are equal up to there.
"""

from pixy.raft import NONE, Entry, LogPosition, Message, MessageType, RaftNode, StateType, StorageError

__all__ = ["Checks", "RaftFailure"]


class RaftFailure(AssertionError):
    """A promise was broken."""


class Checks:
    """What is known of the group, independent of what its nodes remember."""

    def __init__(self) -> None:
        self.leaders: dict[int, int] = {}
        """Who led in which term."""
        self.committed: dict[int, Entry] = {}
        """Every entry that some node has known as committed."""
        self.last_committed = LogPosition(0, 0)
        self._votes: dict[tuple[int, int], int] = {}
        self._entries: dict[LogPosition, tuple[Entry, int]] = {}
        self._applied: dict[int, int] = {}
        self._commit_indexes: dict[int, int] = {}

    def bootstrap(self, position: LogPosition) -> None:
        """The group begins behind this position."""
        self.last_committed = position

    def restarted(self, node_id: int) -> None:
        """A node may have forgotten how far it knew the log to be committed."""
        self._commit_indexes.pop(node_id, None)

    def stepped(self, node: RaftNode) -> None:
        """Something happened on this node."""
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
        first = max(first, log.first_index())
        try:
            entries = log.slice(first, log.committed + 1, 2**64 - 1)
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
            if entry.index > self.last_committed.index:
                self.last_committed = LogPosition(entry.term, entry.index)

    def appended(self, node: RaftNode, entries: list[Entry]) -> None:
        """The node is about to store these."""
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
        """The message left its node, so it must keep what it promises. A request for votes promises nothing."""
        if message.type is MessageType.VOTE_RESP and not message.reject:
            self._voted(message.sender, message.term, message.to)

    def _voted(self, voter: int, term: int, candidate: int) -> None:
        other = self._votes.setdefault((voter, term), candidate)
        if candidate not in (NONE, other):
            raise RaftFailure(f"one vote: {voter} voted for {other} and for {candidate} in term {term}")

    def applied(self, node_id: int, index: int, digest: int) -> None:
        """The state of a node after it applied the entry at `index`."""
        other = self._applied.setdefault(index, digest)
        if other != digest:
            raise RaftFailure(f"state machine safety: {node_id} differs after applying {index}")

    def read(self, node_id: int, asked_at: int, answer: int) -> None:
        """A read that was asked when `asked_at` was committed may be served from `answer` on."""
        if answer < asked_at:
            raise RaftFailure(
                f"linearizable reads: {node_id} may read at {answer}, but {asked_at} was committed before it asked"
            )
