"""The handshake of a connection, for both sides, without sockets: protocol 2.

    dialling side                      listening side
    HELLO: opening         ->
                           <-          HELLO: opening
    PROOF                  ->
                                       checks
                           <-          HELLO: greeting, PROOF
    checks, decides
    HELLO: greeting, PROOF ->
                                       checks, decides
                           <-          ACCEPTED

    HELLO, as an opening   a `pixy.peers.Hello` with the protocols of the side, 32 random bytes and
                           whether it has a shared secret; of the dialling side also purpose and
                           cluster. Nothing of it tells who that is.
    HELLO, as a greeting   a `pixy.peers.Hello` with everything but the secret of the node
    PROOF                  bytes 0 to 32, if there is a shared secret: HMAC-SHA256 with it
                           then 32 bytes, if the side names its node: HMAC-SHA256 with the secret of
                           that node

Both HMACs are over the name of the protocol, the role of the prover and all openings and greetings
that were sent before the frame, its own greeting included, each behind its length (4 bytes, big-
endian). So no secret is ever sent, and a proof holds for one connection and one direction only.

The dialling side proves the shared secret first: whoever else listens or dials learns neither who
the nodes are nor what they are, and only one who is dialled gets an HMAC of bytes that it knows.
The secret of a node is known to the other nodes from metadata: the layer above compares (`Claim`).

Either side says REFUSED with a reason instead, and closes, or NOT_YET while one of the two starts
or stops: nobody has to do anything about that. Each side checks by itself, so that both
logs say what is wrong, whoever has dialled:

    found                                            the connection is refused, because
    no protocol that both speak                      one of the two is to be updated
    a shared secret on one side only                 `cluster.secret_file` is missing there
    a proof that is wrong                            the shared secrets differ
    entry unknown on the listening side              it must be under `proxies` on all nodes
    main or bulk, and a side without cluster or id   only questions are allowed before it has joined
    other cluster id                                 an address or a data directory is wrong
    the same process, or the own id                  a node dials itself; a directory was copied
    another node than was dialled                    the address belongs to another node
    join lists that differ                           they must be the same on all nodes
    what the layer above finds (`decide`)            unknown or removed node, wrong secret of the
                                                     node, duplicate, older self

Nothing is compared or decided before the shared secret is proven, so nobody without it has an
effect.

A release that speaks protocol 1 alone takes an opening for the greeting of a node that is too new,
and refuses it. Where that may be (`first_handshake`), the dialling side tries protocol 1 then.

A passing connection to the own process is allowed: a node that asks all addresses of its join list
finds out by it which one is its own.
"""

import hmac
from collections.abc import Sequence

from pixy.peers.frames import ACCEPTED, HELLO, PROOF, FrameDamage, Payload
from pixy.peers.handshake_checks import reason_to_refuse
from pixy.peers.handshake_side import HandshakeSide, HandshakeState, Outgoing, proof_of
from pixy.peers.hello import Greeting, LinkPurpose, Opening

_NAME = b"pixy peers 2"
_PROOF_BYTES = 32


