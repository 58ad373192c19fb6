from collections import Counter

import pytest

from pixy.backend.kafka.errors import BrokerFault
from pixy.consume import Offer
from pixy.consume.core import OffsetTracker
from pixy.consume.core.offer import OfferLimits
from pixy.consume.partition.dispatcher import Dispatcher, PendingRequest
from pixy.consume.partition.partition_offers import PartitionOffers
from pixy.errors import CorruptData, LongPollTimeout, PixyError, ShuttingDown, TooManyRequests, Unavailable
from tests.consume.fakes import Answers, fed, make_batch


class CountedOffers(PartitionOffers):
    """Counts how often it was asked for a record."""

    takes = 0

    def take(self) -> Offer | None:
        self.takes += 1
        return super().take()


class Partition:
    """A partition that may always offer all its records."""

    def __init__(self, partition: int, records: int = 0) -> None:
        self.topic = "t"
        self.partition = partition
        self.queued = False
        self.offers = CountedOffers(self, OfferLimits(30.0, 10**6, 1 << 30, -1, 1 << 20), OffsetTracker(0), 0)
        self.end = 0
        if records:
            self.add(records)

    def add(self, records: int) -> None:
        self.offers.feed(fed([make_batch(self.end, [b"x"] * records)]))
        self.end += records

    def look(self) -> None:
        pass

    def delivered(self, offer: Offer) -> None:
        pass

    def undelivered(self, offer: Offer) -> None:
        raise NotImplementedError


def waits(
    dispatcher: Dispatcher, answers: Answers, now: float = 0.0, deadline: float | None = None
) -> PendingRequest:
    waiter = dispatcher.consume(answers, False, deadline, now)
    assert waiter is not None
    return waiter


def test_a_request_is_answered_at_once_if_something_is_ready() -> None:
    dispatcher, answers = Dispatcher(10, 3.0), Answers()
    dispatcher.wake(Partition(0, 2), 0.0)
    assert dispatcher.consume(answers, True, None, 0.0) is None
    assert dispatcher.consume(answers, False, None, 0.0) is None
    assert answers.offsets == [0, 1]
    assert [offer.auto_ack for offer in answers.offers] == [True, False]
    assert dispatcher.next_deadline() is None


def test_requests_are_served_first_come_first_served() -> None:
    dispatcher = Dispatcher(10, 3.0)
    order: list[str] = []
    for name in "abc":
        dispatcher.consume(lambda offer, error, name=name: order.append(name), False, None, 0.0)  # type: ignore[misc]  # mypy cannot infer a lambda's default
    partition = Partition(0, 2)
    dispatcher.wake(partition, 0.0)
    assert order == ["a", "b"]
    assert dispatcher.waiting == 1


def test_partitions_are_served_round_robin() -> None:
    dispatcher, answers = Dispatcher(10, 3.0), Answers()
    for number, records in enumerate((50, 50, 5)):
        dispatcher.wake(Partition(number, records), 0.0)
    for _ in range(15):
        dispatcher.consume(answers, False, None, 0.0)
    assert Counter(offer.partition for offer in answers.offers) == {0: 5, 1: 5, 2: 5}
    for _ in range(20):
        dispatcher.consume(answers, False, None, 0.0)
    assert Counter(offer.partition for offer in answers.offers) == {0: 15, 1: 15, 2: 5}


def test_partitions_without_records_are_not_visited() -> None:
    dispatcher, answers = Dispatcher(10, 3.0), Answers()
    idle = [Partition(number) for number in range(100)]
    dispatcher.wake(Partition(200, 50), 0.0)
    for _ in range(50):
        dispatcher.consume(answers, False, None, 0.0)
    assert sum(partition.offers.takes for partition in idle) == 0
    assert len(answers.offers) == 50


