"""Records lent to one other node, without a clock or a link."""

from random import Random

import pytest

from pixy.consume.core.offer import Offer, OfferLimits
from pixy.consume.core.offset_tracker import OffsetTracker
from pixy.consume.lending.lending import LENT_BYTES_MAX, Lending, RecordPosition
from pixy.consume.partition.dispatcher import Dispatcher
from pixy.consume.partition.partition_offers import PartitionOffers
from tests.consume.fakes import Answers, fed, make_batch

TIMEOUT = 30.0


class Partition:
    """A partition of a dispatcher, without fetcher and timers."""

    def __init__(self, dispatcher: Dispatcher, partition: int = 0) -> None:
        self.topic = "t"
        self.partition = partition
        self.queued = False
        self.dispatcher = dispatcher
        limits = OfferLimits(TIMEOUT, 10**6, 1 << 40, -1, 1 << 30)
        self.offers = PartitionOffers(self, limits, OffsetTracker(0), 0)

    def add(self, *values: bytes) -> None:
        self.offers.feed(fed([make_batch(self.offers.fetch_offset, values)]))
        self.dispatcher.wake(self, 0.0)

    def look(self) -> None:
        pass

    def delivered(self, offer: Offer) -> None:
        if offer.auto_ack:
            self.offers.ack_delivered(offer)
        else:
            self.offers.delivered(offer, 0.0)

    def undelivered(self, offer: Offer) -> None:
        if self.offers.put_back(offer):
            self.dispatcher.wake(self, 0.0)


class Scene:
    """A lending node with one partition, and one that borrows."""

    def __init__(self) -> None:
        self.dispatcher = Dispatcher(1000, 3.0)
        self.partition = Partition(self.dispatcher)
        self.grants = 0
        self.lending = Lending(self.dispatcher, self._granted)

    def _granted(self) -> None:
        self.grants += 1

    def take(self) -> list[RecordPosition]:
        """Take what is to be sent."""
        return [RecordPosition(offer.partition, offer.record.offset) for offer in self.lending.take()]

    def ack(self, *offsets: int) -> None:
        """Acks of sent records that are not known to be delivered."""
        for offset in offsets:
            assert not self.partition.offers.ack(offset)
            assert self.lending.keep_ack(RecordPosition(0, offset))

    def consume(self) -> Answers:
        """A request of a client of the lending node."""
        answers = Answers()
        self.dispatcher.consume(answers, False, None, 0.0)
        return answers

    @property
    def acked(self) -> int:
        return self.partition.offers.tracker.base


def at(*offsets: int, partition: int = 0) -> list[RecordPosition]:
    return [RecordPosition(partition, offset) for offset in offsets]


def test_as_many_records_are_lent_as_requests_wait() -> None:
    scene = Scene()
    scene.partition.add(*[b"x"] * 5)
    scene.lending.ask(2, [], 0.0)
    assert scene.take() == at(0, 1)
    assert scene.take() == []


def test_requests_of_the_node_are_served_in_turn_with_clients_here() -> None:
    scene = Scene()
    first = scene.consume()
    scene.lending.ask(2, [], 0.0)
    last = scene.consume()
    scene.partition.add(*[b"x"] * 4)
    assert (first.offsets, scene.take(), last.offsets) == ([0], at(1, 2), [3])
    assert scene.grants == 2


def test_requests_keep_their_places_from_one_question_to_the_next() -> None:
    scene = Scene()
    scene.lending.ask(3, [], 0.0)
    here = scene.consume()
    scene.partition.add(b"x")
    assert scene.take() == at(0)
    scene.lending.ask(2, at(0), 0.0)
    scene.partition.add(b"x", b"x", b"x")
    assert scene.take() == at(1, 2)
    assert here.offsets == [3]


def test_requests_that_wait_no_more_leave_the_queue_the_youngest_first() -> None:
    scene = Scene()
    scene.lending.ask(2, [], 0.0)
    here = scene.consume()
    scene.lending.ask(1, [], 0.0)
    scene.partition.add(b"x", b"x", b"x")
    assert scene.take() == at(0)
    assert here.offsets == [1]
    assert scene.dispatcher.waiting == 0


def test_records_for_requests_that_wait_no_more_are_not_even_sent() -> None:
    scene = Scene()
    scene.partition.add(*[b"x"] * 3)
    scene.lending.ask(3, [], 0.0)
    scene.lending.ask(1, [], 0.0)
    assert scene.take() == at(0)
    assert scene.consume().offsets == [1]
    scene.lending.ask(0, at(0), 0.0)
    assert not scene.lending.idle
    scene.lending.ask(0, [], 0.0)
    assert scene.lending.idle


def test_a_record_that_got_lost_with_an_answer_is_offered_again_at_once() -> None:
    scene = Scene()
    scene.partition.add(b"x", b"x")
    scene.lending.ask(2, [], 0.0)
    assert scene.take() == at(0, 1)
    here = scene.consume()
    scene.lending.ask(0, at(1), 0.0)
    assert here.offsets == [0]


