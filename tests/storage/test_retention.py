"""Retention by size and by age, timestamps not believed, and comparison with a naive model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.storage import LogOptions
from pixy.storage.partition.retention import SegmentFacts, retained_from

NOW = 1_700_000_000_000
DAY = 86_400_000
NEVER = -1


def log(*segments: tuple[int, int]) -> list[SegmentFacts]:
    """Segments of ten records, by (bytes, age of the newest record); `NEVER`: no timestamps."""
    return [
        SegmentFacts((at + 1) * 10, size, NEVER if age == NEVER else NOW - age, no_file)
        for at, (size, age) in enumerate(segments)
    ]


def no_file(_: int) -> int | None:
    return None


def kept_from(
    segments: list[SegmentFacts], begin: int = 0, *, size: int | None = None, age: int | None = None
) -> int:
    return retained_from(segments, begin, LogOptions(1, 1, size, age), NOW)


def test_without_limits_everything_is_retained() -> None:
    assert kept_from(log((100, 900 * DAY), (100, 800 * DAY))) == 0
    assert kept_from([]) == 0


@pytest.mark.parametrize(
    ("size", "expected"),
    [(301, 0), (300, 0), (201, 0), (200, 10), (101, 10), (100, 20), (99, 20), (1, 20), (0, 20)],
)
def test_the_oldest_is_removed_while_the_rest_has_the_size_and_the_active_one_stays(
    size: int, expected: int
) -> None:
    assert kept_from(log((100, 0), (100, 0), (100, 0)), size=size) == expected


def test_a_single_oversized_segment_stays() -> None:
    assert kept_from(log((1 << 40, 0)), size=1) == 0


@pytest.mark.parametrize(
    ("age", "expected"), [(4 * DAY, 0), (3 * DAY, 0), (3 * DAY - 1, 10), (2 * DAY - 1, 20), (0, 30)]
)
def test_a_segment_with_an_expired_newest_record_is_removed_even_the_active_one(
    age: int, expected: int
) -> None:
    assert kept_from(log((9, 3 * DAY), (9, 2 * DAY), (9, DAY)), age=age) == expected


def test_age_stops_at_the_first_segment_that_is_young_enough() -> None:
    assert kept_from(log((9, 3 * DAY), (9, 0), (9, 3 * DAY)), age=DAY) == 10


def test_descending_timestamps_retain_the_older_segments_behind() -> None:
    assert kept_from(log((9, DAY), (9, 2 * DAY), (9, 3 * DAY)), age=2 * DAY) == 0
    assert kept_from(log((9, DAY), (9, 2 * DAY), (9, 3 * DAY)), age=DAY - 1) == 30


HOUR = 3_600_000


@pytest.mark.parametrize("timestamp", [NEVER, -(2**63), NOW + HOUR + 1, 2**63 - 1], ids=str)
@pytest.mark.parametrize(("written", "expected"), [(NOW - DAY - 1, 30), (NOW - DAY, 10), (None, 10)])
def test_the_time_of_the_last_write_counts_for_a_timestamp_that_no_clock_can_have_given(
    timestamp: int, written: int | None, expected: int
) -> None:
    old, _, behind = log((9, 9 * DAY), (9, 0), (9, 9 * DAY))
    assert kept_from([old, SegmentFacts(20, 9, timestamp, lambda _: written), behind], age=DAY) == expected


@pytest.mark.parametrize("timestamp", [0, NOW - DAY, NOW, NOW + HOUR])
def test_the_time_of_the_last_write_is_not_asked_for_otherwise(timestamp: int) -> None:
    asked: list[int] = []
    kept_from([SegmentFacts(10, 9, timestamp, asked.append)], age=DAY)
    assert asked == []


def test_a_segment_without_timestamps_is_removed_by_size() -> None:
    assert kept_from(log((9, NEVER), (9, NEVER), (9, NEVER)), size=9) == 20


def test_a_timestamp_of_1970_has_an_age() -> None:
    assert kept_from([SegmentFacts(10, 9, 0, no_file)], age=DAY) == 10


def test_the_stricter_limit_decides() -> None:
    segments = log((100, 3 * DAY), (100, 2 * DAY), (100, 0))
    assert kept_from(segments, size=200, age=DAY) == 20
    assert kept_from(segments, size=100, age=10 * DAY) == 20


def test_the_log_begin_offset_never_moves_back() -> None:
    assert kept_from(log((100, 0), (100, 0)), 15, size=100) == 15
    assert kept_from(log((100, 9 * DAY), (100, 0)), 15, age=DAY) == 15


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(1, 300), st.one_of(st.just(NEVER), st.integers(0, 30))), max_size=8),
    st.integers(0, 90),
    st.one_of(st.none(), st.integers(0, 900)),
    st.one_of(st.none(), st.integers(0, 30)),
)
def test_the_result_matches_a_removal_one_by_one(
    facts: list[tuple[int, int]], begin: int, size: int | None, age: int | None
) -> None:
    segments = log(*facts)
    left = list(segments)
    while size is not None and len(left) > 1 and sum(each.size for each in left[1:]) >= size:
        del left[0]
    young = list(segments)
    while (
        age is not None and young and young[0].max_timestamp != NEVER and NOW - young[0].max_timestamp > age
    ):
        del young[0]
    gone = segments[: len(segments) - min(len(left), len(young))]
    assert kept_from(segments, begin, size=size, age=age) == max([begin, *(each.end_offset for each in gone)])
