"""A compressed message that is unpacked step by step, because a few thousand bytes can stand for millions.

Each step makes at most `STEP_BYTES`, a fraction of a millisecond of work, and the limit holds at every step: what is made of a message is
never more than one byte beyond what a message may have. Who waits for it gives the others their turn in between.
"""

import zlib

from pixy.rpc.status import GrpcError, Status

__all__ = ["STEP_BYTES", "Unpacker"]

STEP_BYTES = 65_536
_GZIP_WINDOW = 31


class Unpacker:
    """A message of gzip.

    Args:
        packed: the compressed message, kept until it is unpacked.
        message_bytes_max: largest message.
    """

    __slots__ = ("_at", "_message_bytes_max", "_packed", "_parts", "_unpacker", "message", "size")

    def __init__(self, packed: bytes | bytearray, message_bytes_max: int) -> None:
        self._packed = packed
        # What of it was given to zlib.
        self._at = 0
        self._message_bytes_max = message_bytes_max
        self._unpacker = zlib.decompressobj(_GZIP_WINDOW)
        # What it is unpacked to so far: parts, because one buffer that grows would move through the memory again and again.
        # Invariant: size is their sum, at most one byte more than the largest message.
        self._parts: list[bytes] = []
        self.size = 0
        # The message when it is complete.
        self.message = b""

    def step(self) -> bool:
        """Go on; returns whether the message is complete.

        Raises:
            GrpcError: RESOURCE_EXHAUSTED, it is too large; INTERNAL, it is not gzip, or not one whole message of it.
        """
        unpacker = self._unpacker
        part: bytes | bytearray = unpacker.unconsumed_tail
        if not part:
            part = self._packed[self._at : self._at + STEP_BYTES]
            self._at += len(part)
        try:
            made = unpacker.decompress(part, min(STEP_BYTES, self._message_bytes_max + 1 - self.size))
        except zlib.error as error:
            raise GrpcError(Status.INTERNAL, "a message says that it is gzip, and is not") from error
        self._parts.append(made)
        self.size += len(made)
        if self.size > self._message_bytes_max:
            reason = f"the message unpacks to more bytes than grpc.max_message_bytes allows, {self._message_bytes_max}"
            raise GrpcError(Status.RESOURCE_EXHAUSTED, reason)
        if unpacker.eof:
            if unpacker.unused_data or self._at < len(self._packed):
                # Another member (RFC 1952 §2.2), which nobody sends; without it the message would be cut short.
                raise GrpcError(Status.INTERNAL, "a message of gzip goes on behind its end")
            self.message = b"".join(self._parts)
            self._parts.clear()
            return True
        if not part and not made:
            raise GrpcError(Status.INTERNAL, "a message of gzip has no end")
        return False
