"""Decoder for batches that `codec` cannot decode: intact, but written with wrong fields.

Such batches are in logs that were written before batches were checked on arrival, and in those of
Kafka clusters. Every record that can be delivered is: with the offset that its place in the batch
gives it, and with replacement characters in a header name that is not UTF-8. Pure Python and ten
times slower than the codec, and with its rules: numbers of up to ten bytes, a negative length of a
key or a value is a null.

    the batch has                                    its records have
    -----------------------------------------------  ---------------------------------------------
    as many records as offsets, or more              consecutive offsets, whatever they say; what is
                                                     left when the offsets are used up has none
    fewer (Kafka's compaction removes records)       their own, as long as these ascend and are in
                                                     the batch; the first other one ends it

What cannot be decoded raises `Undecodable` with the next offset at which to go on: that of the next
record if the length of this one is possible, else that of the next batch.
"""

from collections.abc import Iterator
from typing import NamedTuple

from pixy.errors import Undecodable
from pixy.records.batch import TIMESTAMP_TYPE_BIT, BatchHeader, Buffer
from pixy.records.fields import Malformed, read_bytes, read_varint
from pixy.records.windows import HEADERS_MAX

_SIGNED_64 = 1 << 63


class LenientRecord(NamedTuple):
    """A `Record`, with its fields in the order in which the codec has them."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class LenientStart(NamedTuple):
    """Beginning of decoding: position and number of a record, and the first offset that it may
    have.
    """

    at: int
    number: int
    offset: int


def decode_leniently(
    buffer: Buffer, header: BatchHeader, start: LenientStart, decoded: int, first_offset: int
) -> Iterator[LenientRecord]:
    """Records of a batch in offset order.

    Args:
        buffer: the batch with decompressed records.
        header: its header.
        start: all records before it were decoded already.
        decoded: number of records at its begin that were decoded already.
        first_offset: records below are left out, whatever they are.

    Raises:
        Undecodable: a record cannot be decoded.
    """
    offsets = header.last_offset_delta + 1
    consecutive = header.records >= offsets
    at, expected = start.at, start.offset
    for number in range(start.number, min(header.records, offsets)):
        try:
            begin, end = _bounds(buffer, at)
        except Malformed as error:
            raise _undecodable(header, number, expected, header.next_offset, error) from error
        try:
            record = _record(buffer, begin, end, header)
            if consecutive:
                record = record._replace(offset=expected)
            elif not expected <= record.offset < header.next_offset:
                raise Malformed(f"its offset is {record.offset}, expected {expected} or above")
        except Malformed as error:
            behind = expected + 1 if consecutive else header.next_offset
            if number >= decoded and expected >= first_offset:
                raise _undecodable(header, number, expected, behind, error) from error
            expected = behind
        else:
            if number >= decoded and record.offset >= first_offset:
                yield record
            expected = record.offset + 1
        at = end
    if at < len(buffer):
        more = Malformed(f"{len(buffer) - at} bytes follow")
        raise _undecodable(header, header.records, expected, header.next_offset, more)


def _undecodable(
    header: BatchHeader, number: int, offset: int, next_offset: int, error: Exception
) -> Undecodable:
    return Undecodable(
        f"record batch at offset {header.base_offset} cannot be decoded, the next batch is at {header.next_offset}: "
        f"record {number} of {header.records}: {error}",
        min(offset, next_offset),
        next_offset,
    )


def _record(buffer: Buffer, at: int, end: int, header: BatchHeader) -> LenientRecord:
    """The record in these bytes, which it has to fill."""
    _, at = read_varint(buffer, at, end)
    timestamp_delta, at = read_varint(buffer, at, end)
    offset_delta, at = read_varint(buffer, at, end)
    key, at = read_bytes(buffer, at, end)
    value, at = read_bytes(buffer, at, end)
    count, at = read_varint(buffer, at, end)
    # Each header has two bytes at least.
    if not 0 <= count <= (end - at) // 2:
        raise Malformed(f"{count} headers in {end - at} bytes")
    if count > HEADERS_MAX:
        raise Malformed(f"it has {count} headers, readers take {HEADERS_MAX} at most")
    headers = []
    for _ in range(count):
        name, at = read_bytes(buffer, at, end)
        if name is None:
            raise Malformed("a header without a name")
        content, at = read_bytes(buffer, at, end)
        headers.append((name.decode("utf-8", "replace"), content))
    if at != end:
        raise Malformed(f"{end - at} bytes follow its fields")
    timestamp = (
        header.max_timestamp
        if header.attributes & TIMESTAMP_TYPE_BIT
        else _in_64_bits(header.base_timestamp + timestamp_delta)
    )
    return LenientRecord(header.base_offset + offset_delta, timestamp, key, value, headers)


def _in_64_bits(number: int) -> int:
    return (number + _SIGNED_64) % (2 * _SIGNED_64) - _SIGNED_64


def _bounds(buffer: Buffer, at: int) -> tuple[int, int]:
    """First byte behind a record's length, and the end of the record."""
    length, at = read_varint(buffer, at, len(buffer))
    if not 0 <= length <= len(buffer) - at:
        raise Malformed(f"a length of {length} bytes with {len(buffer) - at} left")
    return at, at + length
