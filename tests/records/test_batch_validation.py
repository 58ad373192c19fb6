"""Validation of clients' record batches: accepted batches, and the errors for all others."""

import gzip
import os
import random
import struct

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.errors import InvalidBatch, InvalidRecords, MessageTooLarge
from pixy.records import (
    COMPRESSION,
    HEADER_BYTES,
    UNPACKED_BYTES_MAX,
    BatchLimits,
    CheckEffort,
    LongCheckError,
    NewBatch,
    NewRecord,
    build_batch,
    build_control_batch,
    check_forwarded_batches,
    check_new_batches,
    read_header,
)
from tests.fakes.batches import (
    batch_of,
    batch_of_producer,
    bomb,
    crowded_record,
    patched,
    raw_batch,
    raw_record,
    varint,
)

ANY_SIZE = BatchLimits(1 << 20)
GOOD = batch_of(b"a", b"b")
ATTRIBUTES, LAST_DELTA, MAX_TIMESTAMP, PRODUCER_ID, RECORDS = 21, 23, 35, 43, 57


def number(value: int, form: str = "i") -> bytes:
    return struct.pack(f">{form}", value)


def test_batches_are_returned_with_position_and_number_of_records() -> None:
    other = batch_of(b"c", b"d", b"e", compression=1)
    at = len(GOOD)
    found = check_new_batches(GOOD + other + GOOD, ANY_SIZE)
    assert found == [
        NewBatch(0, at, 2),
        NewBatch(at, at + len(other), 3),
        NewBatch(at + len(other), 2 * at + len(other), 2),
    ]


@pytest.mark.parametrize("compression", range(5))
def test_every_codec_of_kafka_is_accepted(compression: int) -> None:
    batch = batch_of(bytes(1000), b"b", compression=compression)
    assert read_header(batch).codec == compression
    assert [each.records for each in check_new_batches(batch, ANY_SIZE)] == [2]


def test_base_offset_and_leader_epoch_are_ignored() -> None:
    batch = bytearray(GOOD)
    batch[0:8], batch[12:16] = b"\xff" * 8, b"\xff" * 4
    assert len(check_new_batches(batch, ANY_SIZE)) == 1


def test_a_largest_batch_is_allowed_and_one_byte_more_is_not() -> None:
    assert len(check_new_batches(GOOD, BatchLimits(len(GOOD)))) == 1
    text = (
        f"record batch 0 at byte 0 has {len(GOOD)} bytes, producer.max_message_bytes allows {len(GOOD) - 1}"
    )
    with pytest.raises(MessageTooLarge, match=text):
        check_new_batches(GOOD, BatchLimits(len(GOOD) - 1))


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (GOOD[:16] + b"\x01" + GOOD[17:], "has magic 1, expected 2"),
        (GOOD[:8] + number(48) + GOOD[12:], "has a length field of 60 bytes, expected 61 to "),
        (GOOD[:8] + number(-1) + GOOD[12:], "has a length field of 11 bytes"),
        (GOOD[:8] + number(2**31 - 1) + GOOD[12:], "has a length field of 2147483659 bytes"),
        (bytes(build_control_batch(1, b"", 0)), "is a control batch"),
        (patched(GOOD, ATTRIBUTES, number(0x10, "h")), "is transactional, which is not supported"),
        (patched(GOOD, ATTRIBUTES, number(5, "h")), "has attributes 0x0005, allowed are a codec of 0 to 4"),
        (patched(GOOD, ATTRIBUTES, number(0x40, "h")), "has attributes 0x0040"),
        (patched(GOOD, ATTRIBUTES, number(-(2**15), "h")), "has attributes -0x8000"),
        (patched(GOOD, PRODUCER_ID, number(7, "q")), "has producer id 7, expected -1"),
        (patched(GOOD, RECORDS, number(0)), "has 0 records and last offset delta 1"),
        (patched(GOOD, RECORDS, number(-1)), "has -1 records"),
        (patched(GOOD, LAST_DELTA, number(2)), "has 2 records and last offset delta 2"),
        (patched(GOOD, LAST_DELTA, number(0)), "has 2 records and last offset delta 0"),
        (
            patched(patched(GOOD, RECORDS, number(2**31 - 1)), LAST_DELTA, number(2**31 - 2)),
            f"has a count of 2147483647 records, which do not fit in its {len(GOOD)} bytes",
        ),
        (
            patched(GOOD, MAX_TIMESTAMP, number(999, "q")),
            "has max timestamp 999, less than its base timestamp 1000",
        ),
    ],
)
def test_an_invalid_batch_is_rejected_with_the_reason(batch: bytes, text: str) -> None:
    for before, place in ((b"", "record batch 0 at byte 0"), (GOOD, f"record batch 1 at byte {len(GOOD)}")):
        with pytest.raises(InvalidBatch) as caught:
            check_new_batches(before + batch, ANY_SIZE)
        assert str(caught.value).startswith(place)
        assert text in str(caught.value)


