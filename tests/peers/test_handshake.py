"""The handshakes of both protocols: frames, and every reason to refuse, as both sides see it."""

import re
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from pixy.peers.first_handshake import FirstHandshake
from pixy.peers.frames import ACCEPTED, HELLO, NOT_YET, PROOF, REFUSED, FrameDamage
from pixy.peers.handshake import Handshake
from pixy.peers.handshake_checks import unknown_entry
from pixy.peers.handshake_side import HandshakeSide, HandshakeState, NotYet, Outgoing
from pixy.peers.hello import Greeting, LinkPurpose, Opening
from tests.peers.support import hello_of

MAIN, BULK, PASSING = LinkPurpose.MAIN, LinkPurpose.BULK, LinkPurpose.PASSING
OVER = (HandshakeState.ACCEPTED, HandshakeState.REFUSED)
SECRET = b"the secret of all nodes"
PROTOCOLS = (1, 2)


def side_of(protocol: int, secret: bytes, own: Greeting | None = None, expected: int = 0) -> HandshakeSide:
    """One side of a handshake; without `own` the listening one."""
    secrets = [secret] if secret else []
    if protocol == 1:
        return FirstHandshake(secrets, own, expected)
    return Handshake(secrets, bytes([expected + 50 if own is None else 200]) * 32, own, expected)


def greeting(
    node_id: int,
    purpose: LinkPurpose = MAIN,
    *,
    proves: bool = False,
    **changes: Any,
) -> Greeting:
    nonce = bytes([node_id + 100]) * 32
    return Greeting(hello_of(node_id, **changes), purpose, nonce, proves, (1, 1))


class Pair:
    """Both sides of a handshake, and the frames that pass between them.

    Attributes:
        sent: (sent by the dialling side, kind), in order.
    """

    def __init__(
        self,
        dials: Greeting,
        listens: Greeting | str,
        secrets: tuple[bytes, bytes] = (b"", b""),
        *,
        expected: int = 2,
        admits: tuple[str | None, str | None] = (None, None),
        change: Callable[[int, bytes], bytes] = lambda _, payload: payload,
        protocol: int = 2,
    ) -> None:
        self.dialler = side_of(protocol, secrets[0], dials, expected)
        self.listener = side_of(protocol, secrets[1])
        self._listens = listens
        self._admits = admits
        self._change = change
        self.sent: list[tuple[bool, int]] = []
        self._pass(self.dialler.begin(), by_dialler=True)

    def _pass(self, frames: Any, *, by_dialler: bool) -> None:
        """Hand frames to the other side, and what it answers to this one."""
        other = self.listener if by_dialler else self.dialler
        for kind, payload in frames:
            self.sent.append((by_dialler, kind))
            if other.state in OVER:
                continue
            answers = list(other.receive(kind, self._change(kind, payload)))
            answers += self._act(other)
            self._pass(answers, by_dialler=not by_dialler)

    def _act(self, side: HandshakeSide) -> list[Outgoing]:
        if side.state is HandshakeState.AWAITS_GREETING:
            listens = self._listens
            return list(side.refuse(listens) if isinstance(listens, str) else side.greet(listens))
        if side.state is HandshakeState.AWAITS_DECISION:
            return list(side.decide(self._admits[side is self.listener]))
        return []

    @property
    def states(self) -> tuple[HandshakeState, HandshakeState]:
        return self.dialler.state, self.listener.state


