"""Header of a Kafka v2 record batch: read, validate, patch. The records are the business of
`codec`.

    byte  size  field                       covered by the CRC
    0     8     base offset                 no
    8     4     length of what follows      no
    12    4     partition leader epoch      no
    16    1     magic, 2                    no
    17    4     CRC-32C of bytes 21..end    -
    21    2     attributes                  yes   bits 0-2 codec, 3 timestamp type,
                                                  4 transactional, 5 control
    23    4     last offset delta           yes
    27    8     base timestamp              yes
    35    8     max timestamp               yes
    43    8     producer id                 yes
    51    2     producer epoch              yes
    53    4     base sequence               yes
    57    4     number of records           yes
    61    ...   records                     yes

All numbers are big-endian. Base offset and leader epoch are assigned when a batch is proposed. The
CRC does not cover them, so a batch is patched in place without touching its records.
"""

import struct
from typing import NamedTuple

from pixy.errors import CorruptData
from pixy.records.crc import crc32c

HEADER_BYTES = 61
LENGTH_PREFIX_BYTES = 12
"""Base offset and length: enough to step from one batch to the next."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_BASE_OFFSET = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_LEADER_EPOCH = struct.Struct(">i")
_ATTRIBUTES = struct.Struct(">h")
_CRC = struct.Struct(">I")
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_OFFSET = 43
_CRC_OFFSET = 17
_CRC_FROM = 21
MAGIC = 2
CODEC_BITS = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
_LAST_OFFSET_DELTA = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT = 23
_OFFSETS = struct.Struct(">q15xi")
_SHAPE = struct.Struct(">8xi4xB6xi30xi")

Buffer = bytes | bytearray | memoryview


class BatchHeader(NamedTuple):
    """Header of a batch; `length` counts from byte 12 on."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int

    @property
    def next_offset(self) -> int:
        """Offset after the last record of the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_BITS


def read_header(buffer: Buffer, at: int = 0) -> BatchHeader:
    """Header of the batch at byte `at`. The caller has checked that 61 bytes are available."""
    return BatchHeader._make(_HEADER.unpack_from(buffer, at))


def batch_bytes(buffer: Buffer, at: int = 0) -> int:
    """Size in bytes of the batch at `at`, of which at least 12 bytes are available."""
    length: int = _LENGTH.unpack_from(buffer, at + 8)[0]
    return LENGTH_PREFIX_BYTES + length


def split_batches(batches: memoryview) -> list[memoryview]:
    """Batches that are back to back in a buffer, at least one, by their lengths.

    Raises:
        CorruptData: there is none, or they do not end with the buffer.
    """
    found, at, size = [], 0, len(batches)
    while at + HEADER_BYTES <= size:
        end = at + batch_bytes(batches, at)
        if end < at + HEADER_BYTES:
            break
        found.append(batches[at:end])
        at = end
    if at != size or not found:
        raise CorruptData(f"record batches of {size} bytes end at byte {at}")
    return found


def count_batches(batches: Buffer, most: int) -> int:
    """Number of batches that are back to back in a buffer, by their lengths; `most` for more.

    What is no batch counts as one.
    """
    count, at, size = 0, 0, len(batches)
    while count < most and at + HEADER_BYTES <= size:
        at += max(batch_bytes(batches, at), HEADER_BYTES)
        count += 1
    return count


def base_offset(batch: Buffer) -> int:
    """Base offset of a batch, of which at least 8 bytes are available."""
    offset: int = _BASE_OFFSET.unpack_from(batch)[0]
    return offset


def batch_crc(batch: Buffer) -> int:
    """Computed checksum of a whole batch."""
    checksum: int = crc32c(memoryview(batch)[_CRC_FROM:])
    return checksum


def patch_batch(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> int:
    """Set base offset and leader epoch in the header; returns the offset after the batch."""
    _BASE_OFFSET.pack_into(batch, 0, base_offset)
    _LEADER_EPOCH.pack_into(batch, 12, leader_epoch)
    # Every produced batch passes here: read a single field, not all thirteen.
    last_offset_delta: int = _LAST_OFFSET_DELTA.unpack_from(batch, _LAST_OFFSET_DELTA_AT)[0]
    return base_offset + last_offset_delta + 1


def offsets_of(batch: Buffer) -> tuple[int, int]:
    """Base offset of a batch, and the offset after its last record. At least 27 bytes are
    available.
    """
    base, last_offset_delta = _OFFSETS.unpack_from(batch)
    return base, base + last_offset_delta + 1


def is_batch(batch: Buffer) -> bool:
    """True if the header is that of exactly one whole batch. The checksum is not computed: whoever
    accepts a batch from elsewhere does that (`check_batch`).
    """
    if len(batch) < HEADER_BYTES:
        return False
    length, magic, last_offset_delta, records = _SHAPE.unpack_from(batch)
    if magic != MAGIC or last_offset_delta < 0 or records < 0:
        return False
    whole: bool = length == len(batch) - LENGTH_PREFIX_BYTES
    return whole


def patch_producer(
    batch: bytearray,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    *,
    transactional: bool = False,
) -> None:
    """Set producer id, producer epoch and base sequence in the header, and update the checksum.

    Args:
        transactional: also mark the batch as part of the producer's transaction.
    """
    if transactional:
        attributes: int = _ATTRIBUTES.unpack_from(batch, _CRC_FROM)[0]
        _ATTRIBUTES.pack_into(batch, _CRC_FROM, attributes | TRANSACTIONAL_BIT)
    _PRODUCER.pack_into(batch, _PRODUCER_OFFSET, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(batch, _CRC_OFFSET, crc32c(memoryview(batch)[_CRC_FROM:]))


def mark_control(batch: bytearray) -> bytearray:
    """Mark a batch as a control batch, and update the checksum."""
    attributes: int = _ATTRIBUTES.unpack_from(batch, _CRC_FROM)[0]
    _ATTRIBUTES.pack_into(batch, _CRC_FROM, attributes | CONTROL_BIT)
    _CRC.pack_into(batch, _CRC_OFFSET, crc32c(memoryview(batch)[_CRC_FROM:]))
    return batch


def check_batch(batch: Buffer) -> None:
    """Check that `batch` is exactly one whole, intact batch.

    Raises:
        CorruptData: the error, with expected and actual values.
    """
    size = len(batch)
    if size < HEADER_BYTES:
        raise CorruptData(f"record batch of {size} bytes is shorter than its header of {HEADER_BYTES}")
    header = read_header(batch)
    if header.magic != MAGIC:
        raise CorruptData(f"record batch has magic {header.magic}, expected {MAGIC}")
    if LENGTH_PREFIX_BYTES + header.length != size:
        raise CorruptData(
            f"record batch at offset {header.base_offset} has a length field of {LENGTH_PREFIX_BYTES + header.length} bytes, "
            f"but {size} bytes"
        )
    if header.last_offset_delta < 0 or header.records < 0:
        raise CorruptData(
            f"record batch at offset {header.base_offset} has last offset delta {header.last_offset_delta} and "
            f"{header.records} records"
        )
    crc = batch_crc(batch)
    if crc != header.crc:
        raise CorruptData(
            f"record batch at offset {header.base_offset} has CRC {crc:#010x}, expected {header.crc:#010x}"
        )
