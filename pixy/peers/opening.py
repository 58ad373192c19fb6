"""Connections until their handshake is over: `Handshake` on a link, for both sides."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from pixy.aio.futures import reject, resolve
from pixy.errors import PeerRefused, Unavailable
from pixy.peers.environment import PeerEnvironment
from pixy.peers.first_handshake import FirstHandshake
from pixy.peers.frames import HELLO
from pixy.peers.handshake import Handshake
from pixy.peers.handshake_side import HandshakeSide, HandshakeState, NotYet, Outgoing
from pixy.peers.hello import Claim, Greeting, Hello, LinkPurpose, begins_first
from pixy.peers.link import PeerLink
from pixy.peers.slots import HandshakeSlots, SlotStage
from pixy.peers.tls import why_of_another_node

Judge = Callable[[Claim, LinkPurpose, Callable[[str | None], None]], None]
"""Decides about a node whose greeting has passed all checks, now or later, by a call with a reason
to refuse it, or None.
"""


def new_nonce(environment: PeerEnvironment) -> bytes:
    """Random bytes of a greeting."""
    return environment.random.randbytes(32)


class SpeaksFirst(Unavailable):
    """The other side has refused protocol 2 before it said anything: it may speak protocol 1."""


class _OpeningLink:
    """One side of a handshake on its link.

    Attributes:
        link: the connection.
    """

    def __init__(self, environment: PeerEnvironment, handshake: HandshakeSide, *, dials: bool) -> None:
        self._environment = environment
        self._handshake = handshake
        self._dials = dials
        self.link = PeerLink(self, environment)

    def made(self) -> None:
        """See `LinkOwner`."""
        self._send(self._handshake.begin())

    def received(
        self, kind: int, method: int, milliseconds: int, number: int, payload: bytes | memoryview
    ) -> None:
        """See `LinkOwner`."""
        self._send(self._handshake.receive(kind, payload))
        self._advance()

    def lost(self, reason: str, *, silent: bool) -> None:
        """See `LinkOwner`."""
        raise NotImplementedError

    def _send(self, frames: Sequence[Outgoing]) -> None:
        for kind, payload in frames:
            self.link.send(kind, 0, 0, 0, (payload,))

    def _advance(self) -> None:
        """Do what the state of the handshake asks for."""
        handshake, peer = self._handshake, self._handshake.peer
        if handshake.state is HandshakeState.REFUSED:
            self._refused(handshake.reason, by_peer=handshake.by_peer)
            self.link.close(handshake.reason, tell=False)
        elif handshake.state is HandshakeState.AWAITS_GREETING:
            self._greet()
        elif peer is None:
            return
        elif handshake.state is HandshakeState.AWAITS_DECISION:
            reason = why_of_another_node(self.link.certificate, peer.hello)
            if reason is None:
                self._judge(self._claim(peer), peer.purpose)
            else:
                self._decided(reason)
        elif handshake.state is HandshakeState.ACCEPTED:
            self._opened(peer)

    def _claim(self, peer: Greeting) -> Claim:
        handshake = self._handshake
        return Claim(peer.hello, self._dials, handshake.has_secret, handshake.protocol)

    def _decided(self, reason: str | None) -> None:
        if self.link.is_open:
            self._send(self._handshake.decide(reason))
            self._advance()

    def _greet(self) -> None:
        raise NotImplementedError

    def _judge(self, peer: Claim, purpose: LinkPurpose) -> None:
        raise NotImplementedError

    def _opened(self, peer: Greeting) -> None:
        raise NotImplementedError

    def _refused(self, reason: str, *, by_peer: bool) -> None:
        raise NotImplementedError


class DiallingLink(_OpeningLink):
    """A connection that this node has dialled.

    Args:
        handshake: the dialling side of one.
        purpose: use of the connection.
        judge: see `Judge`.
        opened: called once the link is open; the owner of the link is to be replaced then.

    Attributes:
        outcome: completed when the connection is open. Fails with `PeerRefused`, with `Unavailable`
            if one of the two nodes starts or stops, with `SpeaksFirst`, or with `ConnectionError`.
    """

    def __init__(
        self,
        environment: PeerEnvironment,
        handshake: HandshakeSide,
        purpose: LinkPurpose,
        judge: Judge,
        opened: Callable[[PeerLink, Hello], None],
    ) -> None:
        super().__init__(environment, handshake, dials=True)
        self._purpose = purpose
        self._judge_peer = judge
        self._announce = opened
        self.outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def made(self) -> None:
        """See `LinkOwner`."""
        if self.outcome.done():
            self.link.abort("no longer wanted")
        else:
            super().made()

    def end(self, *, keep: bool) -> None:
        """The outcome is known, or of no interest any more.

        Args:
            keep: the link is open and stays.
        """
        if not self.outcome.done():
            self.outcome.cancel()
        elif not self.outcome.cancelled():
            self.outcome.exception()  # or the loop reports that nobody has seen it
        if not keep:
            self.link.abort("no longer wanted")

    def lost(self, reason: str, *, silent: bool) -> None:
        """See `LinkOwner`."""
        reject(self.outcome, ConnectionError(f"the handshake was cut short: {reason}"))

    def _judge(self, peer: Claim, purpose: LinkPurpose) -> None:
        self._judge_peer(peer, self._purpose, self._decided)

    def _opened(self, peer: Greeting) -> None:
        self._announce(self.link, peer.hello)
        resolve(self.outcome, None)

    def _refused(self, reason: str, *, by_peer: bool) -> None:
        who = "the peer refuses this node" if by_peer else "this node refuses the peer"
        is_passing = isinstance(reason, NotYet)
        if isinstance(self._handshake, Handshake) and self._handshake.meets_first:
            reject(self.outcome, SpeaksFirst(reason))
        reject(self.outcome, Unavailable(reason) if is_passing else PeerRefused(f"{who}: {reason}"))


class Acceptor(Protocol):
    """A cluster whose connections are accepted."""

    def hello(self, purpose: LinkPurpose) -> Hello:
        """This node's description of itself, for a connection of this use."""

    def why_not_first(self, peer: Greeting, claim: Claim) -> str | None:
        """Reason not to answer a node that dials with protocol 1, before it has proven anything."""

    def judge(self, peer: Claim, purpose: LinkPurpose, then: Callable[[str | None], None]) -> None:
        """See `Judge`."""

    def visited(self, host: str) -> None:
        """See `PeerHooks.on_visit`."""

    def accepted(self, link: PeerLink, peer: Greeting) -> None:
        """The handshake is over; the owner of the link is to be replaced."""


