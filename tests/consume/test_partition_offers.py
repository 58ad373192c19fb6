from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pixy.consume import Offer
from pixy.consume.core import AckRange, OffsetTracker
from pixy.consume.core.offer import OfferLimits
from pixy.consume.core.voided import NOTHING_VOIDED, VoidedOffsets
from pixy.consume.partition.partition_offers import PartitionOffers
from pixy.errors import AckBeyondEnd, CorruptData, ResourceExhausted
from pixy.records import NewRecord, build_batch, crc32c
from tests.consume.fakes import fed, make_batch


@dataclass
class Owner:
    topic: str = "t"
    partition: int = 3
    delivered_offers: list[Offer] = field(default_factory=list)
    undelivered_offers: list[Offer] = field(default_factory=list)

    def delivered(self, offer: Offer) -> None:
        self.delivered_offers.append(offer)

    def undelivered(self, offer: Offer) -> None:
        self.undelivered_offers.append(offer)


LIMITS = OfferLimits(
    ack_timeout=30.0, pending_max=300, pending_bytes_max=1 << 24, retries_max=-1, buffer_bytes_max=1 << 20
)


def offers_from(
    base: int = 0,
    records: int = 0,
    *,
    ranges: Sequence[AckRange] = (),
    limits: OfferLimits = LIMITS,
    size: int = 10,
    handed_out: int = 0,
    voided: VoidedOffsets = NOTHING_VOIDED,
) -> PartitionOffers:
    """Offers from `base` on, fed with `records` records."""
    tracker = OffsetTracker(base, ranges)
    offers = PartitionOffers(Owner(), limits, tracker, base, handed_out=handed_out, voided=voided)
    if records:
        offers.feed(fed([make_batch(base, [b"x" * size] * records)]))
    return offers


def take(offers: PartitionOffers, now: float = 0.0) -> int:
    """Offer the next record, and deliver it at once."""
    offer = offers.take()
    assert offer is not None
    offers.delivered(offer, now)
    offers.check_invariants()
    return offer.record.offset


def take_all(offers: PartitionOffers, now: float = 0.0) -> list[int]:
    taken = []
    while offers.ready:
        taken.append(take(offers, now))
    assert offers.take() is None
    return taken


# --- offered records and limits -------------------------------------------------------------------


def test_records_are_offered_in_order_of_offset() -> None:
    assert take_all(offers_from(5, 4)) == [5, 6, 7, 8]


def test_pending_messages_are_bounded_exactly() -> None:
    offers = offers_from(0, 1000)
    assert len(take_all(offers)) == 300
    assert offers.ack(17)
    assert take_all(offers) == [300]


def test_pending_bytes_are_bounded() -> None:
    offers = offers_from(0, 10, size=100, limits=replace(LIMITS, pending_bytes_max=350))
    assert take_all(offers) == [0, 1, 2]
    offers.ack(1)
    assert take_all(offers) == [3]


def test_a_record_larger_than_the_limit_is_offered_alone() -> None:
    offers = offers_from(0, 3, size=1000, limits=replace(LIMITS, pending_bytes_max=10, buffer_bytes_max=100))
    assert take_all(offers) == [0]
    offers.ack(0)
    assert take_all(offers) == [1]


def test_key_and_headers_count_as_bytes_and_each_header_as_64_more() -> None:
    batch = build_batch([NewRecord(b"kk", b"vvv", [("name", b"12345"), ("n", None)], 1)] * 2)
    offers = offers_from(limits=replace(LIMITS, pending_bytes_max=30 + 4 * 64 - 1))
    offers.feed(fed([bytes(batch)]))
    assert take_all(offers) == [0]
    other = offers_from(limits=replace(LIMITS, pending_bytes_max=30 + 4 * 64))
    other.feed(fed([bytes(batch)]))
    assert take_all(other) == [0, 1]


