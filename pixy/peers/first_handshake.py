"""The handshake of protocol 1, for both sides: older nodes speak no other.

    dialling side                      listening side
    HELLO                  ->
                           <-          HELLO, PROOF
    checks, decides
    PROOF                  ->
                                       checks, decides
                           <-          ACCEPTED

Both greetings are sent before anything is proven, with the secret of the node, and the listening
side proves the shared secret first: whoever comes learns both greetings, and gets an HMAC of bytes
that it knows. So it is spoken only while a node of the cluster may know no other protocol, and then

    as the dialling side    behind a refusal of protocol 2; in passing without id and secret
    as the listening side   with a node that has named its id and has the secret of that node, or
                            with one that asks in passing, which gets no secret

The proof is HMAC-SHA256 with the shared secret over the role of the prover and both greetings. A
greeting of protocol 1 of a node that speaks a newer one says so, under the proof: both sides refuse
it then, since somebody else must have refused protocol 2.
"""

import hmac
from collections.abc import Sequence

from pixy.peers.frames import ACCEPTED, HELLO, PROOF, Payload
from pixy.peers.handshake_checks import reason_to_refuse
from pixy.peers.handshake_side import HandshakeSide, HandshakeState, NotYet, Outgoing
from pixy.peers.hello import PROTOCOL_MAX, Greeting

_FIRST = 1


class FirstHandshake(HandshakeSide):
    """One side; see `HandshakeSide`."""

    protocol = _FIRST

    def __init__(self, secrets: Sequence[bytes], own: Greeting | None = None, expected: int = 0) -> None:
        super().__init__(secrets, HandshakeState.AWAITS_HELLO, own, expected)
        self._own_bytes = b"" if own is None else own.encode(with_secret=True)
        self._peer_bytes = b""

    def begin(self) -> Sequence[Outgoing]:
        """See `HandshakeSide`."""
        return [(HELLO, self._own_bytes)] if self._dials else []

    def greet(self, own: Greeting) -> Sequence[Outgoing]:
        """See `HandshakeSide`."""
        assert self.state is HandshakeState.AWAITS_GREETING
        assert self.peer is not None
        self._own, self._own_bytes = own, own.encode(with_secret=True)
        reason = self._why_refused(own, self.peer)
        if reason is not None:
            return self.refuse(reason)
        self.state = HandshakeState.AWAITS_PROOF
        return [(HELLO, self._own_bytes), (PROOF, self._proof(*self._parts(by_dialler=False)))]

    def decide(self, reason: str | None) -> Sequence[Outgoing]:
        """See `HandshakeSide`."""
        assert self.state is HandshakeState.AWAITS_DECISION
        if reason is not None:
            return self.refuse(reason)
        if self._dials:
            self.state = HandshakeState.AWAITS_VERDICT
            return [(PROOF, self._proof(*self._parts(by_dialler=True)))]
        self.state = HandshakeState.ACCEPTED
        return [(ACCEPTED, b"")]

    def has_secret(self, secret: bytes) -> bool:
        """See `HandshakeSide`."""
        assert self.peer is not None
        return bool(secret) and hmac.compare_digest(self.peer.hello.secret, secret)

    def _receive(self, kind: int, payload: Payload) -> Sequence[Outgoing] | None:
        if kind == HELLO and self.state is HandshakeState.AWAITS_HELLO:
            return self._on_hello(payload)
        if kind == PROOF and self.state is HandshakeState.AWAITS_PROOF:
            return self._on_proof(payload)
        if kind == ACCEPTED and self.state is HandshakeState.AWAITS_VERDICT:
            self.state = HandshakeState.ACCEPTED
            return []
        return None

    def _on_hello(self, payload: Payload) -> Sequence[Outgoing]:
        self._peer_bytes = bytes(payload)
        self.peer = Greeting.decode(payload)
        if self._own is None:
            self.state = HandshakeState.AWAITS_GREETING
            return []
        reason = self._why_refused(self._own, self.peer)
        if reason is not None:
            return self.refuse(reason)
        self.state = HandshakeState.AWAITS_PROOF
        return []

    def _why_refused(self, own: Greeting, peer: Greeting) -> str | None:
        if peer.protocols[1] > _FIRST:
            return NotYet(f"{peer.hello} speaks peer protocol {PROTOCOL_MAX}, and has to begin with it")
        if own.proves != peer.proves:
            lacks = peer.hello if own.proves else own.hello
            return f"{lacks} has no shared secret: set cluster.secret_file there, as on the other nodes"
        dialler, expected = (own, self._expected) if self._dials else (peer, 0)
        return reason_to_refuse(own, peer, dialler.purpose, expected)

    def _on_proof(self, payload: Payload) -> Sequence[Outgoing]:
        parts = self._parts(by_dialler=not self._dials)
        return self._take_proof(payload, parts, HandshakeState.AWAITS_DECISION)

    def _parts(self, *, by_dialler: bool) -> tuple[bytes, ...]:
        both = (self._own_bytes, self._peer_bytes)
        dialler, listener = both if self._dials else reversed(both)
        return b"pixy peers", b"dialler" if by_dialler else b"listener", dialler, listener