def test_a_partition_that_turns_out_empty_is_skipped() -> None:
    dispatcher, answers = Dispatcher(10, 3.0), Answers()
    empty = Partition(0, 1)
    dispatcher.wake(empty, 0.0)
    dispatcher.wake(Partition(1, 1), 0.0)
    empty.offers.close()
    dispatcher.consume(answers, False, None, 0.0)
    assert [offer.partition for offer in answers.offers] == [1]
    assert not empty.queued


def test_too_many_requests_are_rejected_with_the_option_to_change() -> None:
    dispatcher, answers = Dispatcher(2, 3.0), Answers()
    waits(dispatcher, answers)
    first = waits(dispatcher, answers)
    assert dispatcher.consume(answers, False, None, 0.0) is None
    assert isinstance(answers.errors[0], TooManyRequests)
    assert str(answers.errors[0]).startswith(
        "Too many requests. Consider increasing `consumer.channel_buffer_size`"
    )
    first.cancel()
    waits(dispatcher, answers)


def test_a_request_waits_for_the_long_polling_timeout() -> None:
    dispatcher, answers = Dispatcher(10, 3.0), Answers()
    waits(dispatcher, answers, 1.0)
    waits(dispatcher, answers, 2.0)
    assert dispatcher.next_deadline() == 4.0
    dispatcher.expire(3.9)
    assert answers.errors == []
    dispatcher.expire(4.0)
    assert [str(error) for error in answers.errors] == ["long polling timeout"]
    assert dispatcher.next_deadline() == 5.0


def test_a_timed_out_request_gets_the_reason_for_missing_records() -> None:
    dispatcher, answers = Dispatcher(10, 3.0), Answers()
    dispatcher.faults["partition 0"] = CorruptData("file x is corrupt at byte 7")
    waits(dispatcher, answers, 1.0)
    waits(dispatcher, answers, 2.0)
    dispatcher.expire(4.0)
    assert [str(error) for error in answers.errors] == ["file x is corrupt at byte 7"]
    assert answers.errors[0] is not dispatcher.faults["partition 0"]
    dispatcher.faults.clear()
    dispatcher.expire(5.0)
    assert str(answers.errors[1]) == "long polling timeout"


def test_a_timed_out_request_is_told_that_nobody_can_know_of_records() -> None:
    dispatcher, answers = Dispatcher(10, 3.0), Answers()
    waits(dispatcher, answers, 1.0)
    waits(dispatcher, answers, 2.0, deadline=3.0)
    dispatcher.expire(4.0, "no broker can be reached")
    assert [type(error) for error in answers.errors] == [Unavailable, Unavailable]
    assert str(answers.errors[0]) == "no broker can be reached"


def test_a_timed_out_request_gets_a_reason_of_any_class() -> None:
    dispatcher, answers = Dispatcher(10, 3.0), Answers()
    dispatcher.faults["partition 0"] = BrokerFault("broker 1 cannot be reached", sent=False)
    waits(dispatcher, answers, 1.0)
    dispatcher.expire(4.0)
    assert [str(error) for error in answers.errors] == ["broker 1 cannot be reached"]


def test_an_earlier_deadline_of_the_caller_applies() -> None:
    dispatcher, answers, early = Dispatcher(10, 3.0), Answers(), Answers()
    waits(dispatcher, answers, 0.0)
    waits(dispatcher, early, 0.0, deadline=1.0)
    waits(dispatcher, answers, 0.0, deadline=99.0)
    assert dispatcher.next_deadline() == 1.0
    dispatcher.expire(1.0)
    assert isinstance(early.errors[0], LongPollTimeout)
    dispatcher.expire(3.0)
    assert len(answers.errors) == 2
    assert dispatcher.next_deadline() is None


def test_a_cancelled_request_takes_nothing_and_is_not_called() -> None:
    dispatcher, gone, answers = Dispatcher(10, 3.0), Answers(), Answers()
    for deadline in (None, 1.0):
        waits(dispatcher, gone, 0.0, deadline).cancel()
    waits(dispatcher, answers)
    dispatcher.wake(Partition(0, 1), 0.0)
    dispatcher.expire(9.0)
    assert (gone.offers, gone.errors) == ([], [])
    assert answers.offsets == [0]


