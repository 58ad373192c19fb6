"""Decoding of a batch in windows, so that the codec cannot work for long in one call.

The codec decodes a record in one call, with as many headers as the record says, and compares its
length with its content afterwards. A header may have two bytes, and becomes 70 bytes of objects. So
4 MiB could be a single record that takes half a second and 150 MB.

So the codec gets windows of 64 KiB: it sees nothing behind one, and 32 K headers are in it at most,
whatever the records say. Where a window of many records ends is found by trying: the codec is asked
for as many as should fit, and then says how many bytes it has not consumed. If they do not fit, or
are few, or wrong, the lengths of the records are walked instead; of a record that is larger than a
window, the number of headers is read first. What the lengths say is not believed, because the codec
has to find as many records in the window, and no byte more.

Readers hold a window for long. So what they get decoded has few headers; other windows are walked
for them, too, and decoded record by record. Whoever only looks at each record, and drops it, gets
all windows record by record: a list of records takes as long as their decoding.
"""

import re
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from pixy.records.batch import HEADER_BYTES, Buffer
from pixy.records.compiled import UNREADABLE, CorruptRecordException, DefaultRecordBatch
from pixy.records.fields import Malformed, read_varint, skip_bytes

HEADERS_MAX = 10_000
"""Headers of a record that readers make objects of; no configuration allows more."""

_WINDOW_BYTES = 64 << 10
_TRIED_BYTES = _WINDOW_BYTES * 7 // 8
"""Target size of the records in a window, if they are as long as the average."""
_TRIED_RECORDS_MIN = 48
_DECODED_MAX = 256
"""Records of a window that are decoded ahead."""
_HEADERS_AHEAD_MAX = 1024
_headers = attrgetter("headers")
_PADDING = bytes(32)
_RECORDS = struct.Struct(">i")
_RECORDS_AT = 57
_CONTINUATION = 0x80
_UNCONSUMED = re.compile(r"(?<![-\d])(\d+) unconsumed bytes after all records consumed")
"""The codec's message; the number is negative if it has read on behind the window. If it had
another message, all lengths would be walked.
"""


class TooManyHeadersError(ValueError):
    """A record has more headers than readers take.

    Args:
        number: the record's number in its batch.
        headers: the number of its headers.
    """

    def __init__(self, number: int, headers: int) -> None:
        super().__init__(f"it has {headers} headers, readers take {HEADERS_MAX} at most")
        self.number = number
        self.headers = headers


class Window(NamedTuple):
    """Consecutive records of a batch.

    Attributes:
        begin: position of the first one in the batch.
        number: number of the first one.
        records: the records, as a list if they are decoded; else iteration decodes them, and raises
            one of `UNREADABLE` if that cannot be done.
    """

    begin: int
    number: int
    records: Iterable[Any]


Visit = Callable[[Iterable[Any], int], None]
"""Looks at records, the first of which has a number."""


def decode_windows(buffer: Buffer, records: int) -> Iterator[Window]:
    """Records of a batch, as they are: not compared with its header. Windows with many headers,
    whose records may have 35 times the bytes, are not decoded ahead.

    Args:
        buffer: the batch with decompressed records, where reading slightly past the end is
            harmless.
        records: their number, as the header says.

    Raises:
        ValueError: during iteration, behind the windows before: there is no record, or there are
            more bytes than records.
        TooManyHeadersError: likewise, for a record that is larger than a window.
    """
    end = len(buffer)
    if end - HEADER_BYTES <= _WINDOW_BYTES:
        yield Window(HEADER_BYTES, 0, DefaultRecordBatch(buffer))
        return
    parts = _Parts(buffer, overwrite=False)
    at, number = HEADER_BYTES, 0
    while number < records:
        left = records - number
        count = min(_DECODED_MAX, _count_to_try(left, at, end))
        found = _tried(parts, at, count) if count >= _TRIED_RECORDS_MIN else None
        if found is not None and _headers_of(found.records) <= _HEADERS_AHEAD_MAX:
            yield Window(at, number, found.records)
            at = found.end
        else:
            count, behind = _walked(buffer, at, number, left)
            yield Window(at, number, DefaultRecordBatch(parts.part(at, behind, count)))
            at = behind
        number += count
    if at != end:
        raise ValueError(f"{end - at} bytes behind {records} records")


def visit_windows(buffer: Buffer, records: int, visit: Visit) -> None:
    """As `decode_windows`, for one who looks at each record and drops it; the buffer is
    overwritten.

    Args:
        visit: looks at the records of a window; again at some of them if the window is found to end
            before them.

    Raises:
        Exception: one of `UNREADABLE` that `visit` has met, or as `decode_windows`.
    """
    end = len(buffer)
    if end - HEADER_BYTES <= _WINDOW_BYTES:
        visit(DefaultRecordBatch(buffer), 0)
        return
    parts = _Parts(buffer, overwrite=True)
    at, number = HEADER_BYTES, 0
    while number < records:
        left = records - number
        count = _count_to_try(left, at, end)
        behind = _visited(parts, at, number, count, visit) if count >= _TRIED_RECORDS_MIN else None
        if behind is None:
            count, behind = _walked(buffer, at, number, left)
            visit(DefaultRecordBatch(parts.part(at, behind, count)), number)
        at = behind
        number += count
    if at != end:
        raise ValueError(f"{end - at} bytes behind {records} records")


