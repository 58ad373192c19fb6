"""Decodes Kafka v2 record batches to Arrow columns, many records at a time.

A record in a batch is a sequence of varints with key, value and headers between them:

    length  attributes  timestamp delta  offset delta  key length  key  value length  value
    header count  (name length  name  value length  value)*

Decoding record by record in Python takes several microseconds each. Here only the starts of records
are found sequentially, and that by runs: if a record has L bytes, the same length is found again at
distance L, and so on, then these are the starts of records. This is a proof, not a guess, and most
topics have long runs; records of varying length take a tight loop. Everything else is decoded for
all records of a response at once, each field in one numpy pass.

Keys and values are not copied by Python either: the bounds `[start, end)` of all keys and values,
in ascending order, are the offsets of one Arrow array over the response, of which `take` copies
every fourth entry.

Batches are validated as by Kafka's consumer: header, length, checksum. Nothing else that they say
is believed: counts are compared with the bytes that are there, offsets with the header. A batch
that is not as expected is decoded record by record (`decode_slowly`), which finds out what can be
read.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pixy.spark.arrow import binary_array, column, int32_column, int64_column, string_column
from pixy.spark.batch_parts import BatchPart, BatchSection, parts
from pixy.spark.decode_slowly import MICROSECONDS, TIMESTAMP_MS_MAX, decode_slowly
from pixy.spark.schema import arrow_schema
from pixy.spark.span import Span

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_RUN_MIN = 16
_RUN_TRY = 64
_LOOP_MAX = 4096
_VARINT_BYTES_MAX = 10
_CONTINUATION = 0x80


@dataclass(slots=True)
class _Fields:
    """Positions of the parts of records, one entry per record. A null key or value has length -1
    and ends where it starts.
    """

    offset: Ints
    timestamp: Ints
    timestamp_type: Ints
    key: Ints
    key_bytes: Ints
    value: Ints
    value_bytes: Ints
    headers: Ints
    end: Ints


def decode(
    batches: bytes, span: Span, *, include_headers: bool, fail: bool = True
) -> Iterator[pa.RecordBatch]:
    """Decodes the records of `batches` within `span` to rows, in non-empty parts.

    Args:
        batches: whole batches back to back.
        include_headers: adds an eighth column.
        fail: raise if records cannot be decoded; else they are left out with a warning.

    Raises:
        CorruptData: a batch is damaged.
        Undecodable: a record cannot be decoded.
    """
    for part in parts(batches):
        rows = _decode_part(part, span, include_headers=include_headers)
        if rows is not None:
            if rows.num_rows:
                yield rows
            continue
        for begin, end in part.batches:
            rows = decode_slowly(batches[begin:end], span, include_headers=include_headers, fail=fail)
            if rows.num_rows:
                yield rows


def _decode_part(part: BatchPart, span: Span, *, include_headers: bool) -> pa.RecordBatch | None:
    """Rows of a part; None if its batches are not as expected."""
    if not part.sections:
        return None
    with suppress(IndexError, pa.ArrowInvalid):
        return _rows(
            part.buffer, _fields(part.buffer, part.sections, span), span, include_headers=include_headers
        )
    return None


# --- where records begin --------------------------------------------------------------------------


def _find_records(buffer: bytes, octets: Bytes, sections: list[BatchSection]) -> tuple[Ints, Ints]:
    """Start of all records, after their length, and end."""
    starts = np.empty(sum(section.records for section in sections), np.int64)
    ends = np.empty_like(starts)
    done = 0
    begun: list[int] = []  # records of small sections, which are not worth an array of their own
    ended: list[int] = []
    for section in sections:
        if section.records < _RUN_MIN:
            at = _loop(buffer, section.start, section.end, section.records, begun, ended)
        else:
            done = _flush(starts, ends, done, begun, ended)
            at = _find_runs(buffer, octets, section, starts[done:], ends[done:])
            done += section.records
        if at != section.end:
            raise IndexError
    _flush(starts, ends, done, begun, ended)
    return starts, ends


def _flush(starts: Ints, ends: Ints, done: int, begun: list[int], ended: list[int]) -> int:
    """Move the lists' entries to the arrays; returns the new fill level."""
    filled = done + len(begun)
    starts[done:filled] = begun
    ends[done:filled] = ended
    begun.clear()
    ended.clear()
    return filled


def _find_runs(buffer: bytes, octets: Bytes, section: BatchSection, starts: Ints, ends: Ints) -> int:
    """Find the records of a section; returns their end."""
    at, done, loop = section.start, 0, _RUN_MIN
    begun: list[int] = []
    ended: list[int] = []
    while done < section.records:
        run, width, stride = _run(buffer, octets, at, section.end, section.records - done)
        if run >= _RUN_MIN or run == section.records - done:
            begins = at + stride * np.arange(run)
            starts[done : done + run] = begins + width
            ends[done : done + run] = begins + stride
            done, at, loop = done + run, at + stride * run, _RUN_MIN
        else:
            count = min(loop, section.records - done)
            at = _loop(buffer, at, section.end, count, begun, ended)
            done, loop = _flush(starts, ends, done, begun, ended), min(2 * loop, _LOOP_MAX)
    return at


