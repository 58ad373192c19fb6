"""Places for connections in their handshake."""

from random import Random

from pixy.peers.slots import HandshakeSlots, SlotStage

NODE = "10.0.0.1"


def is_node(host: str) -> bool:
    return host == NODE


def test_the_oldest_that_has_sent_nothing_goes() -> None:
    slots = HandshakeSlots[int](8)
    assert [slots.add(number, "a") for number in range(4)] == [None] * 4
    slots.reached(0, SlotStage.HEARD)
    assert [slots.add(number, "a") for number in (4, 5, 6, 7)] == [1, 2, 3, 4]
    for number in (5, 6, 7):
        slots.reached(number, SlotStage.PROVEN)
    assert slots.add(8, "a") == 8 or 8 in slots
    assert 5 in slots


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


def test_one_that_has_proven_the_secret_stays() -> None:
    slots = HandshakeSlots[int](2)
    slots.add(1, "a")
    slots.reached(1, SlotStage.PROVEN)
    slots.add(2, "b")
    slots.reached(2, SlotStage.PROVEN)
    assert slots.add(3, "c") == 3
    slots.remove(1)
    assert slots.add(4, "c") is None


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
                slots.reached(some, random.choice(list(SlotStage)))
            elif random.random() < 0.2:
                slots.remove(some)
                present.discard(some)
