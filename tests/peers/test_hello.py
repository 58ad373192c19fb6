"""Greetings of nodes."""

from random import Random

import pytest

from pixy.peers import Address, join_hash
from pixy.peers.frames import FrameDamage
from pixy.peers.hello import Greeting, Hello, LinkPurpose, Opening, begins_first
from pixy.proto import peers_pb2 as pb
from tests.peers.support import hello_of

GREETING = Greeting(
    hello_of(3, flush_number=1 << 40, join_hash=b"j" * 32), LinkPurpose.BULK, b"n" * 32, True, (1, 4)
)


def message(**changes: object) -> bytes:
    found = pb.Hello.FromString(GREETING.encode(with_secret=True))
    for name, value in changes.items():
        setattr(found, name, value)
    return found.SerializeToString()


def test_a_greeting_survives_its_encoding() -> None:
    assert Greeting.decode(GREETING.encode(with_secret=True)) == GREETING
    assert Greeting.decode(memoryview(GREETING.encode(with_secret=True))) == GREETING


def test_a_greeting_has_these_bytes() -> None:
    empty = Greeting(
        hello_of(1, cluster_id=b"", secret=b"", version="", address=""), LinkPurpose.MAIN, bytes(32), False
    )
    assert empty.encode(with_secret=True).hex() == (
        "0801100218012220" + "00" * 32 + "3207" + b"default".hex() + "400150016208" + "01" * 8
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"nonce": b"short"}, "a nonce of 5 bytes, expected 32"),
        ({"cluster_id": b"x" * 15}, "a cluster id of 15 bytes, expected 16"),
        ({"secret": b"x"}, "a secret of 1 bytes, expected 16"),
        ({"process": b""}, "a process of 0 bytes, expected 8"),
        ({"cluster": "x" * 2000}, "an impossible cluster"),
        ({"address": "a\nb"}, "an impossible address"),
        ({"version": "\x1b[0m"}, "an impossible version"),
        ({"protocol_min": 0}, "protocols 0 to 4"),
        ({"protocol_min": 5}, "protocols 5 to 4"),
        ({"purpose": 0}, "purpose 0"),
        ({"node_id": 2**31}, f"the node id {2**31}, at most {2**31 - 1}"),
        ({"incarnation": 2**48 + 1}, f"the start {2**48 + 1}, at most {2**48}"),
        ({"flush_number": 2**62}, f"the flush {2**62}, at most {2**62 - 1}"),
        ({"found_flush_number": 2**64 - 1}, f"the found flush {2**64 - 1}"),
        ({"max_message_bytes": 2**30 + 1}, f"the largest message {2**30 + 1}"),
        ({"purpose": 9}, "purpose 9"),
    ],
)
def test_what_no_node_says_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(FrameDamage, match=reason):
        Greeting.decode(message(**changes))


def test_a_node_of_a_later_protocol_is_understood_as_far_as_to_refuse_it() -> None:
    found = Greeting.decode(message(protocol_min=3, purpose=9, nonce=b"", process=b"longer than today"))
    assert found.protocols == (3, 4)
    assert str(found.hello) == "node 3 at node3:1"


@pytest.mark.parametrize(
    "changes",
    [{"incarnation": 2**49}, {"node_id": 2**32 - 1}, {"address": "a\nb"}, {"secret": b"x"}, {"process": b""}],
)
def test_a_node_that_another_one_speaks_for_is_checked_as_well(changes: dict[str, object]) -> None:
    found = hello_of(3).to_message()
    assert Hello.from_message(found) == hello_of(3)
    for name, value in changes.items():
        setattr(found, name, value)
    with pytest.raises(FrameDamage):
        Hello.from_message(found)


def test_bytes_that_are_no_greeting_are_refused() -> None:
    whole, random = GREETING.encode(with_secret=True), Random(1)
    for size in range(len(whole)):
        try:
            Greeting.decode(whole[:size])
        except FrameDamage:
            continue
    for _ in range(2000):
        changed = bytearray(whole)
        changed[random.randrange(len(whole))] ^= 1 << random.randrange(8)
        try:
            Greeting.decode(changed)
        except FrameDamage:
            continue


def test_a_node_without_an_id_has_a_name_for_logs() -> None:
    assert str(hello_of(0)) == "the node without an id at node0:1"


def test_the_hash_of_a_list_of_nodes_does_not_depend_on_its_order() -> None:
    one, two = Address("10.0.0.1", 19094), Address("10.0.0.2", 19094)
    assert join_hash([one, two]) == join_hash([two, one]) != join_hash([one])
    assert join_hash([]) == b""


def test_an_opening_says_nothing_of_the_node() -> None:
    opening = Opening("default", LinkPurpose.PASSING, b"n" * 32, True)
    assert Opening.decode(opening.encode()) == opening
    assert opening.encode().hex() == "0802100218032220" + (b"n" * 32).hex() + "28013207" + b"default".hex()


def test_the_first_frame_tells_the_protocol() -> None:
    assert begins_first(message(protocol_min=1, protocol_max=1))
    assert not begins_first(Opening("", LinkPurpose.MAIN, bytes(32), False).encode())
    with pytest.raises(FrameDamage):
        begins_first(b"\xff\xff")


@pytest.mark.parametrize(
    "damaged",
    [
        Opening("", LinkPurpose.MAIN, bytes(31), False),
        Opening("a\nb", LinkPurpose.MAIN, bytes(32), False),
        Opening("x" * 400, LinkPurpose.MAIN, bytes(32), False),
        Opening("", LinkPurpose.MAIN, bytes(32), False, (2, 1)),
    ],
)
def test_an_opening_that_no_node_sends_is_refused(damaged: Opening) -> None:
    with pytest.raises(FrameDamage):
        Opening.decode(damaged.encode())


def test_a_node_in_passing_has_neither_id_nor_secret() -> None:
    hidden = hello_of(3).anonymous
    assert (hidden.node_id, hidden.secret, hidden.incarnation) == (0, b"", 0)
    assert hidden.process == hello_of(3).process
