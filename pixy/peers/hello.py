"""The greeting of a node, as both sides of a connection send it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from hashlib import sha256

from google.protobuf.message import DecodeError

from pixy.entry_ids import FLUSH_MAX, NODE_ID_MAX
from pixy.peers.address import Address
from pixy.peers.frames import FrameDamage, Payload
from pixy.peers.texts import shown
from pixy.proto import peers_pb2 as pb

PROTOCOL_MIN = 1
PROTOCOL_MAX = 2
"""Protocols that this release speaks. A new one is for changes that an older node would
misunderstand; fields that it may ignore need none.

    1  `first_handshake`
    2  `handshake`
"""

_NONCE_BYTES = 32
_ID_BYTES = 16
_PROCESS_BYTES = 8
_TEXT_MAX = 300


_START_MAX = 2**48
"""Starts of nodes are counted, those of a pixy in front of Kafka are milliseconds since 1970. What
metadata can hold is for `cluster` to check.
"""


_MESSAGE_BYTES_MAX = 1 << 30
"""A record batch states its length in 31 bits."""


class LinkPurpose(IntEnum):
    """The use of a connection."""

    MAIN = pb.PURPOSE_MAIN
    """Messages, and small calls."""
    BULK = pb.PURPOSE_BULK
    """Large calls."""
    PASSING = pb.PURPOSE_PASSING
    """One question or one call, for nodes that may belong to no cluster yet."""


_PURPOSES = frozenset(map(int, LinkPurpose))


def join_hash(nodes: Iterable[Address]) -> bytes:
    """Hash of a list of nodes, whatever its order; empty for an empty list."""
    text = " ".join(map(str, sorted(nodes)))
    return sha256(text.encode()).digest()[:_ID_BYTES] if text else b""


@dataclass(frozen=True, slots=True)
class Hello:
    """A node as it describes itself in a handshake.

    Attributes:
        cluster: key under `proxies`.
        cluster_id: 16 bytes; empty: it belongs to no cluster yet.
        node_id: 0: none yet.
        secret: 16 bytes of the node itself: its identity is id and secret. Not the shared secret.
            Of another node only if that speaks protocol 1.
        incarnation: number of this start of the node.
        flush_number: newest durable flush of its journal.
        found_flush_number: newest flush that its start has found there.
        max_message_bytes: its `producer.max_message_bytes`, 0 if it does not tell.
        process: 8 random bytes of this process.
        join_hash: see `join_hash`.
        address: advertised peer address.
        version: release of pixy.
    """

    cluster: str
    cluster_id: bytes
    node_id: int
    secret: bytes
    incarnation: int
    flush_number: int
    process: bytes
    join_hash: bytes
    address: str
    version: str
    found_flush_number: int = 0
    max_message_bytes: int = 0

    def __str__(self) -> str:
        who = f"node {self.node_id}" if self.node_id else "the node without an id"
        return f"{who} at {shown(self.address)}"

    @property
    def anonymous(self) -> "Hello":
        """The node as a passing connection shows it: neither id nor secret."""
        return replace(self, node_id=0, secret=b"", incarnation=0, flush_number=0, found_flush_number=0)

    def to_message(self) -> pb.Hello:
        """A message with what concerns the node; the rest concerns a connection."""
        return pb.Hello(
            cluster=self.cluster,
            cluster_id=self.cluster_id,
            node_id=self.node_id,
            secret=self.secret,
            incarnation=self.incarnation,
            flush_number=self.flush_number,
            process=self.process,
            join_hash=self.join_hash,
            address=self.address,
            version=self.version,
            found_flush_number=self.found_flush_number,
            max_message_bytes=self.max_message_bytes,
        )

    @staticmethod
    def from_message(message: pb.Hello) -> "Hello":
        """The node of a message.

        Raises:
            FrameDamage: no node describes itself so.
        """
        _check_node(message)
        return Hello._of(message)

    @staticmethod
    def _of(message: pb.Hello) -> "Hello":
        return Hello(
            message.cluster,
            message.cluster_id,
            message.node_id,
            message.secret,
            message.incarnation,
            message.flush_number,
            message.process,
            message.join_hash,
            message.address,
            message.version,
            message.found_flush_number,
            message.max_message_bytes,
        )


@dataclass(frozen=True, slots=True)
class Claim:
    """A node that a connection claims to lead to, or to come from.

    Attributes:
        hello: the node as it describes itself.
        dialled: this node has dialled it.
        has_secret: True if the node has proven to have this secret of a node.
        protocol: that it speaks on the connection.
    """

    hello: Hello
    dialled: bool
    has_secret: Callable[[bytes], bool]
    protocol: int = PROTOCOL_MAX


@dataclass(frozen=True, slots=True)
class Greeting:
    """A greeting: a node, and what it says of the connection.

    Attributes:
        hello: the node.
        purpose: use of the connection; that of the dialling side counts.
        nonce: 32 random bytes.
        proves: the node has a shared secret, and proves it.
        protocols: oldest and newest protocol that it speaks.
    """

    hello: Hello
    purpose: LinkPurpose
    nonce: bytes
    proves: bool
    protocols: tuple[int, int] = (PROTOCOL_MIN, PROTOCOL_MAX)

    def encode(self, *, with_secret: bool) -> bytes:
        """Bytes of a HELLO frame.

        Args:
            with_secret: the secret of the node is in it.
        """
        message = self.hello.to_message()
        if not with_secret:
            message.secret = b""
        message.protocol_min, message.protocol_max = self.protocols
        message.purpose = pb.Purpose.ValueType(self.purpose)
        message.nonce, message.proves = self.nonce, self.proves
        return message.SerializeToString()

    @staticmethod
    def decode(payload: Payload) -> "Greeting":
        """A greeting of the payload of a HELLO frame.

        A node that speaks only newer protocols is understood as far as to refuse it.

        Raises:
            FrameDamage: not a greeting.
        """
        found = _parse(payload)
        _check(found)
        return Greeting(
            Hello._of(found),
            LinkPurpose(found.purpose) if int(found.purpose) in _PURPOSES else LinkPurpose.MAIN,
            found.nonce,
            found.proves,
            (found.protocol_min, found.protocol_max),
        )


@dataclass(frozen=True, slots=True)
class Opening:
    """First frame of either side of protocol 2: nothing that tells who it is.

    Attributes:
        cluster: key under `proxies` of the cluster that is dialled; empty from the listening side.
        purpose: use of the connection; that of the dialling side counts.
        nonce: 32 random bytes.
        proves: the node has a shared secret, and proves it.
        protocols: oldest and newest protocol that it speaks and that begins so.
    """

    cluster: str
    purpose: LinkPurpose
    nonce: bytes
    proves: bool
    protocols: tuple[int, int] = (PROTOCOL_MAX, PROTOCOL_MAX)

    def encode(self) -> bytes:
        """Bytes of a HELLO frame."""
        oldest, newest = self.protocols
        return pb.Hello(
            protocol_min=oldest,
            protocol_max=newest,
            purpose=pb.Purpose.ValueType(self.purpose),
            nonce=self.nonce,
            proves=self.proves,
            cluster=self.cluster,
        ).SerializeToString()

    @staticmethod
    def decode(payload: Payload) -> "Opening":
        """An opening of the payload of a HELLO frame.

        Raises:
            FrameDamage: not an opening.
        """
        found = _parse(payload)
        _check_texts(found)
        if found.protocol_min <= PROTOCOL_MAX:
            _check_link(found)
        purpose = LinkPurpose(found.purpose) if int(found.purpose) in _PURPOSES else LinkPurpose.MAIN
        protocols = found.protocol_min, found.protocol_max
        return Opening(found.cluster, purpose, found.nonce, found.proves, protocols)

    def why_refused(self, peer: "Opening", *, dials: bool) -> str | None:
        """Reason to refuse the other side by its opening, None if there is none.

        Args:
            dials: this is the dialling side.
        """
        this, other = ("that dials", "that was dialled") if dials else ("that was dialled", "that dials")
        if peer.protocols[0] > self.protocols[1]:
            return (
                f"the node {other} speaks peer protocols from {peer.protocols[0]} on, the node {this} up to "
                f"{self.protocols[1]}: update that one"
            )
        if peer.proves == self.proves:
            return None
        lacks = other if self.proves else this
        return f"the node {lacks} has no shared secret: set cluster.secret_file there, as on the other nodes"


def begins_first(payload: Payload) -> bool:
    """True if the first HELLO frame of a connection is the greeting of protocol 1.

    Raises:
        FrameDamage: neither a greeting nor an opening.
    """
    return _parse(payload).protocol_min < PROTOCOL_MAX


def _parse(payload: Payload) -> pb.Hello:
    try:
        return pb.Hello.FromString(bytes(payload))
    except DecodeError as error:
        raise FrameDamage("a greeting cannot be parsed") from error


def _check(found: pb.Hello) -> None:
    """Refuse what no node says, before it is used or logged."""
    _check_texts(found)
    if found.protocol_min > PROTOCOL_MAX:
        return
    _check_link(found)
    _check_node(found)


def _check_node(found: pb.Hello) -> None:
    """Refuse a node that none can be: what it says is stored, compared and logged."""
    _check_node_texts(found)
    for number, value, largest in (
        ("node id", found.node_id, NODE_ID_MAX),
        ("start", found.incarnation, _START_MAX),
        ("flush", found.flush_number, FLUSH_MAX),
        ("found flush", found.found_flush_number, FLUSH_MAX),
        ("largest message", found.max_message_bytes, _MESSAGE_BYTES_MAX),
    ):
        if value > largest:
            raise FrameDamage(f"a greeting has the {number} {value}, at most {largest}")
    for name, identifier, sizes in (
        ("cluster id", found.cluster_id, (0, _ID_BYTES)),
        ("secret", found.secret, (0, _ID_BYTES)),
        ("process", found.process, (_PROCESS_BYTES,)),
    ):
        if len(identifier) not in sizes:
            raise FrameDamage(f"a greeting has a {name} of {len(identifier)} bytes, expected {sizes[-1]}")


def _check_node_texts(found: pb.Hello) -> None:
    for name, text in (("cluster", found.cluster), ("address", found.address), ("version", found.version)):
        if len(text) > _TEXT_MAX or not text.isprintable():
            raise FrameDamage(f"a greeting has an impossible {name}")


def _check_texts(found: pb.Hello) -> None:
    _check_node_texts(found)
    if found.protocol_min > found.protocol_max or not found.protocol_min:
        raise FrameDamage(f"a greeting has protocols {found.protocol_min} to {found.protocol_max}")


def _check_link(found: pb.Hello) -> None:
    if len(found.nonce) != _NONCE_BYTES:
        raise FrameDamage(f"a greeting has a nonce of {len(found.nonce)} bytes, expected {_NONCE_BYTES}")
    if int(found.purpose) not in _PURPOSES:
        raise FrameDamage(f"a greeting has purpose {found.purpose}")