def test_a_name_beyond_ascii_counts_four_bytes_for_each_character() -> None:
    batch = build_batch([NewRecord(None, b"v", [("\U0001f600" + "n" * 99, b"")], 1)] * 2)
    for limit, taken in ((2 * (1 + 64 + 400) - 1, [0]), (2 * (1 + 64 + 400), [0, 1])):
        offers = offers_from(limits=replace(LIMITS, pending_bytes_max=limit))
        offers.feed(fed([bytes(batch)]))
        assert take_all(offers) == taken


def test_a_record_without_value_is_offered() -> None:
    batch = build_batch([NewRecord(None, None, (), 1)])
    offers = offers_from()
    offers.feed(fed([bytes(batch)]))
    assert take_all(offers) == [0]


def test_records_below_the_requested_offset_are_skipped() -> None:
    offers = offers_from(3)
    offers.feed(fed([make_batch(0, [b"x"] * 6)]))
    assert take_all(offers) == [3, 4, 5]
    assert (offers.tracker.base, offers.changed) == (3, False)


def test_records_acked_in_a_previous_life_are_not_offered() -> None:
    assert take_all(offers_from(0, 8, ranges=[AckRange(2, 4), AckRange(6, 8)])) == [0, 1, 4, 5]


def test_the_next_record_is_not_offered_once_acked() -> None:
    offers = offers_from(0, 3, handed_out=3)
    assert offers.ack(0)
    assert offers.ack(1)
    assert take_all(offers) == [2]


def test_gaps_count_as_acked() -> None:
    offers = offers_from(0)
    offers.feed(fed([make_batch(2, [b"x"]), make_batch(5, [b"x"])], next_offset=9))
    assert take_all(offers) == [2, 5]
    assert offers.changed
    for offset in (2, 5):
        offers.ack(offset)
    assert (offers.tracker.base, offers.fetch_offset) == (9, 9)


def test_a_fetch_without_records_moves_on() -> None:
    offers = offers_from(4)
    offers.feed(fed([], next_offset=7))
    assert (offers.tracker.base, offers.fetch_offset, offers.changed) == (7, 7, True)
    assert not offers.ready


def test_a_control_batch_is_skipped() -> None:
    batch = bytearray(build_batch([NewRecord(b"\0\0\0\0", b"\0" * 6, (), 1)]))
    batch[22] |= 0x20
    patch_crc(batch)
    offers = offers_from(0)
    offers.feed(fed([bytes(batch), make_batch(1, [b"x"])]))
    assert take_all(offers) == [1]
    assert offers.tracker.base == 1


def patch_crc(batch: bytearray) -> None:
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")


def test_fetching_continues_until_half_of_the_buffer_is_full() -> None:
    offers = offers_from(0, limits=replace(LIMITS, buffer_bytes_max=1000))
    wanted = [offers.wants_more]
    offers.feed(fed([make_batch(0, [b"x" * 100] * 3)]))  # becomes the head's batch
    take(offers)
    wanted.append(offers.wants_more)
    batch = make_batch(3, [b"x" * 600])
    offers.feed(fed([batch]))
    wanted.append(offers.wants_more)
    assert offers.fetch_bytes == 1000 - len(batch)
    offers.notable = False
    noted = []
    for _ in range(2):
        take(offers)
        noted.append(offers.notable)
    assert noted == [False, True]
    wanted.append(offers.wants_more)
    assert wanted == [True, True, False, True]


def test_little_is_fetched_before_the_first_record_of_a_generation_is_taken() -> None:
    offers = offers_from(0, limits=replace(LIMITS, buffer_bytes_max=1 << 20))
    for base in (0, 2):
        assert (offers.wants_more, offers.fetch_bytes) == (True, 64 << 10)
        offers.feed(fed([make_batch(base, [b"a", b"b"])]))
        assert not offers.wants_more
        offers.notable = False
        take(offers)
        assert (offers.notable, offers.wants_more, offers.fetch_bytes) == (True, True, 1 << 20)
        offers.reset(OffsetTracker(2), 2)


def test_a_whole_fetch_follows_a_first_one_with_nothing_to_offer() -> None:
    offers = offers_from(0, limits=replace(LIMITS, buffer_bytes_max=1 << 20))
    offers.tracker.ack(0)
    offers.feed(fed([make_batch(0, [b"a"])]))
    assert (offers.wants_more, offers.fetch_bytes) == (True, 1 << 20)


