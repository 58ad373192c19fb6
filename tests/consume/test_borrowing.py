"""Records that one other node has lent, and the settlements that it has to hear of."""

from pixy.consume.lending.borrowing import Borrowing
from pixy.consume.lending.lending import RecordPosition
from pixy.consume.lending.lent_records import BorrowedRecord


class Scene:
    def __init__(self) -> None:
        self.settled = 0
        self.borrowing = Borrowing("t", self._settled)
        self.offers = [
            self.borrowing.accept(0, BorrowedRecord(offset, 1, b"k", b"v", ())) for offset in range(3)
        ]

    def _settled(self) -> None:
        self.settled += 1


def at(*offsets: int) -> list[RecordPosition]:
    return [RecordPosition(0, offset) for offset in offsets]


def test_an_offer_is_like_any_other() -> None:
    offer = Scene().offers[1]
    assert (offer.topic, offer.partition, offer.record.offset) == ("t", 0, 1)
    assert (offer.record.key, offer.record.value) == (b"k", b"v")


def test_what_became_of_records_is_told_once() -> None:
    scene = Scene()
    scene.offers[1].auto_ack = True
    scene.offers[0].delivered()
    scene.offers[1].delivered()
    scene.offers[2].undelivered()
    assert scene.settled == 3
    number, settlements = scene.borrowing.tell()
    assert settlements == (at(0), at(1), at(2))
    scene.borrowing.confirmed(number)
    assert not scene.borrowing.tell()[1]
    assert scene.borrowing.idle


def test_without_an_answer_it_is_told_again_with_what_came_later() -> None:
    scene = Scene()
    scene.offers[0].delivered()
    number, _ = scene.borrowing.tell()
    scene.offers[1].delivered()
    assert not scene.borrowing.idle
    scene.borrowing.failed(number)
    assert scene.borrowing.tell()[1].delivered == at(1, 0)
    scene.borrowing.failed(number)
    assert not scene.borrowing.untold


def test_a_record_is_held_until_the_owner_has_confirmed_what_became_of_it() -> None:
    scene = Scene()
    assert scene.borrowing.held == {*at(0, 1, 2)}
    scene.offers[0].delivered()
    number, _ = scene.borrowing.tell()
    assert scene.borrowing.held == {*at(0, 1, 2)}
    scene.borrowing.confirmed(number)
    assert scene.borrowing.held == {*at(1, 2)}


def test_records_to_give_back_are_urgent() -> None:
    scene = Scene()
    scene.offers[0].delivered()
    assert not scene.borrowing.urgent
    scene.offers[1].undelivered()
    assert scene.borrowing.urgent


def test_a_record_that_is_lent_again_after_a_silence_counts_once() -> None:
    scene = Scene()
    again = scene.borrowing.accept(0, scene.offers[0].record)
    scene.offers[0].undelivered()
    assert scene.settled == 0
    again.delivered()
    assert scene.borrowing.tell()[1] == (at(0), [], [])


def test_nothing_is_left_to_tell_to_a_node_that_owns_nothing() -> None:
    scene = Scene()
    scene.offers[0].delivered()
    scene.borrowing.tell()
    scene.offers[1].delivered()
    scene.borrowing.forget()
    assert scene.borrowing.idle
    scene.offers[2].delivered()
    assert scene.borrowing.idle
