"""Validation of record batches built by clients.

Header and checksum are checked, the records are never decoded: a client that writes undecodable
records affects only its readers, and readers limit the size of decompressed batches themselves.
Batches are rejected if they would harm the log itself or the offsets of other clients:

    shorter than a header, or than its length field    the start of the next batch is unknown
    magic other than 2                                 another format
    larger than `producer.max_message_bytes`           buffers would be unbounded
    control batch, transactional                       markers that only a coordinator may write
    a producer id                                      pixy does not deduplicate by producer id
    attributes undefined by Kafka, codec > 4           no reader could decode it
    no records, offsets with gaps                      an offset without a record looks lost
    more records than fit, without compression         the same
    max timestamp before the base timestamp            it could not be found by its timestamp
    wrong checksum                                     corrupted in transit
"""

from typing import NamedTuple

from pixy.errors import InvalidBatch, MessageTooLarge
from pixy.records.batch import (
    CODEC_BITS,
    CONTROL_BIT,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    batch_crc,
    read_header,
)

__all__ = ["NewBatch", "check_new_batches"]

_CODEC_MAX = 4
_RECORD_BYTES_MIN = 7
"""Length, attributes, timestamp, offset, length of key and of value, number of headers: one byte
each.
"""
_NO_PRODUCER = -1


class NewBatch(NamedTuple):
    """Position of a batch in a buffer: its first byte, the byte after its last one, and its number
    of records.
    """

    begin: int
    end: int
    records: int


def check_new_batches(buffer: Buffer, batch_bytes_max: int) -> list[NewBatch]:
    """Check that `buffer` consists of whole, acceptable batches; returns their positions.

    Args:
        buffer: at least one batch.
        batch_bytes_max: largest batch.

    Raises:
        InvalidBatch: names the batch, its position, the error and what is allowed. Nothing was
            changed.
        MessageTooLarge: the batch is too large; the message has the same details.
    """
    view = memoryview(buffer)
    if not view:
        raise InvalidBatch("no record batch")
    batches: list[NewBatch] = []
    begin = 0
    while begin < len(view):
        place = f"record batch {len(batches)} at byte {begin}"
        batch = view[begin : begin + _size(view, begin, batch_bytes_max, place)]
        header = read_header(batch)
        wrong = _wrong_kind(header) or _wrong_numbers(batch, header)
        if wrong:
            raise InvalidBatch(f"{place} {wrong}")
        batches.append(NewBatch(begin, begin + len(batch), header.records))
        begin += len(batch)
    return batches


def _size(view: memoryview, begin: int, batch_bytes_max: int, place: str) -> int:
    """Size of the batch at byte `begin`, which must be complete."""
    left = len(view) - begin
    if left < HEADER_BYTES:
        raise InvalidBatch(f"{place} has {left} bytes, less than its header of {HEADER_BYTES}")
    header = read_header(view, begin)
    if header.magic != MAGIC:
        raise InvalidBatch(f"{place} has magic {header.magic}, expected {MAGIC}")
    size = LENGTH_PREFIX_BYTES + header.length
    if not HEADER_BYTES <= size <= left:
        raise InvalidBatch(f"{place} has a length field of {size} bytes, expected {HEADER_BYTES} to {left}")
    if size > batch_bytes_max:
        raise MessageTooLarge(
            f"{place} has {size} bytes, producer.max_message_bytes allows {batch_bytes_max}"
        )
    return size


def _wrong_kind(header: BatchHeader) -> str:
    """Reason why the kind of batch is not allowed, "" if it is."""
    if header.attributes & CONTROL_BIT:
        return "is a control batch, which only a coordinator may write"
    if header.attributes & TRANSACTIONAL_BIT:
        return "is transactional, which is not supported"
    if header.attributes & ~(CODEC_BITS | TIMESTAMP_TYPE_BIT) or header.codec > _CODEC_MAX:
        return f"has attributes {header.attributes:#06x}, allowed are a codec of 0 to {_CODEC_MAX} and the timestamp type"
    if header.producer_id != _NO_PRODUCER:
        return f"has producer id {header.producer_id}, expected {_NO_PRODUCER}: idempotent producers are not supported"
    return ""


def _wrong_numbers(batch: memoryview, header: BatchHeader) -> str:
    """First contradiction in the fields of a complete batch, "" if there is none."""
    if header.records < 1 or header.last_offset_delta != header.records - 1:
        return (
            f"has {header.records} records and last offset delta {header.last_offset_delta}, expected at least one record "
            "and a last offset delta of one less"
        )
    if not header.codec and header.records * _RECORD_BYTES_MIN > len(batch) - HEADER_BYTES:
        return f"has a count of {header.records} records, which do not fit in its {len(batch)} bytes"
    if header.max_timestamp < header.base_timestamp:
        return (
            f"has max timestamp {header.max_timestamp}, less than its base timestamp {header.base_timestamp}"
        )
    crc = batch_crc(batch)
    if crc != header.crc:
        return f"has CRC-32C {crc:#010x}, expected {header.crc:#010x}"
    return ""
