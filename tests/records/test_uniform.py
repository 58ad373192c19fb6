"""Batches of records of equal length are recognized at once, and nothing else is taken for one."""

import random
from collections.abc import Callable

import pytest

from pixy.records import NewRecord, build_batch
from pixy.records.codec import readable_batch
from pixy.records.compiled import UNREADABLE
from pixy.records.uniform import largest_timestamp_delta
from pixy.records.windows import decode_windows


def uniform(
    count: int, size: int = 20, key: bytes | None = b"k", times: Callable[[int], int] = lambda at: 0
) -> bytearray:
    """A batch with the time of each record, in milliseconds after the first one."""
    return build_batch([NewRecord(key, bytes(size), (), 1000 + times(at)) for at in range(count)])


def decoded(batch: bytearray, count: int) -> list[tuple[int, int]]:
    """Offset and timestamp of each record by the codec, none if it refuses the batch."""
    try:
        windows = decode_windows(readable_batch(batch), count)
        return [(each.offset, each.timestamp) for window in windows for each in window.records]
    except UNREADABLE:
        return []


@pytest.mark.parametrize("count", [64, 65, 1000, 8191, 8192, 8193, 20_000])
@pytest.mark.parametrize(("size", "key"), [(0, None), (20, b"key"), (200, b"")])
def test_equal_records_are_recognized(count: int, size: int, key: bytes | None) -> None:
    assert largest_timestamp_delta(uniform(count, size, key), count) == 0


@pytest.mark.parametrize("count", [64, 1000, 9000])
@pytest.mark.parametrize(
    "times",
    [
        lambda at: at // 20,
        lambda at: at,
        lambda at: at * 997 % 60,
        lambda at: 5000 + at * 997 % 3000,
        lambda at: at * 1000,
        lambda at: 1 << 40 if at else 0,
    ],
    ids=["some", "each", "mixed", "mixed and later", "far apart", "a larger one"],
)
def test_equal_records_of_different_times_are_recognized(count: int, times: Callable[[int], int]) -> None:
    batch = uniform(count, times=lambda at: times(at) if at else 0)
    assert largest_timestamp_delta(batch, count) == max(times(at) if at else 0 for at in range(count))


@pytest.mark.parametrize("count", [64, 100, 1000])
def test_a_few_records_may_be_of_another_length(count: int) -> None:
    sizes = {0: 1, 50: 500, count - 1: 7}
    records = [NewRecord(None, bytes(sizes.get(at, 100)), (), at // 10) for at in range(count)]
    assert largest_timestamp_delta(build_batch(records), count) == (count - 1) // 10


@pytest.mark.parametrize(
    "batch",
    [
        uniform(63),
        uniform(100, times=lambda at: -1 if at == 50 else 0),
        build_batch([NewRecord(None, bytes(20 + at % 2), (), 1) for at in range(100)]),
        build_batch([NewRecord(bytes(at % 2), bytes(1 - at % 2), (), 1) for at in range(100)]),
        build_batch([NewRecord(None, b"", [("a", b"")], 1) for _ in range(100)]),
        uniform(100) + b"\0",
        uniform(100)[:-1],
    ],
    ids=["few", "earlier times", "sizes", "keys", "headers", "more bytes", "fewer bytes"],
)
def test_other_records_are_left_to_the_codec(batch: bytearray) -> None:
    count = int.from_bytes(batch[57:61], "big")
    assert largest_timestamp_delta(batch, count) is None


@pytest.mark.slow
@pytest.mark.parametrize("times", [lambda at: 0, lambda at: at % 50, lambda at: at * 3])
@pytest.mark.parametrize("count", [64, 70, 200, 8200])
def test_whatever_is_changed_is_recognized_only_if_the_codec_agrees(
    count: int, times: Callable[[int], int]
) -> None:
    chooser = random.Random(count)
    original = uniform(count, 3, times=times)
    recognized = 0
    for _ in range(1000 if count < 1000 else 100):
        batch = bytearray(original)
        for _ in range(chooser.randint(1, 3)):
            batch[chooser.randrange(61, len(batch))] ^= 1 << chooser.randrange(8)
        largest = largest_timestamp_delta(batch, count)
        if largest is not None:
            recognized += 1
            found = decoded(batch, count)
            assert [offset for offset, _ in found] == [*range(count)]
            assert max(timestamp for _, timestamp in found) == 1000 + largest
            assert min(timestamp for _, timestamp in found) >= 1000
    assert recognized