def test_records_after_a_damaged_batch_are_not_taken() -> None:
    bad = bytearray(make_batch(2, [b"x"]))
    bad[-1] ^= 1
    offers = offers_from()
    offers.feed(fed([make_batch(0, [b"x"] * 2), bytes(bad), make_batch(3, [b"x"])]))
    assert isinstance(offers.fault, CorruptData)
    assert (offers.fetch_offset, offers.wants_more) == (2, False)
    assert take_all(offers) == [0, 1]
    assert offers.tracker.base == 0


def test_a_record_that_cannot_be_decoded_stops_there() -> None:
    batch = bytearray(make_batch(0, [b"abc"] * 4))
    record = (len(batch) - 61) // 4
    batch[61 + 2 * record] = 0x7F  # the third record's length
    patch_crc(batch)
    offers = offers_from()
    offers.feed(fed([bytes(batch), make_batch(4, [b"x"])]))
    assert take_all(offers) == [0, 1]
    assert isinstance(offers.fault, CorruptData)
    assert (offers.fetch_offset, offers.tracker.base) == (2, 0)
    offers.check_invariants()


# --- redelivery -----------------------------------------------------------------------------------


def test_an_offer_expires_at_its_deadline_and_is_redelivered_first() -> None:
    offers = offers_from(0, 5)
    assert [take(offers, 0.0), take(offers, 1.0)] == [0, 1]
    assert offers.next_deadline() == 30.0
    assert offers.expire(29.9) == []
    assert offers.outstanding == 2
    offers.expire(30.0)
    assert (offers.outstanding, offers.pending, offers.next_deadline()) == (1, 2, 31.0)
    again = offers.take()
    assert again is not None
    offers.delivered(again, 30.0)
    assert (again.record.offset, again.retries, again.deadline) == (0, 1, 60.0)
    assert take(offers, 30.0) == 2
    assert offers.expired == 1


def test_expired_offers_are_redelivered_in_order_of_offset() -> None:
    offers = offers_from(0, 5)
    take_all(offers, 0.0)
    offers.expire(30.0)
    assert [take(offers, 30.0), take(offers, 31.0)] == [0, 1]
    offers.expire(60.0)
    assert take_all(offers, 61.0) == [0, 2, 3, 4]


def test_at_the_limit_only_expired_offers_are_redelivered() -> None:
    offers = offers_from(0, 5, limits=replace(LIMITS, pending_max=2))
    assert take_all(offers, 0.0) == [0, 1]
    offers.expire(30.0)
    assert take_all(offers, 30.0) == [0, 1]
    offers.check_invariants()


def test_an_expired_record_can_still_be_acked() -> None:
    offers = offers_from(0, 2)
    take_all(offers)
    offers.expire(30.0)
    assert offers.ack(0)
    assert take_all(offers, 30.0) == [1]
    offers.check_invariants()


@pytest.mark.parametrize(("retries_max", "times"), [(0, 1), (1, 2), (3, 4)])
def test_a_record_is_dropped_after_the_last_retry(retries_max: int, times: int) -> None:
    offers = offers_from(0, 1, limits=replace(LIMITS, retries_max=retries_max))
    now = 0.0
    for offered in range(1, times + 1):
        assert take(offers, now) == 0
        now += 30.0
        assert offers.expire(now) == ([0] if offered == times else [])
    assert (offers.tracker.base, offers.dropped, offers.pending, offers.changed) == (1, 1, 0, True)
    assert not offers.ready


def test_unlimited_retries_never_end() -> None:
    offers = offers_from(0, 1, limits=replace(LIMITS, retries_max=-1))
    for times in range(50):
        assert take(offers, times * 30.0) == 0
        assert offers.expire(times * 30.0 + 30.0) == []


