"""Calls of consumer groups to other nodes, for acks, offers and offsets, on the connections that
proposals and questions about leaders need too.

Some wait at the other node for a second or longer, and clients decide how many there are. So they
have three quarters of the calls that a connection may have in flight: see `PeerOptions.calls_max`.
"""

from collections import Counter

from pixy.cluster import PeerMethod, ReplicaCalls
from pixy.errors import Unavailable

__all__ = ["NeighbourCalls"]

_UNDER_WAY = 3072


class NeighbourCalls:
    """Calls under way of one node, by the node that is asked."""

    def __init__(self) -> None:
        # Invariant: none is 0.
        self._under_way: Counter[int] = Counter()

    async def ask(self, calls: ReplicaCalls, node_id: int, request: bytes, timeout_s: float) -> bytes:
        """As `Backend.ask_node`.

        Raises:
            Unavailable: too many calls are under way.
        """
        if self._under_way[node_id] >= _UNDER_WAY:
            raise Unavailable(
                f"{_UNDER_WAY} calls of consumer groups to node {node_id} are under way already"
            )
        self._under_way[node_id] += 1
        try:
            return await calls.ask(node_id, PeerMethod.CONSUME, request, timeout_s)
        finally:
            self._under_way[node_id] -= 1
            if not self._under_way[node_id]:
                del self._under_way[node_id]