def test_a_producer_is_taken_where_the_limits_say_so() -> None:
    limits = BatchLimits(1 << 20, producers=True)
    batch = bytes(batch_of_producer(7, 0, 5, b"x"))
    assert [each.records for each in check_new_batches(batch + GOOD, limits)] == [1, 2]
    assert check_forwarded_batches(batch)
    for producer in ((-2, 0, 0), (7, -1, 0), (7, 0, -1), (7, -1, -1)):
        wrong = bytes(batch_of_producer(*producer, b"x"))
        with pytest.raises(InvalidBatch, match="expected 0 or above"):
            check_new_batches(wrong, limits)


@given(st.binary(max_size=200), st.integers(0, 150), st.binary(max_size=30))
def test_any_bytes_are_whole_batches_or_rejected(noise: bytes, at: int, replacement: bytes) -> None:
    for buffer in (noise, patched(GOOD, at, replacement), GOOD + noise):
        try:
            found = check_new_batches(buffer, ANY_SIZE)
        except (InvalidBatch, MessageTooLarge):
            continue
        assert found[-1].end == len(buffer)
        assert all(each.records >= 1 for each in found)


def test_an_empty_buffer_is_rejected() -> None:
    with pytest.raises(InvalidBatch, match="no record batch"):
        check_new_batches(b"", ANY_SIZE)


def test_every_truncation_is_detected() -> None:
    for size in range(1, len(GOOD)):
        with pytest.raises(InvalidBatch):
            check_new_batches(GOOD[:size], ANY_SIZE)
        with pytest.raises(InvalidBatch, match="record batch 1"):
            check_new_batches(GOOD + GOOD[:size], ANY_SIZE)


def test_every_flipped_bit_is_detected_except_in_fields_the_server_writes() -> None:
    for at in range(len(GOOD)):
        for bit in range(8):
            changed = bytearray(GOOD)
            changed[at] ^= 1 << bit
            if at < 8 or 12 <= at < 16:
                assert len(check_new_batches(changed, ANY_SIZE)) == 1
            else:
                with pytest.raises((InvalidBatch, MessageTooLarge)):
                    check_new_batches(changed, ANY_SIZE)


# --- the records ----------------------------------------------------------------------------------


def one(record: bytes, **header: int) -> bytes:
    return raw_batch([record], **header)


LYING = {
    "a delta of 1000": (one(raw_record(1000, b"x")), "record 0 has offset delta 1000, expected 0"),
    "a delta of 2^62": (one(raw_record(2**62, b"x")), f"record 0 has offset delta {2**62}, expected 0"),
    "a negative delta": (one(raw_record(-1, b"x")), "record 0 has offset delta -1, expected 0"),
    "a repeated delta": (
        raw_batch([raw_record(0, b"x"), raw_record(0, b"y")]),
        "record 1 has offset delta 0, expected 1",
    ),
    "deltas out of order": (
        raw_batch([raw_record(1, b"x"), raw_record(0, b"y")]),
        "record 0 has offset delta 1, expected 0",
    ),
    "garbage": (one(bytes(range(100, 160))), "record 0 of 1 cannot be decoded"),
    "fewer records than it counts": (
        raw_batch([raw_record(0, bytes(100))], count=2),
        "record 1 of 2 cannot be decoded",
    ),
    "a huge count inside compression": (
        raw_batch([raw_record(0, b"x")], count=2**31 - 1, codec=4),
        f"record 1 of {2**31 - 1} cannot be decoded",
    ),
    "more records than it counts": (
        raw_batch([raw_record(0, b"x"), raw_record(1, b"y")], count=1),
        "record 1 of 1 cannot be decoded",
    ),
    "a length above the record": (one(raw_record(0, b"x", length=9)), "record 0 of 1 cannot be decoded"),
    "a length below the record": (one(raw_record(0, b"x", length=6)), "record 0 of 1 cannot be decoded"),
    "a value beyond the batch": (
        one(raw_record(0, b"x", value_length=2**62)),
        "record 0 of 1 cannot be decoded",
    ),
    "headers that are not there": (
        one(raw_record(0, b"x", headers=varint(3))),
        "record 0 of 1 cannot be decoded",
    ),
    "a header name that is not UTF-8": (
        one(raw_record(0, b"x", headers=varint(1) + varint(1) + b"\xff" + varint(-1))),
        "record 0 has a header name that is not UTF-8",
    ),
    "a max timestamp above the records": (
        one(raw_record(0, b"x"), max_timestamp=2**63 - 1),
        f"has max timestamp {2**63 - 1}, but 1000 is the largest of its records",
    ),
    "a max timestamp below the records": (
        one(raw_record(0, b"x", timestamp_delta=5)),
        "has max timestamp 1000, but 1005 is the largest of its records",
    ),
    "a base timestamp before all times": (
        one(raw_record(0, b"x", timestamp_delta=3000), base_timestamp=-2000),
        "has base timestamp -2000, expected -1 or above",
    ),
    "a timestamp before all times": (
        raw_batch([raw_record(0, b"x"), raw_record(1, b"x", timestamp_delta=-2000)]),
        "record 1 has timestamp -1000, expected -1 or above",
    ),
    "a timestamp beyond 64 bits": (
        raw_batch([raw_record(0, b"x"), raw_record(1, b"x", timestamp_delta=2**63 - 1)]),
        "record 1 has timestamp -9223372036854774809, expected -1 or above",
    ),
}


