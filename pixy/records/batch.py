"""The header of a Kafka v2 record batch: read, check, patch. Records themselves are the business of `codec`.

    byte  size  field                       covered by the CRC
    0     8     base offset                 no
    8     4     length of what follows      no
    12    4     partition leader epoch      no
    16    1     magic, 2                    no
    17    4     CRC-32C of bytes 21..end    -
    21    2     attributes                  yes   bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control
    23    4     last offset delta           yes
    27    8     base timestamp              yes
    35    8     max timestamp               yes
    43    8     producer id                 yes
    51    2     producer epoch              yes
    53    4     base sequence               yes
    57    4     number of records           yes
    61    ...   records                     yes

All numbers are big-endian. Base offset and leader epoch are assigned when a batch is applied and lie outside the CRC, so a
batch is patched in place without touching its records.
"""

import struct
from typing import NamedTuple

from pixy.errors import CorruptData
from pixy.records.crc import crc32c

__all__ = [
    "HEADER_BYTES",
    "LENGTH_PREFIX_BYTES",
    "BatchHeader",
    "batch_bytes",
    "check_batch",
    "mark_control",
    "patch_batch",
    "read_header",
]

HEADER_BYTES = 61
LENGTH_PREFIX_BYTES = 12
"""Base offset and length: what is needed to step from one batch to the next."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_BASE_OFFSET = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_LEADER_EPOCH = struct.Struct(">i")
_ATTRIBUTES = struct.Struct(">h")
_CRC = struct.Struct(">I")
_CRC_OFFSET = 17
_CRC_FROM = 21
_MAGIC = 2
_CONTROL = 0x20
_CODEC_MASK = 0x07

Buffer = bytes | bytearray | memoryview


class BatchHeader(NamedTuple):
    """The header of one batch; `length` counts from byte 12 on."""

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
        """The offset behind the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def codec(self) -> int:
        return self.attributes & _CODEC_MASK


def read_header(buffer: Buffer, at: int = 0) -> BatchHeader:
    """The header of the batch that begins at byte `at`; the caller has checked that 61 bytes are there."""
    return BatchHeader._make(_HEADER.unpack_from(buffer, at))


def batch_bytes(buffer: Buffer, at: int = 0) -> int:
    """The size in bytes of the whole batch that begins at `at`, of which at least 12 bytes are there."""
    length: int = _LENGTH.unpack_from(buffer, at + 8)[0]
    return LENGTH_PREFIX_BYTES + length


def patch_batch(batch: bytearray, base_offset: int, leader_epoch: int) -> None:
    """Write base offset and leader epoch into the header."""
    _BASE_OFFSET.pack_into(batch, 0, base_offset)
    _LEADER_EPOCH.pack_into(batch, 12, leader_epoch)


def mark_control(batch: bytearray) -> bytearray:
    """Turn a batch into a control batch, and correct its checksum."""
    attributes: int = _ATTRIBUTES.unpack_from(batch, _CRC_FROM)[0]
    _ATTRIBUTES.pack_into(batch, _CRC_FROM, attributes | _CONTROL)
    _CRC.pack_into(batch, _CRC_OFFSET, crc32c(memoryview(batch)[_CRC_FROM:]))
    return batch


def check_batch(batch: Buffer) -> None:
    """Prove that `batch` is exactly one whole, undamaged batch.

    Raises:
        CorruptData: what is wrong, expected and found.
    """
    size = len(batch)
    if size < HEADER_BYTES:
        raise CorruptData(f"record batch of {size} bytes is shorter than its header of {HEADER_BYTES}")
    header = read_header(batch)
    if header.magic != _MAGIC:
        raise CorruptData(f"record batch has magic {header.magic}, expected {_MAGIC}")
    if LENGTH_PREFIX_BYTES + header.length != size:
        raise CorruptData(
            f"record batch at offset {header.base_offset} says it has {LENGTH_PREFIX_BYTES + header.length} bytes, "
            f"but has {size}"
        )
    if header.last_offset_delta < 0 or header.records < 0:
        raise CorruptData(
            f"record batch at offset {header.base_offset} has last offset delta {header.last_offset_delta} and "
            f"{header.records} records"
        )
    crc = crc32c(memoryview(batch)[_CRC_FROM:])
    if crc != header.crc:
        raise CorruptData(
            f"record batch at offset {header.base_offset} has CRC {crc:#010x}, its header says {header.crc:#010x}"
        )
