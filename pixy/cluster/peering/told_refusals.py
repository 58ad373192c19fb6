"""Older selves of nodes that others refuse, as these tell twice a second.

A node that was cut off, that has joined since, or that started with a record that is a second old,
has not heard of flushes that an older copy of a directory lacks. So whoever refuses a node as an
older self tells the others the newest start and flush that it knows of it. They refuse what lacks
these too.

    what another node says      counts
    --------------------------  --------------------------------------------------------------------
    itself, on a connection     as long as it says so; nothing of it is kept
    by way of a third node      never
    of a process that has been  never: it may have been cut off and come back; and so a node that
    here for `_DOUBT_S`         lies parts nobody who is connected

So a node that lies keeps others out that start while it is connected, and only then. The road not
taken: such a start in metadata, or in the journal, as one that was seen. One lie would do for good.

Pure: time comes in as `now`.
"""

from collections.abc import Iterator, Mapping

from pixy.cluster.log import PeerStart, StartClaim, lacks
from pixy.cluster.state import NODES_MAX
from pixy.proto.state_pb2 import NodeStart, NodeStarts
from pixy.raft import MalformedMessage

_TOLD_S = 2.0
"""Time for which a refusal counts that was told: four times the pause to the next."""
_DOUBT_S = 10.0


class ToldRefusals:
    """Refusals that other nodes have told one node."""

    def __init__(self) -> None:
        # Newest starts of the nodes that each other node refuses, and when it said so.
        self._told: dict[int, tuple[Mapping[int, PeerStart], float]] = {}
        # The present process of each node that was admitted, and when it came first.
        self._present: dict[int, tuple[StartClaim, float]] = {}

    def tell(self, node_id: int, newest: Mapping[int, PeerStart], now: float) -> None:
        """A node tells whom it refuses, with the newest starts that it knows of them."""
        self._told[node_id] = newest, now

    def admitted(self, claim: StartClaim, now: float) -> None:
        """A node is let in."""
        present = self._present.get(claim.node_id)
        if present is None or present[0].process != claim.process:
            self._present[claim.node_id] = claim, now

    def forget(self, node_id: int) -> None:
        """A node has left the cluster."""
        self._told.pop(node_id, None)
        self._present.pop(node_id, None)

    def why_refused(self, claim: StartClaim, now: float) -> str | None:
        """Reason to refuse a node because another one does, None if there is none."""
        present = self._present.get(claim.node_id)
        if present is not None and present[0].process == claim.process and now - present[1] > _DOUBT_S:
            return None
        for teller, (newest, told_at) in self._told.items():
            known = newest.get(claim.node_id)
            if known is not None and now - told_at <= _TOLD_S and lacks(claim, known):
                return (
                    f"node {claim.node_id} comes with start {claim.start.incarnation}, and node {teller} knows start "
                    f"{known.incarnation} with flush {known.flush_number}: its data directory is an older copy; forget the "
                    "node and let it join as a new one"
                )
        return None

    def doubted(self, now: float) -> Iterator[tuple[int, str]]:
        """Nodes that were let in, and that others refuse, with the reasons."""
        for node_id, (claim, _) in self._present.items():
            reason = self.why_refused(claim, now)
            if reason is not None:
                yield node_id, reason


def encode_starts(starts: Mapping[int, PeerStart]) -> bytes:
    """Starts of nodes as a `NodeStarts`, as many as a cluster has nodes."""
    messages = [
        NodeStart(node_id=node_id, incarnation=start.incarnation, flush_number=start.flush_number)
        for node_id, start in sorted(starts.items())[:NODES_MAX]
    ]
    return NodeStarts(starts=messages).SerializeToString()


def decode_starts(payload: bytes | memoryview) -> dict[int, PeerStart]:
    """Starts of nodes in a message.

    Raises:
        MalformedMessage, DecodeError: it has none that can be.
    """
    message = NodeStarts.FromString(bytes(payload))
    if len(message.starts) > NODES_MAX:
        raise MalformedMessage(f"starts of {len(message.starts)} nodes, at most {NODES_MAX} are possible")
    return {each.node_id: PeerStart(each.incarnation, each.flush_number) for each in message.starts}
