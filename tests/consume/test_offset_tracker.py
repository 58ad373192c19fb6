from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.consume import decode, describe
from pixy.consume.core import AckRange, OffsetTracker, encode, offset_tracker
from pixy.consume.core.offset_tracker import CROWDED_RANGES


def human(tracker: OffsetTracker) -> str:
    return describe(tracker.base, tracker.ranges)


def test_the_reference_sequence_of_kafka_pixy() -> None:
    tracker = OffsetTracker(300)
    changed = [tracker.ack(offset) for offset in (299, 300, 302, 310, 311, 307, 305, 304)]
    assert changed == [False] + [True] * 7
    assert (tracker.base, human(tracker)) == (301, "1-2,3-5,6-7,9-11")
    for offset in (308, 303, 309, 306):
        assert tracker.ack(offset)
    assert human(tracker) == "1-11"
    assert tracker.ack(301)
    assert (tracker.base, human(tracker), tracker.metadata()) == (312, "", "")


def test_a_repeated_ack_changes_nothing() -> None:
    tracker = OffsetTracker(0)
    assert tracker.ack(5)
    assert not tracker.ack(5)
    assert tracker.metadata() == "FB"


def test_a_gap_counts_as_acked() -> None:
    tracker = OffsetTracker(10)
    assert tracker.skip(12, 15)
    assert tracker.ranges == [AckRange(12, 15)]
    assert tracker.skip(5, 12)
    assert (tracker.base, tracker.ranges) == (15, [])
    assert not tracker.skip(3, 15)
    assert not tracker.skip(20, 20)


def test_adjusting_into_a_range_moves_to_its_end() -> None:
    tracker = OffsetTracker(10, [AckRange(12, 14), AckRange(20, 30), AckRange(40, 41)])
    assert not tracker.adjust(9)
    assert tracker.adjust(25)
    assert (tracker.base, tracker.ranges) == (30, [AckRange(40, 41)])


def test_the_next_unacked_offset_is_found() -> None:
    tracker = OffsetTracker(10, [AckRange(12, 14), AckRange(16, 17)])
    assert [tracker.next_unacked(offset) for offset in (3, 10, 11, 12, 13, 14, 15, 16, 17, 99)] == [
        10, 10, 11, 14, 14, 14, 15, 17, 17, 99,
    ]  # fmt: skip


def test_ranges_that_touch_the_base_move_it() -> None:
    assert OffsetTracker(10, [AckRange(10, 12), AckRange(12, 13)]).base == 13


def test_top_is_above_all_acked_offsets() -> None:
    assert OffsetTracker(10).top == 10
    assert OffsetTracker(10, [AckRange(12, 14), AckRange(16, 17)]).top == 17


def test_a_record_never_acked_costs_one_range() -> None:
    tracker = OffsetTracker(0)
    for offset in range(1, 10_000):
        tracker.ack(offset)
    assert tracker.ranges == [AckRange(1, 10_000)]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ack"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("skip"), st.integers(0, 60), st.integers(0, 60)),
        st.tuples(st.just("adjust"), st.integers(0, 60), st.just(0)),
    ),
    max_size=60,
)


@pytest.mark.slow
@given(st.integers(0, 20), STEPS)
def test_it_agrees_with_a_set_of_acked_offsets(base: int, steps: list[tuple[str, int, int]]) -> None:
    tracker = OffsetTracker(base)
    acked = set(range(base))
    for step, first, second in steps:
        new = {"ack": range(first, first + 1), "skip": range(first, second), "adjust": range(first)}[step]
        expected = bool(set(new) - acked)
        acked |= set(new)
        if step == "ack":
            assert tracker.ack(first) == expected
        elif step == "skip":
            assert tracker.skip(first, second) == expected
        else:
            assert tracker.adjust(first) == expected
        tracker.check_invariants()
        unacked = [offset for offset in range(100) if offset not in acked]
        assert tracker.base == unacked[0]
        assert tracker.top == max(acked, default=-1) + 1
        for offset in range(62):
            assert tracker.is_acked(offset) == (offset in acked)
            if offset >= tracker.base:
                assert tracker.next_unacked(offset) == next(free for free in unacked if free >= offset)


def full(span: int = 2) -> OffsetTracker:
    """A tracker whose ranges fill a commit: one acked offset in each `span`."""
    tracker = OffsetTracker(0)
    offset = 1
    while not tracker.refuses(offset):
        tracker.ack(offset)
        offset += span
    return tracker


@pytest.mark.parametrize("span", [2, 31, 33, 1000, 10**6, 10**12])
def test_acks_that_do_not_fit_into_a_commit_are_refused(span: int) -> None:
    tracker = full(span)
    size, ranges = tracker.size, tracker.ranges
    assert 4096 - 26 < size <= 4096
    assert tracker.size == len(tracker.metadata())
    assert len(ranges) >= CROWDED_RANGES
    assert tracker.refuses(tracker.top + span)
    assert not tracker.refuses(tracker.top)
    assert decode(0, tracker.metadata()) == ranges


def test_acks_that_make_ranges_fewer_are_taken_and_make_space() -> None:
    tracker = full()
    refused = tracker.top + 1
    assert tracker.refuses(refused)
    assert not tracker.refuses(2)
    assert tracker.ack(2)
    assert not tracker.refuses(refused)
    assert tracker.ack(refused)
    assert tracker.ack(0)
    assert tracker.size < 4096
    tracker.check_invariants()


def test_gaps_of_the_log_are_marked_beyond_what_fits_and_left_out_of_the_commit() -> None:
    tracker = full()
    acked = tracker.ranges
    top = tracker.top
    for number in range(100):
        assert tracker.skip(top + 2 * number + 1, top + 2 * number + 2)
    assert tracker.size > 4096
    assert len(tracker.metadata()) <= 4096
    assert decode(0, tracker.metadata()) == acked[: len(decode(0, tracker.metadata()))]
    assert tracker.refuses(top + 1000)
    assert not tracker.refuses(top), "it joins two ranges"
    for offset in range(0, 2 * len(acked), 2):
        assert not tracker.refuses(offset)
        tracker.ack(offset)
    assert tracker.size <= 4096
    tracker.check_invariants()


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 70)), max_size=100))
def test_the_size_is_that_of_the_encoding_and_decides_on_acks(skipped: list[tuple[int, int]]) -> None:
    tracker = OffsetTracker(5)
    with patch.object(offset_tracker, "METADATA_BYTES_MAX", 30):
        for begin, count in skipped:
            size = len(encode(tracker.base, tracker.ranges))
            assert tracker.size == size
            grown = OffsetTracker(tracker.base, tracker.ranges)
            grown.ack(begin)
            assert tracker.refuses(begin) == (grown.size > max(30, size))
            if count % 2:
                tracker.ack(begin)
            else:
                tracker.skip(begin, begin + count)
            tracker.check_invariants()
