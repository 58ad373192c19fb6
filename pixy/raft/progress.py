"""What a leader knows of one follower, and how much it sends to it.

A follower is in one of three states.

    PROBE      where its log matches is not known: one message with entries at most is under way until an answer comes
    REPLICATE  it follows closely: entries are sent as they come, `next` moves on sending, a window bounds what is under way
    SNAPSHOT   what it needs is compacted: nothing is sent until it has got a snapshot

    PROBE -> REPLICATE   it acknowledged an append
    REPLICATE -> PROBE   it refused one, or it was reported unreachable
    PROBE, REPLICATE -> SNAPSHOT   the entry before `next` is gone
    SNAPSHOT -> PROBE -> REPLICATE   it acknowledged an index from which the leader's log goes on
    SNAPSHOT -> PROBE    the snapshot was reported as delivered, or as failed

The window (`Inflights`) counts messages and, softly, bytes: the message that crosses the byte limit is still sent. If all
messages of a full window are lost, no answer would ever free it; a heartbeat's answer therefore lifts the pause for one
append without entries, whose answer does.
"""

from bisect import bisect_right
from enum import Enum

__all__ = ["Inflights", "Progress", "ProgressState"]


class ProgressState(Enum):
    """See the module's docstring."""

    PROBE = "StateProbe"
    REPLICATE = "StateReplicate"
    SNAPSHOT = "StateSnapshot"


class Inflights:
    """The appends under way to one follower, by the index of their last entry.

    Args:
        max_messages: how many may be under way, at least 1.
        max_bytes: how many bytes of payload; 0 for no limit. The message that reaches it is still let through.
    """

    __slots__ = ("_bytes", "_indexes", "_sizes", "max_bytes", "max_messages")

    def __init__(self, max_messages: int, max_bytes: int = 0) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        # Both are None while nothing is under way, so that a follower at rest costs nothing.
        # Invariant: ascending, as many as sizes, at most max_messages.
        self._indexes: list[int] | None = None
        self._sizes: list[int] | None = None
        # Invariant: the sum of the sizes.
        self._bytes = 0

    @property
    def count(self) -> int:
        """How many messages are under way."""
        return len(self._indexes) if self._indexes is not None else 0

    def full(self) -> bool:
        """Whether nothing may be added."""
        if self._indexes is None:
            return False
        return len(self._indexes) >= self.max_messages or 0 < self.max_bytes <= self._bytes

    def add(self, index: int, size: int) -> None:
        """Notes a message whose last entry has that index and whose payload that many bytes."""
        assert not self.full(), "cannot add into a full inflights"
        if self._indexes is None or self._sizes is None:
            self._indexes, self._sizes = [index], [size]
        else:
            self._indexes.append(index)
            self._sizes.append(size)
        self._bytes += size

    def free_to(self, index: int) -> None:
        """Frees every message whose last entry is at or below the index."""
        if self._indexes is None or self._sizes is None or index < self._indexes[0]:
            return
        freed = bisect_right(self._indexes, index)
        if freed == len(self._indexes):
            self.reset()
            return
        self._bytes -= sum(self._sizes[:freed])
        del self._indexes[:freed]
        del self._sizes[:freed]

    def reset(self) -> None:
        """Frees everything."""
        self._indexes = self._sizes = None
        self._bytes = 0