def test_the_ack_timeout_runs_from_the_delivery() -> None:
    scene = Scene()
    scene.partition.add(b"x")
    scene.lending.ask(1, [], 0.0)
    scene.take()
    assert scene.partition.offers.next_deadline() is None
    scene.lending.delivered(at(0))
    assert scene.partition.offers.next_deadline() == TIMEOUT
    assert scene.acked == 0
    assert scene.lending.idle


def test_a_delivery_with_auto_ack_acks() -> None:
    scene = Scene()
    scene.partition.add(b"x")
    scene.lending.ask(1, [], 0.0)
    scene.take()
    assert scene.lending.acked(at(0)) == []
    assert scene.acked == 1


def test_a_record_that_was_not_delivered_is_offered_again_at_once() -> None:
    scene = Scene()
    scene.partition.add(b"x")
    scene.lending.ask(1, [], 0.0)
    scene.take()
    here = scene.consume()
    scene.lending.undelivered(at(0))
    assert here.offsets == [0]


def test_what_is_told_twice_has_an_effect_once() -> None:
    scene = Scene()
    scene.partition.add(b"x", b"x", b"x")
    scene.lending.ask(3, [], 0.0)
    scene.take()
    for _ in range(2):
        scene.lending.delivered(at(0))
        scene.lending.undelivered(at(1))
    assert scene.lending.acked(at(2)) == []
    assert scene.lending.acked(at(2)) == at(2)
    assert scene.partition.offers.outstanding == 1
    assert scene.consume().offsets == [1]


def test_records_that_are_not_lent_can_be_acked_only() -> None:
    scene = Scene()
    scene.partition.add(b"x")
    scene.lending.delivered(at(0))
    scene.lending.undelivered(at(0))
    assert scene.lending.acked(at(0)) == at(0)
    assert scene.consume().offsets == [0]


def test_a_client_of_a_silent_node_may_have_a_record_that_was_sent_to_it() -> None:
    """Its ack counts, unlike that of a record that was given back, or never sent."""
    scene = Scene()
    scene.partition.add(*[b"x"] * 4)
    offers = scene.partition.offers
    scene.lending.ask(3, [], 0.0)
    scene.take()
    scene.lending.undelivered(at(0))
    scene.lending.ask(1, at(1), 0.0)  # the answer with 2 was lost
    scene.lending.end()
    assert offers.handed_out == 3
    assert [offers.ack(offset) for offset in range(4)] == [False, True, True, False]


def test_an_ack_that_is_here_before_the_news_of_the_delivery_counts_with_it() -> None:
    scene = Scene()
    scene.partition.add(*[b"x"] * 4)
    offers = scene.partition.offers
    scene.lending.ask(3, [], 0.0)
    scene.take()
    scene.ack(0, 1, 2)
    assert scene.acked == 0
    scene.lending.delivered(at(0))
    assert scene.acked == 1
    scene.lending.end()  # a client of the silent node has 1 and 2, else it had not acked them
    assert (scene.acked, offers.outstanding) == (3, 0)


def test_an_ack_of_a_record_that_its_node_still_has_is_none_when_the_node_is_lost() -> None:
    scene = Scene()
    scene.partition.add(*[b"x"] * 2)
    scene.lending.ask(2, [], 0.0)
    scene.take()
    scene.ack(0)
    scene.lending.ask(0, at(0, 1), 0.0)  # perhaps sent before the ack
    scene.ack(1)
    scene.lending.ask(0, at(0, 1), 0.0)
    scene.lending.settle_kept(lambda _: True)
    scene.lending.end()
    assert scene.partition.offers.tracker.is_acked(1)
    assert (scene.acked, scene.consume().offsets) == (0, [0])


def test_acks_of_lent_records_count_before_their_partition_goes() -> None:
    scene = Scene()
    scene.partition.add(*[b"x"] * 4)
    offers = scene.partition.offers
    scene.lending.ask(4, [], 0.0)
    scene.take()
    scene.ack(0, 1)
    scene.lending.settle_kept(lambda partition: partition == 9)
    assert (scene.acked, offers.outstanding) == (0, 4)
    scene.lending.settle_kept(lambda partition: partition == 0)
    assert (scene.acked, offers.outstanding) == (2, 2)
    scene.lending.delivered(at(0))
    scene.lending.undelivered(at(1))
    assert (scene.acked, offers.outstanding) == (2, 2)
    scene.lending.check_invariants()


def test_what_is_lent_counts_as_handed_out_before_its_partition_goes() -> None:
    """The news of the delivery may come too late, and the next owner would not count the ack."""
    scene = Scene()
    scene.partition.add(*[b"x"] * 3)
    offers = scene.partition.offers
    scene.lending.ask(2, [], 0.0)
    scene.take()
    assert offers.handed_out == 0
    assert scene.lending.count_as_out(lambda partition: partition == 9) == set()
    assert offers.handed_out == 0
    assert scene.lending.count_as_out(lambda partition: partition == 0) == {0}
    assert (offers.handed_out, offers.outstanding) == (2, 2)
    assert offers.ack(1)
    scene.lending.check_invariants()


