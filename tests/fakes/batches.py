"""Record batches as built by clients, and the contents of those that clients receive."""

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
    """A batch with one record per value, and timestamps one apart."""
    records = [NewRecord(b"key", value, [], timestamp_ms + at) for at, value in enumerate(values)]
    return bytes(build_batch(records, compression))


def patched(batch: bytes, at: int, replacement: bytes) -> bytes:
    """The batch with other bytes from `at` on, and a correct checksum."""
    changed = bytearray(batch)
    changed[at : at + len(replacement)] = replacement
    changed[17:21] = crc32c(memoryview(changed)[21:]).to_bytes(4, "big")
    return bytes(changed)


def bomb(timestamp_ms: int = 1000) -> bytes:
    """A small batch of one record that exceeds the readers' limit when decompressed; its header
    does not reveal it.
    """
    header = batch_of(b"x" * 1000, timestamp_ms=timestamp_ms, compression=COMPRESSION["zstd"])[:HEADER_BYTES]
    batch = header + bytes(cramjam.zstd.compress(bytes(UNPACKED_BYTES_MAX + 1)))
    return patched(batch, 8, struct.pack(">i", len(batch) - 12))


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
