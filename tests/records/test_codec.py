"""Records survive a batch unchanged, and no corrupt or malicious bytes decode to other records."""

import gzip
import struct
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixy.errors import CorruptData, Undecodable
from pixy.records import (
    COMPRESSION,
    HEADER_BYTES,
    Header,
    NewRecord,
    Record,
    build_batch,
    build_control_batch,
    compress_records,
    crc32c,
    decompress_records,
    patch_batch,
    read_control_record,
    read_header,
    read_records,
)

CODECS = list(COMPRESSION.values())
BASE_OFFSET_AND_EPOCH = {*range(8), *range(12, 16)}

headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=4)
records = st.builds(
    NewRecord,
    key=st.none() | st.binary(max_size=40),
    value=st.none() | st.binary(max_size=200),
    headers=headers,
    timestamp_ms=st.integers(-(2**62), 2**62).filter(lambda timestamp: timestamp != -1),
)


def decoded(batch: bytes | bytearray | memoryview) -> list[NewRecord]:
    found = list(read_records(batch))
    assert all(later.offset == earlier.offset + 1 for earlier, later in pairwise(found))
    return [NewRecord(record.key, record.value, record.headers, record.timestamp) for record in found]


def compressible(count: int = 20) -> list[NewRecord]:
    return [NewRecord(b"key", b"value " * 20, [("name", b"x" * i)], 1000 + i) for i in range(count)]


def with_crc(batch: bytearray) -> bytearray:
    """The batch as an attacker would send it: with correct length and checksum."""
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def hostile(body: bytes, count: int = 1, codec: int = 0) -> bytearray:
    """A batch with arbitrary bytes as its records."""
    batch = build_batch([])[:61] + body
    struct.pack_into(">h", batch, 21, codec)
    struct.pack_into(">i", batch, 23, max(count - 1, 0))
    struct.pack_into(">i", batch, 57, count)
    return with_crc(batch)


def varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    zigzag &= 2**64 - 1
    encoded = bytearray()
    while zigzag > 0x7F:
        encoded.append(0x80 | (zigzag & 0x7F))
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


# --- round trips --------------------------------------------------------------------------------


@pytest.mark.slow
@settings(deadline=None)
@given(batch=st.lists(records, min_size=1, max_size=20), codec=st.sampled_from(CODECS))
def test_any_records_survive_any_compression(batch: list[NewRecord], codec: int) -> None:
    assert decoded(build_batch(batch, codec)) == batch


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_is_read(
    codec: int, kind: type[bytes] | type[bytearray] | type[memoryview]
) -> None:
    assert decoded(kind(build_batch(compressible(), codec))) == compressible()


@pytest.mark.parametrize("codec", CODECS)
def test_a_slice_of_a_segment_is_read(codec: int) -> None:
    batch = build_batch(compressible(), codec)
    segment = memoryview(b"\xff" * 50 + batch + b"\xff" * 50)
    assert decoded(segment[50:-50]) == compressible()


@pytest.mark.parametrize(("name", "codec"), COMPRESSION.items())
def test_the_header_names_the_codec(name: str, codec: int) -> None:
    batch = build_batch(compressible(), COMPRESSION[name])
    assert read_header(batch).codec == codec
    if codec:
        assert len(batch) < len(build_batch(compressible()))


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_does_not_shrink_stays_uncompressed(codec: int) -> None:
    batch = build_batch([NewRecord(None, b"short", [], 0)], codec)
    assert read_header(batch).codec == 0
    assert decoded(batch) == [NewRecord(None, b"short", [], 0)]


@pytest.mark.parametrize("key", [None, b""])
@pytest.mark.parametrize("value", [None, b""])
def test_null_and_empty_are_distinguished(key: bytes | None, value: bytes | None) -> None:
    assert decoded(build_batch([NewRecord(key, value, [], 0)])) == [NewRecord(key, value, [], 0)]


def test_headers_keep_their_order_repetitions_and_nulls() -> None:
    given_headers: list[Header] = [("b", b"1"), ("a", None), ("b", b""), ("", b"\xff\x80"), ("ü", b"2")]
    assert decoded(build_batch([NewRecord(None, b"", given_headers, 0)]))[0].headers == given_headers


