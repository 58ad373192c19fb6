"""Record batches that a client has built: what the log takes of them, and what it does not.

The header and the checksum are checked, the records are never looked at: a client that writes records which nobody can decode does that to
those who read them, and how far a batch unpacks is bounded by its reader. What is refused is what would harm the log itself or everybody's
offsets:

    shorter than a header, or than its length says     where the next batch begins is not known
    magic other than 2                                 another format
    larger than `producer.max_message_bytes`           no bound on what is buffered
    control batch, transactional                       marks that only a coordinator may set
    a producer id                                      pixy numbers no producers: the promise behind it would not be kept
    attributes that Kafka has not defined, codec > 4   nobody could read it
    no records, offsets with gaps                      an offset without a record looks like a lost one
    more records than fit, without compression         the same
    largest timestamp before the first                 it could not be found by its timestamp
    checksum                                           damaged on the way
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
"""Length, attributes, timestamp, offset, length of key and value, number of headers: a byte each."""
_NO_PRODUCER = -1


class NewBatch(NamedTuple):
    """A batch among others: its first byte, the byte behind it, and how many records it has."""

    begin: int
    end: int
    records: int


def check_new_batches(buffer: Buffer, batch_bytes_max: int) -> list[NewBatch]:
    """Prove that `buffer` is whole batches back to back that the log takes, and tell where each is.

    Args:
        buffer: at least one batch.
        batch_bytes_max: largest batch.

    Raises:
        InvalidBatch: which batch, at which byte, what is wrong with it and what is allowed. Nothing was changed.
        MessageTooLarge: the same of one that is too large.
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
    """Size of the batch that begins at a byte, of which all is there."""
    left = len(view) - begin
    if left < HEADER_BYTES:
        raise InvalidBatch(f"{place} has {left} bytes, its header alone has {HEADER_BYTES}")
    header = read_header(view, begin)
    if header.magic != MAGIC:
        raise InvalidBatch(f"{place} has magic {header.magic}, expected {MAGIC}")
    size = LENGTH_PREFIX_BYTES + header.length
    if not HEADER_BYTES <= size <= left:
        raise InvalidBatch(f"{place} says that it has {size} bytes, {HEADER_BYTES} to {left} are possible")
    if size > batch_bytes_max:
        raise MessageTooLarge(
            f"{place} has {size} bytes, producer.max_message_bytes allows {batch_bytes_max}"
        )
    return size


def _wrong_kind(header: BatchHeader) -> str:
    """What a batch is that clients may not write, "" if it is none of that."""
    if header.attributes & CONTROL_BIT:
        return "is a control batch, which only a coordinator may write"
    if header.attributes & TRANSACTIONAL_BIT:
        return "belongs to a transaction, and there are none here"
    if header.attributes & ~(CODEC_BITS | TIMESTAMP_TYPE_BIT) or header.codec > _CODEC_MAX:
        return f"has attributes {header.attributes:#06x}, allowed are a codec of 0 to {_CODEC_MAX} and the timestamp type"
    if header.producer_id != _NO_PRODUCER:
        return f"has producer id {header.producer_id}, expected {_NO_PRODUCER}: idempotent producers are not known here"
    return ""


def _wrong_numbers(batch: memoryview, header: BatchHeader) -> str:
    """What a batch of the right length says that cannot be, "" if nothing."""
    if header.records < 1 or header.last_offset_delta != header.records - 1:
        return (
            f"has {header.records} records and last offset delta {header.last_offset_delta}, expected at least one record "
            "and a last offset delta of one less"
        )
    if not header.codec and header.records * _RECORD_BYTES_MIN > len(batch) - HEADER_BYTES:
        return f"says that it has {header.records} records, which do not fit into its {len(batch)} bytes"
    if header.max_timestamp < header.base_timestamp:
        return f"has largest timestamp {header.max_timestamp}, before its first, {header.base_timestamp}"
    crc = batch_crc(batch)
    if crc != header.crc:
        return f"has CRC-32C {crc:#010x}, its header says {header.crc:#010x}"
    return ""
