"""Walk through a batch whose records differ in their offsets, keys and values only, as programs
write them: a tenth of the time of the codec's walk. Of few records the codec's walk is shorter.

If a record has L bytes and the next ones have the same length fields at distance L, 2L, 3L, these
are records of L bytes. So each field is compared for all records at once, as a column of bytes with
that distance. Runs end where the offset delta gets another byte, or another third one.
"""

from typing import NamedTuple

from pixy.records.batch import HEADER_BYTES

_RECORDS_MIN = 64
_CONTINUATION = 0x80
_DELTA_BYTES = ((64, 1), (8192, 2), (1 << 20, 3))
"""Offset deltas below a bound, and the size of such a number."""
_PERIOD = 8192
_FIRST = bytes(range(_CONTINUATION, 256, 2)) * (_PERIOD // 64)
_SECOND = b"".join(bytes((each,)) * 64 for each in range(128))
_SECOND_OF_THREE = b"".join(bytes((each | _CONTINUATION,)) * 64 for each in range(128))
"""The bytes of offset deltas, which repeat after this period."""


class _UniformRecord(NamedTuple):
    """A record: its size, the positions of bytes that are equal in all records, its offset delta
    with its position, and its timestamp delta.
    """

    size: int
    fixed: list[int]
    delta_at: int
    delta: int
    timestamp_delta: int


def uniform_timestamp_delta(batch: bytearray, records: int) -> int | None:
    """The timestamp delta of all records of an uncompressed batch, if they have consecutive offset
    deltas from 0, no headers, and keys and values of the same length.

    None if they do not, or if the batch is invalid, or hardly larger than the walk through it.
    """
    at, number, timestamp_delta = HEADER_BYTES, 0, None
    if records < _RECORDS_MIN:
        return None
    while number < records:
        layout = _layout(batch, at)
        if layout is None or layout.delta != number:
            return None
        if timestamp_delta not in (None, layout.timestamp_delta):
            return None
        timestamp_delta = layout.timestamp_delta
        count = _run(number, records)
        if at + count * layout.size > len(batch) or not _is_run(batch, at, layout, number, count):
            return None
        at += count * layout.size
        number += count
    return timestamp_delta if at == len(batch) else None


def _run(number: int, records: int) -> int:
    """Records from this one on whose offset deltas differ in two bytes only."""
    bound = 64 if number < 64 else number // _PERIOD * _PERIOD + _PERIOD
    return min(bound, records) - number


def _is_run(batch: bytearray, at: int, layout: _UniformRecord, number: int, count: int) -> bool:
    size, end = layout.size, at + (count - 1) * layout.size + 1

    def column(position: int) -> bytearray:
        return batch[at + position : end + position : size]

    for position in layout.fixed:
        if column(position) != batch[at + position : at + position + 1] * count:
            return False
    first, begin = layout.delta_at, number % _PERIOD
    match next((width for bound, width in _DELTA_BYTES if number < bound), 0):
        case 1:
            return column(first) == bytes(range(2 * number, 2 * (number + count), 2))
        case 2:
            return (
                column(first) == _FIRST[begin : begin + count]
                and column(first + 1) == _SECOND[begin : begin + count]
            )
        case 3:
            return (
                column(first) == _FIRST[begin : begin + count]
                and column(first + 1) == _SECOND_OF_THREE[begin : begin + count]
                and column(first + 2).count(2 * number >> 14) == count
            )
    return False


def _layout(batch: bytearray, at: int) -> _UniformRecord | None:
    """The layout of the record at a position, None if it is not one or has headers."""
    try:
        length, body = _varint(batch, at)
        timestamp_delta, delta_at = _varint(batch, body + 1)
        delta, key_at = _varint(batch, delta_at)
        key_bytes, key = _varint(batch, key_at)
        value_at = key + max(key_bytes, 0)
        value_bytes, value = _varint(batch, value_at)
        end = value + max(value_bytes, 0)
        if batch[body] or batch[end] or end + 1 != body + length:
            return None
    except IndexError:
        return None
    fixed = [*range(at, delta_at), *range(key_at, key), *range(value_at, value), end]
    return _UniformRecord(end + 1 - at, [each - at for each in fixed], delta_at - at, delta, timestamp_delta)


def _varint(batch: bytearray, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        octet = batch[at]
        at += 1
        value |= (octet & 0x7F) << shift
        if octet < _CONTINUATION:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 56:
            raise IndexError
