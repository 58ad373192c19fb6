"""Batches of equal records are recognized at once, and nothing else is taken for one."""

import random

import pytest

from pixy.records import NewRecord, build_batch
from pixy.records.codec import readable_batch
from pixy.records.compiled import UNREADABLE
from pixy.records.uniform import uniform_timestamp_delta
from pixy.records.windows import decode_windows


def uniform(count: int, size: int = 20, key: bytes | None = b"k", timestamp_ms: int = 1000) -> bytearray:
    first = NewRecord(key, bytes(size), (), 1000)
    return build_batch([first] + [NewRecord(key, bytes(size), (), timestamp_ms)] * (count - 1))


@pytest.mark.parametrize("count", [64, 65, 1000, 8191, 8192, 8193, 20_000])
@pytest.mark.parametrize(("size", "key"), [(0, None), (20, b"key"), (200, b"")])
def test_equal_records_are_recognized(count: int, size: int, key: bytes | None) -> None:
    assert uniform_timestamp_delta(uniform(count, size, key), count) == 0


@pytest.mark.parametrize(
    "batch",
    [
        uniform(63),
        uniform(100, timestamp_ms=1001),
        build_batch([NewRecord(None, bytes(20 + at % 2), (), 1) for at in range(100)]),
        build_batch([NewRecord(bytes(at % 2), bytes(1 - at % 2), (), 1) for at in range(100)]),
        build_batch([NewRecord(None, b"", [("a", b"")], 1) for _ in range(100)]),
        uniform(100) + b"\0",
        uniform(100)[:-1],
    ],
    ids=["few", "timestamps", "sizes", "keys", "headers", "more bytes", "fewer bytes"],
)
def test_other_records_are_left_to_the_codec(batch: bytearray) -> None:
    count = int.from_bytes(batch[57:61], "big")
    assert uniform_timestamp_delta(batch, count) is None


@pytest.mark.slow
@pytest.mark.parametrize("count", [64, 70, 200, 8200])
def test_whatever_is_changed_is_recognized_only_if_the_codec_agrees(count: int) -> None:
    chooser = random.Random(count)
    original = uniform(count, 3)
    recognized = 0
    for _ in range(1000 if count < 1000 else 100):
        batch = bytearray(original)
        for _ in range(chooser.randint(1, 3)):
            batch[chooser.randrange(61, len(batch))] ^= 1 << chooser.randrange(8)
        delta = uniform_timestamp_delta(batch, count)
        try:
            windows = decode_windows(readable_batch(batch), count)
            found = [(each.offset, each.timestamp) for window in windows for each in window.records]
        except UNREADABLE:
            found = []
        if delta is not None:
            recognized += 1
            assert found == [(offset, 1000 + delta) for offset in range(count)]
    assert recognized
