"""One side of a handshake, whatever the protocol: its states, and refusals."""

import hmac
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum, auto
from typing import ClassVar

from pixy.peers.frames import NOT_YET, REFUSED, FrameDamage, Payload
from pixy.peers.hello import Greeting
from pixy.peers.texts import STRANGER_CHARACTERS_MAX, shown

_REASON_BYTES_MAX = 2000

_WRONG_SECRET = (
    "the shared secrets of the two nodes differ: cluster.secret_file must have the same content on all nodes"
)

Outgoing = tuple[int, bytes]
"""Kind and payload of a frame to send."""


class NotYet(str):
    """A reason to refuse a connection that passes by itself: one of the nodes starts or stops."""

    __slots__ = ()


class HandshakeState(Enum):
    """The next event of a handshake."""

    AWAITS_OPENING = auto()
    """HELLO with the other side's nonce."""
    AWAITS_SECRET = auto()
    """PROOF of the shared secret."""
    AWAITS_HELLO = auto()
    """HELLO of the other side."""
    AWAITS_GREETING = auto()
    """`greet` or `refuse`: the listening side knows for which cluster it is asked."""
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


class HandshakeSide(ABC):
    """One side of a handshake.

    Args:
        secrets: shared by all nodes: the first one is proven, each is accepted; none: no proofs.
        own: greeting of the dialling side; None: the listening side, whose greeting depends on what
            it is asked for.
        expected: id of the node that is dialled; 0: any.

    Attributes:
        protocol: its number.
        state: see `HandshakeState`.
        peer: greeting of the other side, once it has come.
        reason: text of a refusal; a `NotYet` if that passes by itself.
        by_peer: the other side has refused.
        refused_in: the state in which it did.
        is_proven: the other side has proven the shared secret, if there is one.
    """

    protocol: ClassVar[int]

    def __init__(
        self, secrets: Sequence[bytes], state: HandshakeState, own: Greeting | None, expected: int
    ) -> None:
        self._secrets = secrets
        self._own = own
        self._expected = expected
        self._dials = own is not None
        self.state = state
        self.peer: Greeting | None = None
        self.reason = ""
        self.by_peer = False
        self.refused_in: HandshakeState | None = None
        self.is_proven = False

    @abstractmethod
    def begin(self) -> Sequence[Outgoing]:
        """Frames to send when the connection is made."""

    def receive(self, kind: int, payload: Payload) -> Sequence[Outgoing]:
        """Take a frame.

        Returns:
            frames to send.

        Raises:
            FrameDamage: the other side does not follow the protocol.
        """
        if kind in (REFUSED, NOT_YET) and self.state not in _OVER:
            longest = _REASON_BYTES_MAX if self.is_proven else STRANGER_CHARACTERS_MAX
            reason = shown(memoryview(payload), longest)
            self.reason = NotYet(reason) if kind == NOT_YET else reason
            self.by_peer = True
            self.refused_in = self.state
            self.state = HandshakeState.REFUSED
            return []
        answer = self._receive(kind, payload)
        if answer is None:
            awaited = self.state.name.lower().replace("_", " ")
            raise FrameDamage(f"frame {kind} in a handshake that {awaited}")
        return answer

    @abstractmethod
    def _receive(self, kind: int, payload: Payload) -> Sequence[Outgoing] | None:
        """Take a frame that is no refusal; None if it is out of order."""

    @abstractmethod
    def greet(self, own: Greeting) -> Sequence[Outgoing]:
        """Answer a dialling side that has said what it asks for; returns frames to send."""

    @abstractmethod
    def decide(self, reason: str | None) -> Sequence[Outgoing]:
        """Refuse with a reason, or accept; returns frames to send."""

    @abstractmethod
    def has_secret(self, secret: bytes) -> bool:
        """True if the other side has proven to have this secret of a node."""

    def refuse(self, reason: str) -> Sequence[Outgoing]:
        """Refuse; returns frames to send."""
        assert self.state not in _OVER
        self.state = HandshakeState.REFUSED
        self.reason = reason
        kind = NOT_YET if isinstance(reason, NotYet) else REFUSED
        return [(kind, reason.encode()[:_REASON_BYTES_MAX])]

    def _is_proof(self, found: Payload, *parts: bytes) -> bool:
        """True if it is the proof of one of the shared secrets, or nothing if there is none."""
        if not self._secrets:
            return not found
        return any(hmac.compare_digest(bytes(found), proof_of(each, *parts)) for each in self._secrets)

    def _take_proof(self, found: Payload, parts: Sequence[bytes], then: HandshakeState) -> Sequence[Outgoing]:
        """Take the proof of the shared secret: go on with a state, or refuse; returns frames to
        send.
        """
        if not self._is_proof(found, *parts):
            return self.refuse(_WRONG_SECRET)
        self.is_proven = True
        self.state = then
        return []

    def _proof(self, *parts: bytes) -> bytes:
        """Proof of the shared secret, nothing if there is none."""
        return proof_of(self._secrets[0], *parts) if self._secrets else b""


def proof_of(secret: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 with a secret, over parts of known lengths."""
    text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.digest(secret, text, "sha256")
