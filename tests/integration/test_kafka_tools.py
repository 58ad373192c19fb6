"""Apache Kafka itself reads segments of batches that pixy built."""

from itertools import groupby
from pathlib import Path

import pytest

from pixy.records import COMPRESSION, NewRecord, build_batch, build_control_batch, patch_batch
from tests.integration.kafka_tools import dump_log_segment_text, dump_log_segments

pytestmark = pytest.mark.process

RECORDS = [
    NewRecord(None, b"no key " * 20, [], 1_700_000_000_000),
    NewRecord(b"", b"empty key " * 20, [("h", b"1"), ("i", None)], 1_699_999_999_999),
    NewRecord(b"key payload: x", b"value key: y " * 20, [], 5),
    NewRecord(b"tombstone", None, [("h", b"")], -5),
    NewRecord("schlüssel".encode(), b"", [], 1_700_000_000_001),
]
EXPECTED = [
    (
        None if record.key is None else record.key.decode(),
        None if record.value is None else record.value.decode(),
        tuple(name for name, _ in record.headers),
        record.timestamp_ms,
    )
    for record in RECORDS
]


def segment(*batches: bytearray) -> bytes:
    """The batches as in a partition log: concatenated, with consecutive offsets."""
    offset = 0
    for batch in batches:
        patch_batch(batch, offset, 7)
        offset += int.from_bytes(batch[23:27], "big") + 1
    return b"".join(batches)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000000.log"


def test_kafka_reads_every_record_of_every_compression(path: Path) -> None:
    batches = [build_batch(RECORDS, codec) for codec in COMPRESSION.values()]
    path.write_bytes(segment(*batches))
    records = dump_log_segments(path)
    assert [record.offset for record in records] == list(range(len(RECORDS) * len(COMPRESSION)))
    found = [(record.key, record.value, record.header_names, record.timestamp_ms) for record in records]
    assert found == EXPECTED * len(COMPRESSION)
    dumped = [batch for batch, _ in groupby(record.batch for record in records)]
    assert [batch.codec for batch in dumped] == list(COMPRESSION)
    assert [batch.base_offset for batch in dumped] == [0, 5, 10, 15, 20]
    assert [batch.last_offset for batch in dumped] == [4, 9, 14, 19, 24]
    assert [batch.size for batch in dumped] == [len(batch) for batch in batches]
    assert [batch.crc for batch in dumped] == [int.from_bytes(batch[17:21], "big") for batch in batches]
    assert {(batch.count, batch.leader_epoch, batch.is_valid) for batch in dumped} == {(5, 7, True)}


def test_kafka_recognizes_a_control_batch(path: Path) -> None:
    path.write_bytes(segment(build_batch(RECORDS[:1]), build_control_batch(1, bytes(6), 1000)))
    record, control = dump_log_segments(path)
    assert (record.batch.is_control, record.offset) == (False, 0)
    assert (control.batch.is_control, control.offset, control.batch.is_valid) == (True, 1, True)


def test_kafka_detects_a_damaged_batch(path: Path) -> None:
    damaged, whole = build_batch(RECORDS[:1]), build_batch(RECORDS[:1])
    damaged[-3] ^= 0x01
    path.write_bytes(segment(damaged, whole))
    first, second = dump_log_segments(path)
    assert (first.batch.is_valid, second.batch.is_valid) == (False, True)
    assert first.value != second.value


def test_kafka_reports_the_size_of_a_truncated_end(path: Path) -> None:
    path.write_bytes(segment(build_batch(RECORDS[:1]), build_batch(RECORDS))[:-7])
    assert "invalid bytes at the end" in dump_log_segment_text(path)
