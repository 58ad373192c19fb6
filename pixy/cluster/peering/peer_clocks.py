"""The clocks of all nodes, as one of them sees them."""

import asyncio
from contextlib import suppress

from pixy.cluster.peering.cluster_nodes import ClusterNodes
from pixy.cluster.replicas import NodeTime

_PATIENCE_S = 2.0


class PeerClocks:
    """Clocks of the nodes, compared with the time of this one.

    Args:
        members: the other nodes.
        time: of this node; follows the clocks of `members` from here on.
    """

    def __init__(self, members: ClusterNodes, time: NodeTime) -> None:
        self._members = members
        self._time = time
        time.others = members.clocks

    async def wait(self) -> None:
        """Wait until a majority of the nodes agrees on a time, for two seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                while not self._time.is_settled:
                    self._members.clock_heard.clear()
                    await self._members.clock_heard.wait()

    def offset_ms(self, node_id: int) -> int:
        """Difference of a node's clock to the agreed time, or to the clock of this node while there
        is none; 0 for one that is not known.
        """
        ahead_ms = self._ahead_ms(node_id)
        if ahead_ms is None:
            return 0
        offset_ms = self._time.off_ms(ahead_ms)
        return ahead_ms - self._time.own_ahead_ms if offset_ms is None else offset_ms

    def is_off(self, node_id: int) -> bool:
        """True for a node whose clock is known to be off."""
        ahead_ms = self._ahead_ms(node_id)
        return ahead_ms is not None and self._time.is_off(ahead_ms)

    def _ahead_ms(self, node_id: int) -> int | None:
        if node_id == self._members.node_id:
            return self._time.own_ahead_ms
        member = self._members.get(node_id)
        return None if member is None else member.clock_ahead_ms