def test_an_offer_expires_only_after_it_was_delivered() -> None:
    offers = offers_from(0, 3, limits=replace(LIMITS, retries_max=0))
    slow, quick = offers.take(), offers.take()
    assert slow is not None
    assert quick is not None
    offers.delivered(quick, 10.0)
    assert offers.next_deadline() == 40.0
    assert offers.expire(39.0) == []
    assert offers.expire(1000.0) == [1]
    assert (offers.outstanding, offers.next_deadline()) == (1, None)
    offers.delivered(slow, 1000.0)
    offers.delivered(slow, 1010.0)
    assert offers.next_deadline() == 1030.0
    assert offers.expire(1029.0) == []
    offers.check_invariants()
    assert offers.expire(1030.0) == [0]


def test_undelivered_offers_count_towards_the_limit() -> None:
    offers = offers_from(0, 9, limits=replace(LIMITS, pending_max=4))
    taken = [offers.take() for _ in range(4)]
    assert offers.take() is None
    assert taken[0] is not None
    offers.delivered(taken[0], 0.0)
    assert offers.take() is None
    assert taken[1] is not None
    assert offers.ack_delivered(taken[1])
    assert take(offers) == 4


def test_a_void_offer_is_not_delivered() -> None:
    offers = offers_from(0, 1)
    old = offers.take()
    assert old is not None
    offers.reset(OffsetTracker(0), 1)
    offers.feed(fed([make_batch(0, [b"x"])]))
    again = offers.take()
    offers.delivered(old, 0.0)
    assert again is not None
    assert (offers.next_deadline(), offers.outstanding) == (None, 1)


def test_an_undelivered_record_is_next_and_costs_no_retry() -> None:
    offers = offers_from(0, 4, limits=replace(LIMITS, retries_max=0))
    take(offers, 0.0)
    second = offers.take()
    assert second is not None
    assert offers.put_back(second)
    assert not offers.put_back(second)
    again = offers.take()
    assert again is not None
    assert (again.record.offset, again.retries) == (1, 0)


def test_undelivered_records_go_before_expired_ones() -> None:
    offers = offers_from(0, 3)
    take(offers, 0.0)
    second = offers.take()
    assert second is not None
    offers.expire(30.0)
    offers.put_back(second)
    assert take_all(offers, 30.0) == [1, 0, 2]


def test_an_expired_offer_cannot_be_returned() -> None:
    offers = offers_from(0, 1)
    first = offers.take()
    assert first is not None
    offers.delivered(first, 0.0)
    offers.expire(30.0)
    assert not offers.put_back(first)
    assert take(offers, 30.0) == 0
    assert not offers.put_back(first)


@pytest.mark.slow
def test_memory_is_bounded_while_the_oldest_offer_is_never_acked() -> None:
    offers = offers_from(0, limits=replace(LIMITS, pending_max=5))
    for base in range(0, 5000, 10):
        offers.feed(fed([make_batch(base, [b"x"] * 10)]))
        for _ in range(10):
            offset = take(offers, float(base))
            if offset:
                offers.ack(offset)
        offers.expire(0.0)
    assert (offers.pending, offers.tracker.ranges) == (1, [AckRange(1, 5000)])


def test_expired_and_acked_records_leave_nothing_behind() -> None:
    offers = offers_from(0, 200)
    for step in range(200):
        offset = take(offers, step * 30.0)
        offers.expire(step * 30.0 + 30.0)
        offers.ack(offset)
        offers.check_invariants()
    assert not offers._again_order


# --- acks -----------------------------------------------------------------------------------------


def test_an_ack_below_the_base_has_no_effect() -> None:
    offers = offers_from(5, 3)
    assert not offers.ack(4)
    assert offers.tracker.base == 5


def test_an_ack_of_a_record_offered_by_another_process_counts() -> None:
    offers = offers_from(0, 3, handed_out=3)
    assert offers.ack(2)
    assert take_all(offers) == [0, 1]


def test_an_ack_of_a_record_that_was_never_handed_out_has_no_effect() -> None:
    offers = offers_from(0, 6, handed_out=2)
    assert [offers.ack(offset) for offset in (2, 3, 5)] == [False] * 3
    assert offers.ack(1)
    assert take(offers) == 0
    assert not offers.ack(2)
    assert take_all(offers) == [2, 3, 4, 5]
    assert offers.ack(2)


