"""Decoded columns equal the records of the codec in `pixy.records`."""

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.errors import CorruptData, Undecodable
from pixy.records import (
    COMPRESSION,
    HEADER_BYTES,
    NewRecord,
    build_batch,
    patch_batch,
    read_header,
    read_records,
)
from pixy.records.batch import batch_crc
from pixy.spark.decode import decode
from pixy.spark.span import Span
from tests.fakes.batches import BROKEN_RECORD, as_stored, bomb, patched, raw_batch, raw_record, varint

NOW = 1_700_000_000_000
EVERYTHING = Span("events", 3, 0, 1 << 62)


def batch_at(base_offset: int, records: Sequence[NewRecord], compression: int = 0) -> bytes:
    batch = build_batch(records, compression)
    patch_batch(batch, base_offset, 1)
    return bytes(batch)


def expected_rows(batches: Sequence[bytes], span: Span = EVERYTHING) -> list[tuple[object, ...]]:
    return [
        (
            record.key,
            record.value,
            record.offset,
            record.timestamp,
            [tuple(each) for each in record.headers] or None,
        )
        for batch in batches
        for record in read_records(batch)
        if span.first <= record.offset < span.end
    ]


def decoded_rows(batches: bytes, span: Span = EVERYTHING, *, fail: bool = True) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for rows in decode(batches, span, include_headers=True, fail=fail):
        rows.validate(full=True)
        columns = rows.drop_columns(["timestamp"]).to_pydict()
        assert set(columns["topic"]) == {span.topic}
        assert set(columns["partition"]) == {span.partition}
        millis = [each // 1000 for each in rows.column("timestamp").cast(pa.int64()).to_pylist()]
        headers = [each and [(one["key"], one["value"]) for one in each] for each in columns["headers"]]
        found += zip(columns["key"], columns["value"], columns["offset"], millis, headers, strict=True)
    return found


HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
RECORDS = st.builds(
    NewRecord,
    st.none() | st.binary(max_size=80),
    st.none() | st.binary(max_size=200),
    HEADERS,
    st.integers(NOW - 10_000_000, NOW + 10_000_000),
)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.lists(RECORDS, min_size=1, max_size=40), st.sampled_from(sorted(COMPRESSION.values()))),
        min_size=1,
        max_size=4,
    ),
    st.just(EVERYTHING)
    | st.builds(Span, st.just("events"), st.just(3), st.integers(0, 60), st.integers(0, 180)),
)
def test_columns_equal_the_records_of_the_codec(
    given_batches: list[tuple[list[NewRecord], int]], span: Span
) -> None:
    batches, offset = [], 5
    for records, compression in given_batches:
        batches.append(batch_at(offset, records, compression))
        offset += len(records)
    assert decoded_rows(b"".join(batches), span) == expected_rows(batches, span)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 15, 16, 17, 63, 64, 65, 128, 129, 1000, 9000])
def test_runs_of_records_of_one_length_are_found_completely(count: int) -> None:
    batch = batch_at(0, [NewRecord(b"%07d" % number, b"v" * 100, (), NOW) for number in range(count)])
    assert decoded_rows(batch) == expected_rows([batch])


@pytest.mark.slow
def test_runs_of_different_lengths_follow_each_other() -> None:
    sizes = [10] * 200 + [11, 12] * 50 + [300] * 20 + [9_000] * 20 + [10] * 100 + [70_000] + [1] * 40
    batch = batch_at(0, [NewRecord(None, b"v" * size, (), NOW) for size in sizes])
    assert decoded_rows(batch) == expected_rows([batch])


@pytest.mark.slow
def test_small_batches_between_large_ones_keep_their_order() -> None:
    counts = [1, 1, 200, 3, 40, 1, 16, 15]
    starts = [sum(counts[:place]) for place in range(len(counts))]
    batches = [
        batch_at(start, [NewRecord(b"k", b"%d" % (start + number), (), NOW) for number in range(count)])
        for start, count in zip(starts, counts, strict=True)
    ]
    assert decoded_rows(b"".join(batches)) == expected_rows(batches)


