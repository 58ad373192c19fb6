"""Linearizable reads that wait until a quorum has confirmed the leader (thesis §6.4).

A leader that was deposed does not know it, so it must not answer a read from what it has. It notes the commit index, and asks
a quorum by heartbeat whether it still leads. Each heartbeat carries how many reads have come in so far, and the answer repeats
the number: a node that answers n confirms the first n reads at once. What a quorum confirms is found as what a quorum
has stored: the largest number that a majority acknowledges, of both halves in a joint configuration.

Lives as long as a leadership. Reads that were not confirmed are lost with it; who asked must ask again.
"""

from pixy.raft.messages import ConfState, Message
from pixy.raft.quorum import joint_committed_index

__all__ = ["ReadOnly"]


class ReadOnly:
    """The reads of one leadership, in the order in which they came."""

    __slots__ = ("_acked", "_confirmed", "_waiting")

    def __init__(self) -> None:
        # How many reads each node confirms. Nothing is kept for a group without reads.
        self._acked: dict[int, int] | None = None
        # How many were confirmed and forgotten. Invariant: numbers of waiting reads begin at _confirmed + 1.
        self._confirmed = 0
        self._waiting: list[tuple[Message, int]] | None = None

    def add(self, request: Message, committed: int) -> None:
        """Notes a request, and the commit index at which it came."""
        if self._waiting is None:
            self._waiting = []
        self._waiting.append((request, committed))

    def context(self) -> bytes:
        """What a heartbeat carries so that its answer confirms everything that waits; empty if nothing does."""
        if not self._waiting:
            return b""
        return (self._confirmed + len(self._waiting)).to_bytes(8, "little")

    def acknowledge(self, node_id: int, context: bytes) -> None:
        """Takes an answer to a heartbeat."""
        if len(context) == 8:
            if self._acked is None:
                self._acked = {}
            self._acked[node_id] = max(self._acked.get(node_id, 0), int.from_bytes(context, "little"))

    def confirmed(self, config: ConfState) -> list[tuple[Message, int]]:
        """The requests that a quorum has confirmed since, with their commit indexes. They are forgotten."""
        if not self._waiting or self._acked is None:
            return []
        confirmed = joint_committed_index(config.voters, config.voters_outgoing, self._acked.get)
        count = min(confirmed - self._confirmed, len(self._waiting))
        if count <= 0:
            return []
        requests, self._waiting = self._waiting[:count], self._waiting[count:]
        self._confirmed += count
        return requests
