"""Encodes Arrow columns as Kafka v2 record batches, many records at a time.

A record is composed of five parts: the numbers up to the key, the key, the length of the value, the
value, and the headers with their count. The numbers of all records are computed in numpy. Then all
parts of all records are the entries of one Arrow column, and one `take` concatenates them in the
order of the partitions: sorting by partition and building records are the same copy.

The batches have base offset 0, no producer id, and one timestamp for all records.
"""

import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pixy.errors import InvalidArgument
from pixy.records import COMPRESSION, HEADER_BYTES, LENGTH_PREFIX_BYTES, compress_records, crc32c
from pixy.spark.arrow import binary_array, int64_column, null_flags

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

BATCH_BYTES = 512 * 1024
"""Default limit of a record batch: half of the daemon's default maximum."""

_ROW_BYTES = 26
"""Upper bound of the numbers of a record, those of headers aside."""
_COUNTED = struct.Struct(">hiqqqhii")
_UNCOUNTED = struct.Struct(">qiibI")
_PARTS = 5


class Columns(NamedTuple):
    """Columns of the rows to write. None: null in all rows. `headers` are lists of structs of a
    string and a binary.
    """

    key: pa.Array | None
    value: pa.Array
    headers: pa.Array | None

    def rows(self, first: int, count: int) -> "Columns":
        """A slice of the rows, without a copy."""
        return Columns(*(None if each is None else each.slice(first, count) for each in self))


def row_bytes(columns: Columns) -> Ints:
    """Upper bound of each row's record in bytes."""
    size = np.full(len(columns.value), _ROW_BYTES, np.int64) + _lengths(columns.value)
    if columns.key is not None:
        size += _lengths(columns.key)
    if columns.headers is not None:
        size += _encode_headers(columns.headers)[1]
    return size


def encode(
    columns: Columns,
    slots: Ints,
    timestamp_ms: int,
    compression: str = "none",
    batch_bytes: int = BATCH_BYTES,
) -> dict[int, bytes]:
    """Encodes record batches for each slot, with the records in the order of the rows.

    Args:
        slots: slot of each row, which stands for its partition.
        timestamp_ms: timestamp of all records.
        compression: a key of `COMPRESSION`.
        batch_bytes: limit of a batch, which only a single larger record exceeds.
    """
    # 16-bit integers are radix-sorted: five times as fast.
    order = np.argsort(slots.astype(np.uint16) if slots.max(initial=0) < 1 << 16 else slots, kind="stable")
    headers, header_bytes = _encode_headers(columns.headers)
    key_bytes, value_bytes = (
        _lengths_or_null(columns.key, len(slots))[order],
        _lengths_or_null(columns.value, len(slots))[order],
    )
    if len(header_bytes) > 1:
        header_bytes = header_bytes[order]
    room = np.maximum(key_bytes, 0) + np.maximum(value_bytes, 0) + header_bytes + _ROW_BYTES
    firsts = _cut(slots[order], room, batch_bytes - HEADER_BYTES)
    counts = np.diff(firsts, append=len(order))
    deltas = np.arange(len(order)) - np.repeat(firsts, counts)
    content, ends = _join(columns, headers, order, deltas, key_bytes, value_bytes, header_bytes)
    batches: dict[int, list[bytes | memoryview]] = {}
    for first, count in zip(firsts.tolist(), counts.tolist(), strict=True):
        begin = int(ends[first - 1]) if first else 0
        records = content[begin : int(ends[first + count - 1])]
        batches.setdefault(int(slots[order[first]]), []).extend(
            _batch(records, count, timestamp_ms, compression)
        )
    return {slot: b"".join(parts) for slot, parts in batches.items()}


def _cut(slots: Ints, room: Ints, limit: int) -> Ints:
    """First row of each batch: where a slot begins, or the batch would exceed `limit`."""
    filled = np.cumsum(room)
    slot_firsts = [0, *(np.flatnonzero(np.diff(slots)) + 1).tolist()]
    firsts: list[int] = []
    for first, stop in zip(slot_firsts, [*slot_firsts[1:], len(slots)], strict=True):
        begin = first
        while begin < stop:
            firsts.append(begin)
            before = int(filled[begin - 1]) if begin else 0
            begin = max(int(np.searchsorted(filled, before + limit, "right")), begin + 1)
    return np.array(firsts, np.int64)


def _batch(
    records: memoryview, count: int, timestamp_ms: int, compression: str
) -> tuple[bytes, bytes | memoryview]:
    """Header and records of one batch."""
    codec = COMPRESSION[compression]
    packed: bytes | memoryview = records
    if codec:
        packed = compress_records(bytes(records), codec)
        if len(packed) >= len(records):
            packed, codec = records, 0
    counted = _COUNTED.pack(codec, count - 1, timestamp_ms, timestamp_ms, -1, -1, -1, count)
    checksum = crc32c(packed, crc32c(counted))
    length = HEADER_BYTES - LENGTH_PREFIX_BYTES + len(packed)
    return _UNCOUNTED.pack(0, length, -1, 2, checksum) + counted, packed


# --- records --------------------------------------------------------------------------------------