def test_cancelling_an_answered_request_is_harmless() -> None:
    dispatcher, answers = Dispatcher(10, 3.0), Answers()
    waiter = waits(dispatcher, answers)
    dispatcher.wake(Partition(0, 1), 0.0)
    waiter.cancel()
    assert answers.offsets == [0]


def test_cancelled_requests_leave_nothing_behind() -> None:
    dispatcher, answers = Dispatcher(10, 3.0), Answers()
    waits(dispatcher, answers, 0.0)
    for _ in range(5000):
        waits(dispatcher, answers, 0.0, deadline=1.0).cancel()
    assert dispatcher.waiting == 1
    assert len(dispatcher._early) < 200


def test_ten_thousand_requests_wait_and_are_answered_in_order() -> None:
    dispatcher = Dispatcher(10_000, 3.0)
    answers = [Answers() for _ in range(10_000)]
    waiters = [waits(dispatcher, answer) for answer in answers]
    for waiter in waiters[::2]:
        waiter.cancel()
    dispatcher.wake(Partition(0, 2500), 0.0)
    assert [number for number, answer in enumerate(answers) if answer.offers] == list(range(1, 5000, 2))
    dispatcher.expire(3.0)
    assert sum(len(answer.errors) for answer in answers) == 2500
    assert dispatcher.waiting == 0


def test_a_request_made_while_serving_is_queued() -> None:
    dispatcher, later = Dispatcher(10, 3.0), Answers()
    order: list[str] = []

    def ask_again(offer: Offer | None, error: PixyError | None) -> None:
        order.append("first")
        dispatcher.consume(lambda offer, error: order.append("again"), False, None, 0.0)

    dispatcher.consume(ask_again, False, None, 0.0)
    dispatcher.consume(lambda offer, error: order.append("second"), False, None, 0.0)
    dispatcher.wake(Partition(0, 3), 0.0)
    assert order == ["first", "second", "again"]
    assert later.errors == []


def test_failing_all_answers_all_requests() -> None:
    dispatcher, answers = Dispatcher(10, 3.0), Answers()
    waits(dispatcher, answers)
    waits(dispatcher, answers, deadline=1.0)
    dispatcher.fail_all(ShuttingDown())
    assert [str(error) for error in answers.errors] == ["service is shutting down"] * 2
    assert dispatcher.next_deadline() is None


def test_a_failing_callback_does_not_block_the_others() -> None:
    dispatcher, answers = Dispatcher(10, 3.0), Answers()

    def fail(offer: Offer | None, error: PixyError | None) -> None:
        raise ZeroDivisionError

    dispatcher.consume(fail, False, None, 0.0)
    waits(dispatcher, answers)
    partition = Partition(0, 2)
    with pytest.raises(ZeroDivisionError):
        dispatcher.wake(partition, 0.0)
    dispatcher.wake(partition, 0.0)
    assert answers.offsets == [1]


# --- leases ---------------------------------------------------------------------------------------


def test_nothing_is_offered_once_the_lease_is_over() -> None:
    dispatcher, answers = Dispatcher(10, 3.0), Answers()
    dispatcher.lease.until = 5.0
    partition = Partition(0, 3)
    dispatcher.wake(partition, 0.0)
    assert dispatcher.consume(answers, False, None, 4.9) is None
    waits(dispatcher, answers, 5.0)
    partition.add(1)
    dispatcher.wake(partition, 5.0)
    assert answers.offsets == [0]
    assert dispatcher.stalled(5.0)
    dispatcher.lease.until = 7.0
    assert not dispatcher.stalled(6.0)
    dispatcher.serve(6.0)
    assert answers.offsets == [0, 1]


def test_without_requests_or_records_nothing_waits_for_a_lease() -> None:
    dispatcher, answers = Dispatcher(10, 3.0), Answers()
    dispatcher.lease.until = 1.0
    waits(dispatcher, answers)
    assert not dispatcher.stalled(1.0)
    dispatcher.expire(9.0)
    dispatcher.wake(Partition(0, 1), 1.0)
    assert not dispatcher.stalled(1.0)


