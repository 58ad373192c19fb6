"""Newest known start of each peer, to recognize an older self.

A directory that was put back from a backup, or copied, has forgotten votes and acknowledgements:
its node must not take part in anything. Each start of a node raises its incarnation, durably and
before its first message, and the number of its newest durable flush never goes back. So it is an
older self if either is below what a peer has seen.

A start writes to the journal before the first handshake. So a new one has to have found all flushes
that peers know of; what it has written since proves nothing.

Pure; `peer_start_record` keeps it in the journal, so that an older self is recognized also after
its peers have restarted.
"""

from typing import NamedTuple

from pixy.proto.state_pb2 import NodeStart, NodeStarts

__all__ = ["PeerStart", "PeerStarts"]


class PeerStart(NamedTuple):
    """A start of a node, and how far its journal was.

    Attributes:
        incarnation: number of the start.
        flush_number: its newest durable flush.
    """

    incarnation: int
    flush_number: int


class PeerStarts:
    """The newest known start of each peer."""

    def __init__(self) -> None:
        self._newest: dict[int, PeerStart] = {}
        # Process of each newest start, as far as it came in a handshake.
        self._processes: dict[int, bytes] = {}

    def newest(self, node_id: int) -> PeerStart | None:
        """The newest known start of a peer, None if it never came."""
        return self._newest.get(node_id)

    def admit(
        self, node_id: int, start: PeerStart, process: bytes = b"", found: int | None = None
    ) -> str | None:
        """Note what a peer says of itself.

        Args:
            process: random bytes of its process; empty if they are not known.
            found: newest flush that this start has found in its journal; None if it is known to be
                the same start as before.

        Returns:
            None, or the reason why the peer is an older self and has to be refused.
        """
        newest = self._newest.get(node_id, start)
        if process and process == self._processes.get(node_id):
            # A handshake may be older than what the same process has said since.
            self._newest[node_id] = max(newest, start)
            return None
        flush = start.flush_number
        if found is not None and start.incarnation > newest.incarnation:
            flush = found
        if start.incarnation < newest.incarnation or flush < newest.flush_number:
            return (
                f"node {node_id} comes with start {start.incarnation} and flush {flush}, but has been here with "
                f"start {newest.incarnation} and flush {newest.flush_number}: its data directory is an older copy; forget "
                "the node and let it join as a new one"
            )
        self._newest[node_id] = start
        if process:
            self._processes[node_id] = process
        return None

    def advance(self, node_id: int, incarnation: int, flush_number: int) -> bool:
        """Note a newer flush of the newest start of a peer; False if it is neither."""
        newest = self._newest.get(node_id)
        if newest is None or newest[0] != incarnation or flush_number <= newest[1]:
            return False
        self._newest[node_id] = PeerStart(incarnation, flush_number)
        return True

    def forget(self, node_id: int) -> None:
        """Drop a peer that has left the cluster: its id never comes back."""
        self._newest.pop(node_id, None)
        self._processes.pop(node_id, None)

    def snapshot(self) -> bytes:
        """All starts, as a `NodeStarts`."""
        starts = [
            NodeStart(node_id=node_id, incarnation=start.incarnation, flush_number=start.flush_number)
            for node_id, start in sorted(self._newest.items())
        ]
        return NodeStarts(starts=starts).SerializeToString()

    def restore(self, payload: bytes) -> None:
        """Replace all starts by those of a snapshot, empty bytes for none."""
        self._newest = {
            start.node_id: PeerStart(start.incarnation, start.flush_number)
            for start in NodeStarts.FromString(payload).starts
        }
