"""Record batches as a client builds them, and what is in those that a client gets."""

import struct
from collections.abc import Iterator

import cramjam

from pixy.records import (
    COMPRESSION,
    HEADER_BYTES,
    UNPACKED_BYTES_MAX,
    NewRecord,
    batch_bytes,
    build_batch,
    crc32c,
    read_records,
)

__all__ = ["as_batches", "batch_of", "bomb", "offsets_in", "patched", "values_in"]


def batch_of(*values: bytes, timestamp_ms: int = 1000, compression: int = 0) -> bytes:
    """A batch of one record for each value, with timestamps one apart."""
    records = [NewRecord(b"key", value, [], timestamp_ms + at) for at, value in enumerate(values)]
    return bytes(build_batch(records, compression))


def patched(batch: bytes, at: int, replacement: bytes) -> bytes:
    """The batch with other bytes from `at` on, and a checksum that is right again."""
    changed = bytearray(batch)
    changed[at : at + len(replacement)] = replacement
    changed[17:21] = crc32c(memoryview(changed)[21:]).to_bytes(4, "big")
    return bytes(changed)


def bomb(timestamp_ms: int = 1000) -> bytes:
    """A small batch of one record that unpacks to more than readers take; nothing in its header says so."""
    header = batch_of(b"x" * 1000, timestamp_ms=timestamp_ms, compression=COMPRESSION["zstd"])[:HEADER_BYTES]
    batch = header + bytes(cramjam.zstd.compress(bytes(UNPACKED_BYTES_MAX + 1)))
    return patched(batch, 8, struct.pack(">i", len(batch) - 12))


def as_batches(buffer: bytes) -> Iterator[bytes]:
    """The batches that lie back to back in a buffer."""
    at = 0
    while at < len(buffer):
        end = at + batch_bytes(buffer, at)
        yield buffer[at:end]
        at = end


def offsets_in(buffer: bytes) -> list[int]:
    """The offsets of the records in batches back to back."""
    return [record.offset for batch in as_batches(buffer) for record in read_records(batch)]


def values_in(buffer: bytes) -> list[bytes | None]:
    """The values of the records in batches back to back."""
    return [record.value for batch in as_batches(buffer) for record in read_records(batch)]