FRAMES = {
    1: [(True, HELLO), (False, HELLO), (False, PROOF), (True, PROOF), (False, ACCEPTED)],
    2: [
        (True, HELLO),
        (False, HELLO),
        (True, PROOF),
        (False, HELLO),
        (False, PROOF),
        (True, HELLO),
        (True, PROOF),
        (False, ACCEPTED),
    ],
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_two_nodes_of_a_cluster_accept_each_other(protocol: int) -> None:
    pair = Pair(greeting(1), greeting(2), protocol=protocol)
    assert pair.states == (HandshakeState.ACCEPTED, HandshakeState.ACCEPTED)
    assert pair.sent == FRAMES[protocol]
    for side, node_id in ((pair.dialler, 2), (pair.listener, 1)):
        assert side.peer is not None
        assert side.peer.hello == hello_of(node_id, secret=side.peer.hello.secret)
        assert side.has_secret(hello_of(node_id).secret)
        assert not any(map(side.has_secret, (b"", bytes(16), hello_of(3 - node_id).secret)))


def payloads_of(dials: Greeting, listens: Greeting, protocol: int, secret: bytes = SECRET) -> list[bytes]:
    """Payloads of all frames of a handshake that succeeds."""
    payloads: list[bytes] = []

    def see(_: int, payload: bytes) -> bytes:
        payloads.append(payload)
        return payload

    pair = Pair(dials, listens, (secret, secret), change=see, protocol=protocol)
    assert pair.states == (HandshakeState.ACCEPTED, HandshakeState.ACCEPTED)
    return payloads


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("purpose", list(LinkPurpose))
def test_a_shared_secret_is_proven_and_never_sent(purpose: LinkPurpose, protocol: int) -> None:
    payloads = payloads_of(greeting(1, purpose, proves=True), greeting(2, proves=True), protocol)
    assert not any(SECRET in payload for payload in payloads)
    proofs = [payload[:32] for payload in payloads if len(payload) in (32, 64)]
    assert len(set(proofs)) == len(proofs) == protocol + 1, "each proof is another"


@pytest.mark.parametrize("secret", [b"", SECRET])
def test_the_secret_of_a_node_is_proven_and_never_sent(secret: bytes) -> None:
    proves = bool(secret)
    payloads = payloads_of(greeting(1, proves=proves), greeting(2, proves=proves), 2, secret)
    assert not any(hello_of(node).secret in payload for node in (1, 2) for payload in payloads)


def test_nothing_tells_who_a_node_is_before_both_know_the_secret() -> None:
    """The opening of the dialling side names the cluster, which the listening side has to know."""
    identity = (
        b"node1:1",
        b"node2:1",
        hello_of(1).cluster_id,
        hello_of(1).process,
        hello_of(2).process,
        b"1.0",
    )
    payloads = payloads_of(greeting(1, proves=True), greeting(2, proves=True), 2)
    for opening in payloads[:3]:
        assert not any(each in opening for each in identity)
    assert all(each in payloads[3] + payloads[5] for each in identity)


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_stranger_without_the_secret_learns_nothing(wrong: int) -> None:
    """Neither one that dials, which gets no proof, nor one that listens."""
    learnt: list[bytes] = []

    def see(_: int, payload: bytes) -> bytes:
        learnt.append(payload)
        return payload

    secrets = (b"guessed", SECRET) if wrong == 0 else (SECRET, b"guessed")
    pair = Pair(greeting(1, proves=True), greeting(2, proves=True), secrets, change=see)
    assert pair.states == (HandshakeState.REFUSED, HandshakeState.REFUSED)
    assert pair.dialler.peer is pair.listener.peer is None
    assert pair.sent == [(True, HELLO), (False, HELLO), (True, PROOF), (False, REFUSED)]
    text = b"".join(learnt)
    assert not any(each in text for each in (b"node1", b"node2", hello_of(1).cluster_id, b"1.0"))


def test_two_secrets_are_accepted_and_the_first_one_is_proven() -> None:
    def pair_of(dials: list[bytes], listens: list[bytes]) -> bool:
        dialler = Handshake(dials, bytes(32), greeting(1, proves=True))
        listener = Handshake(listens, b"n" * 32)
        ((_, opening),) = dialler.begin()
        ((_, answer),) = listener.receive(HELLO, opening)
        ((_, proof),) = dialler.receive(HELLO, answer)
        if listener.receive(PROOF, proof):
            return False
        (_, hello), (_, proof) = listener.greet(greeting(2, proves=True))
        dialler.receive(HELLO, hello)
        dialler.receive(PROOF, proof)
        return dialler.state is HandshakeState.AWAITS_DECISION

    old, new = b"the old secret", b"the new secret"
    # Every two neighbouring steps of a change, in both directions.
    steps = [[old], [old, new], [new, old], [new]]
    for one, other in [(steps[0], steps[1]), (steps[1], steps[2]), (steps[2], steps[3])]:
        assert pair_of(one, other)
        assert pair_of(other, one)
    assert not pair_of([old], [new, new])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_node_proves_no_secret_that_it_does_not_have(protocol: int) -> None:
    copy = greeting(1, secret=b"another secret 1")
    pair = Pair(copy, greeting(2), protocol=protocol)
    assert not pair.listener.has_secret(hello_of(1).secret)
    assert pair.listener.has_secret(b"another secret 1")
    nameless = Pair(greeting(1, secret=b""), greeting(2), protocol=protocol)
    assert not any(map(nameless.listener.has_secret, (b"", hello_of(1).secret)))


def test_proofs_of_another_connection_prove_nothing() -> None:
    """Frames of a node that a stranger has seen, sent once more."""
    seen = payloads_of(greeting(1, proves=True), greeting(2, proves=True), 2)
    listener = Handshake([SECRET], b"another nonce".ljust(32))
    listener.receive(HELLO, seen[0])
    ((kind, _),) = listener.receive(PROOF, seen[2])
    assert kind == REFUSED


REFUSED_ON_BOTH_SIDES: dict[str, tuple[Greeting, Greeting | str, str]] = {
    "unknown entry": (greeting(1), unknown_entry("default"), 'no embedded cluster "default" is configured'),
    "other entry": (greeting(1), greeting(2, cluster="other"), 'no embedded cluster "(default|other)"'),
    "wrong cluster": (
        greeting(1, cluster_id=b"x" * 16),
        greeting(2),
        f"(belongs to cluster|to) {(b'x' * 16).hex()}.* an address in the join list is wrong.*pixy cluster recover",
    ),
    "main before it has joined": (
        greeting(1, cluster_id=b""),
        greeting(2),
        "node 1 at node1:1 has not joined",
    ),
    "bulk before it has an id": (
        greeting(0, BULK),
        greeting(2),
        "the node without an id at node0:1 has not started",
    ),
    "dialled before it has joined": (greeting(1), greeting(0), "the node without an id .* has not started"),
    "itself": (
        greeting(1),
        greeting(2, process=hello_of(1).process),
        "node [12] at node[12]:1 has dialled itself",
    ),
    "own id": (
        greeting(2, process=b"original"),
        greeting(2),
        "have the same id: one of their data directories is a copy; stop the copy",
    ),
    "own id in passing": (greeting(2, PASSING, process=b"original"), greeting(2), "have the same id"),
    "other join list": (
        greeting(1, join_hash=b"a" * 32),
        greeting(2, join_hash=b"b" * 32),
        "different lists of nodes: cluster.join, or peers in front of Kafka, must name the same addresses on all",
    ),
    "no secret on the dialling side": (
        greeting(1),
        greeting(2, proves=True),
        "(node 1 at node1:1|the node that dials) has no shared secret: set cluster.secret_file there",
    ),
    "no secret on the listening side": (
        greeting(1, proves=True),
        greeting(2),
        "(node 2 at node2:1|the node that was dialled) has no shared secret: set cluster.secret_file there",
    ),
}


PASSING_BY_THEMSELVES = {
    "main before it has joined",
    "bulk before it has an id",
    "dialled before it has joined",
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", REFUSED_ON_BOTH_SIDES)
def test_one_side_refuses_and_both_know_why(name: str, protocol: int) -> None:
    dials, listens, reason = REFUSED_ON_BOTH_SIDES[name]
    pair = Pair(dials, listens, (secret_of(dials), secret_of(listens)), protocol=protocol)
    assert pair.states == (HandshakeState.REFUSED, HandshakeState.REFUSED)
    refuses, refused = sorted((pair.dialler, pair.listener), key=lambda side: side.by_peer)
    assert refused.reason == refuses.reason[: 2000 if refused.is_proven else 200]
    assert re.search(reason, refuses.reason), refuses.reason
    assert pair.dialler.by_peer != pair.listener.by_peer
    passes = [isinstance(side.reason, NotYet) for side in (pair.dialler, pair.listener)]
    assert passes == [name in PASSING_BY_THEMSELVES] * 2


def secret_of(greeting: Greeting | str) -> bytes:
    return SECRET if isinstance(greeting, Greeting) and greeting.proves else b""


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_address_of_another_node_is_refused_by_the_dialling_side(protocol: int) -> None:
    pair = Pair(greeting(1), greeting(3), expected=2, protocol=protocol)
    assert pair.states == (HandshakeState.REFUSED, HandshakeState.REFUSED)
    assert pair.listener.by_peer
    assert re.search("node 2 was dialled, node 3 at node3:1 has answered", pair.dialler.reason)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("wrong", [0, 1])
def test_a_wrong_secret_is_refused_before_anybody_decides(wrong: int, protocol: int) -> None:
    secrets = [SECRET, SECRET]
    secrets[wrong] = b"another"
    pair = Pair(
        greeting(1, proves=True),
        greeting(2, proves=True),
        (secrets[0], secrets[1]),
        admits=("decided", "decided"),
        protocol=protocol,
    )
    assert pair.states == (HandshakeState.REFUSED, HandshakeState.REFUSED)
    assert pair.dialler.reason == pair.listener.reason
    assert "cluster.secret_file must have the same content on all nodes" in pair.dialler.reason


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("refuses", [0, 1])
def test_what_the_layer_above_refuses_is_refused_on_both_sides(refuses: int, protocol: int) -> None:
    reason = "node is an older self: forget it"
    admits = (reason, None) if refuses == 0 else (None, reason)
    pair = Pair(greeting(1), greeting(2), admits=admits, protocol=protocol)
    assert pair.states == (HandshakeState.REFUSED, HandshakeState.REFUSED)
    assert pair.dialler.reason == pair.listener.reason == reason
    assert (pair.dialler.by_peer, pair.listener.by_peer) == (refuses == 1, refuses == 0)


@pytest.mark.parametrize("dials", [True, False])
def test_a_side_of_a_newer_protocol_is_refused_with_the_side_to_update(dials: bool) -> None:
    newer = Opening("default", MAIN, bytes(32), False, (3, 4)).encode()
    side = Handshake([], bytes(32), greeting(1) if dials else None)
    ((kind, text),) = side.receive(HELLO, newer)
    assert kind == REFUSED
    assert b"speaks peer protocols from 3 on" in text
    assert (b"that dials up to 2: update that one" in text) == dials


@pytest.mark.parametrize("dials", [True, False])
def test_protocol_1_is_not_spoken_with_a_node_that_knows_a_later_one(dials: bool) -> None:
    """Whoever has refused protocol 2 was not that node."""
    later = replace(greeting(2), protocols=(1, 2))
    side = FirstHandshake([], greeting(1) if dials else None)
    answer = list(side.receive(HELLO, later.encode(with_secret=True)))
    if not dials:
        answer = list(side.greet(greeting(1)))
    assert [kind for kind, _ in answer] == [NOT_YET]
    assert "speaks peer protocol 2, and has to begin with it" in side.reason


def test_a_refusal_of_the_opening_may_come_from_a_node_of_protocol_1() -> None:
    for state in (0, 1):
        dialler = Handshake([SECRET], bytes(32), greeting(1, proves=True))
        if state:
            dialler.receive(HELLO, Opening("", MAIN, b"n" * 32, True).encode())
        dialler.receive(REFUSED, b"update")
        assert dialler.meets_first is (state == 0)


@pytest.mark.parametrize(
    ("dials", "listens"),
    [
        (greeting(0, PASSING, cluster_id=b""), greeting(2)),
        (greeting(1, PASSING), greeting(0, cluster_id=b"")),
        (greeting(0, PASSING, cluster_id=b""), greeting(0, cluster_id=b"", process=b"theother")),
        (greeting(1, PASSING), greeting(1)),
        (greeting(1, PASSING, join_hash=b"a" * 32), greeting(2)),
    ],
    ids=["a node that joins", "a node that is asked to join", "two that are new", "itself", "one join list"],
)
def test_a_question_may_pass(dials: Greeting, listens: Greeting) -> None:
    for protocol in PROTOCOLS:
        pair = Pair(dials, listens, expected=0, protocol=protocol)
        assert pair.states == (HandshakeState.ACCEPTED, HandshakeState.ACCEPTED)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_greeting_that_is_changed_on_its_way_breaks_the_proof(protocol: int) -> None:
    def raise_incarnation(kind: int, payload: bytes) -> bytes:
        if kind != HELLO or b"node" not in payload:
            return payload
        found = Greeting.decode(payload)
        return replace(found, hello=replace(found.hello, incarnation=7)).encode(with_secret=True)

    pair = Pair(
        greeting(1, proves=True),
        greeting(2, proves=True),
        (SECRET, SECRET),
        change=raise_incarnation,
        protocol=protocol,
    )
    assert pair.states == (HandshakeState.REFUSED, HandshakeState.REFUSED)
    assert "differ" in pair.dialler.reason


def test_a_proof_cannot_be_sent_back() -> None:
    """A listening side without the secret, with the opening and the proof of the other side."""
    dialler = Handshake([SECRET], bytes(32), greeting(1, proves=True))
    ((_, opening),) = dialler.begin()
    ((_, proof),) = dialler.receive(HELLO, opening)
    dialler.receive(HELLO, greeting(2, proves=True).encode(with_secret=False))
    assert dialler.receive(PROOF, proof)[0][0] == REFUSED


def test_a_greeting_has_the_purpose_of_its_opening() -> None:
    listener = Handshake([], bytes(32))
    listener.receive(HELLO, Opening("default", PASSING, b"n" * 32, False).encode())
    listener.receive(PROOF, b"")
    listener.greet(greeting(2))
    with pytest.raises(FrameDamage, match="another purpose"):
        listener.receive(HELLO, greeting(1, MAIN).encode(with_secret=False))


@pytest.mark.parametrize("kind", [HELLO, PROOF, ACCEPTED, 8, 9, 200])
@pytest.mark.parametrize("own", [None, greeting(1)])
def test_a_frame_out_of_order_ends_the_connection(own: Greeting | None, kind: int) -> None:
    if kind != HELLO:
        with pytest.raises(FrameDamage, match=f"frame {kind} in a handshake that awaits hello"):
            side_of(1, b"", own).receive(kind, b"")
        with pytest.raises(FrameDamage, match=f"frame {kind} in a handshake that awaits opening"):
            side_of(2, b"", own).receive(kind, b"")
    side = Handshake([], bytes(32), own)
    side.receive(HELLO, Opening("default", MAIN, b"n" * 32, False).encode())
    awaited = PROOF if own is None else HELLO
    if kind != awaited:
        with pytest.raises(FrameDamage, match=f"frame {kind} in a handshake that awaits (secret|hello)"):
            side.receive(kind, b"")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_refusal_is_text_whatever_it_is_made_of(protocol: int) -> None:
    for payload in (b"\xff" * 10_000, b"\x1b]0;title\x07\x1b[2J\r\n" * 100, "\u202e".encode() * 500):
        dialler = side_of(protocol, b"", greeting(1))
        assert dialler.receive(REFUSED, payload) == []
        assert dialler.state is HandshakeState.REFUSED
        assert 0 < len(dialler.reason) <= 200
        assert dialler.reason.isprintable()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_random_frames_never_open_a_connection(protocol: int) -> None:
    random = Random(3)
    kinds = [HELLO, PROOF, ACCEPTED, REFUSED, NOT_YET]
    known = greeting(2, proves=True)
    opening = Opening("default", MAIN, b"n" * 32, True).encode()
    for _ in range(3000):
        side = side_of(protocol, SECRET, random.choice([None, greeting(1, proves=True)]))
        for _ in range(5):
            payload = random.choice([b"", known.encode(with_secret=True), opening, random.randbytes(32)])
            try:
                side.receive(random.choice(kinds), payload)
            except FrameDamage:
                break
            if side.state is HandshakeState.AWAITS_GREETING:
                assert protocol == 1
                side.greet(greeting(1, proves=True))
        assert side.state not in (HandshakeState.AWAITS_DECISION, HandshakeState.ACCEPTED)
