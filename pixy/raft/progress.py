"""A follower's replication state as seen by the leader, and its flow control.

A follower is in one of three states.

    PROBE      the matching index is unknown: at most one message with entries is in flight
    REPLICATE  entries are sent as they come, `next` advances on sending, a window bounds them
    SNAPSHOT   entries it needs were compacted: nothing is sent until it has restored a snapshot

    PROBE -> REPLICATE   it accepted an append
    REPLICATE -> PROBE   it rejected an append
    PROBE, REPLICATE -> SNAPSHOT   the entry before `next` was compacted
    SNAPSHOT -> PROBE -> REPLICATE   it acknowledged an index from which the leader's log continues
    SNAPSHOT -> PROBE    the snapshot was reported as delivered or failed

The window (`Inflights`) limits messages and, softly, bytes: the message that exceeds the byte limit
is still sent. If all messages of a full window are lost, no response would ever free it. So a
heartbeat response permits one empty append, whose response frees the window.
"""

from bisect import bisect_right
from enum import Enum


class ProgressState(Enum):
    """See the module's docstring."""

    PROBE = "StateProbe"
    REPLICATE = "StateReplicate"
    SNAPSHOT = "StateSnapshot"


# Members of enumerations are found slowly.
_PROBE, _REPLICATE, _SNAPSHOT = ProgressState.PROBE, ProgressState.REPLICATE, ProgressState.SNAPSHOT


class Inflights:
    """In-flight appends to one follower, by the index of their last entry.

    Args:
        max_messages: limit of messages, at least 1.
        max_bytes: limit of payload bytes, 0 for none. The message that reaches it is still
            admitted.
    """

    __slots__ = ("_bytes", "_indexes", "_sizes", "max_bytes", "max_messages")

    def __init__(self, max_messages: int, max_bytes: int = 0) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        # Both are None while nothing is in flight, so an idle follower takes no memory. Invariant:
        # ascending, as many as sizes, at most max_messages.
        self._indexes: list[int] | None = None
        self._sizes: list[int] | None = None
        # Invariant: the sum of the sizes.
        self._bytes = 0

    @property
    def count(self) -> int:
        """Number of messages in flight."""
        return len(self._indexes) if self._indexes is not None else 0

    def full(self) -> bool:
        """True if no message may be added."""
        if self._indexes is None:
            return False
        return len(self._indexes) >= self.max_messages or 0 < self.max_bytes <= self._bytes

    def add(self, index: int, size: int) -> None:
        """Add a message by the index of its last entry and its payload size."""
        assert not self.full(), "cannot add into a full inflights"
        if self._indexes is None or self._sizes is None:
            self._indexes, self._sizes = [index], [size]
        else:
            self._indexes.append(index)
            self._sizes.append(size)
        self._bytes += size

    def free_to(self, index: int) -> None:
        """Release all messages whose last entry is at or below the index."""
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
        """Release all messages."""
        self._indexes = self._sizes = None
        self._bytes = 0


