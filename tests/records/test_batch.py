"""The header of a record batch: byte vector, patching, validation."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.errors import CorruptData
from pixy.records import (
    COMPRESSION,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    NewRecord,
    batch_bytes,
    build_batch,
    build_control_batch,
    check_batch,
    crc32c,
    patch_batch,
    patch_producer,
    read_header,
    read_records,
)

# One record without a key, value "v", at 2023-11-14 22:13:20 UTC; laid out by hand from Kafka's
# DefaultRecordBatch.
VECTOR = bytes.fromhex(
    "0000000000000000"  # base offset 0
    "00000039"  # 57 bytes follow
    "ffffffff"  # leader epoch -1
    "02"  # magic
    "d3f2ac75"  # CRC, which Kafka's DumpLogSegments finds valid
    "0000"  # attributes
    "00000000"  # last offset delta
    "0000018bcfe56800"  # base timestamp 1700000000000
    "0000018bcfe56800"  # max timestamp
    "ffffffffffffffff"  # producer id -1
    "ffff"  # producer epoch -1
    "ffffffff"  # base sequence -1
    "00000001"  # one record
    "0e"  # record of 7 bytes
    "00"  # attributes
    "00"  # timestamp delta
    "00"  # offset delta
    "01"  # no key
    "0276"  # value "v"
    "00"  # no headers
)
BASE_OFFSET_AND_EPOCH = [*range(8), *range(12, 16)]
"""Bytes that no checksum covers, because they are written when a batch is applied."""


def three_records() -> bytearray:
    return build_batch([NewRecord(b"key", b"value %d" % i, [("h", b"x")], 1000 + i) for i in range(3)])


def with_crc(batch: bytearray) -> bytearray:
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def test_a_built_batch_has_the_bytes_that_kafka_specifies() -> None:
    batch = build_batch([NewRecord(None, b"v", [], 1_700_000_000_000)])
    assert batch.hex() == VECTOR.hex()


def test_read_header_names_every_field() -> None:
    header = read_header(struct.pack(">qiibIhiqqqhii", *range(1, 4), 2, *range(5, 14)))
    assert header._asdict() == {
        "base_offset": 1,
        "length": 2,
        "leader_epoch": 3,
        "magic": 2,
        "crc": 5,
        "attributes": 6,
        "last_offset_delta": 7,
        "base_timestamp": 8,
        "max_timestamp": 9,
        "producer_id": 10,
        "producer_epoch": 11,
        "base_sequence": 12,
        "records": 13,
    }


def test_the_next_offset_follows_the_last_record() -> None:
    batch = three_records()
    patch_batch(batch, 40, 0)
    assert read_header(batch).next_offset == 43


def test_a_header_identifies_control_batches_and_codecs() -> None:
    header = read_header(three_records())
    assert (header.is_control, header.codec) == (False, 0)
    header = header._replace(attributes=0x20 | 0x10 | 4)
    assert (header.is_control, header.codec) == (True, 4)


def test_consecutive_batches_are_found_by_their_length() -> None:
    first, second = three_records(), build_batch([NewRecord(None, b"other", [], 5)])
    segment = memoryview(bytes(first + second))
    at = batch_bytes(segment)
    assert at == len(first)
    assert batch_bytes(segment, at) == len(second)
    assert read_header(segment, at) == read_header(second)
    assert batch_bytes(segment[:LENGTH_PREFIX_BYTES]) == len(first)


@given(base_offset=st.integers(0, 2**63 - 4), epoch=st.integers(-1, 2**31 - 1))
def test_patching_changes_base_offset_and_epoch_and_nothing_else(base_offset: int, epoch: int) -> None:
    batch = three_records()
    before = read_header(batch)
    body = bytes(batch[16:])
    assert patch_batch(batch, base_offset, epoch) == base_offset + read_header(batch).records
    assert read_header(batch) == before._replace(base_offset=base_offset, leader_epoch=epoch)
    assert batch[16:] == body
    check_batch(batch)
    assert [record.offset for record in read_records(batch)] == [base_offset + i for i in range(3)]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_check_batch_accepts_a_whole_batch_in_every_kind_of_buffer(
    kind: type[bytes] | type[bytearray] | type[memoryview],
) -> None:
    check_batch(kind(three_records()))


def test_check_batch_rejects_every_truncated_prefix() -> None:
    batch = three_records()
    for length in range(len(batch)):
        with pytest.raises(CorruptData):
            check_batch(batch[:length])


def test_check_batch_rejects_trailing_bytes() -> None:
    batch = three_records()
    with pytest.raises(
        CorruptData, match=f"has a length field of {len(batch)} bytes, but {len(batch) + 1} bytes"
    ):
        check_batch(batch + b"\0")


def test_check_batch_detects_every_flipped_bit_covered_by_checksum_or_length() -> None:
    batch = three_records()
    for at in set(range(len(batch))) - set(BASE_OFFSET_AND_EPOCH):
        for bit in range(8):
            batch[at] ^= 1 << bit
            with pytest.raises(CorruptData):
                check_batch(batch)
            batch[at] ^= 1 << bit
    check_batch(batch)


def test_base_offset_and_epoch_are_not_covered_by_the_checksum() -> None:
    batch = three_records()
    for at in BASE_OFFSET_AND_EPOCH:
        batch[at] ^= 0x01
    check_batch(batch)


@pytest.mark.parametrize("magic", [0, 1, 3, -1])
def test_check_batch_rejects_other_magic_values(magic: int) -> None:
    batch = three_records()
    struct.pack_into(">b", batch, 16, magic)
    with pytest.raises(CorruptData, match=f"magic {magic}, expected 2"):
        check_batch(batch)


@pytest.mark.parametrize(("at", "name"), [(23, "last offset delta -1"), (57, "-1 records")])
def test_check_batch_rejects_negative_counts_even_under_a_valid_checksum(at: int, name: str) -> None:
    batch = three_records()
    struct.pack_into(">i", batch, at, -1)
    with pytest.raises(CorruptData, match=name):
        check_batch(with_crc(batch))


def test_the_error_for_a_wrong_checksum_has_offset_and_both_values() -> None:
    batch = three_records()
    patch_batch(batch, 77, 0)
    said = read_header(batch).crc
    batch[-1] ^= 0xFF
    found = crc32c(memoryview(batch)[21:])
    with pytest.raises(CorruptData, match=f"offset 77 has CRC {found:#010x}, expected {said:#010x}"):
        check_batch(batch)


def test_marking_a_control_batch_updates_its_checksum() -> None:
    batch = build_control_batch(1, b"end", 1000)
    check_batch(batch)
    assert read_header(batch).is_control


def test_a_header_takes_sixty_one_bytes() -> None:
    assert len(build_batch([])) == HEADER_BYTES == 61


def test_patching_the_producer_updates_the_checksum() -> None:
    batch = build_batch([NewRecord(b"key", b"value", (), 1000), NewRecord(None, b"", (), 1001)])
    before = read_header(batch)
    patch_producer(batch, 2**40, 7, 2**31 - 1)
    check_batch(batch)
    after = read_header(batch)
    assert (after.producer_id, after.producer_epoch, after.base_sequence) == (2**40, 7, 2**31 - 1)
    unchanged = {"crc": 0, "producer_id": 0, "producer_epoch": 0, "base_sequence": 0}
    assert after._replace(**unchanged) == before._replace(**unchanged)
    assert [record.value for record in read_records(batch)] == [b"value", b""]


def test_marking_a_batch_as_transactional_keeps_its_other_attributes() -> None:
    batch = build_batch([NewRecord(b"key", b"value" * 100, (), 1000)], COMPRESSION["gzip"])
    before = read_header(batch)
    patch_producer(batch, 1, 2, 0, transactional=True)
    check_batch(batch)
    assert read_header(batch).attributes == before.attributes | 0x10
    assert [record.value for record in read_records(batch)] == [b"value" * 100]