class Progress:
    """One follower in the eyes of the leader.

    Args:
        next_index: the first entry to send.
        inflights: the window.
        learner: whether it is not counted.
        recently_active: whether it was heard of since the last check of the quorum.
        match: the largest index up to which its log is known to equal the leader's, and to be stored.
    """

    __slots__ = (
        "inflights",
        "learner",
        "match",
        "next",
        "paused",
        "pending_snapshot",
        "recently_active",
        "sent_commit",
        "state",
    )

    def __init__(
        self,
        next_index: int,
        inflights: Inflights,
        *,
        learner: bool = False,
        recently_active: bool = False,
        match: int = 0,
    ) -> None:
        # Invariant: match < next. What lies between is under way.
        self.match = match
        self.next = next_index
        self.state = ProgressState.PROBE
        # The index of the snapshot that was sent; 0 in all states but SNAPSHOT.
        self.pending_snapshot = 0
        # In PROBE the one message is under way; in REPLICATE the window is full.
        self.paused = False
        self.recently_active = recently_active
        # The largest commit index that was sent. It tells whether another message could move the follower's.
        self.sent_commit = 0
        self.inflights = inflights
        self.learner = learner

    def reset(self, next_index: int, match: int = 0) -> None:
        """Forgets everything but whether this is a learner: another term begins."""
        self.match = match
        self.next = next_index
        self.sent_commit = 0
        self.recently_active = False
        self._reset(ProgressState.PROBE)

    def copy(self, learner: bool) -> "Progress":
        """The same progress, of a node that is a learner or not. The window is shared: only one of the two is used on."""
        other = Progress(
            self.next, self.inflights, learner=learner, recently_active=self.recently_active, match=self.match
        )
        other.state = self.state
        other.pending_snapshot = self.pending_snapshot
        other.paused = self.paused
        other.sent_commit = self.sent_commit
        return other

    def become_probe(self) -> None:
        """Looks for where the logs match; behind a snapshot if one was delivered."""
        delivered = self.pending_snapshot if self.state is ProgressState.SNAPSHOT else 0
        self._reset(ProgressState.PROBE)
        self.next = max(self.match, delivered) + 1
        self.sent_commit = min(self.sent_commit, self.next - 1)

    def become_replicate(self) -> None:
        """Sends as fast as the window allows."""
        self._reset(ProgressState.REPLICATE)
        self.next = self.match + 1

    def become_snapshot(self, index: int) -> None:
        """Waits until a snapshot of that index has done its work."""
        self._reset(ProgressState.SNAPSHOT)
        self.pending_snapshot = index
        self.next = index + 1
        self.sent_commit = index

    def _reset(self, state: ProgressState) -> None:
        self.paused = False
        self.pending_snapshot = 0
        self.state = state
        self.inflights.reset()

    def is_paused(self) -> bool:
        """Whether nothing may be sent."""
        return self.paused or self.state is ProgressState.SNAPSHOT

    def sent_entries(self, count: int, size: int) -> None:
        """Notes that an append was sent with that many entries, whose payloads have `size` bytes."""
        if self.state is ProgressState.REPLICATE:
            if count:
                self.next += count
                self.inflights.add(self.next - 1, size)
            # With a full window this was the one empty append that may pass.
            self.paused = self.inflights.full()
        elif count:
            self.paused = True

    def can_bump_commit(self, index: int) -> bool:
        """Whether sending this commit index could move the follower's, given what was sent before."""
        return index > self.sent_commit and self.sent_commit < self.next - 1

    def maybe_update(self, index: int) -> bool:
        """Takes an acknowledgement of everything up to the index; False if that is old news."""
        if index <= self.match:
            return False
        self.match = index
        if self.next <= index:
            self.next = index + 1
        self.paused = False
        return True

    def maybe_decrease(self, rejected: int, match_hint: int) -> bool:
        """Takes a refusal of the append behind index `rejected`.

        Args:
            rejected: the index that did not match.
            match_hint: the largest index that may match, according to the follower.

        Returns:
            False if the refusal is stale and nothing changed.
        """
        if self.state is ProgressState.REPLICATE:
            if rejected <= self.match:
                return False
            self.next = self.match + 1
            self.sent_commit = min(self.sent_commit, self.next - 1)
            return True
        if rejected != self.next - 1:
            # Probes go one at a time, so this answers an older one.
            return False
        self.next = max(min(rejected, match_hint + 1), self.match + 1)
        self.sent_commit = min(self.sent_commit, self.next - 1)
        self.paused = False
        return True

    def __str__(self) -> str:
        text = f"{self.state.value} match={self.match} next={self.next}"
        if self.learner:
            text += " learner"
        if self.is_paused():
            text += " paused"
        if self.pending_snapshot:
            text += f" pendingSnap={self.pending_snapshot}"
        if not self.recently_active:
            text += " inactive"
        if self.inflights.count:
            text += f" inflight={self.inflights.count}" + ("[full]" if self.inflights.full() else "")
        return text
