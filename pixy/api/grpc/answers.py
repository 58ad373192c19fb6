"""Serialized answers of Produce and ConsumeNAck, each with its gRPC prefix, encoded by hand.

These two are answered a hundred thousand times a second. The records of a batch are answered in one turn, and what differs between
answers that follow each other is one byte of the offset; so the parts of a message are encoded once and joined. The road not taken is
protobuf's encoder: filling in a message and serializing it takes three times as long. Tests hold the bytes against it.

    ProdRs  08 partition, 10 offset
    ConsRs  08 partition, 10 offset, 1a length key (20 01 instead for a record without one), 2a length message, then headers

Numbers are varints. A field that has its default, as partition 0 or an empty message, is left out.
"""

from collections.abc import Callable, Iterator
from itertools import repeat

from pixy.consume import Offer
from pixy.proto import kafkapixy_pb2 as pb
from pixy.rpc import pack_message, pack_prefix

__all__ = ["consumed_message", "produced_messages"]

_BLOCK = 128
_KEPT_MAX = 4096


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= _BLOCK:
        encoded.append(number & 0x7F | _BLOCK)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


class _Kept(dict[int, bytes]):
    """What a function makes of numbers, kept for the last few thousand."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, number: int) -> bytes:
        if len(self) >= _KEPT_MAX:
            self.clear()
        made = self[number] = self._make(number)
        return made


_PARTITION = _Kept(lambda partition: b"\x08" + _varint(partition) if partition else b"")
_LOW = [bytes((0x10, low)) if low else b"" for low in range(_BLOCK)]
_LOW_AND_MORE = [bytes((0x10, low | _BLOCK)) for low in range(_BLOCK)]
"""The field of an offset up to its lowest seven bits: of one below 128, and of any other."""
_HIGH = _Kept(_varint)
_KEY_LENGTH = _Kept(lambda length: b"\x1a" + _varint(length) if length else b"")
_MESSAGE_LENGTH = _Kept(lambda length: b"\x2a" + _varint(length) if length else b"")
_NO_KEY = b"\x20\x01"
_PREFIX = _Kept(lambda length: pack_prefix(0, length))
_BUFFERED = pack_message(pb.ProdRs(partition=-1, offset=-1).SerializeToString())


def produced_messages(partition: int, first: int, count: int) -> Iterator[bytes]:
    """The answers of `count` records of a partition, the offset of the first of which is `first`; -1 if they have none yet."""
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
    """The answer with a record."""
    record = offer.record
    key, value, offset = record.key, record.value or b"", record.offset
    if record.headers:
        return pack_message(_with_headers(offer).SerializeToString())
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


def _with_headers(offer: Offer) -> pb.ConsRs:
    record = offer.record
    message = pb.ConsRs(partition=offer.partition, offset=record.offset, message=record.value or b"")
    if record.key is None:
        message.key_undefined = True
    else:
        message.key_value = record.key
    for name, value in record.headers:
        message.headers.add(key=name, value=value or b"")
    return message
