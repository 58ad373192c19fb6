"""Peers that answer calls as a test says."""

from collections.abc import Awaitable, Callable


class AnsweringPeers:
    """The calls of a `PeerChannel`.

    Args:
        answer: answers a call: node id, method, payload.

    Attributes:
        asked: the nodes, in the order of the calls.
    """

    def __init__(self, answer: Callable[[int, int, bytes], Awaitable[bytes]]) -> None:
        self._answer = answer
        self.asked: list[int] = []

    async def call(
        self, node_id: int, method: int, payload: bytes, timeout: float, *, bulk: bool = False
    ) -> bytes:
        """As `PeerChannel.call`."""
        self.asked.append(node_id)
        return await self._answer(node_id, method, payload)