def test_an_ack_of_a_record_that_could_not_be_delivered_has_no_effect() -> None:
    offers = offers_from(0, 2)
    offer = offers.take()
    assert offer is not None
    offers.put_back(offer)
    assert not offers.ack(0)
    assert take_all(offers) == [0, 1]


def test_an_ack_of_a_record_counts_that_came_back_from_a_client_and_then_could_not_be_delivered() -> None:
    offers = offers_from(0, 1)
    take(offers)
    offers.expire(30.0)
    again = offers.take()
    assert again is not None
    offers.put_back(again)
    assert offers.handed_out == 1
    assert offers.ack(0)


def test_an_ack_of_a_record_that_another_node_may_have_delivered_counts() -> None:
    offers = offers_from(0, 1)
    offer = offers.take()
    assert offer is not None
    offer.was_out = True
    offers.put_back(offer)
    assert offers.handed_out == 1
    assert offers.ack(0)


def test_what_was_handed_out_is_known_exactly() -> None:
    offers = offers_from(3, 6, handed_out=5)
    assert offers.handed_out == 5
    assert [take(offers) for _ in range(3)] == [3, 4, 5]
    assert offers.handed_out == 6
    sending = [offers.take(), offers.take()]
    assert offers.handed_out == 6
    assert sending[1] is not None
    offers.delivered(sending[1], 0.0)
    assert offers.handed_out == 8
    offers.close()
    assert offers.handed_out == 8


def test_what_was_handed_out_stays_known_after_a_reset() -> None:
    offers = offers_from(0, 9)
    for _ in range(3):
        offers.ack(take(offers))
    offers.reset(OffsetTracker(0), 9)
    assert offers.handed_out == 3
    assert [offset for offset in range(9) if offers.ack(offset)] == [0, 1, 2]


def test_offsets_beyond_the_end_of_a_truncated_log_were_never_handed_out() -> None:
    offers = offers_from(0, 9)
    take_all(offers)
    offers.end_at(4)
    assert offers.handed_out == 4
    offers.feed(fed([make_batch(4, [b"new"] * 3)]))
    assert not offers.ack(5)
    assert take_all(offers) == [4, 5, 6]


def test_an_ack_at_the_end_is_rejected_with_the_allowed_range() -> None:
    offers = offers_from(0, 3, handed_out=3)
    with pytest.raises(AckBeyondEnd, match="bad offset: 3: t/3 ends at 3"):
        offers.ack(3)
    assert offers.ack(2)


def test_an_ack_only_if_offered_needs_an_outstanding_offer() -> None:
    offers = offers_from(0, 3)
    assert not offers.ack(0, only_if_offered=True)
    assert not offers.ack(99, only_if_offered=True)
    take(offers)
    assert offers.ack(0, only_if_offered=True)
    assert not offers.ack(0, only_if_offered=True)
    take(offers, 0.0)
    offers.expire(30.0)
    assert offers.ack(1, only_if_offered=True)


def test_an_ack_only_if_offered_ignores_undelivered_offers() -> None:
    offers = offers_from(0, 1)
    offer = offers.take()
    assert offer is not None
    offers.put_back(offer)
    assert not offers.ack(0, only_if_offered=True)


def test_a_reset_voids_outstanding_offers_until_they_are_redelivered() -> None:
    offers = offers_from(0, 6)
    take_all(offers)
    offers.ack(3)
    offers.reset(OffsetTracker(2, [AckRange(3, 4)]), 6)
    assert (offers.pending, offers.ready, offers.fetch_offset) == (0, False, 2)
    assert not offers.ack(4)
    offers.feed(fed([make_batch(0, [b"x"] * 6)]))
    assert not offers.ack(2)
    assert take(offers) == 2
    assert offers.ack(2)
    assert take_all(offers) == [4, 5]
    with pytest.raises(AckBeyondEnd):
        offers.ack(6)