@pytest.mark.slow
def test_only_the_wanted_offsets_are_decoded() -> None:
    batches = [batch_at(base, [NewRecord(None, b"v", (), NOW)] * 10) for base in (0, 10, 25)]
    span = Span("events", 3, 7, 27)
    assert [row[2] for row in decoded_rows(b"".join(batches), span)] == [7, 8, 9, *range(10, 20), 25, 26]
    assert decoded_rows(batches[0], Span("events", 3, 10, 20)) == []


@pytest.mark.slow
def test_batches_are_decompressed_some_at_a_time() -> None:
    batches = [
        batch_at(base, [NewRecord(None, bytes(900_000), (), NOW)] * 5, COMPRESSION["zstd"])
        for base in range(0, 100, 5)
    ]
    parts = list(decode(b"".join(batches), EVERYTHING, include_headers=True))
    assert [len(part) for part in parts] == [10] * 10
    assert decoded_rows(b"".join(batches)) == expected_rows(batches)


@pytest.mark.slow
def test_the_append_time_takes_precedence_over_that_of_the_record() -> None:
    batch = bytearray(batch_at(0, [NewRecord(None, b"v", (), NOW), NewRecord(None, b"w", (), NOW + 5)]))
    batch[22] |= 0x08
    batch[17:21] = batch_crc(batch).to_bytes(4, "big")
    (rows,) = decode(bytes(batch), EVERYTHING, include_headers=False)
    assert rows.column("timestampType").to_pylist() == [1, 1]
    assert [each // 1000 for each in rows.column("timestamp").cast(pa.int64()).to_pylist()] == [
        NOW + 5,
        NOW + 5,
    ]


def test_control_batches_have_no_rows() -> None:
    batch = bytearray(batch_at(0, [NewRecord(b"\0\0\0\0", b"", (), NOW)]))
    batch[22] |= 0x20
    batch[17:21] = batch_crc(batch).to_bytes(4, "big")
    assert decoded_rows(bytes(batch)) == []


