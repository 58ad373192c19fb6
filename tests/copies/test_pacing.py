"""The pace of copies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.copies import ChunkSize, TokenBucket


def test_what_has_gathered_is_free_and_more_is_waited_for() -> None:
    bucket = TokenBucket(100.0, 50.0)
    assert bucket.take(50, 0.0) == 0.0
    assert bucket.take(10, 0.0) == pytest.approx(0.1)
    assert bucket.take(10, 0.1) == pytest.approx(0.1)
    assert bucket.take(50, 1e6) == 0.0


def test_a_chunk_larger_than_the_bucket_passes() -> None:
    assert TokenBucket(100.0, 50.0).take(1050, 0.0) == pytest.approx(10.0)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=50))
def test_the_rate_is_kept(chunks: list[int]) -> None:
    bucket, now = TokenBucket(100.0, 50.0), 0.0
    for each in chunks:
        now += bucket.take(each, now)
    assert now == pytest.approx(max(0.0, sum(chunks) - 50.0) / 100.0)


def test_chunks_grow_while_they_come_quickly_and_shrink_if_not() -> None:
    size, found = ChunkSize(100, 1000), []
    for seconds in (0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 3.0, 3.0, 3.0, 3.0, 3.0):
        found.append(size.bytes)
        size.came(seconds, clients_write=False)
    assert found == [100, 200, 400, 400, 800, 1000, 1000, 500, 250, 125, 100]


def test_chunks_are_small_at_once_when_clients_write() -> None:
    size = ChunkSize(100, 1000)
    for _ in range(5):
        size.came(0.0, clients_write=False)
    size.came(0.1, clients_write=True)
    assert size.bytes == 100


def test_a_source_that_gives_less_at_a_time_is_asked_for_no_more() -> None:
    size = ChunkSize(100, 1000)
    size.came(0.0, clients_write=False)
    size.shrink_to(50)
    assert size.bytes == 50
    size.came(0.0, clients_write=False)
    size.came(0.1, clients_write=True)
    assert size.bytes == 50