def _join(
    columns: Columns,
    headers: pa.Array,
    order: Ints,
    deltas: Ints,
    key_bytes: Ints,
    value_bytes: Ints,
    header_bytes: Ints,
) -> tuple[memoryview, Ints]:
    """All records concatenated, and the end of each."""
    rows = len(order)
    value_length, value_length_bytes = _varints(value_bytes)
    body = (
        2
        + _varint_bytes(deltas)
        + _varint_bytes(key_bytes)
        + np.maximum(key_bytes, 0)
        + value_length_bytes
        + np.maximum(value_bytes, 0)
        + header_bytes
    )
    zeros = np.zeros(rows, np.int64)
    prefix, _ = _varints(
        body, zeros, zeros, deltas, key_bytes
    )  # the two zeros: attributes and timestamp delta
    key = columns.key if columns.key is not None else binary_array(np.zeros(2, np.int32), b"")
    # Computed parts are in the order of the records, the others in that of the rows.
    in_order = np.arange(rows)
    parts = [
        (prefix, in_order),
        (key, order if columns.key is not None else zeros),
        (value_length, in_order),
        (columns.value, order),
        (headers, order if len(headers) > 1 else zeros),
    ]
    entries = np.empty((rows, _PARTS), np.int64)
    before = 0
    for place, (part, rows_of_part) in enumerate(parts):
        entries[:, place] = rows_of_part + before
        before += len(part)
    joined = pa.concat_arrays([part for part, _ in parts]).take(int64_column(entries.reshape(-1)))
    _, offsets, content = joined.buffers()
    ends = np.frombuffer(offsets, np.int32)[_PARTS::_PARTS][:rows].astype(np.int64)
    return memoryview(content) if content is not None else memoryview(b""), ends


def _varint_bytes(numbers: Ints) -> Ints:
    """Size of each number as a varint."""
    zigzag = (numbers << 1) ^ (numbers >> 63)
    size = np.ones(len(numbers), np.int64)
    for bits in (7, 14, 21, 28):
        if int(zigzag.max(initial=0)) >> bits == 0:
            break
        size += zigzag >= 1 << bits
    return size


def _varints(*fields: Ints) -> tuple[pa.Array, Ints]:
    """The varints of each row concatenated, as a binary column, and their sizes."""
    columns: list[Bytes] = []
    present: list[npt.NDArray[np.bool_]] = []
    size = np.zeros(len(fields[0]), np.int64)
    for numbers in fields:
        zigzag = (numbers << 1) ^ (numbers >> 63)
        width = _varint_bytes(numbers)
        size += width
        for place in range(int(width.max(initial=1))):
            septet = (zigzag >> (7 * place)) & 0x7F
            columns.append((septet | np.where(width > place + 1, 0x80, 0)).astype(np.uint8))
            present.append(width > place)
    table, mask = np.stack(columns, axis=1), np.stack(present, axis=1)
    offsets = np.zeros(len(size) + 1, np.int32)
    np.cumsum(size, out=offsets[1:])
    return binary_array(offsets, np.ascontiguousarray(table[mask])), size


def _lengths(values: pa.Array) -> Ints:
    """Lengths in bytes; undefined where an entry is null."""
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    return np.diff(offsets).astype(np.int64)


def _lengths_or_null(values: pa.Array | None, rows: int) -> Ints:
    """Lengths in bytes, -1 where an entry is null."""
    if values is None:
        return np.full(rows, -1, np.int64)
    lengths = _lengths(values)
    if values.null_count:
        lengths[null_flags(values)] = -1
    return lengths


# --- headers --------------------------------------------------------------------------------------


def _encode_headers(headers: pa.Array | None) -> tuple[pa.Array, Ints]:
    """Count and content of the headers of each row, as a binary column, and the lengths. A single
    entry for all rows if none has headers.
    """
    nothing = binary_array(np.array([0, 1], np.int32), b"\0")
    if headers is None or headers.null_count == len(headers):
        return nothing, np.ones(1, np.int64)
    offsets = np.frombuffer(headers.buffers()[1], np.int32)[
        headers.offset : headers.offset + len(headers) + 1
    ]
    counts = np.diff(offsets).astype(np.int64)
    if headers.null_count:
        counts[null_flags(headers)] = 0
    totals = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=totals[1:])
    entries = np.repeat(offsets[:-1] - totals[:-1], counts) + np.arange(totals[-1])
    chosen = headers.values.take(int64_column(entries))
    joined, item_bytes = _join_headers(chosen.field("key").cast(pa.binary()), chosen.field("value"))
    item_ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(item_bytes)])
    bounds = item_ends[totals].astype(np.int32)
    numbers, number_bytes = _varints(counts)
    parts = pa.concat_arrays([numbers, binary_array(bounds, joined)])
    pairs = np.stack([np.arange(len(counts)), np.arange(len(counts)) + len(counts)], axis=1)
    taken = parts.take(int64_column(pairs.reshape(-1).astype(np.int64)))
    ends = np.frombuffer(taken.buffers()[1], np.int32)[0 : 2 * len(counts) + 1 : 2]
    content = np.frombuffer(taken.buffers()[2], np.uint8)
    return binary_array(np.ascontiguousarray(ends), content), number_bytes + np.diff(bounds)


def _join_headers(names: pa.Array, values: pa.Array) -> tuple[Bytes, Ints]:
    """All headers concatenated, and the size of each."""
    count = len(names)
    name_bytes, value_bytes = _lengths_or_null(names, count), _lengths_or_null(values, count)
    if (name_bytes < 0).any():
        raise InvalidArgument(
            "a row has a header whose key is null in the column headers: every header needs a key"
        )
    name_length, name_length_bytes = _varints(name_bytes)
    value_length, value_length_bytes = _varints(value_bytes)
    entries = np.arange(count)[:, None] + count * np.arange(4)
    joined = pa.concat_arrays([name_length, names, value_length, values]).take(
        int64_column(entries.reshape(-1))
    )
    _, offsets, content = joined.buffers()
    end = int(np.frombuffer(offsets, np.int32)[4 * count])
    size = name_length_bytes + name_bytes + value_length_bytes + np.maximum(value_bytes, 0)
    return np.frombuffer(content, np.uint8)[:end], size
