"""The greeting of a node, as both sides of a connection send it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256

from google.protobuf.message import DecodeError

from pixy.peers.address import Address
from pixy.peers.frames import FrameDamage, Payload
from pixy.proto import peers_pb2 as pb

__all__ = ["PROTOCOL_MAX", "PROTOCOL_MIN", "Greeting", "Hello", "LinkPurpose", "join_hash"]

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
"""Protocols that this release speaks. A new one is for changes that an older node would
misunderstand; fields that it may ignore need none.
"""

_NONCE_BYTES = 32
_ID_BYTES = 16
_PROCESS_BYTES = 8
_TEXT_MAX = 1024


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
        incarnation: number of this start of the node.
        flush_number: newest durable flush of its journal.
        found_flush_number: newest flush that its start has found there.
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

    def __str__(self) -> str:
        who = f"node {self.node_id}" if self.node_id else "the node without an id"
        return f"{who} at {self.address}"

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
        )

    @staticmethod
    def from_message(message: pb.Hello) -> "Hello":
        """The node of a message."""
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
        )


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

    def encode(self) -> bytes:
        """Bytes of a HELLO frame."""
        message = self.hello.to_message()
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
        try:
            found = pb.Hello.FromString(bytes(payload))
        except DecodeError as error:
            raise FrameDamage("a greeting cannot be parsed") from error
        _check(found)
        return Greeting(
            Hello.from_message(found),
            LinkPurpose(found.purpose) if int(found.purpose) in _PURPOSES else LinkPurpose.MAIN,
            found.nonce,
            found.proves,
            (found.protocol_min, found.protocol_max),
        )


def _check(found: pb.Hello) -> None:
    """Refuse what no node says, before it is used or logged."""
    for name, text in (("cluster", found.cluster), ("address", found.address), ("version", found.version)):
        if len(text) > _TEXT_MAX or not text.isprintable():
            raise FrameDamage(f"a greeting has an impossible {name}")
    if found.protocol_min > found.protocol_max or not found.protocol_min:
        raise FrameDamage(f"a greeting has protocols {found.protocol_min} to {found.protocol_max}")
    if found.protocol_min > PROTOCOL_MAX:
        return
    for name, value, sizes in (
        ("nonce", found.nonce, (_NONCE_BYTES,)),
        ("cluster id", found.cluster_id, (0, _ID_BYTES)),
        ("secret", found.secret, (0, _ID_BYTES)),
        ("process", found.process, (_PROCESS_BYTES,)),
    ):
        if len(value) not in sizes:
            raise FrameDamage(f"a greeting has a {name} of {len(value)} bytes, expected {sizes[-1]}")
    if int(found.purpose) not in _PURPOSES:
        raise FrameDamage(f"a greeting has purpose {found.purpose}")