class AcceptingLink(_OpeningLink):
    """A connection that a peer has dialled.

    Args:
        find: the cluster of an entry under `proxies`, or a reason to refuse.
        slots: the accepted connections that are not open yet.
    """

    def __init__(
        self,
        environment: PeerEnvironment,
        find: Callable[[str], "Acceptor | str"],
        slots: "HandshakeSlots[AcceptingLink]",
    ) -> None:
        self._secrets = environment.options.secrets()
        self._nonce = new_nonce(environment)
        super().__init__(environment, Handshake(self._secrets, self._nonce), dials=False)
        self._find = find
        self._slots = slots
        self._acceptor: Acceptor | None = None
        self._timer: asyncio.TimerHandle | None = None

    def made(self) -> None:
        """See `LinkOwner`."""
        options = self._environment.options
        gone = self._slots.add(self, self.link.host)
        _make_room(gone)
        if gone is self:
            return
        self._timer = asyncio.get_running_loop().call_later(
            options.handshake_s, self.link.abort, f"no handshake within {options.handshake_s:.3g} s"
        )

    def received(
        self, kind: int, method: int, milliseconds: int, number: int, payload: bytes | memoryview
    ) -> None:
        """See `LinkOwner`."""
        is_first = kind == HELLO and self._handshake.state is HandshakeState.AWAITS_OPENING
        if is_first and begins_first(payload):
            self._handshake = FirstHandshake(self._secrets)
        super().received(kind, method, milliseconds, number, payload)
        is_proven = bool(self._secrets) and self._handshake.is_proven
        _make_room(self._slots.reached(self, SlotStage.PROVEN if is_proven else SlotStage.HEARD))

    def lost(self, reason: str, *, silent: bool) -> None:
        """See `LinkOwner`."""
        self._over()
        if self._handshake.state is not HandshakeState.REFUSED:
            self._environment.refusals.strangers.write(
                "info",
                "a connection has ended in its handshake",
                asyncio.get_running_loop().time(),
                peer=self.link.peer,
                reason=reason,
            )

    def _over(self) -> None:
        self._slots.remove(self)
        if self._timer is not None:
            self._timer.cancel()

    def _greet(self) -> None:
        handshake = self._handshake
        if isinstance(handshake, Handshake):
            assert handshake.opening is not None
            cluster, purpose = handshake.opening.cluster, handshake.purpose
        else:
            assert handshake.peer is not None
            cluster, purpose = handshake.peer.hello.cluster, handshake.peer.purpose
        found = self._find(cluster)
        reason = found if isinstance(found, str) else self._why_not_first(found)
        if isinstance(found, str) or reason is not None:
            self._send(handshake.refuse(reason or ""))
        else:
            self._acceptor = found
            if isinstance(handshake, Handshake) and purpose is not LinkPurpose.PASSING:
                found.visited(self.link.host)
            has_id = handshake.peer is not None and handshake.peer.hello.node_id
            hello = found.hello(LinkPurpose.MAIN if has_id else purpose)
            self._send(handshake.greet(Greeting(hello, purpose, self._nonce, bool(self._secrets))))
        self._advance()

    def _why_not_first(self, found: Acceptor) -> str | None:
        peer = self._handshake.peer
        if isinstance(self._handshake, Handshake) or peer is None:
            return None
        return found.why_not_first(peer, self._claim(peer))

    def _judge(self, peer: Claim, purpose: LinkPurpose) -> None:
        assert self._acceptor is not None
        self._acceptor.judge(peer, purpose, self._decided)

    def _opened(self, peer: Greeting) -> None:
        assert self._acceptor is not None
        self._over()
        self._acceptor.accepted(self.link, peer)

    def _refused(self, reason: str, *, by_peer: bool) -> None:
        peer = self._handshake.peer
        who = str(peer.hello) if peer else "a peer"
        now = asyncio.get_running_loop().time()
        self._environment.refusals.note(who, self.link.peer, reason, now, by_peer=by_peer)


def _make_room(gone: AcceptingLink | None) -> None:
    if gone is not None:
        gone.link.abort("too many connections are in their handshake")