def test_after_a_reset_acks_of_other_records_count_as_usual() -> None:
    offers = offers_from(0, 8)
    for _ in range(5):
        take(offers, 0.0)
    undelivered = offers.take()
    assert undelivered is not None
    offers.put_back(undelivered)
    offers.ack(1)
    offers.expire(30.0)  # 0, 2, 3 and 4 come back, but their clients may still ack them
    offers.reset(OffsetTracker(0), 8)
    assert [offset for offset in range(8) if offers.ack(offset)] == [1]


def test_voided_offers_stay_void_until_redelivery_however_often_the_partition_restarts() -> None:
    offers = offers_from(0, 4)
    take_all(offers)
    offers.reset(OffsetTracker(2), 4)
    offers.feed(fed([make_batch(0, [b"x"] * 4)]))
    assert take(offers) == 2
    offers.ack(2)
    offers.close()
    assert offers.voided == VoidedOffsets(frozenset({0, 1, 3}))
    later = offers_from(0, 4, handed_out=4, voided=offers.voided)
    assert not later.ack(3)
    assert later.ack(2)
    assert take(later) == 0
    later.expire(30.0)
    later.close()
    assert later.voided == VoidedOffsets(frozenset({1, 3}))


def test_all_offsets_of_a_recreated_topic_are_void_until_offered() -> None:
    offers = offers_from(0, 5)
    take(offers)
    offers.ack(0)
    offers.close(replaced=True)
    later = offers_from(0, 2, voided=offers.voided)
    assert [later.ack(offset) for offset in (0, 1, 4)] == [False] * 3
    with pytest.raises(AckBeyondEnd):
        later.ack(5)
    assert take(later) == 0
    assert later.ack(0)
    later.close()
    assert later.voided == VoidedOffsets(replaced=range(1, 5))


def test_a_commit_beyond_the_end_is_replaced_once_there_are_records_below() -> None:
    offers = offers_from(0, 3)
    offers.reset(OffsetTracker(3), 3, behind_commit=True)
    offers.feed(fed([], 3))
    assert not offers.changed
    offers.feed(fed([make_batch(3, [b"x"])]))
    assert (offers.changed, offers.tracker.base) == (True, 3)


def test_an_offer_from_before_a_reset_cannot_be_returned() -> None:
    offers = offers_from(0, 1)
    offer = offers.take()
    assert offer is not None
    offers.reset(OffsetTracker(0), 1)
    assert not offers.put_back(offer)
    assert not offers.ready


def test_records_below_the_log_begin_offset_are_dropped() -> None:
    offers = offers_from(0, 5)
    take(offers)
    take(offers)
    assert offers.begin_at(20) == 2
    assert (offers.tracker.base, offers.fetch_offset, offers.ready, offers.changed) == (20, 20, False, True)
    offers.feed(fed([make_batch(20, [b"x"])]))
    assert take_all(offers) == [20]


def test_records_from_the_new_begin_on_are_kept_when_the_log_begin_offset_moves() -> None:
    offers = offers_from(0, 10, handed_out=2)
    taken = [offers.take() for _ in range(4)]
    offers.ack(1)
    assert taken[2] is not None
    assert taken[3] is not None
    offers.put_back(taken[3])
    assert offers.begin_at(3) == 2
    offers.check_invariants()
    assert (offers.tracker.base, offers.fetch_offset, offers.outstanding) == (3, 10, 0)
    assert not offers.ack(2)
    assert not offers.put_back(taken[2])
    assert take_all(offers) == [3, 4, 5, 6, 7, 8, 9]
    assert offers.begin_at(8) == 5
    assert (offers.tracker.base, offers.outstanding, offers.fetch_offset) == (8, 2, 10)


def test_the_next_record_is_dropped_if_below_the_new_begin() -> None:
    offers = offers_from(0, 10, ranges=[AckRange(6, 8)])
    assert offers.begin_at(6) == 0
    offers.check_invariants()
    assert (offers.tracker.base, take_all(offers)) == (8, [8, 9])


