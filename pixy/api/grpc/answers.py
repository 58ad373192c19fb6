"""Responses of Produce and ConsumeNAck in their wire format, encoded by hand.

There are a hundred thousand of them a second. The records of a batch are answered together, and one
byte of the offset is the difference between consecutive responses; so the parts of a message are
encoded once and joined. The road not taken is protobuf's encoder: to fill in and serialize a
message takes three times as long. Tests compare the bytes with its output.

    ProdRs  08 partition, 10 offset
    ConsRs  08 partition, 10 offset, 1a length key (20 01 for a record without one),
            2a length message, then headers; a record with headers or without a value by protobuf

Numbers are varints. Fields with their default, such as partition 0 or an empty message, are left
out.
"""

from collections.abc import Callable, Iterator
from itertools import repeat

from pixy.consume import Offer
from pixy.large_fields import varint
from pixy.proto import kafkapixy_pb2 as pb
from pixy.rpc import pack_message, pack_prefix

_BLOCK = 128
_CACHED_MAX = 4096


class _EncodingCache(dict[int, bytes]):
    """Encodings of numbers by a function. A full cache is emptied."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, number: int) -> bytes:
        if len(self) >= _CACHED_MAX:
            self.clear()
        made = self[number] = self._make(number)
        return made


_PARTITION = _EncodingCache(lambda partition: b"\x08" + varint(partition) if partition else b"")
_LOW = [bytes((0x10, low)) if low else b"" for low in range(_BLOCK)]
_LOW_AND_MORE = [bytes((0x10, low | _BLOCK)) for low in range(_BLOCK)]
"""Field of an offset up to its lowest seven bits: of an offset below 128, and of any other."""
_HIGH = _EncodingCache(varint)
_KEY_LENGTH = _EncodingCache(lambda length: b"\x1a" + varint(length) if length else b"")
_MESSAGE_LENGTH = _EncodingCache(lambda length: b"\x2a" + varint(length) if length else b"")
_NO_KEY = b"\x20\x01"
_PREFIX = _EncodingCache(lambda length: pack_prefix(0, length))
_BUFFERED = pack_message(pb.ProdRs(partition=-1, offset=-1).SerializeToString())


def produced_messages(partition: int, first: int, count: int) -> Iterator[bytes]:
    """Responses for `count` records from offset `first` on; -1 for records without offsets yet."""
    if first < 0:
        yield from repeat(_BUFFERED, count)
        return
    head, end = _PARTITION[partition], first + count
    if not first and count:
        yield _PREFIX[len(head)] + head
        first = 1
    while first < end:
        high, low = divmod(first, _BLOCK)
        block_end = min(end - high * _BLOCK, _BLOCK)
        tail = _HIGH[high] if high else b""
        start = _PREFIX[len(head) + 2 + len(tail)] + head
        for field in (_LOW_AND_MORE if high else _LOW)[low:block_end]:
            yield start + field + tail
        first = high * _BLOCK + block_end


def consumed_message(offer: Offer) -> bytes:
    """Response with a record."""
    record = offer.record
    key, value, offset = record.key, record.value, record.offset
    if value is None or record.headers:
        return pack_message(_rare(offer).SerializeToString())
    body = b"".join(
        (
            _PARTITION[offer.partition],
            _LOW_AND_MORE[offset & 0x7F] + _HIGH[offset >> 7] if offset >= _BLOCK else _LOW[offset],
            _NO_KEY if key is None else _KEY_LENGTH[len(key)] + key,
            _MESSAGE_LENGTH[len(value)],
            value,
        )
    )
    return _PREFIX[len(body)] + body


def _rare(offer: Offer) -> pb.ConsRs:
    """Response with headers or a null value."""
    record = offer.record
    message = pb.ConsRs(partition=offer.partition, offset=record.offset, message=record.value or b"")
    if record.key is None:
        message.key_undefined = True
    else:
        message.key_value = record.key
    message.value_undefined = record.value is None
    for name, value in record.headers:
        message.headers.add(key=name, value=value or b"")
    return message