@pytest.mark.parametrize("given_headers", [(), (("a", b"1"), ("b", None))])
def test_headers_may_be_any_sequence(given_headers: Sequence[Header]) -> None:
    assert decoded(build_batch([NewRecord(None, b"", given_headers, 0)]))[0].headers == list(given_headers)


@pytest.mark.parametrize("last_byte", [0x00, 0x7F, 0x80, 0xFF])
def test_a_batch_may_end_with_any_byte(last_byte: int) -> None:
    record = NewRecord(None, b"", [("h", bytes([last_byte]))], 0)
    batch = build_batch([record])
    assert batch[-1] == last_byte
    assert decoded(batch) == [record]


@pytest.mark.parametrize(
    "timestamps",
    [[5, 3, 1, 4], [-7, -9, -8], [0, -1, 5], [-(2**40), 2**40], [1_700_000_000_000, 0], [-2, -1, 0]],
)
def test_timestamps_may_run_backwards_and_be_negative(timestamps: list[int]) -> None:
    batch = build_batch([NewRecord(None, b"", [], timestamp) for timestamp in timestamps])
    assert [record.timestamp for record in read_records(batch)] == timestamps
    header = read_header(batch)
    assert (header.base_timestamp, header.max_timestamp) == (timestamps[0], max(timestamps))


def test_a_first_record_without_a_timestamp_is_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError, match="needs a timestamp"):
        build_batch([NewRecord(None, b"", [], -1), NewRecord(None, b"", [], 5)])


def test_log_append_time_gives_every_record_the_time_of_the_batch() -> None:
    batch = build_batch([NewRecord(None, b"", [], timestamp) for timestamp in (1, 2, 3)])
    batch[22] |= 0x08
    assert [record.timestamp for record in read_records(with_crc(batch))] == [3, 3, 3]


def test_offsets_count_from_the_base_offset() -> None:
    batch = build_batch(compressible(3), COMPRESSION["zstd"])
    patch_batch(batch, 2**40, 7)
    assert [record.offset for record in read_records(batch)] == [2**40, 2**40 + 1, 2**40 + 2]


def test_a_batch_without_records_yields_none() -> None:
    assert list(read_records(build_batch([]))) == []


def test_reading_does_not_modify_the_batch() -> None:
    for codec in CODECS:
        batch = build_batch(compressible(), codec)
        before = bytes(batch)
        list(read_records(batch))
        assert batch == before


# --- control batches ----------------------------------------------------------------------------


def test_control_batches_yield_no_records() -> None:
    assert list(read_records(build_control_batch(1, b"mark", 1000))) == []


def test_a_control_record_round_trips() -> None:
    assert read_control_record(build_control_batch(6, b"snapshot", 1000)) == (6, b"snapshot")


def test_a_batch_of_messages_is_not_a_control_batch() -> None:
    with pytest.raises(CorruptData, match="not a control batch"):
        read_control_record(build_batch(compressible(1)))


def test_a_control_batch_without_a_control_record_is_rejected() -> None:
    batch = hostile(b"", count=0, codec=0x20)
    with pytest.raises(CorruptData, match="no control record"):
        read_control_record(batch)


def test_a_corrupt_control_batch_is_rejected_by_message_readers_too() -> None:
    batch = build_control_batch(1, b"mark", 1000)
    batch[-1] ^= 0x01
    with pytest.raises(CorruptData):
        read_records(batch)


# --- damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_every_truncated_prefix_is_rejected(codec: int) -> None:
    batch = build_batch(compressible(), codec)
    for length in range(len(batch)):
        with pytest.raises(CorruptData):
            list(read_records(batch[:length]))


@pytest.mark.parametrize("codec", CODECS)
def test_every_flipped_byte_is_detected(codec: int) -> None:
    batch = build_batch(compressible(), codec)
    for at in set(range(len(batch))) - BASE_OFFSET_AND_EPOCH:
        batch[at] ^= 0xFF
        with pytest.raises(CorruptData):
            list(read_records(batch))
        batch[at] ^= 0xFF


