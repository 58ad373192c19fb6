"""Records in and out of Kafka v2 record batches.

A thin wrapper around aiokafka's Cython codec: 0.15 us a record either way, against 0.3 us and more for the same in plain
Python. The codec trusts what it reads, so everything that it will rely on is checked here first: the header, the length, the
checksum and the count. What it still finds wrong comes out as `CorruptData`.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from aiokafka.errors import CorruptRecordException, UnsupportedCodecError
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from pixy.errors import CorruptData
from pixy.records.batch import check_batch, read_header

__all__ = ["COMPRESSION", "Header", "NewRecord", "Record", "build_batch", "read_records"]

Header = tuple[str, bytes | None]
"""Name and value of one record header."""

COMPRESSION = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Kafka's codec numbers by the names that configurations use."""

_NO_LIMIT = 2**31 - 1


class NewRecord(NamedTuple):
    """A record that has no offset yet. `timestamp_ms` is milliseconds since the Unix epoch."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    timestamp_ms: int


class Record(Protocol):
    """A stored record, as the codec hands it out; attributes are read-only."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[Header]: ...


def build_batch(records: Sequence[NewRecord], compression: int = 0) -> bytearray:
    """Pack records into one batch with base offset 0, no producer id, and `compression` (a value of `COMPRESSION`).

    The batch stays uncompressed if compression does not make it smaller.
    """
    builder = DefaultRecordBatchBuilder(2, compression, 0, -1, -1, -1, _NO_LIMIT)
    append = builder.append
    for delta, (key, value, headers, timestamp_ms) in enumerate(records):
        append(delta, timestamp_ms, key, value, headers)
    batch: bytearray = builder.build()
    return batch


def read_records(batch: bytes | bytearray | memoryview) -> Iterator[Record]:
    """The records of one whole batch, in order of offset, decoded one by one as they are asked for.

    Control batches have no records for anybody.

    Raises:
        CorruptData: at once if header, length or checksum are wrong, or on the way if a record cannot be decoded.
    """
    check_batch(batch)
    if read_header(batch).is_control:
        return iter(())
    return _decode(batch)


def _decode(batch: bytes | bytearray | memoryview) -> Iterator[Record]:
    try:
        yield from DefaultRecordBatch(batch)
    except (CorruptRecordException, UnsupportedCodecError, UnicodeDecodeError, ValueError, RuntimeError) as error:
        base = read_header(batch).base_offset
        raise CorruptData(f"record batch at offset {base} cannot be decoded: {error}") from error
