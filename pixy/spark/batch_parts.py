"""The record batches of a response, in parts that are decoded together.

Counts are compared with the bytes that are there before anything is allocated for them.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from pixy.errors import CorruptData
from pixy.records import HEADER_BYTES, BatchHeader, batch_bytes, check_batch, decompress_records, read_header

_RECORD_BYTES_MIN = 7
_APPEND_TIME = 0x08
_PART_BYTES = 8 << 20
"""Limit on decompressed batches at a time. A response of 1 MiB can expand a thousandfold."""


class BatchSection(NamedTuple):
    """The decompressed records of one batch inside a buffer, with values of its header."""

    start: int
    end: int
    records: int
    offsets: int
    base_offset: int
    base_timestamp: int
    append_timestamp: int
    """-1: records have their own timestamps."""


class BatchPart(NamedTuple):
    """Batches that are decoded together: a buffer with their decompressed records, the place of
    each one's records in it, and the place of each batch in the response.
    """

    buffer: bytes
    sections: list[BatchSection]
    batches: list[tuple[int, int]]


def parts(batches: bytes) -> Iterator[BatchPart]:
    """The batches with records. Without compression they are one part, whose buffer is `batches`
    itself; a batch that cannot be decompressed, or has not as many bytes as records, is one without
    sections.
    """
    headers = []
    for at, size in _steps(batches):
        check_batch(memoryview(batches)[at : at + size])
        header = read_header(batches, at)
        if not header.is_control and header.records:
            headers.append((at, at + size, header))
    if headers and all(
        not header.codec and _has_room(header, end - begin - HEADER_BYTES) for begin, end, header in headers
    ):
        sections = [_section(begin + HEADER_BYTES, end, header) for begin, end, header in headers]
        yield BatchPart(batches, sections, [(begin, end) for begin, end, _ in headers])
        return
    yield from _unpacked_parts(batches, headers)


def _unpacked_parts(batches: bytes, headers: list[tuple[int, int, BatchHeader]]) -> Iterator[BatchPart]:
    unpacked: list[bytes] = []
    part = BatchPart(b"", [], [])
    filled = 0
    for begin, end, header in headers:
        records = batches[begin + HEADER_BYTES : end]
        with suppress(CorruptData):
            records = decompress_records(records, header.codec) if header.codec else records
            if _has_room(header, len(records)):
                unpacked.append(records)
                part.sections.append(_section(filled, filled + len(records), header))
                part.batches.append((begin, end))
                filled += len(records)
                if filled < _PART_BYTES:
                    continue
        if part.sections:
            yield part._replace(buffer=b"".join(unpacked))
        if (begin, end) not in part.batches[-1:]:
            yield BatchPart(b"", [], [(begin, end)])
        unpacked, part, filled = [], BatchPart(b"", [], []), 0
    if part.sections:
        yield part._replace(buffer=b"".join(unpacked))


def _has_room(header: BatchHeader, size: int) -> bool:
    """True if these bytes can be as many records as the header says, each with an offset."""
    return header.records * _RECORD_BYTES_MIN <= size and header.records <= header.last_offset_delta + 1


def _section(start: int, end: int, header: BatchHeader) -> BatchSection:
    append_timestamp = header.max_timestamp if header.attributes & _APPEND_TIME else -1
    return BatchSection(
        start,
        end,
        header.records,
        header.last_offset_delta + 1,
        header.base_offset,
        header.base_timestamp,
        append_timestamp,
    )


def _steps(batches: bytes) -> Iterator[tuple[int, int]]:
    """Start and size of each batch."""
    at = 0
    while at < len(batches):
        size = batch_bytes(batches, at) if at + HEADER_BYTES <= len(batches) else 0
        if size < HEADER_BYTES or at + size > len(batches):
            raise CorruptData(
                f"a record batch at byte {at} of {len(batches)} is incomplete: its header gives {size} bytes"
            )
        yield at, size
        at += size
