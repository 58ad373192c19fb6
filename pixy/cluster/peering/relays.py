"""Messages and calls between two nodes whose link is cut, by way of a third node.

Each node tells in its beats which others it reaches. A node without a connection to another one
gives what it has for it to a node that reaches it, which passes it on once, and only over a
connection of its own. So everything goes on between the two, Raft's messages included, and no
leader changes. The greeting of the sender goes along: the node that passes it on vouches that it
came from that sender, whose proofs it has. The receiver refuses an older self of the sender as in a
handshake, and keeps nothing of the greeting: neither start, flushes nor address. So nothing is
passed on for a third node, and nothing twice.

Calls that are passed on are among those in flight between two nodes, which are bounded, and a
hostile node may make many that wait long. So they have a part of these, each node a part of that,
and a minute each.

The road not taken: leaders that every member reaches. They would need an election whenever a link
is cut, and there need not be such a node.
"""

from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager

from pixy.cluster.peering.peer_messages import MessageKind, PeerMethod
from pixy.errors import FailedPrecondition, Unavailable
from pixy.peers import FrameDamage, Hello, PeerChannel
from pixy.proto.node_calls_pb2 import Relayed
from pixy.raft import MalformedMessage

RELAYED_CALLS_MAX = 2048
"""Calls of others that a node makes at a time on a connection: half of those that it may carry."""
RELAYED_CALLS_OF_NODE = 512
"""Those of one node."""
_BYTES_MAX = 48 << 20
_BYTES_OF_NODE = 32 << 20
"""The same of payload, of 64 MiB that a connection may carry."""
_LONGEST_S = 60.0
"""Longest wait for the answer to a call that is passed on; no call of a node waits longer."""


def sender_of(relayed: Relayed) -> Hello:
    """The node that has made a call which was passed on.

    Raises:
        FailedPrecondition: none that can be.
    """
    try:
        return Hello.from_message(relayed.sender)
    except FrameDamage as damage:
        raise FailedPrecondition(str(damage)) from damage


class _PassedOn:
    """Calls of other nodes that this one makes on a connection.

    Attributes:
        calls, size: their number and bytes, by the node whose they are.
    """

    def __init__(self) -> None:
        self.calls = Counter[int]()
        self.size = Counter[int]()

    @contextmanager
    def taking(self, caller: int, size: int) -> Iterator[None]:
        """Count a call of a node for as long as the `with` block.

        Raises:
            Unavailable: there are too many.
        """
        if self.calls[caller] >= RELAYED_CALLS_OF_NODE or self.size[caller] + size > _BYTES_OF_NODE:
            raise Unavailable(f"{self.calls[caller]} calls of node {caller} are being passed on").at_limit(
                "calls that are passed on for a node"
            )
        if self.calls.total() >= RELAYED_CALLS_MAX or self.size.total() + size > _BYTES_MAX:
            raise Unavailable(f"{self.calls.total()} calls of other nodes are being passed on").at_limit(
                "calls that are passed on"
            )
        self.calls[caller] += 1
        self.size[caller] += size
        try:
            yield
        finally:
            self.calls[caller] -= 1
            self.size[caller] -= size