def test_an_ack_below_the_new_begin_is_no_ack_beyond_the_end() -> None:
    offers = offers_from(0, 2)
    offers.begin_at(20)
    assert not offers.ack(15)
    with pytest.raises(AckBeyondEnd):
        offers.ack(20)


def test_existing_records_are_redelivered_after_the_log_is_truncated() -> None:
    offers = offers_from(0, 9)
    take_all(offers)
    for offset in (2, 7):
        offers.ack(offset)
    offers.end_at(5)
    assert (offers.tracker.base, offers.tracker.ranges, offers.end) == (0, [AckRange(2, 3)], 5)
    offers.feed(fed([make_batch(0, [b"x"] * 5)]))
    assert take_all(offers) == [0, 1, 3, 4]


# --- lifecycle of an offer ------------------------------------------------------------------------


def test_an_offer_reports_its_outcome_to_its_owner() -> None:
    offers = offers_from(0, 2)
    first, second = offers.take(), offers.take()
    assert first is not None
    assert second is not None
    owner = first._owner
    assert isinstance(owner, Owner)
    second.delivered()
    first.undelivered()
    assert (owner.delivered_offers, owner.undelivered_offers) == ([second], [first])
    assert (first.topic, first.partition) == ("t", 3)


@pytest.mark.slow
@example(
    [("t", 0), ("t", 0), ("f", 0), ("d", 0), ("t", 0), ("p", 30), ("t", 0), ("t", 0), ("a", 3), ("t", 0)]
)
@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("ttttdddaaupf"), st.integers(0, 30)), max_size=120))
def test_no_record_is_lost_and_none_is_offered_twice_at_a_time(  # noqa: PLR0912  # one for each kind of step
    steps: list[tuple[str, int]],
) -> None:
    offers = offers_from(0, 3, limits=replace(LIMITS, pending_max=7))
    end, now = 3, 0.0
    acked: set[int] = set()
    delivered: set[int] = set()
    sending: dict[int, Offer] = {}
    out: dict[int, Offer] = {}
    for step, number in steps:
        if step == "t":
            offer = offers.take()
            if offer is not None:
                offset = offer.record.offset
                assert offset not in acked
                assert offset not in sending | out
                sending[offset] = offer
        elif step == "d" and sending:
            offer = sending.pop(sorted(sending)[number % len(sending)])
            if offer.auto_ack:
                assert offers.ack_delivered(offer)
                acked.add(offer.record.offset)
            else:
                offers.delivered(offer, now)
                out[offer.record.offset] = offer
                delivered.add(offer.record.offset)
        elif step == "a" and number < end:
            counts = number in delivered - acked
            assert offers.ack(number) == counts
            if counts:
                acked.add(number)
                sending.pop(number, None)
                out.pop(number, None)
        elif step == "u" and sending:
            offers.put_back(sending.pop(sorted(sending)[number % len(sending)]))
        elif step == "p":
            now += number
            offers.expire(now)
            out = {offset: offer for offset, offer in out.items() if offer.deadline > now}
        elif step == "f":
            offers.feed(fed([make_batch(end, [b"x"] * (number % 5 + 1))]))
            end += number % 5 + 1
        offers.check_invariants()
        assert (set(sending), set(out)) == (set(offers._sending), set(offers._out))
    for offer in sending.values():
        offers.delivered(offer, now)
    for _ in range(1000):
        now += 1.0
        offer = offers.take()
        if offer is not None:
            offers.delivered(offer, now)
            assert offers.ack(offer.record.offset)
        else:
            offers.expire(now)
    assert (offers.tracker.base, offers.pending) == (end, 0)


# --- acks that do not fit into a commit -----------------------------------------------------------

FULL = [AckRange(offset, offset + 1) for offset in range(1, 4096, 2)]
"""Acked ranges above offset 0 that fill a commit."""


def take_many(offers: PartitionOffers, now: float = 0.0) -> list[int]:
    """`take_all`, without a check after each."""
    taken = []
    while (offer := offers.take()) is not None:
        offers.delivered(offer, now)
        taken.append(offer.record.offset)
    offers.check_invariants()
    return taken


