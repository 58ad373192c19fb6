"""Walk through a batch whose records differ in their offsets, timestamps, keys and values only, as
programs write them: a tenth of the time of the codec's walk. Of few records the codec's walk is
shorter.

If a record has L bytes and the next ones have the same length fields at distance L, 2L, 3L, these
are records of L bytes. So each field is compared for all records at once, as a column of bytes with
that distance. A run of such records ends where the offset delta gets another byte, or another third
one, and where a field differs: a timestamp delta with another byte makes its record longer.
"""

from typing import NamedTuple

from pixy.records.batch import HEADER_BYTES

_RECORDS_MIN = 64
_RUNS_MIN, _RECORDS_PER_RUN = 8, 512
"""Runs of a batch; with more of them the codec's walk is shorter."""
_CONTINUATION = 0x80
_DELTA_BYTES = ((64, 1), (8192, 2), (1 << 20, 3))
"""Offset deltas below a bound, and the size of such a number."""
_PERIOD = 8192
_FIRST = bytes(range(_CONTINUATION, 256, 2)) * (_PERIOD // 64)
_SECOND = b"".join(bytes((each,)) * 64 for each in range(128))
_SECOND_OF_THREE = b"".join(bytes((each | _CONTINUATION,)) * 64 for each in range(128))
"""The bytes of offset deltas, which repeat after this period."""
_ONLY, _LAST = bytes(range(0, _CONTINUATION, 2)), bytes(range(_CONTINUATION))
_BEGIN, _MIDDLE = bytes(range(_CONTINUATION, 256, 2)), bytes(range(_CONTINUATION, 256))
"""The bytes that numbers above -1 have: the only one, the last, the first, one in the middle."""


class _UniformRecord(NamedTuple):
    """A record: its position and size, the positions of bytes that are equal in all records, its
    timestamp delta's, and its offset delta with its position.
    """

    at: int
    size: int
    fixed: list[int]
    timestamp: range
    delta_at: int
    delta: int


def largest_timestamp_delta(batch: bytearray, records: int) -> int | None:
    """The largest timestamp delta of an uncompressed batch, if its records have consecutive offset
    deltas from 0, no timestamp delta below 0, no headers, and nearly all of them keys and values of
    the same length as the record before.

    None if they do not, or if the batch is invalid, or hardly larger than the walk through it.
    """
    at, number, largest = HEADER_BYTES, 0, 0
    if records < _RECORDS_MIN:
        return None
    for _ in range(_RUNS_MIN + records // _RECORDS_PER_RUN):
        first = _record(batch, at)
        if first is None or first.delta != number:
            return None
        count = _count_alike(batch, first, min(_bound(number), records) - number)
        if not count or not _are_consecutive(batch, first, count):
            return None
        largest = max(largest, _largest_timestamp(batch, first, count))
        at += count * first.size
        number += count
        if number == records:
            return largest if at == len(batch) else None
    return None


def _bound(number: int) -> int:
    """The number of the next record whose offset delta differs in more than two bytes."""
    return 64 if number < 64 else number // _PERIOD * _PERIOD + _PERIOD


def _count_alike(batch: bytearray, first: _UniformRecord, most: int) -> int:
    """The number of records from this one on that have its layout, but for their offsets."""
    at, size = first.at, first.size
    count = min(most, (len(batch) - at) // size)
    for position in first.fixed:
        column = batch[position : position + count * size : size]
        if column != column[:1] * count:
            count -= len(column.lstrip(column[:1]))
    begin, last = first.timestamp[0], first.timestamp[-1]
    for position in first.timestamp:
        allowed = _BEGIN if position < last else _ONLY
        if position > begin:
            allowed = _MIDDLE if position < last else _LAST
        column = batch[position : position + count * size : size]
        if column.translate(None, allowed):
            count -= len(column.lstrip(allowed))
    return count


def _are_consecutive(batch: bytearray, first: _UniformRecord, count: int) -> bool:
    """True if the offset deltas of so many records are."""
    number, at, size = first.delta, first.delta_at, first.size
    begin, end = number % _PERIOD, count * size
    column = batch[at : at + end : size]
    match next((width for bound, width in _DELTA_BYTES if number < bound), 0):
        case 1:
            return column == bytes(range(2 * number, 2 * (number + count), 2))
        case 2:
            second = _SECOND
        case 3:
            second = _SECOND_OF_THREE
            if batch[at + 2 : at + 2 + end : size].count(2 * number >> 14) != count:
                return False
        case _:
            return False
    return (
        column == _FIRST[begin : begin + count]
        and batch[at + 1 : at + 1 + end : size] == second[begin : begin + count]
    )


def _largest_timestamp(batch: bytearray, first: _UniformRecord, count: int) -> int:
    """The largest timestamp delta of so many records."""
    size = first.size
    columns = [batch[at : at + count * size : size] for at in reversed(first.timestamp)]
    if len(columns) == 1:
        return next(each for each in reversed(_ONLY) if each in columns[0]) >> 1
    value = 0
    for octet in max(zip(*columns, strict=True)):
        value = value << 7 | octet & ~_CONTINUATION
    return value >> 1


def _record(batch: bytearray, at: int) -> _UniformRecord | None:
    """The record at a position, None if there is none or it has headers."""
    try:
        length, body = _varint(batch, at)
        _, delta_at = _varint(batch, body + 1)
        delta, key_at = _varint(batch, delta_at)
        key_bytes, key = _varint(batch, key_at)
        value_at = key + max(key_bytes, 0)
        value_bytes, value = _varint(batch, value_at)
        end = value + max(value_bytes, 0)
        if batch[body] or batch[end] or end + 1 != body + length:
            return None
    except IndexError:
        return None
    fixed = [*range(at, body + 1), *range(key_at, key), *range(value_at, value), end]
    return _UniformRecord(at, end + 1 - at, fixed, range(body + 1, delta_at), delta_at, delta)


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