@pytest.mark.parametrize("codec", [None, 1, 2, 3, 4])
@pytest.mark.parametrize(("batch", "text"), LYING.values(), ids=LYING)
def test_records_that_are_not_what_the_header_says_are_rejected(
    batch: bytes, text: str, codec: int | None
) -> None:
    if codec is not None and read_header(batch).codec == 0:
        batch = compressed(batch, codec)
    with pytest.raises(InvalidBatch) as caught:
        check_new_batches(GOOD + batch, ANY_SIZE)
    assert f"record batch 1 at byte {len(GOOD)}" in str(caught.value)
    assert text in str(caught.value)


def compressed(batch: bytes, codec: int) -> bytes:
    header = read_header(batch)
    return raw_batch(
        [batch[HEADER_BYTES:]],
        count=header.records,
        codec=codec,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
    )


@pytest.mark.parametrize("codec", range(5))
def test_a_timestamp_in_the_future_is_allowed_up_to_a_limit(codec: int) -> None:
    values = [b"x" * 100] * 3
    assert check_new_batches(
        batch_of(*values, timestamp_ms=998, compression=codec), BatchLimits(10_000, 1000)
    )
    with pytest.raises(
        InvalidRecords, match=r"record 2 has timestamp 1001, .* allows up to 1000 at this moment"
    ):
        check_new_batches(batch_of(*values, timestamp_ms=999, compression=codec), BatchLimits(10_000, 1000))


def test_records_without_timestamps_are_accepted() -> None:
    batch = raw_batch([raw_record(0, b"x"), raw_record(1, b"y")], base_timestamp=-1, max_timestamp=-1)
    assert check_new_batches(batch, BatchLimits(1000, 0))


def test_with_the_time_of_appending_all_records_have_that_of_the_batch() -> None:
    batch = patched(GOOD, ATTRIBUTES, number(8, "h"))
    assert check_new_batches(batch, ANY_SIZE)
    with pytest.raises(InvalidRecords, match="record 0 has timestamp 1001"):
        check_new_batches(batch, BatchLimits(1000, 1000))


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_record_inside_compression_is_as_large_as_a_batch_at_most(codec: int) -> None:
    def of(key: int, value: int, header: int) -> bytes:
        record = NewRecord(bytes(key), bytes(value), [("name", bytes(header))], 1000)
        return bytes(build_batch([NewRecord(None, bytes(50_000), (), 1000), record], codec))

    limits = BatchLimits(100_000)
    assert check_new_batches(of(1000, 98_000, 996), limits)
    for sizes in ((1001, 98_000, 996), (1000, 98_001, 996), (1000, 98_000, 997)):
        with pytest.raises(InvalidRecords, match=r"record 1 has 100001 bytes, .* allows 100000"):
            check_new_batches(of(*sizes), limits)


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize(
    ("key", "headers"),
    [(None, []), (b"k" * 200, []), (b"", [("name", b"v" * 30)] * 3)],
    ids=["value", "key", "headers"],
)
def test_a_record_alone_in_its_batch_is_as_large_as_a_batch(
    codec: int, key: bytes | None, headers: list[tuple[str, bytes]]
) -> None:
    def of(size: int) -> bytes:
        rest = len(key or b"") + sum(len(name) + len(content) for name, content in headers)
        return bytes(build_batch([NewRecord(key, os.urandom(size - rest), headers, 1000)], codec))

    limits = BatchLimits(100_000, 1000, 3)
    assert check_new_batches(of(100_000), limits)
    with pytest.raises(InvalidRecords, match=r"record 0 has 100001 bytes, .* allows 100000"):
        check_new_batches(of(100_001), limits)
    with pytest.raises(MessageTooLarge, match=r"bytes, producer.max_message_bytes allows 100000"):
        check_new_batches(of(101_000), limits)


