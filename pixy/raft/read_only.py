"""Linearizable reads that a quorum confirms (thesis §6.4).

A deposed leader may not know that it was deposed, so a leader must not answer a read from its own
state alone. It records the commit index, and asks a quorum by heartbeat whether it still leads.
Each heartbeat carries the number of reads received so far, and its response echoes that number: a
node that answers n confirms the first n reads at once. The number confirmed by a quorum is computed
like the commit index: the highest number acknowledged by a majority, of both halves in a joint
configuration.

The state lives as long as a leadership. Unconfirmed reads are lost with it and must be retried by
the requester.
"""

from pixy.raft.messages import ConfState, Message
from pixy.raft.quorum import joint_committed_index


class ReadOnly:
    """Reads of one leadership, in order of arrival."""

    __slots__ = ("_acked", "_confirmed", "_waiting")

    def __init__(self) -> None:
        # Number of reads confirmed by each node. None while there are no reads.
        self._acked: dict[int, int] | None = None
        # Number of reads confirmed and removed. Invariant: waiting reads are numbered from
        # _confirmed + 1.
        self._confirmed = 0
        self._waiting: list[tuple[Message, int]] | None = None

    def add(self, request: Message, committed: int) -> None:
        """Add a request with the commit index at its arrival."""
        if self._waiting is None:
            self._waiting = []
        self._waiting.append((request, committed))

    def context(self) -> bytes:
        """Heartbeat context whose response confirms all waiting reads; empty if there are none."""
        if not self._waiting:
            return b""
        return (self._confirmed + len(self._waiting)).to_bytes(8, "little")

    def acknowledge(self, node_id: int, context: bytes) -> None:
        """Process a heartbeat response."""
        if len(context) == 8:
            if self._acked is None:
                self._acked = {}
            self._acked[node_id] = max(self._acked.get(node_id, 0), int.from_bytes(context, "little"))

    def confirmed(self, config: ConfState) -> list[tuple[Message, int]]:
        """Remove and return the requests confirmed by a quorum, with their commit indexes."""
        if not self._waiting or self._acked is None:
            return []
        confirmed = joint_committed_index(config.voters, config.voters_outgoing, self._acked.get)
        count = min(confirmed - self._confirmed, len(self._waiting))
        if count <= 0:
            return []
        requests, self._waiting = self._waiting[:count], self._waiting[count:]
        self._confirmed += count
        return requests
