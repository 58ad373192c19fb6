"""Record batches of the source as the target takes them. Pure.

    the batch                                    becomes
    -------------------------------------------  ------------------------------------------------
    is of control, or has no records             nothing
    has a producer id, or is transactional       the same without it: the mirror is the writer now
    begins before the offset that is wanted      a batch of the records from there on
    has gaps, as compaction leaves them          a batch of its records
    has the time of the log, not of its records  a batch of its records, each with the time that
                                                 readers see
    any other                                    the same

A timestamp of "none" becomes 0 where it is that of the first record in a batch that is built anew.
"""

from collections.abc import Iterator
from typing import NamedTuple

from pixy.errors import CorruptData
from pixy.records import (
    HEADER_BYTES,
    BatchHeader,
    NewRecord,
    batch_bytes,
    build_batch,
    check_batch,
    patch_producer,
    read_header,
    read_records,
)

Buffer = bytes | bytearray | memoryview

_ATTRIBUTES_LOW_BYTE = 22
_TIMESTAMP_TYPE, _TRANSACTIONAL = 0x08, 0x10
_NO_PRODUCER = -1


class SourceRun(NamedTuple):
    """Records that follow each other at the source."""

    offset: int
    records: int


class TakenBatch(NamedTuple):
    """A batch for the target, and where its records were at the source."""

    batch: Buffer
    sources: tuple[SourceRun, ...]


def take_batches(fetched: bytes, begin: int) -> Iterator[TakenBatch]:
    """The batches of a fetch for the target.

    Args:
        fetched: consecutive whole batches.
        begin: offset of the first record that is wanted.

    Raises:
        CorruptData: they are not.
        Undecodable, UnpackedTooLarge: the records of a batch that is built anew cannot be read.
    """
    view, at = memoryview(fetched), 0
    while at < len(view):
        size = batch_bytes(view, at) if at + HEADER_BYTES <= len(view) else 0
        if size < HEADER_BYTES or at + size > len(view):
            raise CorruptData(f"a batch at byte {at} of {len(view)} is not whole")
        batch = view[at : at + size]
        header = read_header(batch)
        at += size
        if header.is_control or not header.records or header.next_offset <= begin:
            continue
        if _is_to_be_built(header, begin):
            taken = _built(batch, header, begin)
            if taken is not None:
                yield taken
            continue
        if header.producer_id != _NO_PRODUCER or header.is_transactional:
            batch = memoryview(_of_nobody(batch))
        yield TakenBatch(batch, (SourceRun(header.base_offset, header.records),))


def _is_to_be_built(header: BatchHeader, begin: int) -> bool:
    return (
        header.base_offset < begin
        or header.last_offset_delta != header.records - 1
        or bool(header.attributes & _TIMESTAMP_TYPE)
    )


def _of_nobody(batch: Buffer) -> bytearray:
    """The batch without a producer."""
    check_batch(batch)  # its checksum is computed anew
    changed = bytearray(batch)
    changed[_ATTRIBUTES_LOW_BYTE] &= ~_TRANSACTIONAL & 0xFF
    patch_producer(changed, _NO_PRODUCER, _NO_PRODUCER, _NO_PRODUCER)
    return changed


def _built(batch: Buffer, header: BatchHeader, begin: int) -> TakenBatch | None:
    records: list[NewRecord] = []
    sources: list[SourceRun] = []
    for record in read_records(batch, first_offset=begin):
        if record.offset < begin:
            continue
        if sources and sources[-1].offset + sources[-1].records == record.offset:
            sources[-1] = sources[-1]._replace(records=sources[-1].records + 1)
        else:
            sources.append(SourceRun(record.offset, 1))
        records.append(NewRecord(record.key, record.value, record.headers, record.timestamp))
    if not records:
        return None
    records[0] = records[0]._replace(timestamp_ms=max(0, records[0].timestamp_ms))
    return TakenBatch(build_batch(records, header.codec), tuple(sources))