@pytest.mark.slow
@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compressed_records_may_be_four_times_a_batch(codec: int) -> None:
    limits = BatchLimits(2_000_000)
    allowed, too_large = (
        bytes(build_batch([NewRecord(None, bytes(1_000_000), (), 1000)] * count, codec)) for count in (7, 8)
    )
    assert check_new_batches(allowed, limits)
    with pytest.raises(InvalidRecords, match="decompresses to more than 8000000 bytes"):
        check_new_batches(too_large, limits)
    assert BatchLimits(1000).unpacked_bytes_max == 4 << 20


def xerial(*blocks: bytes) -> bytes:
    """Snappy blocks in the frames of Java's writer."""
    packed = [bytes(cramjam.snappy.compress_raw(block)) for block in blocks]
    framed = [struct.pack(">i", len(block)) + block for block in packed]
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(framed)


def test_a_small_batch_cannot_take_long_to_decompress() -> None:
    record = raw_record(0, b"x")
    members = gzip.compress(b"") * 1000 + gzip.compress(record)
    for codec, packed, text in (
        (1, members, "behind the gzip member"),
        (2, xerial(*[b""] * 1000), "a snappy block of 0 bytes"),
        (2, xerial(record, b""), "a snappy block of 8 bytes"),
        (2, xerial(*(record[at : at + 1] for at in range(8))), "a snappy block of 1 bytes"),
    ):
        batch = bytearray(raw_batch([packed]))
        batch[ATTRIBUTES + 1] = codec
        with pytest.raises(InvalidRecords, match=text):
            check_new_batches(patched(bytes(batch), 0, b""), ANY_SIZE)


@pytest.mark.parametrize("block_bytes", [1 << 10, 32 << 10])
def test_the_snappy_blocks_of_javas_writer_are_accepted(block_bytes: int) -> None:
    record = raw_record(0, bytes(100_000))
    blocks = [record[at : at + block_bytes] for at in range(0, len(record), block_bytes)]
    assert len(blocks[-1]) < 1 << 10 or block_bytes > 1 << 10
    batch = bytearray(raw_batch([xerial(*blocks)]))
    batch[ATTRIBUTES + 1] = 2
    assert check_new_batches(patched(bytes(batch), 0, b""), ANY_SIZE)


def test_a_check_that_takes_long_is_left_to_another_thread() -> None:
    many, few = (batch_of(*[bytes(at % 2) for at in range(count)]) for count in (5000, 50))
    small, large = (batch_of(bytes(size), compression=COMPRESSION["zstd"]) for size in (50_000, 200_000))
    equal = batch_of_equal(5000)
    crowded = raw_batch([crowded_record(at, 1000) for at in range(10)])
    packed = raw_batch([raw_record(0, random.Random(1).randbytes(10_000))], codec=COMPRESSION["gzip"])
    for batch, times in ((few, 30), (equal, 5), (small, 2), (batch_of(bytes(500_000)), 60)):
        effort = CheckEffort()
        for _ in range(times):
            assert check_new_batches(batch, ANY_SIZE, effort)
    for batch, times in ((many, 0), (large, 0), (few, 34), (equal, 5), (small, 2), (crowded, 1), (packed, 1)):
        effort = CheckEffort()
        for _ in range(times):
            check_new_batches(batch, ANY_SIZE, effort)
        with pytest.raises(LongCheckError):
            check_new_batches(batch, ANY_SIZE, effort)
        assert check_new_batches(batch, ANY_SIZE)


def batch_of_equal(count: int) -> bytes:
    return bytes(build_batch([NewRecord(b"key", b"value", (), 1000)] * count))


@pytest.mark.slow
@pytest.mark.parametrize("codec", range(5))
def test_what_a_node_forwards_may_be_as_large_as_any_configuration_allows(codec: int) -> None:
    large = bytes(build_batch([NewRecord(None, bytes(5_000_000), (), 2**60)] * 4, codec))
    assert check_forwarded_batches(large + GOOD)[1].records == 2
    with pytest.raises(InvalidRecords, match="record 0 has offset delta 7"):
        check_forwarded_batches(GOOD + raw_batch([raw_record(7, b"x")], codec=codec))


def test_no_batch_is_accepted_that_readers_would_not_decompress() -> None:
    with pytest.raises(InvalidRecords, match=f"decompresses to more than {UNPACKED_BYTES_MAX} bytes"):
        check_new_batches(bomb(), BatchLimits(1 << 30))