@pytest.mark.parametrize("codec", CODECS)
def test_flips_outside_the_checksum_do_not_change_records(codec: int) -> None:
    batch = build_batch(compressible(), codec)
    for at in BASE_OFFSET_AND_EPOCH:
        batch[at] ^= 0x01
        found = [
            NewRecord(each.key, each.value, each.headers, each.timestamp) for each in read_records(batch)
        ]
        assert found == compressible()
        batch[at] ^= 0x01


@pytest.mark.parametrize("codec", CODECS)
def test_corruption_outside_the_records_is_reported_before_the_first_record(codec: int) -> None:
    batch = build_batch(compressible(), codec)
    batch[-1] ^= 0x01
    with pytest.raises(CorruptData):
        read_records(batch)


# --- attacks: valid checksum, invalid contents --------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
def test_a_flipped_byte_under_a_valid_checksum_causes_corrupt_data_at_worst(codec: int) -> None:
    original = build_batch(compressible(), codec)
    for at in range(61, len(original)):
        for flip in (0x01, 0x80, 0xFF):
            batch = bytearray(original)
            batch[at] ^= flip
            read_or_refuse(with_crc(batch))


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
def test_every_truncated_prefix_under_a_valid_checksum_is_rejected(codec: int) -> None:
    original = build_batch(compressible(), codec)
    for length in range(61, len(original)):
        with pytest.raises(CorruptData):
            list(read_records(with_crc(original[:length])))


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(body=st.binary(max_size=80), codec=st.integers(0, 7), count=st.integers(0, 2**31 - 1))
def test_random_bytes_cause_corrupt_data_at_worst(body: bytes, codec: int, count: int) -> None:
    read_or_refuse(hostile(body, count, codec))
    read_or_refuse(memoryview(hostile(body, count, codec)))


def read_or_refuse(batch: bytes | bytearray | memoryview) -> None:
    with suppress(CorruptData):
        list(read_records(batch))


RECORD_START = varint(0) + varint(0) + varint(0)
"""Attributes, timestamp delta, offset delta."""


@pytest.mark.parametrize("length", [2**63 - 1, 2**63 - 34, 2**63 - 41, 2**62, 2**31, 1000, 1])
@pytest.mark.parametrize(
    "before",
    [
        RECORD_START,
        RECORD_START + varint(-1),
        RECORD_START + varint(-1) + varint(-1) + varint(1),
        RECORD_START + varint(-1) + varint(-1) + varint(1) + varint(0),
    ],
    ids=["key", "value", "header name", "header value"],
)
def test_a_length_beyond_the_end_is_rejected(before: bytes, length: int) -> None:
    with pytest.raises(CorruptData):
        list(read_records(hostile(varint(20) + before + varint(length))))


@pytest.mark.parametrize("count", [1, 2, 2**31, 2**63 - 1, -1])
def test_a_header_count_beyond_the_headers_is_rejected(count: int) -> None:
    with pytest.raises(CorruptData):
        list(read_records(hostile(varint(6) + RECORD_START + varint(-1) * 2 + varint(count))))


@pytest.mark.parametrize("what_follows", [b"", b"\x00\x00\x00", b"\x01\x01\x01", b"\x80" * 30 + b"\x01"])
def test_memory_behind_a_slice_does_not_become_part_of_its_records(what_follows: bytes) -> None:
    # One header is announced and the batch ends: memory behind it must not be taken for that
    # header.
    body = varint(7) + RECORD_START + varint(-1) * 2 + varint(1)
    batch = hostile(body)
    whole = memoryview(bytes(batch) + what_follows)
    with pytest.raises(CorruptData):
        list(read_records(whole[: len(batch)]))


READ_AT_THE_END_OF_MEMORY = """
import ctypes, mmap, sys
from pixy.errors import CorruptData, Undecodable
from pixy.records import read_records

batch = sys.stdin.buffer.read()
page = mmap.PAGESIZE
pages = mmap.mmap(-1, 2 * page)
start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + page), ctypes.c_size_t(page), 0) == 0
view = memoryview((ctypes.c_ubyte * len(batch)).from_address(start + page - len(batch))).cast("B")
view[:] = batch
try:
    list(read_records(view))
except CorruptData:
    print("refused")
"""


