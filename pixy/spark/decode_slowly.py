"""Decodes single record batches that `decode` cannot: record by record, as consumer groups do.

Such batches have wrong fields: see `pixy.records.lenient`. What can be read is read; what cannot
raises `Undecodable`, or is left out with a warning.
"""

import warnings
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pixy.errors import Undecodable
from pixy.records import Record, read_header, read_records
from pixy.records.batch import TIMESTAMP_TYPE_BIT
from pixy.spark.arrow import column, int32_column, int64_column, string_column
from pixy.spark.schema import arrow_schema
from pixy.spark.span import Span

MICROSECONDS = 1000
TIMESTAMP_MS_MAX = (2**63 - 1) // MICROSECONDS
"""Largest timestamp of Spark, whose unit is a microsecond."""


def decode_slowly(batch: bytes, span: Span, *, include_headers: bool, fail: bool) -> pa.RecordBatch:
    """Rows of the records of a batch within `span`.

    Args:
        fail: raise, else warn of what cannot be decoded and leave it out.

    Raises:
        Undecodable: names topic, partition, offset and where to go on.
    """
    found = list(_records(batch, span, fail=fail))
    is_append_time = bool(read_header(batch).attributes & TIMESTAMP_TYPE_BIT)
    timestamps = np.clip(
        np.array([record.timestamp for record in found], np.int64), -TIMESTAMP_MS_MAX, TIMESTAMP_MS_MAX
    )
    schema = arrow_schema(include_headers=include_headers)
    columns = [
        pa.array([record.key for record in found], pa.binary()),
        pa.array([record.value for record in found], pa.binary()),
        string_column(span.topic, len(found)),
        int32_column(np.full(len(found), span.partition, np.int32)),
        int64_column(np.array([record.offset for record in found], np.int64)),
        column(pa.timestamp("us", tz="UTC"), timestamps * MICROSECONDS),
        int32_column(np.full(len(found), is_append_time, np.int32)),
    ]
    if include_headers:
        headers = [
            [{"key": name, "value": content} for name, content in record.headers] or None for record in found
        ]
        columns.append(pa.array(headers, schema.field("headers").type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _records(batch: bytes, span: Span, *, fail: bool) -> Iterator[Record]:
    at, end = span.first, min(span.end, read_header(batch).next_offset)
    while at < end:
        try:
            for record in read_records(batch, first_offset=at):
                if at <= record.offset < end:
                    yield record
                    at = record.offset + 1
        except Undecodable as error:
            if error.offset >= end:
                return  # all wanted offsets have their records
            message = f"records of {span.topic}-{span.partition} cannot be read: {error}"
            if fail:
                raise Undecodable(
                    f"{message}. With failOnDataLoss=false reading continues behind offset {error.next_offset - 1}",
                    error.offset,
                    error.next_offset,
                ) from error
            warnings.warn(f"{message}; left out up to offset {error.next_offset - 1}", stacklevel=2)
            at = max(at, error.next_offset)
        else:
            return
