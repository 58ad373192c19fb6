"""Calls to other nodes that clients decide the number of, on the connections that proposals and
questions about leaders need too.

Some wait at the other node for seconds: those of consumer groups, for acks, offers and offsets, and
those for the offsets of partitions whose replicas are down. So both together have seven eighths of
the calls that a connection may have in flight: see `PeerOptions.calls_max`.
"""

from collections import Counter

from pixy.cluster import PeerMethod, ReplicaCalls
from pixy.errors import Unavailable

_SHARES = {
    PeerMethod.CONSUME: (3072, "calls of consumer groups"),
    PeerMethod.OFFSETS: (512, "calls for offsets of partitions"),
}


class NeighbourCalls:
    """Calls of one method under way of one node, by the node that is asked.

    Args:
        method: one of those that have a share.
    """

    def __init__(self, method: PeerMethod) -> None:
        self._method = method
        self._most, self._what = _SHARES[method]
        # Invariant: none is 0.
        self._under_way: Counter[int] = Counter()

    async def ask(self, calls: ReplicaCalls, node_id: int, request: bytes, timeout_s: float) -> bytes:
        """As `ReplicaCalls.ask`.

        Raises:
            Unavailable: too many calls are under way.
        """
        if self._under_way[node_id] >= self._most:
            raise Unavailable(f"{self._most} {self._what} to node {node_id} are under way already")
        self._under_way[node_id] += 1
        try:
            return await calls.ask(node_id, self._method, request, timeout_s)
        finally:
            self._under_way[node_id] -= 1
            if not self._under_way[node_id]:
                del self._under_way[node_id]
