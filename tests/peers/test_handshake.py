"""The handshake: its frames, and every reason to refuse, as both sides see it."""

import re
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from pixy.peers.frames import ACCEPTED, HELLO, NOT_YET, PROOF, REFUSED, FrameDamage
from pixy.peers.handshake import Handshake, HandshakeState, NotYet, Outgoing, unknown_entry
from pixy.peers.hello import Greeting, LinkPurpose
from tests.peers.support import hello_of

MAIN, BULK, PASSING = LinkPurpose.MAIN, LinkPurpose.BULK, LinkPurpose.PASSING
OVER = (HandshakeState.ACCEPTED, HandshakeState.REFUSED)
SECRET = b"the secret of all nodes"


def greeting(
    node_id: int,
    purpose: LinkPurpose = MAIN,
    *,
    proves: bool = False,
    protocols: tuple[int, int] = (1, 1),
    **changes: Any,
) -> Greeting:
    nonce = bytes([node_id + 100]) * 32
    return Greeting(hello_of(node_id, **changes), purpose, nonce, proves, protocols)


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
    ) -> None:
        self.dialler = Handshake(secrets[0], dials, expected)
        self.listener = Handshake(secrets[1])
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

    def _act(self, side: Handshake) -> list[Outgoing]:
        if side.state is HandshakeState.AWAITS_GREETING:
            listens = self._listens
            return list(side.refuse(listens) if isinstance(listens, str) else side.greet(listens))
        if side.state is HandshakeState.AWAITS_DECISION:
            return list(side.decide(self._admits[side is self.listener]))
        return []

    @property
    def states(self) -> tuple[HandshakeState, HandshakeState]:
        return self.dialler.state, self.listener.state


def test_two_nodes_of_a_cluster_accept_each_other() -> None:
    pair = Pair(greeting(1), greeting(2))
    assert pair.states == (HandshakeState.ACCEPTED, HandshakeState.ACCEPTED)
    assert pair.sent == [(True, HELLO), (False, HELLO), (False, PROOF), (True, PROOF), (False, ACCEPTED)]
    assert pair.dialler.peer == greeting(2)
    assert pair.listener.peer == greeting(1)


@pytest.mark.parametrize("purpose", list(LinkPurpose))
def test_a_shared_secret_is_proven_and_never_sent(purpose: LinkPurpose) -> None:
    payloads: list[bytes] = []

    def see(_: int, payload: bytes) -> bytes:
        payloads.append(payload)
        return payload

    one, two = greeting(1, purpose, proves=True), greeting(2, proves=True)
    pair = Pair(one, two, (SECRET, SECRET), change=see)
    assert pair.states == (HandshakeState.ACCEPTED, HandshakeState.ACCEPTED)
    assert not any(SECRET in payload for payload in payloads)
    proofs = [payload for payload in payloads if len(payload) == 32]
    assert len(set(proofs)) == 2, "each side proves it in its own way"


REFUSED_ON_BOTH_SIDES: dict[str, tuple[Greeting, Greeting | str, str]] = {
    "newer protocol": (
        greeting(1, protocols=(2, 3), version="9.0"),
        greeting(2),
        r"node 1 at node1:1 \(pixy 9.0\) speaks peer protocols from 2 on, node 2 at node2:1 \(pixy 1.0\) up to 1: "
        "update node 2",
    ),
    "older protocol": (greeting(1), greeting(2, protocols=(2, 2)), "from 2 on, .* up to 1: update node 1"),
    "unknown entry": (greeting(1), unknown_entry("default"), 'no embedded cluster "default" is configured'),
    "other entry": (greeting(1), greeting(2, cluster="other"), 'no embedded cluster "(default|other)"'),
    "wrong cluster": (
        greeting(1, cluster_id=b"x" * 16),
        greeting(2),
        f"(belongs to cluster|to) {(b'x' * 16).hex()}.* an address in the join list is wrong",
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
        "node 1 at node1:1 has no shared secret: set cluster.secret_file there",
    ),
    "no secret on the listening side": (
        greeting(1, proves=True),
        greeting(2),
        "node 2 at node2:1 has no shared secret: set cluster.secret_file there",
    ),
}


@pytest.mark.parametrize("name", REFUSED_ON_BOTH_SIDES)
def test_the_listening_side_refuses_and_both_know_why(name: str) -> None:
    dials, listens, reason = REFUSED_ON_BOTH_SIDES[name]
    pair = Pair(dials, listens, (secret_of(dials), secret_of(listens)))
    assert pair.states == (HandshakeState.REFUSED, HandshakeState.REFUSED)
    assert pair.dialler.reason == pair.listener.reason
    assert re.search(reason, pair.dialler.reason), pair.dialler.reason
    assert (pair.dialler.by_peer, pair.listener.by_peer) == (True, False)


PASSING_BY_THEMSELVES = {
    "main before it has joined",
    "bulk before it has an id",
    "dialled before it has joined",
}


@pytest.mark.parametrize("name", REFUSED_ON_BOTH_SIDES)
def test_both_sides_know_which_refusals_pass_by_themselves(name: str) -> None:
    dials, listens, _ = REFUSED_ON_BOTH_SIDES[name]
    pair = Pair(dials, listens)
    passes = [isinstance(side.reason, NotYet) for side in (pair.dialler, pair.listener)]
    assert passes == [name in PASSING_BY_THEMSELVES] * 2


