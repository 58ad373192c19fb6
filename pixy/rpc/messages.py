"""Messages inside the body of a request or an answer (PROTOCOL-HTTP2.md, Length-Prefixed-Message).

    byte  size  field
    0     1     0: plain, 1: compressed as grpc-encoding says
    1     4     length of what follows, big-endian
    5           the message

A body is cut into DATA frames without regard to messages. `MessageReader` keeps what the transport brought until a message is whole,
puts that together in one copy, and hands out one message at a time when it is asked. What it keeps is never more than twice the bytes
that have come: so a client that sends a great many tiny messages, or large ones in crumbs, costs us little beyond what it has sent.

The road not taken: appending each piece to one buffer. It has to grow a great many times, and every time may copy what has come so far.
"""

import struct
import zlib
from enum import Enum
from typing import cast

from pixy.rpc.status import GrpcError, Status
from pixy.rpc.unpacking import Unpacker

__all__ = [
    "PREFIX_BYTES",
    "Encoding",
    "MessageReader",
    "Serialized",
    "check_length",
    "pack_message",
    "pack_pieces",
    "pack_prefix",
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

_KEPT_BYTES = 4096
"""A smaller piece of a message is copied when it comes: many of them, each an object of its own, would take more than they bring."""

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

    __slots__ = ("_encoding", "_message_bytes_max", "_pieces", "compressed", "size")

    def __init__(self, encoding: Encoding, message_bytes_max: int) -> None:
        self._encoding = encoding
        self._message_bytes_max = message_bytes_max
        # What has come and was not taken, none of it empty, and how many bytes that are. Invariant: a memoryview has at least
        # _KEPT_BYTES, and half of what it keeps in memory.
        self._pieces: list[bytearray | memoryview] = []
        self.size = 0
        # Whether the message that was taken last had been compressed.
        self.compressed = False

    def feed(self, source: bytes, begin: int, end: int) -> None:
        """The body goes on with `source` from `begin` to `end`; `source` is kept and never changed."""
        if begin == end:
            return
        self.size += end - begin
        pieces = self._pieces
        piece = memoryview(source)[begin:end]
        if _is_kept(piece, len(source)):
            pieces.append(piece)
        elif pieces and isinstance(pieces[-1], bytearray):
            pieces[-1] += piece
        else:
            pieces.append(bytearray(piece))

    def take(self) -> bytearray | Unpacker | None:
        """The next message, or what unpacks it, None if it is not whole.

        Raises:
            GrpcError: RESOURCE_EXHAUSTED, it is too large; INTERNAL, it is not what it says.
        """
        if self.size < PREFIX_BYTES:
            return None
        flag, length = unpack_prefix(self._joined(PREFIX_BYTES))
        check_length(length, self._message_bytes_max)
        end = PREFIX_BYTES + length
        if self.size < end:
            return None
        first = self._joined(end)
        self.size -= end
        if len(first) == end and isinstance(first, bytearray):
            # The usual case of a large one, without another copy.
            del self._pieces[0], first[:PREFIX_BYTES]
            message = first
        else:
            message = bytearray(first[PREFIX_BYTES:end])
            self._forget(end)
        self.compressed = flag != 0
        return self._unpacker(message, flag) if flag else message

    def _joined(self, size: int) -> bytearray | memoryview:
        """The first pieces as one that has at least so many bytes, which must have come."""
        pieces = self._pieces
        joined = count = 0
        while joined < size:
            joined += len(pieces[count])
            count += 1
        if count > 1:
            pieces[:count] = [bytearray().join(pieces[:count])]
        return pieces[0]

    def _forget(self, size: int) -> None:
        """So many bytes of the first piece were taken."""
        first = self._pieces[0]
        if len(first) == size:
            del self._pieces[0]
        elif isinstance(first, bytearray):
            del first[:size]
        else:
            rest = first[size:]
            self._pieces[0] = rest if _is_kept(rest, len(cast("bytes", first.obj))) else bytearray(rest)

    @property
    def expected(self) -> int:
        """Bytes of the first message with its prefix, 0 if that has not come."""
        return PREFIX_BYTES + unpack_prefix(self._joined(PREFIX_BYTES))[1] if self.size >= PREFIX_BYTES else 0

    def check_only(self) -> None:
        """Hold what has come against a request of one message, before it is complete.

        Raises:
            GrpcError: RESOURCE_EXHAUSTED, the message is too large; UNIMPLEMENTED, there is more than one.
        """
        if self.size >= PREFIX_BYTES:
            length = unpack_prefix(self._joined(PREFIX_BYTES))[1]
            check_length(length, self._message_bytes_max)
            if self.size > PREFIX_BYTES + length:
                raise _wrong_number("more than one message")

    def take_only(self) -> bytearray | Unpacker:
        """The message, or what unpacks it, of a request that is complete and must have exactly one.

        Raises:
            GrpcError: UNIMPLEMENTED, it has another number of them (statuscodes.md); as `take`.
        """
        self.check_only()
        message = self.take()
        if message is None:
            raise self.cut_off() if self.size else _wrong_number("no message")
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


def _is_kept(piece: memoryview, kept_bytes: int) -> bool:
    """Whether a piece of a buffer of `kept_bytes` stays as it is; a copy of any other takes less memory."""
    return len(piece) >= _KEPT_BYTES and 2 * len(piece) >= kept_bytes


def _wrong_number(found: str) -> GrpcError:
    return GrpcError(Status.UNIMPLEMENTED, f"the method takes exactly one message, the request has {found}")
