"""Record batches as built by clients, and the contents of those that clients receive."""

import struct
from collections.abc import Iterator, Sequence

import cramjam

from pixy.records import (
    COMPRESSION,
    HEADER_BYTES,
    UNPACKED_BYTES_MAX,
    NewRecord,
    batch_bytes,
    build_batch,
    compress_records,
    crc32c,
    patch_batch,
    patch_producer,
    read_records,
)


def batch_of(*values: bytes, timestamp_ms: int = 1000, compression: int = 0) -> bytes:
    """A batch with one record per value, and timestamps one apart."""
    records = [NewRecord(b"key", value, [], timestamp_ms + at) for at, value in enumerate(values)]
    return bytes(build_batch(records, compression))


def batch_of_producer(
    producer_id: int, epoch: int, sequence: int, *values: bytes, timestamp_ms: int = 1000
) -> bytearray:
    """A batch of an idempotent producer, as `batch_of`."""
    batch = bytearray(batch_of(*values, timestamp_ms=timestamp_ms))
    patch_producer(batch, producer_id, epoch, sequence)
    return batch


def patched(batch: bytes, at: int, replacement: bytes) -> bytes:
    """The batch with other bytes from `at` on, and a correct checksum."""
    changed = bytearray(batch)
    changed[at : at + len(replacement)] = replacement
    changed[17:21] = crc32c(memoryview(changed)[21:]).to_bytes(4, "big")
    return bytes(changed)


def varint(value: int) -> bytes:
    """A number as in records."""
    left = ((value << 1) ^ (value >> 63)) % 2**64
    encoded = bytearray()
    while left > 0x7F:
        encoded.append(0x80 | (left & 0x7F))
        left >>= 7
    return bytes([*encoded, left])


def raw_record(
    delta: int,
    value: bytes,
    *,
    timestamp_delta: int = 0,
    headers: bytes = b"\0",
    length: int | None = None,
    value_length: int | None = None,
) -> bytes:
    """The bytes of a record whose fields may lie.

    Args:
        headers: their number and bytes.
        length, value_length: instead of the true ones.
    """
    body = b"\0" + varint(timestamp_delta) + varint(delta) + varint(-1)
    body += varint(len(value) if value_length is None else value_length) + value + headers
    return varint(len(body) if length is None else length) + body


BROKEN_RECORD = raw_record(1, b"x", headers=varint(3))
"""A record with a true length and headers that are not there."""


def raw_batch(
    records: Sequence[bytes],
    *,
    count: int | None = None,
    last_delta: int | None = None,
    codec: int = 0,
    base_timestamp: int = 1000,
    max_timestamp: int = 1000,
) -> bytes:
    """An intact batch with these bytes as its records, and a header that may lie.

    Args:
        records: joined, and compressed if there is a codec.
        count, last_delta: instead of the true ones.
    """
    count = len(records) if count is None else count
    last_delta = count - 1 if last_delta is None else last_delta
    body = b"".join(records)
    packed = compress_records(body, codec) if codec else body
    numbers = struct.pack(">hiqqqhii", codec, last_delta, base_timestamp, max_timestamp, -1, -1, -1, count)
    head = struct.pack(">qiibI", 0, len(packed) + HEADER_BYTES - 12, -1, 2, 0)
    return patched(head + numbers + packed, 0, b"")


def as_stored(batch: bytes, base_offset: int) -> bytes:
    """The batch as it is in a log."""
    stored = bytearray(batch)
    patch_batch(stored, base_offset, 0)
    return bytes(stored)


def bomb(timestamp_ms: int = 1000) -> bytes:
    """A small batch of one record that exceeds the readers' limit when decompressed; its header
    does not reveal it.
    """
    header = batch_of(b"x" * 1000, timestamp_ms=timestamp_ms, compression=COMPRESSION["zstd"])[:HEADER_BYTES]
    batch = header + bytes(cramjam.zstd.compress(bytes(UNPACKED_BYTES_MAX + 1)))
    return patched(batch, 8, struct.pack(">i", len(batch) - 12))


def crowded_record(delta: int, headers: int, *, count: int | None = None, length: int | None = None) -> bytes:
    """A record with headers of two bytes: an empty name, and no value."""
    said = varint(headers if count is None else count)
    return raw_record(delta, b"lie", headers=said + b"\0\1" * headers, length=length)


def as_batches(buffer: bytes) -> Iterator[bytes]:
    """The consecutive batches in a buffer."""
    at = 0
    while at < len(buffer):
        end = at + batch_bytes(buffer, at)
        yield buffer[at:end]
        at = end


def offsets_in(buffer: bytes) -> list[int]:
    """Offsets of the records in consecutive batches."""
    return [record.offset for batch in as_batches(buffer) for record in read_records(batch)]


def values_in(buffer: bytes) -> list[bytes | None]:
    """Values of the records in consecutive batches."""
    return [record.value for batch in as_batches(buffer) for record in read_records(batch)]
