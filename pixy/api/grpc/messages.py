"""Messages inside the body of a request or an answer (PROTOCOL-HTTP2.md, Length-Prefixed-Message).

    byte  size  field
    0     1     0: plain, 1: compressed as grpc-encoding says
    1     4     length of what follows, big-endian
    5           the message

A body is cut into DATA frames without regard to messages. `MessageReader` puts it together in one buffer, one copy from what the
transport brought, and hands out one message at a time when it is asked: so a client that sends a great many tiny messages costs us
the bytes that it has sent and nothing more.
"""

import struct
import zlib
from collections.abc import Sequence
from enum import Enum
from typing import Any

from pixy.api.grpc.status import GrpcError, Status
from pixy.api.grpc.unpacking import Unpacker

__all__ = [
    "PREFIX_BYTES",
    "Encoding",
    "MessageReader",
    "Serialized",
    "check_length",
    "pack_message",
    "pack_pieces",
    "pack_prefix",
    "serialize_with",
    "unpack_prefix",
]

_PREFIX = struct.Struct(">BI")
PREFIX_BYTES = _PREFIX.size
unpack_prefix = _PREFIX.unpack_from
"""The flag and the length at a position of a buffer."""
pack_prefix = _PREFIX.pack
"""What goes in front of a message, of its flag and its length."""

_GZIP_WINDOW = 31
_GZIP_LEVEL = 1

_LENGTH_DELIMITED = 2
_PIECE_BYTES = 16_384
"""A smaller buffer is cheaper to copy than to send on its own: it fills no frame."""

Serialized = list[bytes | bytearray | memoryview]
"""The bytes of a message, in pieces that follow each other."""


class Encoding(Enum):
    """How a message may be compressed; the value is its name on the wire."""

    IDENTITY = b"identity"
    GZIP = b"gzip"


def pack_message(message: bytes, *, compressed: bool = False) -> bytes:
    """A message as it travels; gzip if `compressed`."""
    if compressed:
        packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
        message = packer.compress(message) + packer.flush()
    return pack_prefix(compressed, len(message)) + message


def pack_pieces(message: Serialized, *, compressed: bool) -> Serialized:
    """A message in pieces as it travels, none of them copied but the first, which must be small."""
    if compressed:
        return [pack_message(b"".join(message), compressed=True)]
    first, *rest = message
    return [pack_prefix(False, sum(map(len, message))) + first, *rest]


def serialize_with(message: Any, field: str, buffers: Sequence[bytes | bytearray | memoryview]) -> Serialized:
    """A message with the bytes of `buffers` back to back in one of its fields, which is empty; large buffers are not copied.

    What protobuf does with such a field are three copies: into the message, into the serialised message, and out of it. Fields may come in
    any order (protobuf.dev, Encoding), so this one follows all others.
    """
    size = sum(map(len, buffers))
    head: bytes = message.SerializeToString()
    if not size:
        return [head]
    number = message.DESCRIPTOR.fields_by_name[field].number
    pieces: Serialized = [head + _varint(number << 3 | _LENGTH_DELIMITED) + _varint(size)]
    small: list[bytes | bytearray | memoryview] = []
    for buffer in buffers:
        if len(buffer) < _PIECE_BYTES:
            small.append(buffer)
            continue
        if small:
            pieces.append(b"".join(small))
            small = []
        pieces.append(buffer)
    if small:
        pieces.append(b"".join(small))
    return pieces


def _varint(number: int) -> bytes:
    """A number above 0 as protobuf writes it: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def check_length(length: int, most: int) -> None:
    """Hold the length of a message against the limit.

    Raises:
        GrpcError: RESOURCE_EXHAUSTED.
    """
    if length > most:
        reason = f"the message has {length} bytes, grpc.max_message_bytes allows {most}"
        raise GrpcError(Status.RESOURCE_EXHAUSTED, reason)


class MessageReader:
    """The messages of one request.

    Args:
        encoding: what grpc-encoding says.
        message_bytes_max: largest message, before and after decompression.
    """

    __slots__ = ("_encoding", "_message_bytes_max", "buffer", "compressed")

    def __init__(self, encoding: Encoding, message_bytes_max: int) -> None:
        self._encoding = encoding
        self._message_bytes_max = message_bytes_max
        # What has come and was not taken.
        self.buffer = bytearray()
        # Whether the message that was taken last had been compressed.
        self.compressed = False

    def feed(self, source: bytes, begin: int, end: int) -> None:
        """The body goes on with `source` from `begin` to `end`."""
        self.buffer += memoryview(source)[begin:end]

    def take(self) -> bytearray | Unpacker | None:
        """The next message, or what unpacks it, None if it is not whole.

        Raises:
            GrpcError: RESOURCE_EXHAUSTED, it is too large; INTERNAL, it is not what it says.
        """
        buffer = self.buffer
        if len(buffer) < PREFIX_BYTES:
            return None
        flag, length = unpack_prefix(buffer)
        check_length(length, self._message_bytes_max)
        end = PREFIX_BYTES + length
        if len(buffer) < end:
            return None
        if len(buffer) == end:
            # The usual case, without a copy: the buffer becomes the message.
            del buffer[:PREFIX_BYTES]
            self.buffer, message = bytearray(), buffer
        else:
            message = buffer[PREFIX_BYTES:end]
            del buffer[:end]
        self.compressed = flag != 0
        return self._unpacker(message, flag) if flag else message

    def check_only(self) -> None:
        """Hold what has come against a request of one message, before it is complete.

        Raises:
            GrpcError: RESOURCE_EXHAUSTED, the message is too large; UNIMPLEMENTED, there is more than one.
        """
        if len(self.buffer) >= PREFIX_BYTES:
            length = unpack_prefix(self.buffer)[1]
            check_length(length, self._message_bytes_max)
            if len(self.buffer) > PREFIX_BYTES + length:
                raise _wrong_number("more than one message")

    def take_only(self) -> bytearray | Unpacker:
        """The message, or what unpacks it, of a request that is complete and must have exactly one.

        Raises:
            GrpcError: UNIMPLEMENTED, it has another number of them (statuscodes.md); as `take`.
        """
        self.check_only()
        message = self.take()
        if message is None:
            raise self.cut_off() if self.buffer else _wrong_number("no message")
        return message

    def cut_off(self) -> GrpcError:
        """What is wrong with a request that is complete, while its last message is not."""
        return GrpcError(Status.INTERNAL, "the request ends inside a message")

    def _unpacker(self, message: bytearray, flag: int) -> Unpacker:
        if flag != 1:
            raise GrpcError(Status.INTERNAL, f"a message has the flag {flag}, expected 0 or 1")
        if self._encoding is not Encoding.GZIP:
            raise GrpcError(Status.INTERNAL, "a message is compressed, but grpc-encoding does not say how")
        return Unpacker(message, self._message_bytes_max)


def _wrong_number(found: str) -> GrpcError:
    return GrpcError(Status.UNIMPLEMENTED, f"the method takes exactly one message, the request has {found}")
