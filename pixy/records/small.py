"""Short way through a small batch as nodes forward them to each other in thousands: neither
compressed nor unusual.

What is recognized would be accepted by the check of any batch (`new_batches`), and takes a third of
its time: the header is read once, and nothing is copied to be overwritten. What is not recognized
may be anything, and is left to that check, which can say what is wrong with it.
"""

import struct

from pixy.records.batch import HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC, TIMESTAMP_TYPE_BIT
from pixy.records.compiled import UNREADABLE, DefaultRecordBatch
from pixy.records.crc import crc32c

SMALL_BYTES_MAX = 32 << 10
"""Bytes of a small batch: less than the codec's windows are for."""
NOT_SMALL = -1

_RECORDS_MAX = 63
"""Records of a small batch: less than `uniform` is for."""
_FIELDS = struct.Struct(">qi4xbIhiqqq6xi")
_unpack = _FIELDS.unpack_from
_CHECKSUMMED_FROM = 21
_NO_PRODUCER = -1
_NO_TIMESTAMP = -1
_CONTINUATION = 0x80
_EPOCH_AT, _SEQUENCE_AT, _NEGATIVE = 51, 53, 0x80


def headers_of_small(batch: bytes | bytearray, *, producers: bool = False) -> int:
    """The number of headers of all records of a whole and valid batch that is small and not
    compressed; `NOT_SMALL` if it is not recognized.

    Args:
        producers: it may have a producer id.
    """
    size = len(batch)
    if not HEADER_BYTES < size <= SMALL_BYTES_MAX:
        return NOT_SMALL
    offset, length, magic, crc, attributes, last_delta, first_timestamp, max_timestamp, producer, count = (
        _unpack(batch)
    )
    if (
        magic != MAGIC
        or length != size - LENGTH_PREFIX_BYTES
        or attributes & ~TIMESTAMP_TYPE_BIT
        or (producer != _NO_PRODUCER and not (producers and _is_numbered(producer, batch)))
        or not 0 < count <= _RECORDS_MAX
        or last_delta != count - 1
        or not _NO_TIMESTAMP <= first_timestamp <= max_timestamp
        # `codec` says why it is not given other last bytes.
        or batch[-1] >= _CONTINUATION
        or crc32c(batch[_CHECKSUMMED_FROM:]) != crc
    ):
        return NOT_SMALL
    headers, latest = 0, _NO_TIMESTAMP
    try:
        for record in DefaultRecordBatch(batch):
            if record.offset != offset:
                return NOT_SMALL
            offset += 1
            timestamp = record.timestamp
            if timestamp > latest:
                latest = timestamp
            elif timestamp < _NO_TIMESTAMP:
                return NOT_SMALL
            headers += len(record.headers)
    except (*UNREADABLE, MemoryError):
        return NOT_SMALL
    return headers if latest == max_timestamp else NOT_SMALL


def _is_numbered(producer_id: int, batch: bytes | bytearray) -> bool:
    """True if producer id, epoch and base sequence of a batch are 0 or above."""
    return producer_id >= 0 and batch[_EPOCH_AT] < _NEGATIVE and batch[_SEQUENCE_AT] < _NEGATIVE
