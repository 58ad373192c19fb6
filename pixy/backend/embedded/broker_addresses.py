"""Addresses at which clients of Kafka's protocol reach the nodes.

Each node tells the others when they ask: the address is known once it listens, and gone when it
does not start again with one. So nothing of it is state of the cluster, and a node of a release
that cannot be asked is one that these clients do not reach.
"""

import asyncio
from collections.abc import Awaitable, Callable

from pixy.aio.futures import resolve
from pixy.aio.shared_questions import SharedQuestions
from pixy.aio.tasks import Tasks
from pixy.backend.protocol import BrokerNode, BrokerNodes
from pixy.cluster import Node, PeerMethod
from pixy.errors import PixyError
from pixy.peers import decode_answer
from pixy.proto.node_calls_pb2 import BrokerResponse

_ASK_S = 1.0
_FRESH_S = 1.0
"""Answers that are not older are not asked for again."""
_ADDRESS_BYTES_MAX = 600


class BrokerAddresses:
    """The brokers of a cluster, as one of its nodes knows them.

    Args:
        node: this node.
        tasks: of the backend.

    Attributes:
        own: address of this node, empty while it serves no such clients.
    """

    def __init__(self, node: Node, tasks: Tasks) -> None:
        self._node = node
        self.own = ""
        # Of other nodes that have one. Invariant: none is empty.
        self._addresses: dict[int, str] = {}
        self._nodes = BrokerNodes("", 0)
        self._asked_at = float("-inf")
        self._questions = SharedQuestions(self._ask_all, tasks, "ask for the addresses of brokers")

    @property
    def nodes(self) -> BrokerNodes:
        """See `Backend.broker_nodes`."""
        if self._nodes.own_id != self._node.node_id:
            self._nodes = self._made()
        return self._nodes

    async def find(self) -> BrokerNodes:
        """Ask the other nodes, unless they were asked within a second."""
        loop = asyncio.get_running_loop()
        if not self._node.is_alone and loop.time() - self._asked_at >= _FRESH_S:
            answered: asyncio.Future[None] = loop.create_future()
            self._questions.ask("", lambda _, __: resolve(answered, None))
            await answered
        return self.nodes

    def handlers(self) -> dict[int, Callable[[int, bytes], Awaitable[bytes]]]:
        """Answers to other nodes."""
        return {PeerMethod.BROKER: self._answer}

    async def _answer(self, caller: int, payload: bytes) -> bytes:
        return BrokerResponse(address=self.own).SerializeToString()

    async def _ask_all(self, keys: object) -> dict[str, None]:
        here = self._node.node_id
        others = [each for each in self._node.metadata.registered if each != here]
        answers = await asyncio.gather(*(self._ask(each) for each in others))
        self._addresses = {node_id: found for node_id, found in zip(others, answers, strict=True) if found}
        made = self._made()
        if made != self._nodes:
            self._nodes = made
        self._asked_at = asyncio.get_running_loop().time()
        return {}

    async def _ask(self, node_id: int) -> str:
        """The address of a node, empty if it has told none, or cannot be reached."""
        calls, peers = self._node.calls, self._node.peers
        if calls is None or peers is None or not peers.members.is_reachable(node_id):
            return ""
        try:
            answer = await calls.ask(node_id, PeerMethod.BROKER, b"", _ASK_S)
            return str(decode_answer(BrokerResponse, answer, _ADDRESS_BYTES_MAX).address)
        except PixyError:
            # It is slow: clients keep a broker that is there.
            return self._addresses.get(node_id, "")

    def _made(self) -> BrokerNodes:
        node = self._node
        known = node.metadata.nodes
        brokers = tuple(
            BrokerNode(node_id, address, known[node_id].rack if node_id in known else "")
            for node_id, address in sorted(self._addresses.items())
        )
        return BrokerNodes(node.cluster_id.hex(), node.node_id, brokers)
