"""Protocol 1 during a rolling upgrade: with a node that speaks nothing else, and with others."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from pixy.errors import PeerRefused
from pixy.peers import Address, Claim, NotYet, PeerOptions
from pixy.peers.first_handshake import FirstHandshake
from pixy.peers.frames import ANSWER, CALL, HELLO, MESSAGE, NOT_YET, REFUSED
from pixy.peers.handshake_side import HandshakeSide, HandshakeState, Outgoing
from pixy.peers.hello import Greeting, LinkPurpose, begins_first
from tests.fakes.waiting import until
from tests.peers.support import LOOPBACK, PeerNode, hello_of, peer_nodes
from tests.peers.test_link import RawPeer, raw_peer

SECRET = b"0123456789abcdef" * 4
OPTIONS = PeerOptions(address=LOOPBACK, secrets=lambda: (SECRET,), retry_s=0.01)


def old_greeting(node_id: int, purpose: LinkPurpose = LinkPurpose.MAIN) -> Greeting:
    return Greeting(hello_of(node_id), purpose, bytes([node_id]) * 32, True, (1, 1))


class OldHandshake(FirstHandshake):
    """A side of a release that knows of no later protocol."""

    def _why_refused(self, own: Greeting, peer: Greeting) -> None:
        assert own.protocols[0] == peer.protocols[0] == 1


class OldNode:
    """A node of protocol 1, as far as its handshakes.

    Attributes:
        heard: payloads of HELLO frames, in the order of their arrival.
        messages: payloads of messages.
    """

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self.heard: list[bytes] = []
        self.messages: list[bytes] = []
        self.address = LOOPBACK

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Accept a connection."""
        peer = RawPeer(reader, writer)
        side = OldHandshake([SECRET])
        try:
            while side.state is not HandshakeState.ACCEPTED:
                kind, *_, payload = await peer.read()
                if kind == HELLO:
                    self.heard.append(bytes(payload))
                    if not begins_first(payload):
                        # It takes the frame for the greeting of a node that is too new.
                        peer.send(REFUSED, b"speaks peer protocols from 2 on, up to 1: update this one")
                        return
                send_all(peer, [*side.receive(kind, bytes(payload)), *act(side, self._node_id)])
            await self._take(peer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _take(self, peer: RawPeer) -> None:
        while True:
            kind, _, _, number, payload = await peer.read()
            if kind == MESSAGE:
                self.messages.append(bytes(payload))
            elif kind == CALL:
                peer.send(ANSWER, b"old", number=number)


def act(side: HandshakeSide, node_id: int) -> Sequence[Outgoing]:
    if side.state is HandshakeState.AWAITS_GREETING:
        return side.greet(old_greeting(node_id))
    return side.decide(None) if side.state is HandshakeState.AWAITS_DECISION else ()


def send_all(peer: RawPeer, frames: Sequence[Outgoing]) -> None:
    for kind, payload in frames:
        peer.send(kind, payload)


@asynccontextmanager
async def old_node(node_id: int) -> AsyncIterator[OldNode]:
    node = OldNode(node_id)
    server = await asyncio.start_server(node.serve, *LOOPBACK)
    node.address = Address(*server.sockets[0].getsockname())
    try:
        yield node
    finally:
        server.close()
        await server.wait_closed()


async def shake_hands(peer: RawPeer, greeting: Greeting) -> tuple[FirstHandshake, int]:
    """Dial with protocol 1; returns the handshake, and the number of frames that were answered."""
    side = OldHandshake([SECRET], greeting)
    send_all(peer, side.begin())
    answered = 0
    while side.state not in (HandshakeState.ACCEPTED, HandshakeState.REFUSED):
        kind, *_, payload = await peer.read()
        answered += 1
        frames = list(side.receive(kind, bytes(payload)))
        if side.state is HandshakeState.AWAITS_DECISION:
            frames += side.decide(None)
        send_all(peer, frames)
    return side, answered


async def test_an_old_node_is_dialled_with_its_protocol_while_there_may_be_some() -> None:
    async with old_node(2) as old, peer_nodes(1, OPTIONS) as (node,):
        node.falls_back = True
        claims: list[Claim] = []
        node.recognize = claims.append
        node.channel.connect(2, old.address)
        await until(lambda: node.ups == [2])
        assert node.channel.send(2, 1, [b"raft"])
        await until(lambda: old.messages == [b"raft"])
        assert await node.channel.call(2, 1, b"", 60.0) == b"old"
        assert {(claim.protocol, claim.dialled) for claim in claims} == {(1, True)}
        assert claims[0].has_secret(hello_of(2).secret)


async def test_an_old_node_learns_nothing_once_all_speak_the_new_protocol() -> None:
    async with old_node(2) as old, peer_nodes(1, OPTIONS) as (node,):
        node.channel.connect(2, old.address)
        await until(lambda: "refuses peer protocol 2, and no other is spoken here" in node.channel.trouble(2))
        with pytest.raises(PeerRefused, match="update this one"):
            await node.channel.ask(old.address, 60.0)
        assert old.heard
        assert not any(begins_first(each) or node.hello.cluster_id in each for each in old.heard)


async def test_a_question_in_the_old_protocol_names_no_node() -> None:
    async with old_node(2) as old, peer_nodes(1, OPTIONS) as (node,):
        node.falls_back = True
        assert (await node.channel.ask(old.address, 60.0)).node_id == 2
        asked = Greeting.decode(old.heard[-1]).hello
        assert (asked.node_id, asked.secret) == (0, b"")


async def answer_to(node: PeerNode, greeting: Greeting) -> tuple[HandshakeSide, int]:
    async with raw_peer(node) as peer:
        return await shake_hands(peer, greeting)


async def test_an_old_node_is_answered_while_there_may_be_some() -> None:
    async with peer_nodes(1, OPTIONS) as (node,):
        node.falls_back = True
        side, _ = await answer_to(node, old_greeting(9))
        assert side.state is HandshakeState.ACCEPTED
        assert side.has_secret(node.hello.secret), "as its release wants"
        side, _ = await answer_to(
            node, replace(old_greeting(9), hello=hello_of(0), purpose=LinkPurpose.PASSING)
        )
        assert side.state is HandshakeState.ACCEPTED
        assert side.peer is not None
        assert side.peer.hello.secret == b"", "whoever asks gets no secret"


@pytest.mark.parametrize("purpose", list(LinkPurpose))
@pytest.mark.parametrize("falls_back", [False, True])
async def test_an_old_node_that_may_not_be_one_gets_a_reason_and_nothing_else(
    falls_back: bool, purpose: LinkPurpose
) -> None:
    async with peer_nodes(1, OPTIONS) as (node,):
        node.falls_back = falls_back
        node.recognize = lambda claim: None if claim.has_secret(bytes(16)) else NotYet("not known")
        side, answered = await answer_to(node, old_greeting(9, purpose))
        assert side.state is HandshakeState.REFUSED
        assert (side.peer, answered) == (None, 1), "neither greeting nor proof"
        assert side.reason == ("not known" if falls_back else "protocol 1 is not spoken here")


async def test_a_node_that_speaks_both_has_to_begin_with_the_new_one() -> None:
    """Somebody else must have refused it."""
    async with peer_nodes(1, OPTIONS) as (node,), raw_peer(node) as peer:
        node.falls_back = True
        peer.send(HELLO, replace(old_greeting(9), protocols=(1, 2)).encode(with_secret=True))
        kind, *_, reason = await peer.read()
        assert kind == NOT_YET
        assert b"has to begin with it" in bytes(reason)
