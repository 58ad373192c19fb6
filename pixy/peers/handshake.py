"""The handshake of a connection, for both sides, without sockets.

    dialling side                      listening side
    HELLO                  ->
                           <-          HELLO, PROOF
    checks, decides
    PROOF                  ->
                                       checks, decides
                           <-          ACCEPTED

Either side says REFUSED with a reason instead, and closes, or NOT_YET while one of the two starts
or stops: nobody has to do anything about that. Each side checks by itself, so that both
logs say what is wrong, whoever has dialled:

    found                                            the connection is refused, because
    no protocol that both speak                      one of the two is to be updated
    entry unknown on the listening side              it must be under `proxies` on all nodes
    main or bulk, and a side without cluster or id   only questions are allowed before it has joined
    other cluster id                                 an address or a data directory is wrong
    the same process, or the own id                  a node dials itself; a directory was copied
    another node than was dialled                    the address belongs to another node
    join lists that differ                           they must be the same on all nodes
    a shared secret on one side only                 `cluster.secret_file` is missing there
    a proof that is wrong                            the shared secrets differ
    what the layer above finds (`decide`)            older self, unknown or removed node, duplicate

The proof is HMAC-SHA256 with the shared secret over the role of the prover and both greetings as
they were sent, each with 32 random bytes. So the secret is never sent, and a proof holds for one
connection and one direction only. Proofs are compared before the layer above decides, so nobody
without the secret has an effect.

A passing connection to the own process is allowed: a node that asks all addresses of its join list
finds out by it which one is its own.
"""

import hmac
from collections.abc import Sequence
from enum import Enum, auto

from pixy.peers.frames import ACCEPTED, HELLO, NOT_YET, PROOF, REFUSED, FrameDamage, Payload
from pixy.peers.hello import Greeting, LinkPurpose

__all__ = ["Handshake", "HandshakeState", "NotYet", "Outgoing", "unknown_entry"]

_REASON_BYTES_MAX = 2000

Outgoing = tuple[int, bytes]
"""Kind and payload of a frame to send."""


class NotYet(str):
    """A reason to refuse a connection that passes by itself: one of the nodes starts or stops."""

    __slots__ = ()


class HandshakeState(Enum):
    """The next event of a handshake."""

    AWAITS_HELLO = auto()
    """HELLO of the other side."""
    AWAITS_GREETING = auto()
    """`greet` or `refuse`: the listening side knows who asks for which cluster."""
    AWAITS_PROOF = auto()
    """PROOF of the other side."""
    AWAITS_DECISION = auto()
    """`decide`: the other side is who it says."""
    AWAITS_VERDICT = auto()
    """ACCEPTED."""
    ACCEPTED = auto()
    """None: the connection is open."""
    REFUSED = auto()
    """None: the connection is to be closed when everything is sent."""


_OVER = (HandshakeState.ACCEPTED, HandshakeState.REFUSED)


class Handshake:
    """One side of a handshake.

    Args:
        secret: shared by all nodes; empty: none.
        own: greeting of the dialling side; None: the listening side, whose greeting depends on what
            it is asked for.
        expected: id of the node that is dialled; 0: any.

    Attributes:
        state: see `HandshakeState`.
        peer: greeting of the other side, once it has come.
        reason: text of a refusal; a `NotYet` if that passes by itself.
        by_peer: the other side has refused.
    """

    def __init__(self, secret: bytes, own: Greeting | None = None, expected: int = 0) -> None:
        self._secret = secret
        self._own = own
        self._expected = expected
        self._dials = own is not None
        self._own_bytes = b"" if own is None else own.encode()
        self._peer_bytes = b""
        self.state = HandshakeState.AWAITS_HELLO
        self.peer: Greeting | None = None
        self.reason = ""
        self.by_peer = False

    def begin(self) -> Sequence[Outgoing]:
        """Frames to send when the connection is made."""
        return [(HELLO, self._own_bytes)] if self._dials else []

    def receive(self, kind: int, payload: Payload) -> Sequence[Outgoing]:
        """Take a frame.

        Returns:
            frames to send.

        Raises:
            FrameDamage: the other side does not follow the protocol.
        """
        state = self.state
        if kind in (REFUSED, NOT_YET) and state not in _OVER:
            reason = bytes(payload[:_REASON_BYTES_MAX]).decode("utf-8", "replace")
            self.reason = NotYet(reason) if kind == NOT_YET else reason
            self.by_peer = True
            self.state = HandshakeState.REFUSED
            return []
        if kind == HELLO and state is HandshakeState.AWAITS_HELLO:
            return self._on_hello(payload)
        if kind == PROOF and state is HandshakeState.AWAITS_PROOF:
            return self._on_proof(payload)
        if kind == ACCEPTED and state is HandshakeState.AWAITS_VERDICT:
            self.state = HandshakeState.ACCEPTED
            return []
        raise FrameDamage(f"frame {kind} in a handshake that {state.name.lower().replace('_', ' ')}")

    def greet(self, own: Greeting) -> Sequence[Outgoing]:
        """Answer the greeting of a dialling side; returns frames to send."""
        assert self.state is HandshakeState.AWAITS_GREETING
        assert self.peer is not None
        self._own, self._own_bytes = own, own.encode()
        reason = _reason_to_refuse(own, self.peer, self.peer.purpose, 0)
        if reason is not None:
            return self.refuse(reason)
        self.state = HandshakeState.AWAITS_PROOF
        return [(HELLO, self._own_bytes), (PROOF, self._proof(by_dialler=False))]

    def decide(self, reason: str | None) -> Sequence[Outgoing]:
        """Refuse with a reason, or accept; returns frames to send."""
        assert self.state is HandshakeState.AWAITS_DECISION
        if reason is not None:
            return self.refuse(reason)
        if self._dials:
            self.state = HandshakeState.AWAITS_VERDICT
            return [(PROOF, self._proof(by_dialler=True))]
        self.state = HandshakeState.ACCEPTED
        return [(ACCEPTED, b"")]

    def refuse(self, reason: str) -> Sequence[Outgoing]:
        """Refuse; returns frames to send."""
        assert self.state not in _OVER
        self.state = HandshakeState.REFUSED
        self.reason = reason
        kind = NOT_YET if isinstance(reason, NotYet) else REFUSED
        return [(kind, reason.encode()[:_REASON_BYTES_MAX])]

    def _on_hello(self, payload: Payload) -> Sequence[Outgoing]:
        self._peer_bytes = bytes(payload)
        self.peer = Greeting.decode(payload)
        if self._own is None:
            self.state = HandshakeState.AWAITS_GREETING
            return []
        reason = _reason_to_refuse(self._own, self.peer, self._own.purpose, self._expected)
        if reason is not None:
            return self.refuse(reason)
        self.state = HandshakeState.AWAITS_PROOF
        return []

    def _on_proof(self, payload: Payload) -> Sequence[Outgoing]:
        assert self._own is not None
        assert self.peer is not None
        if not hmac.compare_digest(bytes(payload), self._proof(by_dialler=not self._dials)):
            return self.refuse(
                f"the shared secrets of {self.peer.hello} and {self._own.hello} differ: "
                "cluster.secret_file must have the same content on all nodes"
            )
        self.state = HandshakeState.AWAITS_DECISION
        return []

    def _proof(self, *, by_dialler: bool) -> bytes:
        if not self._secret:
            return b""
        both = (self._own_bytes, self._peer_bytes)
        dialler, listener = both if self._dials else reversed(both)
        role = b"dialler" if by_dialler else b"listener"
        text = b"".join(
            len(part).to_bytes(4, "big") + part for part in (b"pixy peers", role, dialler, listener)
        )
        return hmac.digest(self._secret, text, "sha256")