def _run(buffer: bytes, octets: Bytes, at: int, end: int, count: int) -> tuple[int, int, int]:
    """Number of the next `count` records with the same length, the size of the length field, and
    the size of such a record including it.
    """
    length, body = _read_length(buffer, at, end)
    width, stride = body - at, body - at + length
    limit = min(count, (end - at) // stride)
    found = 0
    tried = _RUN_TRY
    while found < limit:
        tried = min(tried, limit - found)
        first = at + found * stride
        table = octets[first : first + tried * stride].reshape(tried, stride)[:, :width]
        same = (table == octets[at : at + width]).all(axis=1)
        if not same.all():
            return found + int(same.argmin()), width, stride
        found += tried
        tried *= 16
    return found, width, stride


def _loop(buffer: bytes, at: int, end: int, count: int, begun: list[int], ended: list[int]) -> int:
    """Find records one by one and add them to the lists; returns the start of the next one."""
    for _ in range(count):
        first = buffer[at]
        if first < 0x80:
            body = at + 1
            at = body + (first >> 1)
        elif at + 1 < end and buffer[at + 1] < 0x80:
            body = at + 2
            at = body + (((first & 0x7F) | (buffer[at + 1] << 7)) >> 1)
        else:
            length, body = _read_length(buffer, at, end)
            at = body + length
        if at > end:
            raise IndexError
        begun.append(body)
        ended.append(at)
    return at


def _read_length(buffer: bytes, at: int, end: int) -> tuple[int, int]:
    """A record's length, and the end of the length field."""
    value = shift = 0
    while True:
        if at >= end or shift > 28:
            raise IndexError
        octet = buffer[at]
        at += 1
        value |= (octet & 0x7F) << shift
        shift += 7
        if octet < 0x80:
            break
    length = (value >> 1) ^ -(value & 1)
    if length < 0 or at + length > end:
        raise IndexError
    return length, at


# --- fields ---------------------------------------------------------------------------------------


def _varints(octets: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Varints at these positions, and their ends."""
    octet = octets[at]
    value = (octet & 0x7F).astype(np.int64)
    at = at + 1
    more = np.flatnonzero(octet >= 0x80)
    shift = 7
    while more.size:
        if shift >= 7 * _VARINT_BYTES_MAX:
            raise IndexError
        octet = octets[at[more]]
        value[more] |= (octet & 0x7F).astype(np.int64) << shift
        at[more] += 1
        more = more[octet >= 0x80]
        shift += 7
    return ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), at


def _lengths(octets: Bytes, at: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """Lengths at these positions, -1 for null, with start and end of the measured bytes."""
    length, start = _varints(octets, at)
    stop = start + np.maximum(length, 0)
    if (length < -1).any() or (length > end - start).any():
        raise IndexError
    return length, start, stop


def _fields(buffer: bytes, sections: list[BatchSection], span: Span) -> _Fields:
    """Fields of the records within `span`; other records are decoded up to their offsets only."""
    octets = np.frombuffer(buffer, np.uint8)
    start, end = _find_records(buffer, octets, sections)
    counts = [section.records for section in sections]
    base_offset, base_timestamp, append_timestamp = (
        np.repeat(np.array(numbers, np.int64), counts)
        for numbers in zip(
            *((each.base_offset, each.base_timestamp, each.append_timestamp) for each in sections),
            strict=True,
        )
    )
    if (octets[start] >= _CONTINUATION).any():
        raise IndexError  # attributes of more than a byte
    timestamp_delta, at = _varints(octets, start + 1)
    offset_delta, at = _varints(octets, at)
    _check_offsets(offset_delta, sections)
    offset, timestamp = base_offset + offset_delta, base_timestamp + timestamp_delta
    wanted = (offset >= span.first) & (offset < span.end)
    if not wanted.all():
        offset, timestamp, append_timestamp = offset[wanted], timestamp[wanted], append_timestamp[wanted]
        at, end = at[wanted], end[wanted]
    key_bytes, key, at = _lengths(octets, at, end)
    value_bytes, value, at = _lengths(octets, at, end)
    if (at >= end).any():
        raise IndexError
    appended = append_timestamp != -1
    return _Fields(
        offset=offset,
        timestamp=np.where(appended, append_timestamp, timestamp),
        timestamp_type=appended.astype(np.int64),
        key=key,
        key_bytes=key_bytes,
        value=value,
        value_bytes=value_bytes,
        headers=at,
        end=end,
    )


def _check_offsets(delta: Ints, sections: list[BatchSection]) -> None:
    """Offsets are consecutive, or ascending within their batch if it has fewer records."""
    counts = np.array([section.records for section in sections], np.int64)
    firsts = np.cumsum(counts) - counts
    wrong = np.flatnonzero(delta != np.arange(len(delta)) - np.repeat(firsts, counts))
    if not wrong.size:
        return
    offsets = np.repeat(np.array([section.offsets for section in sections], np.int64), counts)
    ascends = np.diff(delta) > 0
    ascends[firsts[1:] - 1] = True  # from batch to batch
    if (
        (offsets == np.repeat(counts, counts))[wrong].any()
        or not ascends.all()
        or ((delta < 0) | (delta >= offsets)).any()
    ):
        raise IndexError


def _rows(buffer: bytes, fields: _Fields, span: Span, *, include_headers: bool) -> pa.RecordBatch:
    records = len(fields.offset)
    key, value = _pairs(buffer, fields.key, fields.key_bytes, fields.value, fields.value_bytes)
    columns = [
        key,
        value,
        string_column(span.topic, records),
        int32_column(np.full(records, span.partition, np.int32)),
        int64_column(fields.offset),
        column(pa.timestamp("us", tz="UTC"), _microseconds(fields.timestamp)),
        int32_column(fields.timestamp_type.astype(np.int32)),
    ]
    if include_headers:
        columns.append(_headers(buffer, fields))
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(include_headers=include_headers))


def _microseconds(timestamp_ms: Ints) -> Ints:
    return np.clip(timestamp_ms, -TIMESTAMP_MS_MAX, TIMESTAMP_MS_MAX) * MICROSECONDS


def _pairs(
    buffer: bytes, first: Ints, first_bytes: Ints, second: Ints, second_bytes: Ints
) -> tuple[pa.Array, pa.Array]:
    """Two binary columns whose entries alternate in the buffer: first, second, first, second."""
    count = len(first)
    offsets = np.empty(4 * count + 1, np.int32)
    offsets[0:-1:4] = first
    offsets[1:-1:4] = first + np.maximum(first_bytes, 0)
    offsets[2:-1:4] = second
    offsets[3:-1:4] = second + np.maximum(second_bytes, 0)
    offsets[-1] = offsets[-2] if count else 0
    parts = binary_array(offsets, buffer)
    every_fourth = np.arange(0, 4 * count, 4, dtype=np.int64)
    return (
        _nullable(parts.take(int64_column(every_fourth)), first_bytes),
        _nullable(parts.take(int64_column(every_fourth + 2)), second_bytes),
    )


def _nullable(values: pa.Array, lengths: Ints) -> pa.Array:
    """The same column with nulls where the length is negative."""
    present = lengths >= 0
    if present.all():
        return values
    _, offsets, content = values.buffers()
    validity = pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(values), [validity, offsets, content])


# --- headers --------------------------------------------------------------------------------------


def _headers(buffer: bytes, fields: _Fields) -> pa.Array:
    """The headers column, null for records without headers."""
    octets = np.frombuffer(buffer, np.uint8)
    counts, at = _varints(octets, fields.headers)
    if (counts < 0).any() or (counts > fields.end - at).any():
        raise IndexError
    found: list[tuple[Ints, Ints, Ints, Ints]] = []
    left = counts.copy()
    rows = np.flatnonzero(left)
    while rows.size:
        name_bytes, name, next_at = _lengths(octets, at[rows], fields.end[rows])
        if (name_bytes < 0).any():
            raise IndexError
        value_bytes, value, next_at = _lengths(octets, next_at, fields.end[rows])
        found.append((name, name_bytes, value, value_bytes))
        at[rows] = next_at
        left[rows] -= 1
        rows = rows[left[rows] > 0]
    if (at != fields.end).any():
        raise IndexError  # bytes after the last header
    items = _header_items(buffer, found)
    list_offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=list_offsets[1:])
    validity = pa.py_buffer(np.packbits(counts > 0, bitorder="little"))
    column_type = arrow_schema(include_headers=True).field("headers").type
    return pa.Array.from_buffers(
        column_type, len(counts), [validity, pa.py_buffer(list_offsets)], children=[items]
    )


def _header_items(buffer: bytes, found: list[tuple[Ints, Ints, Ints, Ints]]) -> pa.Array:
    """Names and values of all headers in the order of the records. `found` has all first headers,
    then all second ones, and so on.
    """
    if found:
        name, name_bytes, value, value_bytes = (np.concatenate(each) for each in zip(*found, strict=True))
        order = np.argsort(name, kind="stable")
        names, values = _pairs(buffer, name[order], name_bytes[order], value[order], value_bytes[order])
    else:
        names = values = binary_array(np.zeros(1, np.int32), b"")
    texts = pa.Array.from_buffers(pa.string(), len(names), names.buffers())
    texts.validate(full=True)  # that they are UTF-8
    item_type = arrow_schema(include_headers=True).field("headers").type.value_type
    return pa.StructArray.from_arrays([texts, values], fields=list(item_type))