def crowded(retries_max: int = -1) -> PartitionOffers:
    """Offers of 5000 records, of which every second one is acked as far as that fits; all others
    are out.
    """
    limits = replace(LIMITS, pending_max=10_000, retries_max=retries_max)
    offers = offers_from(0, 5000, ranges=FULL, limits=limits)
    assert take_many(offers) == [*range(0, 4096, 2), *range(4096, 5000)]
    return offers


def test_an_ack_that_does_not_fit_is_refused_and_its_record_stays_out() -> None:
    offers = crowded()
    before = offers.tracker.metadata()
    text = (
        "ack not accepted: offset 4500 of t/3: acks of 2048 ranges above offset 0, the first that is not acked, fill the 4096 "
        "bytes of a commit; ack the messages below first, or try again"
    )
    with pytest.raises(ResourceExhausted, match=text):
        offers.ack(4500)
    offers.check_invariants()
    assert (offers.tracker.metadata(), offers.outstanding) == (before, 2048 + 904)
    assert offers.expire(31.0) == []
    assert 4500 in take_many(offers, 31.0), "it is offered again"
    assert offers.ack(0)
    assert offers.ack(2)
    assert offers.ack(4500), "it fits now"
    offers.check_invariants()


def test_acks_that_join_ranges_are_taken_while_a_commit_is_full() -> None:
    offers = crowded()
    for offset in (2000, 4096, 4097, 2, 0):
        assert offers.ack(offset)
    assert offers.tracker.base == 4


def test_an_ack_of_a_record_that_nobody_took_is_refused_too() -> None:
    offers = offers_from(0, 5000, ranges=FULL, handed_out=5000)
    with pytest.raises(ResourceExhausted):
        offers.ack(4999)
    assert not offers.ack(4999, only_if_offered=True)
    assert not offers.ack(1), "it is acked"
    assert take_many(offers)[:3] == [0, 2, 4]


def test_a_record_whose_drop_does_not_fit_is_offered_again() -> None:
    offers = crowded(retries_max=0)
    dropped = offers.expire(31.0)
    assert dropped[:2] == [0, 2]
    assert offers.tracker.size <= 4096
    left = take_many(offers, 31.0)
    assert sorted([*dropped, *left]) == [*range(0, 4096, 2), *range(4096, 5000)]
    offers.check_invariants()


# --- records that cannot be delivered -------------------------------------------------------------


def test_a_large_record_that_no_client_takes_waits_for_the_ack_timeout_and_the_others_go_on() -> None:
    offers = offers_from(limits=replace(LIMITS, retries_max=1))
    offers.feed(fed([make_batch(0, [b"a", bytes(100_000), b"b"])]))
    assert take(offers) == 0
    for round_ in (0, 1):
        now = round_ * 30.0
        for attempt in (1, 2, 3):
            offer = offers.take()
            assert offer is not None
            assert offer.record.offset == 1
            assert offers.maybe_give_up(offer, now) is (attempt == 3)
            assert offers.put_back(offer) is (attempt < 3)
            offers.check_invariants()
        if not round_:
            assert take_all(offers, 29.0) == [2]
            offers.ack(0)
            offers.ack(2)
        assert offers.expire(now + 29.9) == []
        assert offers.expire(now + 30) == ([] if not round_ else [1])
    assert offers.tracker.base == 3


def test_a_small_record_goes_to_the_next_client_however_often_that_fails() -> None:
    offers = offers_from(records=1, size=30_000)
    for _ in range(100):
        offer = offers.take()
        assert offer is not None
        assert not offers.maybe_give_up(offer, 0.0)
        assert offers.put_back(offer)
    assert take_all(offers) == [0]


def test_an_ack_ends_what_could_not_be_delivered() -> None:
    offers = offers_from(records=2, size=100_000)
    for _ in range(3):
        offer = offers.take()
        assert offer is not None
        if not offers.maybe_give_up(offer, 0.0):
            offers.put_back(offer)
    assert offers.ack(0, only_if_offered=True)
    assert offers.outstanding == 0
    assert take_all(offers) == [1]