class Progress:
    """The leader's view of one follower.

    Args:
        next_index: first entry to send.
        inflights: the window.
        learner: True if it has no vote.
        recently_active: True if a message was received from it since the last quorum check.
        match: highest index known to be stored and equal to the leader's log.
    """

    __slots__ = (
        "awaits_storage",
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
        # Invariant: match < next. Entries in between are in flight.
        self.match = match
        self.next = next_index
        self.state = _PROBE
        # Index of the snapshot sent; 0 in all states but SNAPSHOT.
        self.pending_snapshot = 0
        # PROBE: the single message is in flight. REPLICATE: the window is full. Either: the storage
        # has to load the entries to send, or to make the snapshot.
        self.paused = False
        # The storage had not what was to be sent when it was last asked. A response of the follower
        # may have ended that pause; then it costs one message more when the storage is ready.
        self.awaits_storage = False
        self.recently_active = recently_active
        # Highest commit index sent. Tells whether another message could advance the follower's.
        self.sent_commit = 0
        self.inflights = inflights
        self.learner = learner

    def reset(self, next_index: int, match: int = 0) -> None:
        """Reset for a new term; only `learner` is kept."""
        self.match = match
        self.next = next_index
        self.sent_commit = 0
        self.recently_active = False
        self._reset(_PROBE)

    def copy(self, learner: bool) -> "Progress":
        """A copy, as a learner or as a voter.

        The window is shared, so only one of the two may be used afterwards.
        """
        other = Progress(
            self.next, self.inflights, learner=learner, recently_active=self.recently_active, match=self.match
        )
        other.state = self.state
        other.pending_snapshot = self.pending_snapshot
        other.paused = self.paused
        other.awaits_storage = self.awaits_storage
        other.sent_commit = self.sent_commit
        return other

    def become_probe(self) -> None:
        """Search for the matching index, starting behind a delivered snapshot if there is one."""
        delivered = self.pending_snapshot if self.state is _SNAPSHOT else 0
        self._reset(_PROBE)
        self.next = max(self.match, delivered) + 1
        self.sent_commit = min(self.sent_commit, self.next - 1)

    def become_replicate(self) -> None:
        """Send as fast as the window allows."""
        self._reset(_REPLICATE)
        self.next = self.match + 1

    def become_snapshot(self, index: int) -> None:
        """Wait until the follower has restored a snapshot of that index."""
        self._reset(_SNAPSHOT)
        self.pending_snapshot = index
        self.next = index + 1
        self.sent_commit = index

    def _reset(self, state: ProgressState) -> None:
        self.paused = False
        self.awaits_storage = False
        self.pending_snapshot = 0
        self.state = state
        self.inflights.reset()

    def is_paused(self) -> bool:
        """True if nothing may be sent."""
        return self.paused or self.state is _SNAPSHOT

    def sent_entries(self, count: int, size: int) -> None:
        """Record an append of that many entries with `size` bytes of payload."""
        if self.state is _REPLICATE:
            if count:
                self.next += count
                self.inflights.add(self.next - 1, size)
            # With a full window this was the single empty append permitted.
            self.paused = self.inflights.full()
        elif count:
            self.paused = True

    def await_storage(self) -> None:
        """Pause until the storage has the entries, or the snapshot, to send."""
        self.paused = self.awaits_storage = True

    def can_bump_commit(self, index: int) -> bool:
        """True if sending this commit index could advance the follower's, given the ones sent
        before.
        """
        return index > self.sent_commit and self.sent_commit < self.next - 1

    def maybe_update(self, index: int) -> bool:
        """Process an acknowledgement of all entries up to the index; False if it is stale."""
        if index <= self.match:
            return False
        self.match = index
        if self.next <= index:
            self.next = index + 1
        self.paused = False
        return True

    def is_confirmed(self, index: int) -> bool:
        """True if an acknowledgement without new entries answers the probe, or the snapshot: the
        follower has what was sent.

        A stale one answers something else, such as a message of a lower term. etcd's leader takes
        it for an answer, sends from behind `match` on, and hence a snapshot.
        """
        if self.state is _SNAPSHOT:
            return self.match == index >= self.pending_snapshot
        return self.state is _PROBE and self.match == index == self.next - 1

    def maybe_decrease(self, rejected: int, match_hint: int) -> bool:
        """Process a rejection of the append behind index `rejected`.

        Args:
            rejected: the index that did not match.
            match_hint: highest index that may match, as reported by the follower.

        Returns:
            False if the rejection is stale and nothing changed.
        """
        if self.state is _REPLICATE:
            if rejected <= self.match:
                return False
            self.next = self.match + 1
            self.sent_commit = min(self.sent_commit, self.next - 1)
            return True
        if rejected != self.next - 1:
            # Only one probe is in flight at a time, so this answers an older one.
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