@pytest.mark.process
def test_nothing_is_read_behind_a_batch_at_the_end_of_memory() -> None:
    # One header is announced and the memory page ends: reading on is a segmentation fault.
    batch = hostile(varint(7) + RECORD_START + varint(-1) * 2 + varint(1))
    done = subprocess.run(
        [sys.executable, "-c", READ_AT_THE_END_OF_MEMORY], input=batch, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"refused\n"), done.stderr.decode()


@pytest.mark.parametrize("tail", [b"\x80", b"\x81", b"\xff" * 9, b"\xff" * 12])
@pytest.mark.parametrize("codec", [0, 1, 4])
def test_a_varint_beyond_the_end_is_rejected(tail: bytes, codec: int) -> None:
    body = varint(7) + RECORD_START + varint(-1) * 2 + varint(2) + varint(0) + tail
    if codec:
        plain = build_batch([NewRecord(None, bytes(200), [], 0)], codec)
        assert read_header(plain).codec == codec
        body = gzip.compress(body) if codec == 1 else bytes(cramjam.zstd.compress(body))
    with pytest.raises(CorruptData):
        list(read_records(hostile(body, codec=codec)))


@pytest.mark.parametrize("declared", [0, 1, 2])
def test_a_record_count_below_the_records_is_rejected(declared: int) -> None:
    batch = build_batch(compressible(3))
    struct.pack_into(">i", batch, 57, declared)
    with pytest.raises(CorruptData):
        list(read_records(with_crc(batch)))


@pytest.mark.parametrize("declared", [4, 2**31 - 1])
def test_a_record_count_above_the_offsets_hides_no_record(declared: int) -> None:
    batch = build_batch(compressible(3))
    struct.pack_into(">i", batch, 57, declared)
    assert decoded(with_crc(batch)) == compressible(3)


@pytest.mark.parametrize("declared", [4, 2**31 - 1])
def test_a_record_and_offset_count_above_the_records_is_rejected_behind_them(declared: int) -> None:
    batch = build_batch(compressible(3))
    struct.pack_into(">i", batch, 23, declared - 1)
    struct.pack_into(">i", batch, 57, declared)
    records = read_records(with_crc(batch))
    found: list[Record] = []
    with pytest.raises(
        Undecodable, match=f"the next batch is at {declared}: record 3 of {declared}"
    ) as caught:
        found.extend(records)
    assert (caught.value.offset, caught.value.next_offset) == (3, declared)
    assert [record.offset for record in found] == [0, 1, 2]


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_rejected_by_number(codec: int) -> None:
    with pytest.raises(CorruptData, match=f"codec {codec}"):
        list(read_records(hostile(b"abc", codec=codec)))


def test_a_header_name_that_is_not_utf8_is_read_with_replacement_characters() -> None:
    body = RECORD_START + varint(-1) * 2 + varint(1) + varint(2) + b"n\xff" + varint(-1)
    (record,) = read_records(hostile(varint(len(body)) + body))
    assert record.headers == [("n\ufffd", None)]


def record_of(delta: int, value: bytes = b"v", timestamp_delta: int = 0) -> bytes:
    body = (
        b"\0" + varint(timestamp_delta) + varint(delta) + varint(-1) + varint(len(value)) + value + varint(0)
    )
    return varint(len(body)) + body


@pytest.mark.parametrize("codec", [0, 1, 4])
@pytest.mark.parametrize(
    "deltas",
    [
        [1000],
        [2**62],
        [2**63 - 1],
        [-1],
        [-(2**63)],
        [0, 0, 1],
        [0, 2, 3],
        [2, 1, 0],
        [0, 1, 3],
        [0, -1, 2**62],
    ],
)
def test_offsets_that_a_batch_does_not_have_are_replaced_by_those_that_it_has(
    deltas: list[int], codec: int
) -> None:
    body = b"".join(record_of(delta, b"%d" % at) for at, delta in enumerate(deltas))
    if codec:
        body = gzip.compress(body) if codec == 1 else bytes(cramjam.zstd.compress(body))
    batch = hostile(body, len(deltas), codec)
    patch_batch(batch, 70, 0)
    found = [(record.offset, record.value) for record in read_records(batch)]
    assert found == [(70 + at, b"%d" % at) for at in range(len(deltas))]


