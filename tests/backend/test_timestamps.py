"""Search for the first record at or after a timestamp, within batches."""

import pytest

from pixy.backend.timestamps import first_since
from pixy.errors import UnpackedTooLarge
from pixy.records import COMPRESSION, patch_batch
from tests.fakes.batches import batch_of, bomb


def at(offset: int, batch: bytes) -> bytes:
    """The batch as stored in a log."""
    patched = bytearray(batch)
    patch_batch(patched, offset, 0)
    return bytes(patched)


BATCHES = [
    at(5, batch_of(b"5", b"6", b"7", timestamp_ms=1000)),
    at(10, batch_of(b"10", b"11", timestamp_ms=500)),
    at(12, batch_of(*[b"12" * 100, b"13" * 100], timestamp_ms=2000, compression=COMPRESSION["lz4"])),
]


@pytest.mark.parametrize(
    ("timestamp_ms", "offset"),
    [(-1, 5), (1000, 5), (1001, 6), (1002, 7), (1003, 12), (2001, 13), (2002, None)],
)
def test_the_first_record_at_or_after_a_timestamp_is_found(timestamp_ms: int, offset: int | None) -> None:
    assert first_since(BATCHES, timestamp_ms, 0) == offset


@pytest.mark.parametrize(("begin", "offset"), [(5, 5), (6, 6), (8, 10), (11, 11), (13, 13), (14, None)])
def test_records_before_the_begin_do_not_count(begin: int, offset: int | None) -> None:
    assert first_since(BATCHES, 0, begin) == offset


@pytest.mark.slow
def test_a_batch_without_a_late_enough_record_is_not_decoded() -> None:
    batches = [at(0, bomb(1000)), *BATCHES]
    assert first_since(batches, 2000, 0) == 12
    with pytest.raises(UnpackedTooLarge):
        first_since(batches, 1000, 0)