def test_an_ack_of_a_record_that_comes_back_undelivered_skips_nothing() -> None:
    scene = Scene()
    scene.partition.add(b"x")
    scene.lending.ask(1, [], 0.0)
    assert not scene.partition.offers.ack(0)
    assert scene.take() == at(0)
    assert not scene.partition.offers.ack(0, only_if_offered=True)
    scene.lending.undelivered(at(0))
    assert (scene.acked, scene.consume().offsets) == (0, [0])


def test_a_lost_node_gives_everything_back() -> None:
    scene = Scene()
    scene.partition.add(b"x", b"x")
    scene.lending.ask(1, [], 0.0)
    scene.take()
    scene.lending.ask(3, at(0), 0.0)
    scene.lending.end()
    assert scene.lending.idle
    assert [scene.consume().offsets, scene.consume().offsets] == [[0], [1]]
    assert scene.dispatcher.waiting == 0


def test_a_record_that_is_offered_anew_after_a_reset_replaces_the_void_one() -> None:
    scene = Scene()
    scene.partition.add(b"x")
    scene.lending.ask(1, [], 0.0)
    scene.take()
    scene.partition.offers.reset(OffsetTracker(0), 1)
    scene.partition.add(b"x")
    scene.lending.ask(1, at(0), 0.0)
    assert scene.take() == at(0)
    scene.lending.undelivered(at(0))
    scene.lending.check_invariants()
    assert scene.consume().offsets == [0]


def test_answers_are_bounded_in_bytes() -> None:
    scene = Scene()
    scene.partition.add(*[bytes(200 << 10)] * 10)
    scene.lending.ask(10, [], 0.0)
    assert scene.take() == at(0, 1, 2)
    scene.lending.ask(10, at(0, 1, 2), 0.0)
    assert scene.take() == at(3, 4, 5)


def test_requests_that_an_answer_has_no_room_for_leave_the_queue() -> None:
    scene = Scene()
    scene.lending.ask(10, [], 0.0)
    here = scene.consume()
    scene.partition.add(*[bytes(200 << 10)] * 10)
    assert scene.take() == at(0, 1, 2)
    assert here.offsets == [3]


@pytest.mark.slow
def test_a_record_beyond_the_size_of_a_frame_goes_to_clients_here_only() -> None:
    scene = Scene()
    scene.lending.ask(2, [], 0.0)
    here = scene.consume()
    scene.partition.add(bytes(LENT_BYTES_MAX + 1))
    assert scene.take() == []
    assert here.offsets == [0]


def test_a_request_ends_at_the_long_polling_timeout() -> None:
    scene = Scene()
    scene.lending.ask(2, [], 0.0)
    scene.dispatcher.expire(3.0)
    assert scene.lending.idle
    assert scene.grants == 0


class Walk:
    """A random walk of lost answers, withdrawn requests, undelivered records and clients here."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.scene = Scene()
        self.produced = 0
        self.held: list[RecordPosition] = []
        self.got: list[int] = []

    def step(self) -> None:
        steps = (self.produce, self.ask, self.send, self.settle, self.consume, self.lose)
        self.rng.choice(steps)()
        self.scene.lending.check_invariants()
        self.scene.partition.offers.check_invariants()

    def produce(self) -> None:
        count = self.rng.randrange(1, 4)
        self.scene.partition.add(*[b"x"] * count)
        self.produced += count

    def ask(self) -> None:
        self.scene.lending.ask(self.rng.randrange(4), self.held, 0.0)

    def send(self) -> None:
        sent = self.scene.take()
        if self.rng.random() < 0.8:
            self.held += sent
        else:
            self.scene.lending.ask(0, self.held, 0.0)

    def settle(self) -> None:
        if not self.held:
            return
        position = self.held.pop(self.rng.randrange(len(self.held)))
        if self.rng.random() < 0.5:
            self.scene.lending.undelivered([position])
        else:
            assert self.scene.lending.acked([position]) == []
            self.got.append(position.offset)

    def consume(self) -> None:
        answers = Answers(slow=True)
        waiter = self.scene.dispatcher.consume(answers, True, None, 0.0)
        if waiter is not None:
            waiter.cancel()
        for offer in answers.offers:
            offer.delivered()
            self.got.append(offer.record.offset)

    def lose(self) -> None:
        if self.rng.random() < 0.1:
            self.scene.lending.end()
            self.held.clear()

    def end(self) -> None:
        """Consume the rest here."""
        self.scene.lending.end()
        while len(self.got) < self.produced:
            (offset,) = self.scene.consume().offsets
            self.scene.partition.offers.ack(offset)
            self.got.append(offset)


@pytest.mark.slow
def test_every_record_is_delivered_once_whatever_gets_lost() -> None:
    for seed in range(50):
        walk = Walk(seed)
        for _ in range(200):
            walk.step()
        walk.end()
        assert sorted(walk.got) == list(range(walk.produced)), seed
        assert walk.scene.acked == walk.produced
