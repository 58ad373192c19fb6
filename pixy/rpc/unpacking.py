"""Decompression of messages in steps, because a few thousand bytes can expand to millions.

A step makes at most `STEP_BYTES`, a fraction of a millisecond of work, so that other connections
run in between. The limit holds at every step: at most one byte more is made than a message may
have.
"""

import zlib

from pixy.rpc.status import GrpcError, Status

STEP_BYTES = 65_536
_GZIP_WINDOW = 31


class Unpacker:
    """Decompresses one gzip message.

    Args:
        packed: the message, kept until it is decompressed.
        message_bytes_max: largest message, decompressed.
    """

    __slots__ = ("_at", "_message_bytes_max", "_packed", "_parts", "_unpacker", "message", "size")

    def __init__(self, packed: bytes | bytearray, message_bytes_max: int) -> None:
        self._packed = packed
        # Bytes of it that were given to zlib.
        self._at = 0
        self._message_bytes_max = message_bytes_max
        self._unpacker = zlib.decompressobj(_GZIP_WINDOW)
        # The result so far, in parts: one buffer would be copied each time that it grows.
        # Invariant: size is their sum, at most one byte more than the largest message.
        self._parts: list[bytes] = []
        self.size = 0
        # The message when it is complete.
        self.message = b""

    def step(self) -> bool:
        """Take a step; returns True when the message is complete.

        Raises:
            GrpcError: RESOURCE_EXHAUSTED, it is too large; INTERNAL, it is not exactly one member
                of gzip.
        """
        unpacker = self._unpacker
        part: bytes | bytearray = unpacker.unconsumed_tail
        if not part:
            part = self._packed[self._at : self._at + STEP_BYTES]
            self._at += len(part)
        try:
            made = unpacker.decompress(part, min(STEP_BYTES, self._message_bytes_max + 1 - self.size))
        except zlib.error as error:
            raise GrpcError(Status.INTERNAL, "a message is flagged as gzip, and is not gzip") from error
        self._parts.append(made)
        self.size += len(made)
        if self.size > self._message_bytes_max:
            reason = f"the message decompresses to more than grpc.max_message_bytes, {self._message_bytes_max} bytes"
            raise GrpcError(Status.RESOURCE_EXHAUSTED, reason, limit="grpc.max_message_bytes")
        if unpacker.eof:
            if unpacker.unused_data or self._at < len(self._packed):
                # Another member (RFC 1952 §2.2), which no client sends; ignored, it would cut the
                # message short.
                raise GrpcError(Status.INTERNAL, "a gzip message has data after its end")
            self.message = b"".join(self._parts)
            self._parts.clear()
            return True
        if not part and not made:
            raise GrpcError(Status.INTERNAL, "a gzip message is truncated")
        return False
