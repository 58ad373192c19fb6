"""Messages in the body of a request or an answer (PROTOCOL-HTTP2.md, Length-Prefixed-Message).

    byte  size  field
    0     1     0: plain, 1: compressed by grpc-encoding
    1     4     length of the message, big-endian
    5           the message

DATA frames cut a body without regard to messages. `MessageReader` keeps the transport's chunks
until a message is complete, joins it in one copy, and returns one message at a time on demand. It
keeps at most twice the bytes received: a client that sends a great many tiny messages, or large
ones in crumbs, costs little more memory than it sends.

The road not taken: appending each piece to one buffer. It would grow a great many times, and each
time may copy everything received so far.
"""

import struct
import zlib
from enum import Enum
from typing import cast

from pixy.large_fields import Serialized
from pixy.rpc.status import GrpcError, Status
from pixy.rpc.unpacking import Unpacker

_PREFIX = struct.Struct(">BI")
PREFIX_BYTES = _PREFIX.size
unpack_prefix = _PREFIX.unpack_from
"""The flag and the length at a position of a buffer."""
pack_prefix = _PREFIX.pack
"""The prefix of a message, of its flag and its length."""

_GZIP_WINDOW = 31
_GZIP_LEVEL = 1

_KEPT_BYTES = 4096
"""Smaller pieces of a message are copied: as objects they would take more memory than bytes."""


class Encoding(Enum):
    """Compression of messages; the value is the name on the wire."""

    IDENTITY = b"identity"
    GZIP = b"gzip"


def pack_message(message: bytes, *, compressed: bool = False) -> bytes:
    """A message in its wire format; gzip if `compressed`."""
    if compressed:
        packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
        message = packer.compress(message) + packer.flush()
    return pack_prefix(compressed, len(message)) + message


def pack_pieces(message: Serialized, *, compressed: bool) -> Serialized:
    """A message in pieces in its wire format.

    Only the first piece is copied, which must be small.
    """
    if compressed:
        return [pack_message(b"".join(message), compressed=True)]
    first, *rest = message
    return [pack_prefix(False, sum(map(len, message))) + first, *rest]


def check_length(length: int, most: int) -> None:
    """Check the length of a message.

    Raises:
        GrpcError: RESOURCE_EXHAUSTED.
    """
    if length > most:
        reason = f"the message has {length} bytes, grpc.max_message_bytes allows {most}"
        raise GrpcError(Status.RESOURCE_EXHAUSTED, reason, limit="grpc.max_message_bytes")


class MessageReader:
    """The messages of one request.

    Args:
        encoding: of grpc-encoding.
        message_bytes_max: largest message, before and after decompression.
    """

    __slots__ = ("_encoding", "_message_bytes_max", "_pieces", "compressed", "size")

    def __init__(self, encoding: Encoding, message_bytes_max: int) -> None:
        self._encoding = encoding
        self._message_bytes_max = message_bytes_max
        # Received pieces that were not taken, none of them empty, and their bytes. Invariant: a
        # memoryview has at least _KEPT_BYTES, and half of the buffer that it keeps in memory.
        self._pieces: list[bytearray | memoryview] = []
        self.size = 0
        # The last message taken was compressed.
        self.compressed = False

    def feed(self, source: bytes, begin: int, end: int) -> None:
        """Continue the body with `source[begin:end]`; `source` is kept, and must never change."""
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
        """The next message, or its decompressor; None if it is not complete.

        Raises:
            GrpcError: RESOURCE_EXHAUSTED, it is too large; INTERNAL, its flag is wrong.
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
            # The usual case of a large message, without another copy.
            del self._pieces[0], first[:PREFIX_BYTES]
            message = first
        else:
            message = bytearray(first[PREFIX_BYTES:end])
            self._forget(end)
        self.compressed = flag != 0
        return self._unpacker(message, flag) if flag else message

    def _joined(self, size: int) -> bytearray | memoryview:
        """Join the first pieces to one of at least `size` bytes, which must have come."""
        pieces = self._pieces
        joined = count = 0
        while joined < size:
            joined += len(pieces[count])
            count += 1
        if count > 1:
            pieces[:count] = [bytearray().join(pieces[:count])]
        return pieces[0]

    def _forget(self, size: int) -> None:
        """Remove the first `size` bytes of the first piece."""
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
        """Bytes of the first message with its prefix, 0 if the prefix has not come."""
        return PREFIX_BYTES + unpack_prefix(self._joined(PREFIX_BYTES))[1] if self.size >= PREFIX_BYTES else 0

    def check_only(self) -> None:
        """Check the incomplete request of a method that takes one message.

        Raises:
            GrpcError: RESOURCE_EXHAUSTED, the message is too large; UNIMPLEMENTED, there is more
                than one.
        """
        if self.size >= PREFIX_BYTES:
            length = unpack_prefix(self._joined(PREFIX_BYTES))[1]
            check_length(length, self._message_bytes_max)
            if self.size > PREFIX_BYTES + length:
                raise _wrong_number("more than one message")

    def take_only(self) -> bytearray | Unpacker:
        """The message, or its decompressor, of a complete request that must have exactly one.

        Raises:
            GrpcError: UNIMPLEMENTED, it has none or several (statuscodes.md); as `take`.
        """
        self.check_only()
        message = self.take()
        if message is None:
            raise self.cut_off() if self.size else _wrong_number("no message")
        return message

    def cut_off(self) -> GrpcError:
        """The error of a complete request whose last message is not complete."""
        return GrpcError(Status.INTERNAL, "the request ends inside a message")

    def _unpacker(self, message: bytearray, flag: int) -> Unpacker:
        if flag != 1:
            raise GrpcError(Status.INTERNAL, f"a message has the flag {flag}, expected 0 or 1")
        if self._encoding is not Encoding.GZIP:
            raise GrpcError(Status.INTERNAL, "a message is compressed, but there is no grpc-encoding")
        return Unpacker(message, self._message_bytes_max)


def _is_kept(piece: memoryview, kept_bytes: int) -> bool:
    """True if a piece keeps its buffer of `kept_bytes`; a copy of any other takes less memory."""
    return len(piece) >= _KEPT_BYTES and 2 * len(piece) >= kept_bytes


def _wrong_number(found: str) -> GrpcError:
    return GrpcError(Status.UNIMPLEMENTED, f"the method takes exactly one message, the request has {found}")