class Relays:
    """Ways of one node to the others.

    Args:
        channel: to the other nodes.
        hello: this node's description of itself.

    Attributes:
        heard_at: loop times at which nodes were last heard of by way of another one.
        refused: nodes that have come as older selves. Nothing is sent to them by way of others,
            which may have let them in.
    """

    def __init__(self, channel: PeerChannel, hello: Callable[[], Hello]) -> None:
        self._channel = channel
        self._hello = hello
        self.heard_at: dict[int, float] = {}
        self.refused: set[int] = set()
        # The nodes that each other node reaches, as of its last beat.
        self._reached: dict[int, frozenset[int]] = {}
        # By target and kind of connection.
        self._passed_on: dict[tuple[int, bool], _PassedOn] = {}

    def heard(self, node_id: int, reaches: Iterable[int]) -> None:
        """A node has told which others it reaches."""
        self._reached[node_id] = frozenset(reaches)

    def left(self, node_id: int) -> None:
        """A node has left the cluster."""
        self._reached.pop(node_id, None)
        self.refused.discard(node_id)
        for bulk in (False, True):
            self._passed_on.pop((node_id, bulk), None)

    def through(self, node_id: int) -> int | None:
        """The node that a connection leads to on the way to another: that one itself, or one that
        reaches it; None if there is no way.
        """
        is_connected = self._channel.is_connected
        if is_connected(node_id):
            return node_id
        if node_id in self.refused:
            return None
        reached = self._reached.items()
        return next((each for each, others in reached if node_id in others and is_connected(each)), None)

    def send(self, node_id: int, kind: int, payload: Sequence[bytes | bytearray]) -> None:
        """As `PeerChannel.send`."""
        through = self.through(node_id)
        if through == node_id:
            self._channel.send(node_id, kind, payload)
        elif through is not None:
            relayed = self._relayed(node_id, kind, b"".join(payload))
            self._channel.send(through, MessageKind.RELAYED, (relayed.SerializeToString(),))

    def call(
        self, node_id: int, method: int, payload: bytes, timeout: float, *, bulk: bool = False
    ) -> Coroutine[None, None, bytes]:
        """As `PeerChannel.call`."""
        through = self.through(node_id)
        if through in (node_id, None):
            return self._channel.call(node_id, method, payload, timeout, bulk=bulk)
        assert through is not None
        relayed = self._relayed(node_id, method, payload)
        relayed.timeout_ms, relayed.bulk = round(timeout * 1000), bulk
        request = relayed.SerializeToString()
        return self._channel.call(through, PeerMethod.RELAY, request, timeout, bulk=bulk)

    def call_view(
        self, node_id: int, method: int, payload: bytes, timeout: float
    ) -> Coroutine[None, None, bytes | memoryview]:
        """As `PeerChannel.call_view`."""
        if self.through(node_id) in (node_id, None):
            return self._channel.call_view(node_id, method, payload, timeout)
        return self.call(node_id, method, payload, timeout, bulk=True)

    def _relayed(self, node_id: int, kind: int, payload: bytes) -> Relayed:
        return Relayed(target=node_id, sender=self._hello().to_message(), kind=kind, payload=payload)

    def pass_on(self, sender: int, relayed: Relayed) -> None:
        """Send a message for another node to its target; dropped unless there is a connection.

        Args:
            sender: the node that it came from.

        Raises:
            MalformedMessage: another node has sent it.
            FrameDamage: the sender is none that can be.
        """
        if relayed.sender.node_id != sender:
            raise MalformedMessage(f"node {sender} sends a message of node {relayed.sender.node_id}")
        Hello.from_message(relayed.sender)
        self._channel.send(relayed.target, MessageKind.RELAYED, (relayed.SerializeToString(),))

    async def pass_call_on(self, caller: int, relayed: Relayed) -> bytes:
        """Make a call for another node; returns the answer.

        Args:
            caller: the node that it came from.

        Raises:
            FailedPrecondition: another node has made the call, or none that can be.
            Unavailable: there is no connection to the target, or too many calls are passed on.
            PixyError: the answer.
        """
        if relayed.sender.node_id != caller:
            raise FailedPrecondition(f"node {caller} makes a call of node {relayed.sender.node_id}")
        sender_of(relayed)
        if not self._channel.is_connected(relayed.target):
            raise Unavailable(f"no connection to node {relayed.target} either")
        request, timeout = relayed.SerializeToString(), min(relayed.timeout_ms / 1000, _LONGEST_S)
        passed_on = self._passed_on.setdefault((relayed.target, relayed.bulk), _PassedOn())
        with passed_on.taking(caller, len(request)):
            return await self._channel.call(
                relayed.target, PeerMethod.RELAY, request, timeout, bulk=relayed.bulk
            )