def with_gaps(*deltas: int) -> bytearray:
    """A batch of ten offsets with fewer records, as Kafka's compaction leaves it."""
    batch = hostile(b"".join(record_of(delta) for delta in deltas), len(deltas))
    struct.pack_into(">i", batch, 23, 9)
    return with_crc(batch)


def test_records_of_a_compacted_batch_keep_their_offsets() -> None:
    assert [record.offset for record in read_records(with_gaps(1, 4, 9))] == [1, 4, 9]


@pytest.mark.parametrize("wrong", [4, 3, -1, 10, 2**62])
def test_a_wrong_offset_in_a_compacted_batch_ends_it(wrong: int) -> None:
    records = read_records(with_gaps(1, 4, wrong, 9))
    found: list[Record] = []
    with pytest.raises(Undecodable, match=f"record 2 of 4: its offset is {wrong}, expected 5") as caught:
        found.extend(records)
    assert (caught.value.offset, caught.value.next_offset) == (5, 10)
    assert [record.offset for record in found] == [1, 4]


def test_behind_a_record_that_cannot_be_decoded_reading_goes_on() -> None:
    broken = record_of(1)[:-1] + varint(3)  # three headers that are not there
    batch = hostile(record_of(0, b"a") + broken + record_of(2, b"c"), 3)
    records = read_records(batch)
    found: list[Record] = []
    with pytest.raises(Undecodable, match="record 1 of 3: 3 headers in 0 bytes") as caught:
        found.extend(records)
    assert (caught.value.offset, caught.value.next_offset) == (1, 2)
    found += [record for record in read_records(batch, first_offset=2) if record.offset >= 2]
    assert [(record.offset, record.value) for record in found] == [(0, b"a"), (2, b"c")]


@pytest.mark.parametrize("delta", [2**63 - 1, -(2**63)])
def test_a_timestamp_beyond_64_bits_wraps_around_as_in_the_codec(delta: int) -> None:
    for offset_delta in (0, 5):
        batch = hostile(record_of(offset_delta, timestamp_delta=delta))
        struct.pack_into(">q", batch, 27, 2**40 if delta > 0 else -(2**40))
        (record,) = read_records(with_crc(batch))
        assert record.timestamp == (2**40 + delta - 2**64 if delta > 0 else 2**64 - 2**40 + delta)


def test_a_snappy_block_of_negative_length_does_not_loop_forever() -> None:
    body = b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, -4) + b"abc"
    with pytest.raises(CorruptData):
        list(read_records(hostile(body, codec=2)))


def test_the_error_for_an_undecodable_batch_names_its_offset() -> None:
    batch = hostile(b"\x80")
    patch_batch(batch, 123, 0)
    with pytest.raises(CorruptData, match="offset 123 cannot be decoded, the next batch is at 124"):
        list(read_records(batch))


@pytest.mark.parametrize("codec", [each for each in CODECS if each])
def test_the_records_of_a_batch_can_be_compressed_separately(codec: int) -> None:
    plain = bytes(build_batch(compressible()))[HEADER_BYTES:]
    packed = compress_records(plain, codec)
    assert len(packed) < len(plain)
    assert decompress_records(packed, codec) == plain
    with pytest.raises(CorruptData, match="compressed records cannot be decompressed"):
        decompress_records(b"noise" * 10, codec)


def test_an_unknown_codec_is_rejected() -> None:
    with pytest.raises(CorruptData, match="unknown compression codec 7"):
        decompress_records(b"", 7)


@pytest.mark.slow
def test_modules_without_records_are_imported_without_the_codec() -> None:
    """Processes of the Spark connector are short-lived."""
    code = "import sys; from pixy.records import crc32c, read_header; sys.exit('aiokafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