def unknown_entry(cluster: str) -> str:
    """The reason to refuse a connection for a cluster that is not configured here."""
    return (
        f'no embedded cluster "{cluster}" is configured on the node that was dialled: the key under proxies must be '
        "the same on all nodes of a cluster"
    )


def _reason_to_refuse(own: Greeting, peer: Greeting, purpose: LinkPurpose, expected: int) -> str | None:
    """A row of the table above, or None."""
    for check in (_protocols, _entries, _clusters, _identities, _join_lists, _secrets):
        reason = check(own, peer, purpose)
        if reason is not None:
            return reason
    if expected and peer.hello.node_id != expected:
        return (
            f"node {expected} was dialled, {peer.hello} has answered: the address belongs to another node; the right "
            "one is registered when the node starts with its advertised address"
        )
    return None


def _protocols(own: Greeting, peer: Greeting, _: LinkPurpose) -> str | None:
    older, newer = sorted((own, peer), key=lambda each: each.protocols)
    if newer.protocols[0] <= older.protocols[1]:
        return None
    return (
        f"{newer.hello} (pixy {newer.hello.version}) speaks peer protocols from {newer.protocols[0]} on, {older.hello} "
        f"(pixy {older.hello.version}) up to {older.protocols[1]}: update {older.hello}"
    )


def _entries(own: Greeting, peer: Greeting, _: LinkPurpose) -> str | None:
    if own.hello.cluster == peer.hello.cluster:
        return None
    return unknown_entry(own.hello.cluster)


def _clusters(own: Greeting, peer: Greeting, purpose: LinkPurpose) -> str | None:
    one, other = own.hello, peer.hello
    if one.cluster_id and other.cluster_id and one.cluster_id != other.cluster_id:
        return (
            f"{other} belongs to cluster {other.cluster_id.hex()}, {one} to {one.cluster_id.hex()}: an address in the "
            "join list is wrong, or a data directory comes from another cluster"
        )
    if purpose is LinkPurpose.PASSING:
        return None
    for each in (one, other):
        if not each.cluster_id or not each.node_id:
            return NotYet(f"{each} has not {'started' if each.cluster_id else 'joined the cluster'} yet")
    return None


def _identities(own: Greeting, peer: Greeting, purpose: LinkPurpose) -> str | None:
    one, other = own.hello, peer.hello
    if one.process == other.process:
        return None if purpose is LinkPurpose.PASSING else f"{other} has dialled itself"
    if one.node_id and one.node_id == other.node_id:
        return (
            f"{other} and {one} have the same id: one of their data directories is a copy; stop the copy, remove its "
            "data directory and let it join as a new node"
        )
    return None


def _join_lists(own: Greeting, peer: Greeting, _: LinkPurpose) -> str | None:
    one, other = own.hello, peer.hello
    if not one.join_hash or not other.join_hash or one.join_hash == other.join_hash:
        return None
    return (
        f"{other} and {one} have different lists of nodes: cluster.join, or peers in front of Kafka, must name the "
        "same addresses on all of them, in any order"
    )


def _secrets(own: Greeting, peer: Greeting, _: LinkPurpose) -> str | None:
    if own.proves == peer.proves:
        return None
    lacks = peer.hello if own.proves else own.hello
    return f"{lacks} has no shared secret: set cluster.secret_file there, as on the other nodes"