def test_nothing_of_a_discarded_partition_is_offered_until_it_is_woken() -> None:
    dispatcher, answers = Dispatcher(10, 3.0), Answers()
    held = Partition(0, 1)
    dispatcher.wake(held, 0.0)
    dispatcher.wake(Partition(1, 1), 0.0)
    dispatcher.discard(held)
    waits_on = [dispatcher.consume(answers, False, None, 0.0) for _ in range(2)]
    assert [offer.partition for offer in answers.offers] == [1]
    assert waits_on[0] is None
    dispatcher.discard(held)
    dispatcher.wake(held, 0.0)
    assert [offer.partition for offer in answers.offers] == [1, 0]


# --- requests of other nodes, and offers of other nodes -------------------------------------------


def test_requests_of_other_nodes_are_served_in_turn_with_those_of_clients_here() -> None:
    dispatcher, here, there = Dispatcher(10, 3.0), Answers(), Answers()
    dispatcher.consume_elsewhere(there, 0.0)
    waits(dispatcher, here)
    dispatcher.consume_elsewhere(there, 0.0)
    dispatcher.wake(Partition(0, 3), 0.0)
    assert (here.offsets, there.offsets) == ([1], [0, 2])
    dispatcher.consume_elsewhere(there, 0.0)
    assert (here.errors, there.errors) == ([], [])


def test_a_request_of_another_node_is_answered_at_once_if_something_is_ready() -> None:
    dispatcher, there = Dispatcher(10, 3.0), Answers()
    dispatcher.wake(Partition(0, 1), 0.0)
    dispatcher.consume_elsewhere(there, 0.0)
    assert there.offsets == [0]
    assert [offer.auto_ack for offer in there.offers] == [False]


def test_requests_of_other_nodes_take_no_room_of_clients_here() -> None:
    dispatcher, here, there = Dispatcher(1, 3.0), Answers(), Answers()
    others = [dispatcher.consume_elsewhere(there, 0.0) for _ in range(5)]
    assert dispatcher.waiting == 0
    waits(dispatcher, here)
    assert dispatcher.waiting == 1
    dispatcher.consume(here, False, None, 0.0)
    assert [type(error) for error in here.errors] == [TooManyRequests]
    for other in others:
        other.cancel()
        other.cancel()
    assert dispatcher.waiting == 1
    dispatcher.expire(3.0)
    assert (len(here.errors), there.errors, dispatcher.waiting) == (2, [], 0)


def test_a_request_of_another_node_ends_at_the_long_polling_timeout() -> None:
    dispatcher, there = Dispatcher(1, 3.0), Answers()
    dispatcher.consume_elsewhere(there, 0.0)
    dispatcher.expire(3.0)
    assert [type(error) for error in there.errors] == [LongPollTimeout]
    assert dispatcher.waiting == 0
    assert dispatcher.next_deadline() is None


def test_an_offer_of_another_node_goes_to_the_oldest_request_here() -> None:
    dispatcher, first, second, there = Dispatcher(10, 3.0), Answers(), Answers(), Answers()
    offers = Answers()
    dispatcher.wake(Partition(7, 3), 0.0)
    for _ in range(3):
        dispatcher.consume(offers, False, None, 0.0)
    dispatcher.consume_elsewhere(there, 0.0)
    assert dispatcher.oldest() is None
    assert not dispatcher.give(offers.offers[0])
    dispatcher.consume(first, True, None, 1.0)
    dispatcher.consume(second, False, None, 2.0)
    assert dispatcher.oldest() == 1.0
    assert dispatcher.give(offers.offers[1])
    assert dispatcher.give(offers.offers[2])
    assert (first.offsets, second.offsets, there.offsets) == ([1], [2], [])
    assert [offer.auto_ack for offer in offers.offers] == [False, True, False]
    assert dispatcher.oldest() is None
