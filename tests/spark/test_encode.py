"""Encoded columns decode with the codec of `pixy.records` to records in the order of the rows of
each partition.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.errors import InvalidArgument
from pixy.records import (
    COMPRESSION,
    BatchLimits,
    batch_bytes,
    check_batch,
    check_new_batches,
    read_header,
    read_records,
)
from pixy.spark.encode import Columns, encode, row_bytes
from pixy.spark.schema import arrow_schema

NOW = 1_700_000_000_000
HEADERS = arrow_schema(include_headers=True).field("headers").type

Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None, int]


def as_structs(headers: list[tuple[str, bytes | None]] | None) -> list[dict[str, object]] | None:
    return None if headers is None else [{"key": name, "value": value} for name, value in headers]


def columns_of(rows: Sequence[Row]) -> Columns:
    return Columns(
        pa.array([row[0] for row in rows], pa.binary()),
        pa.array([row[1] for row in rows], pa.binary()),
        pa.array([as_structs(row[2]) for row in rows], HEADERS),
    )


def batches_in(content: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(content):
        size = batch_bytes(content, at)
        found.append(content[at : at + size])
        check_batch(found[-1])
        at += size
    return found


def records_in(content: bytes) -> list[tuple[object, ...]]:
    return [
        (record.key, record.value, [tuple(each) for each in record.headers])
        for batch in batches_in(content)
        for record in read_records(batch)
    ]


ROWS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=70),
        st.none() | st.binary(max_size=9000),
        st.none() | st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=80,
)


@pytest.mark.slow
@given(ROWS, st.sampled_from(sorted(COMPRESSION)), st.integers(200, 20_000), st.integers(0, 5))
def test_records_equal_the_rows(
    rows: list[Row], compression: str, batch_bytes_max: int, skipped: int
) -> None:
    columns = columns_of(rows).rows(skipped, len(rows))
    wanted = rows[skipped:]
    if not wanted:
        return
    slots = np.array([row[3] for row in wanted], np.int64)
    encoded = encode(columns, slots, NOW, compression, batch_bytes_max)
    assert sorted(encoded) == sorted({row[3] for row in wanted})
    for slot, content in encoded.items():
        assert records_in(content) == [(row[0], row[1], row[2] or []) for row in wanted if row[3] == slot]
        for batch in batches_in(content):
            header = read_header(batch)
            assert header.records == 1 or len(batch) <= batch_bytes_max
            assert header.max_timestamp == header.base_timestamp == NOW
        check_new_batches(content, BatchLimits(1 << 20))


def test_missing_columns_are_null() -> None:
    columns = Columns(None, pa.array([b"a", None], pa.binary()), None)
    assert records_in(encode(columns, np.zeros(2, np.int64), NOW)[0]) == [(None, b"a", []), (None, None, [])]


def test_no_record_exceeds_its_bound() -> None:
    rows: list[Row] = [
        (b"k" * size, b"v" * size, [("n" * size, b"x" * size)], 0) for size in (0, 1, 63, 64, 8191, 8192)
    ]
    columns = columns_of(rows)
    content = encode(columns, np.zeros(len(rows), np.int64), NOW, batch_bytes=1)[0]
    for batch, room in zip(batches_in(content), row_bytes(columns).tolist(), strict=True):
        assert len(batch) - 61 <= room


def test_a_header_without_a_name_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match="a header whose key is null in the column headers"):
        encode(columns_of([(None, b"v", [(None, b"x")], 0)]), np.zeros(1, np.int64), NOW)  # type: ignore[list-item]
