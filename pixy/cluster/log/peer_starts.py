"""Newest known start of each peer, to recognize an older self.

A directory that was put back from a backup, or copied, has forgotten votes and acknowledgements:
its node must not take part in anything. Each start of a node raises its incarnation, durably and
before its first message, and the number of its newest durable flush never goes back. So it is an
older self if either is below what a peer has seen.

A start writes to the journal before the first handshake. So a new one has to have found all flushes
that peers know of; what it has written since proves nothing.

What a peer says is kept only if a record can hold it, and if it can be: a start or flush that is
further from the known one than a node gets meanwhile is no news of it.

Pure; `peer_start_record` keeps it in the journal, so that an older self is recognized also after
its peers have restarted.
"""

from typing import NamedTuple

from pixy.entry_ids import FLUSH_MAX, INCARNATION_JUMP_MAX, INCARNATION_MAX, NODE_ID_MAX
from pixy.parsed_messages import parsed
from pixy.proto.state_pb2 import NodeStart, NodeStarts

_FLUSH_JUMP_MAX = 2**44
"""Most flushes of a node that a peer can miss: half a century of ten thousand a second."""


class PeerStart(NamedTuple):
    """A start of a node, and how far its journal was.

    Attributes:
        incarnation: number of the start.
        flush_number: its newest durable flush.
    """

    incarnation: int
    flush_number: int


class StartClaim(NamedTuple):
    """A start that a peer claims for itself, or another one for it.

    Attributes:
        node_id: the peer.
        start: its start.
        process: random bytes of its process; empty if they are not known.
        found: newest flush that this start has found in its journal; None if it is known to be the
            same start as before.
        registered: its newest start in metadata.
    """

    node_id: int
    start: PeerStart
    process: bytes = b""
    found: int | None = None
    registered: int = 0


def lacks(claim: StartClaim, newest: PeerStart) -> bool:
    """True if a start is older than the newest one, or has not found what that had written."""
    start, flush = claim.start, claim.start.flush_number
    if claim.found is not None and start.incarnation > newest.incarnation:
        flush = claim.found
    return start.incarnation < newest.incarnation or flush < newest.flush_number


class PeerStarts:
    """The newest known start of each peer."""

    def __init__(self) -> None:
        # Invariant: each id, start and flush fits into a `NodeStart`.
        self._newest: dict[int, PeerStart] = {}
        # Process of each newest start, as far as it came in a handshake.
        self._processes: dict[int, bytes] = {}

    def newest(self, node_id: int) -> PeerStart | None:
        """The newest known start of a peer, None if it never came."""
        return self._newest.get(node_id)

    @property
    def known(self) -> dict[int, PeerStart]:
        """The newest known start of each peer, as of now."""
        return dict(self._newest)

    def admit(self, claim: StartClaim) -> str | None:
        """As `why_refused`; what a peer says of itself is kept if there is no reason."""
        reason = self.why_refused(claim)
        if reason is None:
            node_id, start = claim.node_id, claim.start
            # A handshake may be older than what the same process has said since.
            self._newest[node_id] = max(self._newest.get(node_id, start), start)
            if claim.process:
                self._processes[node_id] = claim.process
        return reason

    def why_refused(self, claim: StartClaim) -> str | None:
        """Reason why a peer is an older self, or impossible, and has to be refused; None if there
        is none.
        """
        node_id, start, process, found, registered = claim
        impossible = self._why_impossible(node_id, start, registered)
        if impossible is not None:
            return impossible
        newest = self._newest.get(node_id, start)
        if process and process == self._processes.get(node_id):
            return None
        if lacks(claim, newest):
            flush = start.flush_number if found is None else found
            return (
                f"node {node_id} comes with start {start.incarnation} and flush {flush}, but has been here with "
                f"start {newest.incarnation} and flush {newest.flush_number}: its data directory is an older copy; forget "
                "the node and let it join as a new one"
            )
        return None

    def _why_impossible(self, node_id: int, start: PeerStart, registered: int) -> str | None:
        """Reason to refuse a start that no correct node has, None if it is possible."""
        newest = self._newest.get(node_id)
        incarnation_max = min(
            INCARNATION_MAX, max(registered, newest[0] if newest else 0) + INCARNATION_JUMP_MAX
        )
        flush_max = FLUSH_MAX if newest is None else min(FLUSH_MAX, newest[1] + _FLUSH_JUMP_MAX)
        if (
            0 < node_id <= NODE_ID_MAX
            and 0 <= start.incarnation <= incarnation_max
            and 0 <= start.flush_number <= flush_max
        ):
            return None
        return (
            f"node {node_id} comes with start {start.incarnation} and flush {start.flush_number}: a node does not "
            f"get beyond start {incarnation_max} and flush {flush_max} meanwhile"
        )

    def advance(self, node_id: int, incarnation: int, flush_number: int) -> bool:
        """Note a newer, possible flush of the newest start of a peer; False if it is none."""
        newest = self._newest.get(node_id)
        if newest is None or newest[0] != incarnation or flush_number <= newest[1]:
            return False
        if flush_number > min(FLUSH_MAX, newest[1] + _FLUSH_JUMP_MAX):
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
            for start in parsed(NodeStarts, payload).starts
        }