def _count_to_try(left: int, at: int, end: int) -> int:
    """Number of records that should fit into a window, if they are as long as the average."""
    if at >= end:
        raise ValueError(f"it begins at the end of {end} bytes")
    return min(left, left * _TRIED_BYTES // (end - at))


def _visited(parts: "_Parts", at: int, number: int, count: int, visit: Visit) -> int | None:
    """The end of so many visited records; None if they are not in a window, or wrong."""
    batch, end = parts.window(at, count)
    try:
        visit(islice(batch, count), number)
    except UNREADABLE:
        return None
    unconsumed = _unconsumed(batch)
    return None if unconsumed is None else end - unconsumed


def _headers_of(records: list[Any]) -> int:
    return sum(map(len, map(_headers, records)))


class _Parts:
    """Parts of a batch as batches of their own.

    Args:
        overwrite: write their headers in front of them, instead of copying them.
    """

    def __init__(self, buffer: Buffer, overwrite: bool) -> None:
        self._view = memoryview(buffer)
        self._overwrite = overwrite
        self._header = bytearray(self._view[:HEADER_BYTES])

    def part(self, begin: int, end: int, records: int) -> memoryview:
        """The batch of the records at these positions."""
        _RECORDS.pack_into(self._header, _RECORDS_AT, records)
        if self._overwrite:
            self._view[begin - HEADER_BYTES : begin] = self._header
            return self._view[begin - HEADER_BYTES : end]
        return memoryview(b"".join((self._header, self._view[begin:end], _PADDING)))[: -len(_PADDING)]

    def window(self, begin: int, records: int) -> "tuple[Iterator[Any], int]":
        """The batch of as much as a window has, and its end."""
        end = min(begin + _WINDOW_BYTES, len(self._view))
        return iter(DefaultRecordBatch(self.part(begin, end, records))), end


class _WindowRecords(NamedTuple):
    records: list[Any]
    end: int


def _tried(parts: _Parts, at: int, count: int) -> _WindowRecords | None:
    """So many records and where they end, None if they are not in a window, or wrong."""
    batch, end = parts.window(at, count)
    try:
        records = list(islice(batch, count))
    except UNREADABLE:
        return None
    unconsumed = _unconsumed(batch)
    return None if unconsumed is None else _WindowRecords(records, end - unconsumed)


def _unconsumed(batch: Iterator[Any]) -> int | None:
    """The bytes behind all records of a batch, None if the last ones go beyond its end."""
    try:
        next(batch)
    except StopIteration:
        return 0
    except CorruptRecordException as error:
        found = _UNCONSUMED.search(str(error))
        return int(found[1]) if found else None
    return None


def _walked(buffer: Buffer, begin: int, number: int, records: int) -> tuple[int, int]:
    """The number of records in a window, and where they end; of one that is larger, its headers are
    counted.
    """
    at, count, limit = begin, 0, min(begin + _WINDOW_BYTES, len(buffer))
    try:
        while count < records:
            # Lengths of one byte or two, which most records have, without calls.
            first = buffer[at] if at < limit else _CONTINUATION
            second = buffer[at + 1] if at + 1 < limit else _CONTINUATION
            if first < _CONTINUATION:
                end = at + 1 + (first >> 1)
            elif second < _CONTINUATION:
                end = at + 2 + (second << 6 | (first & _CONTINUATION - 1) >> 1)
            else:
                end = _record_end(buffer, at)
            if end > limit:
                break
            at = end
            count += 1
        if count:
            return count, at
        if end > len(buffer):
            raise Malformed(f"it ends at {end}, behind the {len(buffer)} bytes")
        headers = _headers_at(buffer, begin, end)
    except Malformed as error:
        if count:
            return count, at
        raise ValueError(str(error)) from None
    if headers > HEADERS_MAX:
        raise TooManyHeadersError(number, headers)
    return 1, end


def _record_end(buffer: Buffer, at: int) -> int:
    length, at = read_varint(buffer, at, len(buffer))
    if length < 0:
        raise Malformed(f"a length of {length} bytes")
    return at + length


def _headers_at(buffer: Buffer, at: int, end: int) -> int:
    """The number of headers of a record."""
    for _ in ("length", "attributes", "timestamp", "offset"):
        _, at = read_varint(buffer, at, end)
    for _ in ("key", "value"):
        _, at = skip_bytes(buffer, at, end)
    headers, _ = read_varint(buffer, at, end)
    return headers