class Handshake(HandshakeSide):
    """One side; see `HandshakeSide`.

    Args:
        nonce: 32 random bytes.

    Attributes:
        opening: of the other side, once it has come.
    """

    protocol = 2

    def __init__(
        self, secrets: Sequence[bytes], nonce: bytes, own: Greeting | None = None, expected: int = 0
    ) -> None:
        super().__init__(secrets, HandshakeState.AWAITS_OPENING, own, expected)
        purpose, cluster = (LinkPurpose.MAIN, "") if own is None else (own.purpose, own.hello.cluster)
        self._own_opening = Opening(cluster, purpose, nonce, bool(secrets))
        # Openings and greetings so far, in the order in which they were sent.
        self._sent: list[bytes] = []
        # What the other side has proven of its node, and what it is a proof of.
        self._node_proof = b""
        self._node_proof_of: tuple[bytes, ...] = ()
        self.opening: Opening | None = None

    def begin(self) -> Sequence[Outgoing]:
        """See `HandshakeSide`."""
        return [self._open()] if self._dials else []

    def greet(self, own: Greeting) -> Sequence[Outgoing]:
        """See `HandshakeSide`."""
        assert self.state is HandshakeState.AWAITS_GREETING
        self._own = own
        self.state = HandshakeState.AWAITS_HELLO
        return self._greeting(own)

    def decide(self, reason: str | None) -> Sequence[Outgoing]:
        """See `HandshakeSide`."""
        assert self.state is HandshakeState.AWAITS_DECISION
        if reason is not None:
            return self.refuse(reason)
        if self._dials:
            assert self._own is not None
            self.state = HandshakeState.AWAITS_VERDICT
            return self._greeting(self._own)
        self.state = HandshakeState.ACCEPTED
        return [(ACCEPTED, b"")]

    def has_secret(self, secret: bytes) -> bool:
        """See `HandshakeSide`."""
        expected = proof_of(secret, *self._node_proof_of)
        return bool(secret) and hmac.compare_digest(self._node_proof, expected)

    # --- sending ----------------------------------------------------------------------------------

    def _open(self) -> Outgoing:
        opening = self._own_opening.encode()
        self._sent.append(opening)
        return HELLO, opening

    def _greeting(self, own: Greeting) -> Sequence[Outgoing]:
        greeting = own.encode(with_secret=False)
        self._sent.append(greeting)
        parts, secret = self._parts(by_dialler=self._dials), own.hello.secret
        proof = self._proof(*parts) + (proof_of(secret, *parts) if secret else b"")
        return [(HELLO, greeting), (PROOF, proof)]

    def _parts(self, *, by_dialler: bool) -> tuple[bytes, ...]:
        return _NAME, b"dialler" if by_dialler else b"listener", *self._sent

    # --- receiving --------------------------------------------------------------------------------

    def _receive(self, kind: int, payload: Payload) -> Sequence[Outgoing] | None:
        if kind == HELLO and self.state is HandshakeState.AWAITS_OPENING:
            return self._on_opening(payload)
        if kind == PROOF and self.state is HandshakeState.AWAITS_SECRET:
            return self._on_secret(payload)
        if kind == HELLO and self.state is HandshakeState.AWAITS_HELLO:
            self._sent.append(bytes(payload))
            self.peer = Greeting.decode(payload)
            if not self._dials and self.peer.purpose is not self.purpose:
                raise FrameDamage("a greeting has another purpose than its opening")
            self.state = HandshakeState.AWAITS_PROOF
            return []
        if kind == PROOF and self.state is HandshakeState.AWAITS_PROOF:
            return self._on_proof(payload)
        if kind == ACCEPTED and self.state is HandshakeState.AWAITS_VERDICT:
            self.state = HandshakeState.ACCEPTED
            return []
        return None

    def _on_opening(self, payload: Payload) -> Sequence[Outgoing]:
        opening = self.opening = Opening.decode(payload)
        self._sent.append(bytes(payload))
        reason = self._own_opening.why_refused(opening, dials=self._dials)
        if reason is not None:
            return self.refuse(reason)
        if self._dials:
            self.state = HandshakeState.AWAITS_HELLO
            return [(PROOF, self._proof(*self._parts(by_dialler=True)))]
        self.state = HandshakeState.AWAITS_SECRET
        return [self._open()]

    def _on_secret(self, payload: Payload) -> Sequence[Outgoing]:
        return self._take_proof(payload, self._parts(by_dialler=True), HandshakeState.AWAITS_GREETING)

    def _on_proof(self, payload: Payload) -> Sequence[Outgoing]:
        assert self._own is not None
        assert self.peer is not None
        parts = self._parts(by_dialler=not self._dials)
        size = _PROOF_BYTES if self._secrets else 0
        self._node_proof, self._node_proof_of = bytes(payload[size:]), parts
        answer = self._take_proof(payload[:size], parts, HandshakeState.AWAITS_DECISION)
        if self.state is HandshakeState.REFUSED:
            return answer
        reason = reason_to_refuse(self._own, self.peer, self.purpose, self._expected)
        return answer if reason is None else self.refuse(reason)

    @property
    def meets_first(self) -> bool:
        """True if the opening was refused: the other side may speak protocol 1 alone."""
        return self._dials and self.refused_in is HandshakeState.AWAITS_OPENING

    @property
    def purpose(self) -> LinkPurpose:
        """Use of the connection, as the dialling side has said."""
        if self._dials:
            return self._own_opening.purpose
        assert self.opening is not None
        return self.opening.purpose