@pytest.mark.parametrize("name", sorted(REFUSED_ON_BOTH_SIDES.keys() - {"unknown entry"}))
def test_the_dialling_side_refuses_by_itself_and_says_why(name: str) -> None:
    dials, listens, reason = REFUSED_ON_BOTH_SIDES[name]
    assert isinstance(listens, Greeting)
    dialler = Handshake(secret_of(dials), dials, 2)
    ((kind, payload),) = dialler.receive(HELLO, listens.encode())
    assert kind == (NOT_YET if name in PASSING_BY_THEMSELVES else REFUSED)
    assert payload.decode() == dialler.reason
    assert re.search(reason, dialler.reason), dialler.reason
    assert dialler.state is HandshakeState.REFUSED
    assert not dialler.by_peer


def secret_of(greeting: Greeting | str) -> bytes:
    return SECRET if isinstance(greeting, Greeting) and greeting.proves else b""


def test_an_address_of_another_node_is_refused_by_the_dialling_side() -> None:
    pair = Pair(greeting(1), greeting(3), expected=2)
    assert pair.states == (HandshakeState.REFUSED, HandshakeState.REFUSED)
    assert pair.listener.by_peer
    assert re.search("node 2 was dialled, node 3 at node3:1 has answered", pair.listener.reason)


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_wrong_secret_is_refused_before_anybody_decides(wrong: int) -> None:
    secrets = [SECRET, SECRET]
    secrets[wrong] = b"another"
    pair = Pair(
        greeting(1, proves=True),
        greeting(2, proves=True),
        (secrets[0], secrets[1]),
        admits=("decided", "decided"),
    )
    assert pair.states == (HandshakeState.REFUSED, HandshakeState.REFUSED)
    assert pair.dialler.reason == pair.listener.reason
    assert "cluster.secret_file must have the same content on all nodes" in pair.dialler.reason


@pytest.mark.parametrize("refuses", [0, 1])
def test_what_the_layer_above_refuses_is_refused_on_both_sides(refuses: int) -> None:
    reason = "node is an older self: forget it"
    admits = (reason, None) if refuses == 0 else (None, reason)
    pair = Pair(greeting(1), greeting(2), admits=admits)
    assert pair.states == (HandshakeState.REFUSED, HandshakeState.REFUSED)
    assert pair.dialler.reason == pair.listener.reason == reason
    assert (pair.dialler.by_peer, pair.listener.by_peer) == (refuses == 1, refuses == 0)


@pytest.mark.parametrize("purpose", [MAIN, BULK, PASSING])
def test_protocols_that_overlap_are_enough(purpose: LinkPurpose) -> None:
    pair = Pair(greeting(1, purpose, protocols=(1, 5)), greeting(2))
    assert pair.states == (HandshakeState.ACCEPTED, HandshakeState.ACCEPTED)


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
    assert Pair(dials, listens, expected=0).states == (HandshakeState.ACCEPTED, HandshakeState.ACCEPTED)


def test_a_greeting_that_is_changed_on_its_way_breaks_the_proof() -> None:
    def raise_incarnation(kind: int, payload: bytes) -> bytes:
        if kind != HELLO:
            return payload
        found = Greeting.decode(payload)
        return replace(found, hello=replace(found.hello, incarnation=7)).encode()

    pair = Pair(
        greeting(1, proves=True), greeting(2, proves=True), (SECRET, SECRET), change=raise_incarnation
    )
    assert pair.states == (HandshakeState.REFUSED, HandshakeState.REFUSED)
    assert "differ" in pair.dialler.reason


def test_a_proof_cannot_be_sent_back() -> None:
    """A side without the secret that mirrors greeting and proof of the other."""
    dialler = Handshake(SECRET, greeting(1, proves=True), 0)
    mirrored = replace(greeting(2, proves=True), nonce=greeting(1).nonce)
    assert not dialler.receive(HELLO, mirrored.encode())
    listener = Handshake(SECRET)
    listener.receive(HELLO, greeting(1, proves=True).encode())
    proof = listener.greet(mirrored)[1][1]
    mirror = Handshake(SECRET)
    mirror.receive(HELLO, mirrored.encode())
    other = mirror.greet(greeting(1, proves=True))[1][1]
    assert dialler.receive(PROOF, other)[0][0] == REFUSED
    assert proof != other


@pytest.mark.parametrize("kind", [HELLO, PROOF, ACCEPTED, 8, 9, 200])
def test_a_frame_out_of_order_ends_the_connection(kind: int) -> None:
    for own in (None, greeting(1)):
        side = Handshake(b"", own, 0)
        if kind != HELLO:
            with pytest.raises(FrameDamage, match=f"frame {kind} in a handshake that awaits hello"):
                side.receive(kind, b"")
    dialler = Handshake(b"", greeting(1), 0)
    dialler.receive(HELLO, greeting(2).encode())
    if kind != PROOF:
        with pytest.raises(FrameDamage, match=f"frame {kind} in a handshake that awaits proof"):
            dialler.receive(kind, b"")


def test_a_refusal_is_text_whatever_it_is_made_of() -> None:
    dialler = Handshake(b"", greeting(1), 0)
    assert dialler.receive(REFUSED, b"\xff" * 10_000) == []
    assert dialler.state is HandshakeState.REFUSED
    assert len(dialler.reason) <= 2000


@pytest.mark.slow
def test_random_frames_never_open_a_connection() -> None:
    random = Random(3)
    kinds = [HELLO, PROOF, ACCEPTED, REFUSED, NOT_YET]
    for _ in range(3000):
        side = Handshake(SECRET, random.choice([None, greeting(1, proves=True)]), 0)
        for _ in range(4):
            payload = random.choice([b"", greeting(2, proves=True).encode(), random.randbytes(32)])
            try:
                side.receive(random.choice(kinds), payload)
            except FrameDamage:
                break
            if side.state is HandshakeState.AWAITS_GREETING:
                side.greet(greeting(1, proves=True))
        assert side.state not in (HandshakeState.AWAITS_DECISION, HandshakeState.ACCEPTED)