def test_a_flipped_byte_under_the_checksum_is_detected() -> None:
    whole = batch_at(0, [NewRecord(b"key", b"value", [("h", b"x")], NOW)] * 3)
    for place in range(21, len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x41
        with pytest.raises(CorruptData):
            decoded_rows(bytes(damaged))


def test_bytes_after_the_last_record_are_detected_if_offsets_are_left() -> None:
    for count in (3, 100):
        batch = bytearray(batch_at(0, [NewRecord(b"key", b"value", (), NOW)] * count))
        batch[57:61] = (count - 1).to_bytes(4, "big")
        batch[17:21] = batch_crc(batch).to_bytes(4, "big")
        with pytest.raises(Undecodable, match="bytes follow") as caught:
            decoded_rows(bytes(batch))
        assert (caught.value.offset, caught.value.next_offset) == (count - 1, count)


NORMAL = batch_at(0, [NewRecord(b"key", b"value", [("h", b"x")], NOW)] * 20)
WRONG_FIELDS = {
    "offsets beyond the batch": [raw_record(1000, b"a"), raw_record(2**62, b"b")],
    "offsets that repeat": [raw_record(0, b"a"), raw_record(0, b"b")],
    "a header name that is not UTF-8": [
        raw_record(0, b"a", headers=varint(1) + varint(1) + b"\xff" + varint(-1))
    ],
    "attributes of two bytes": [varint(7) + b"\x80\0\0\0" + varint(-1) + varint(-1) + b"\0"],
    "a key of length -2": [varint(6) + b"\0\0\0" + varint(-2) + varint(-1) + b"\0"],
    "a timestamp beyond all times": [raw_record(0, b"a", timestamp_delta=2**62)],
    "a length of nine bytes": [
        b"\x8c\x80\x80\x80\x80\x80\x80\x80\0" + b"\0\0\0" + varint(-1) + varint(-1) + b"\0"
    ],
}


@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize("records", WRONG_FIELDS.values(), ids=WRONG_FIELDS)
def test_records_with_wrong_fields_are_read_as_by_consumer_groups(records: list[bytes], codec: int) -> None:
    wrong = as_stored(raw_batch(records, codec=codec), 20)
    behind = as_stored(NORMAL, 20 + len(records))
    expected = expected_rows([NORMAL, wrong, behind])
    if records is WRONG_FIELDS["a timestamp beyond all times"]:
        key, value, offset, _, headers = expected[20]
        expected[20] = (key, value, offset, (2**63 - 1) // 1000, headers)
    assert [row[2] for row in expected] == [*range(40 + len(records))]
    assert decoded_rows(NORMAL + wrong + behind) == expected


UNDECODABLE = {
    "garbage": (raw_batch([bytes(range(120, 180))], count=3), []),
    "a huge count": (raw_batch([raw_record(0, b"x")], count=2**31 - 1), [20]),
    "a huge count inside compression": (raw_batch([raw_record(0, b"x")], count=2**31 - 1, codec=4), [20]),
    "no compressed records": (
        raw_batch([b"garbage"], codec=0)[:22] + b"\4" + raw_batch([b"garbage"])[23:],
        [],
    ),
    "a record in between": (raw_batch([raw_record(0, b"x"), BROKEN_RECORD, raw_record(2, b"z")]), [20, 22]),
    "a decompression bomb": (bomb(), []),
}


@pytest.mark.parametrize(("wrong", "readable"), UNDECODABLE.values(), ids=UNDECODABLE)
def test_what_cannot_be_decoded_is_an_error_with_the_next_offset_or_left_out(
    wrong: bytes, readable: list[int]
) -> None:
    wrong = as_stored(patched(wrong, 0, b""), 20)
    end = read_header(wrong).next_offset
    batches = NORMAL + wrong + as_stored(NORMAL, end)
    with pytest.raises(
        Undecodable, match=f"records of events-3 .* the next batch is at {end}.*failOnDataLoss=false"
    ):
        decoded_rows(batches)
    with pytest.warns(UserWarning, match="records of events-3 cannot be read: .*; left out up to offset"):
        rows = decoded_rows(batches, fail=False)
    assert [row[2] for row in rows] == [*range(20), *readable, *range(end, end + 20)]


def test_compacted_batches_keep_their_offsets() -> None:
    compacted = as_stored(raw_batch([raw_record(1, b"a"), raw_record(7, b"b")], last_delta=9), 20)
    found = decoded_rows(NORMAL + compacted + as_stored(NORMAL, 30))
    assert [row[2] for row in found] == [*range(20), 21, 27, *range(30, 50)]


def test_a_truncated_response_is_detected() -> None:
    whole = batch_at(0, [NewRecord(b"key", b"value", (), NOW)] * 3)
    for size in range(1, len(whole)):
        with pytest.raises(CorruptData):
            decoded_rows(whole[:size])


@pytest.mark.slow
@given(st.integers(HEADER_BYTES, HEADER_BYTES + 400), st.integers(0, 255), st.booleans())
def test_malicious_batches_are_rejected_or_read_within_their_bounds(
    place: int, octet: int, include_headers: bool
) -> None:
    """With a correct checksum, a damaged batch raises `CorruptData` and never yields bytes from
    elsewhere.
    """
    batch = bytearray(
        batch_at(0, [NewRecord(b"key%d" % number, b"v" * number, [("h", b"x")], NOW) for number in range(30)])
    )
    batch[min(place, len(batch) - 1)] = octet
    batch[17:21] = batch_crc(batch).to_bytes(4, "big")
    try:
        (rows,) = decode(bytes(batch), EVERYTHING, include_headers=include_headers)
    except CorruptData:
        return
    rows.validate(full=True)
    assert rows.num_rows <= read_header(batch).records
