"""Places for connections in their handshake."""

from collections.abc import Sequence
from random import Random

import pytest

from pixy.peers.slots import HandshakeSlots, SlotStage

NODE = "10.0.0.1"


def is_node(host: str) -> bool:
    return host == NODE


def test_the_oldest_that_has_sent_nothing_goes() -> None:
    slots = HandshakeSlots[int](8)
    assert [slots.add(number, "a") for number in range(4)] == [None] * 4
    slots.reached(0, SlotStage.HEARD)
    assert [slots.add(number, "a") for number in (4, 5, 6, 7)] == [1, 2, 3, 4]
    assert 0 in slots


def test_one_address_has_half_of_the_places() -> None:
    slots = HandshakeSlots[int](8)
    gone = [slots.add(number, "attacker") for number in range(100)]
    assert len(slots) == 4
    assert [slots.add(200 + number, f"host {number}") for number in range(4)] == [None] * 4
    assert set(gone) - {None} == set(range(96))


def test_places_are_kept_for_nodes() -> None:
    slots = HandshakeSlots[int](8, 2, is_node)
    for number in range(100):
        slots.add(number, f"host {number}")
    assert len(slots) == 6
    assert [slots.add(200 + number, NODE) for number in range(2)] == [None, None]
    gone = slots.add(202, NODE)
    assert gone is not None
    assert gone < 100, "a stranger's"


def test_one_that_has_proven_the_secret_does_not_go_for_a_new_one() -> None:
    slots = HandshakeSlots[int](8, 2, is_node)
    for number, host in ((1, NODE), (2, "a"), (3, "b")):
        slots.add(number, host)
        assert slots.reached(number, SlotStage.PROVEN) is None
    for number in range(100):
        slots.add(100 + number, f"host {number}")
        slots.add(1000 + number, NODE)
        slots.add(2000 + number, "a")
    assert all(number in slots for number in (1, 2, 3))


@pytest.mark.parametrize(
    "hosts",
    [
        pytest.param(["a"], id="one stranger"),
        pytest.param([f"host {number}" for number in range(500)], id="many strangers"),
        pytest.param([NODE], id="the address of a node"),
        pytest.param([NODE, "a", "b", *map(str, range(100))], id="all"),
    ],
)
@pytest.mark.parametrize("host", [NODE, "10.0.0.77"])
def test_those_that_have_proven_the_secret_and_say_no_more_keep_nobody_out(
    hosts: Sequence[str], host: str
) -> None:
    slots = HandshakeSlots[int](128, 32, is_node)
    for number in range(1000):
        slots.add(number, hosts[number % len(hosts)])
        slots.reached(number, SlotStage.HEARD)
        slots.reached(number, SlotStage.PROVEN)
    # One that gets through, step by step, while others come that say nothing, or get as far.
    slots.add(5000, host)
    for stage in (SlotStage.SILENT, SlotStage.HEARD, SlotStage.PROVEN):
        slots.reached(5000, stage)
        for number in range(10):
            another = 6000 + 100 * stage + number
            slots.add(another, hosts[number % len(hosts)])
            slots.reached(another, SlotStage(1 + number % 3))
        assert 5000 in slots, stage.name


def test_there_are_never_more_than_places_and_who_goes_was_there() -> None:
    random = Random(5)
    for seed in range(50):
        count = random.randrange(2, 20)
        slots = HandshakeSlots[int](count, count // 4, is_node)
        present: set[int] = set()
        for number in range(200):
            host = random.choice([NODE, *map(str, range(seed % 5 + 1))])
            gone = slots.add(number, host)
            present.add(number)
            if gone is not None:
                present.remove(gone)
            assert len(slots) == len(present) <= count
            some = random.choice(sorted(present)) if present else 0
            if random.random() < 0.3:
                less = slots.reached(some, random.choice(list(SlotStage)))
                if less is not None:
                    present.remove(less)
            elif random.random() < 0.2:
                slots.remove(some)
                present.discard(some)
