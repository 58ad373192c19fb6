"""Frames between peers: the bytes of a connection, without sockets.

    offset  bytes  field
    0       4      payload bytes
    4       4      CRC-32C of everything behind this field
    8       1      kind, see below
    9       1      method of a CALL, message kind of a MESSAGE, else 0
    10      2      low bits of the CRC-32C of the number of payload bytes
    12      4      CALL: milliseconds that the caller waits, else 0
    16      8      number of a call: CALL, ANSWER, FAILURE, CANCEL; else 0
    24      n      payload

All numbers are big-endian. Kinds and their payloads:

    1  HELLO     `pixy.peers.Hello` of `peers.proto`
    2  PROOF     HMAC-SHA256 of the shared secret, or nothing
    3  ACCEPTED  nothing
    4  REFUSED   UTF-8 text: the reason
    5  ALIVE     nothing: a connection without other frames, or the answer to PING
    6  PING      nothing
    7  CLOSING   UTF-8 text: the reason; the last frame of a connection
    8  MESSAGE   bytes of the layer above
    9  CALL      bytes of the layer above
    10 ANSWER    bytes of the layer above
    11 FAILURE   `pixy.peers.Failure` of `peers.proto`
    12 CANCEL    nothing: the caller no longer waits
    13 NOT_YET   UTF-8 text: the reason of a refusal that passes by itself

A frame is never larger than the limit of its connection and stage, and the limit is checked before
memory is allocated.

    damage                                 effect
    payload longer than the limit          the connection ends, before allocation
    number of payload bytes is another     the connection ends as soon as the head is there, instead
                                           of a wait for bytes that never come
    any other bit flipped                  the connection ends: CRC
    a frame cut short by the connection    nothing of it is seen
    a kind that is not known               the connection ends

There is no resynchronization: TCP has a checksum of its own, so damage comes from a bug or from a
peer that is none, and a new connection starts clean.
"""

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Final

from pixy.records import crc32c

HELLO: Final = 1
PROOF: Final = 2
ACCEPTED: Final = 3
REFUSED: Final = 4
ALIVE: Final = 5
PING: Final = 6
CLOSING: Final = 7
MESSAGE: Final = 8
CALL: Final = 9
ANSWER: Final = 10
FAILURE: Final = 11
CANCEL: Final = 12
NOT_YET: Final = 13

HANDSHAKE_BYTES_MAX: Final = 64 << 10
"""Largest payload before a peer is known."""

HEAD_BYTES: Final = 24

Payload = bytes | bytearray | memoryview

PeerFrame = tuple[int, int, int, int, bytes | memoryview]
"""Kind, method, milliseconds, number, payload. A plain tuple: the receive path makes one for each
frame, and a named one takes five times as long.
"""

_BUFFER_BYTES = 64 << 10
"""Frames up to this size share a buffer, and their payloads are copies."""

_HEAD = Struct(">IIBBHIQ")
_PREFIX = Struct(">II")
_LENGTH = Struct(">I")
_CHECKED = Struct(">BBHIQ")
_PREFIX_BYTES = _PREFIX.size


class FrameDamage(Exception):
    """The bytes of a connection are no frames; the text says why."""


def _other_protocol(begin: bytes) -> str:
    """Protocol that a connection begins with in place of a frame; empty if it is none of the usual
    ones.
    """
    if begin[:2] == b"\x16\x03":
        return "it speaks TLS: cluster.tls must be set on all nodes, or on none"
    if begin == b"PRI ":
        return "it speaks HTTP/2, like a client of the gRPC API: this is the address for other nodes"
    return ""


def frame_head(
    kind: int, method: int, milliseconds: int, number: int, payload: Sequence[Payload], size: int
) -> bytes:
    """The head of a frame, to be followed by the parts of its payload.

    Args:
        payload: in parts, which are not copied.
        size: bytes of all parts.
    """
    checked = _CHECKED.pack(kind, method, _length_check(size), milliseconds, number)
    crc = crc32c(checked)
    for part in payload:
        crc = crc32c(part, crc)
    return _PREFIX.pack(size, crc) + checked


@lru_cache(maxsize=1024)
def _length_check(size: int) -> int:
    crc: int = crc32c(_LENGTH.pack(size))
    return crc & 0xFFFF


class PeerFrameReader:
    """Splits the bytes of a connection into frames.

    Bytes are received in place: a buffer for frames of usual size, and one of exactly its size for
    each larger frame, whose payload is a view of it without a copy.

    Args:
        limit: largest payload.

    Attributes:
        limit: may be changed between frames.
    """

    __slots__ = ("_begin", "_buffer", "_end", "_large", "_usual", "_view", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._usual = self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        # Bytes that were received and are in no frame yet.
        # Invariant: 0 <= _begin <= _end < len(_buffer).
        self._begin = 0
        self._end = 0
        # The buffer holds one large frame and nothing else.
        self._large = False

    def buffer(self) -> memoryview:
        """Space for the next bytes; never empty."""
        return self._view[self._end :]

    def received(self, size: int) -> list[PeerFrame]:
        """Take bytes that were written to the beginning of `buffer`.

        Returns:
            the frames that are complete. Their payloads stay valid.

        Raises:
            FrameDamage: the connection cannot be used any more.
        """
        buffer, view, limit = self._buffer, self._view, self.limit
        at = self._begin
        end = self._end = self._end + size
        frames: list[PeerFrame] = []
        while end - at >= HEAD_BYTES:
            length, crc, kind, method, length_check, milliseconds, number = _HEAD.unpack_from(buffer, at)
            stop = at + HEAD_BYTES + length
            if length > limit:
                spoken = _other_protocol(bytes(view[at : at + 4]))
                raise FrameDamage(spoken or f"a frame has {length} bytes, at most {limit} are allowed")
            if length_check != _length_check(length):
                raise FrameDamage(f"the length of a frame, {length} bytes, is damaged")
            if stop > end:
                break
            found = crc32c(view[at + _PREFIX_BYTES : stop])
            if found != crc:
                raise FrameDamage(f"a frame of {length} bytes has CRC {found:08x}, expected {crc:08x}")
            payload = view[at + HEAD_BYTES : stop]
            frames.append(
                (kind, method, milliseconds, number, payload.toreadonly() if self._large else bytes(payload))
            )
            at = stop
        self._begin = at
        if at == end:
            self._restart()
        else:
            self._make_room(at, end)
        return frames

    def _restart(self) -> None:
        """Everything was in frames."""
        self._begin = self._end = 0
        if self._large:
            self._large = False
            self._buffer = self._usual
            self._view = memoryview(self._usual)

    def _make_room(self, at: int, end: int) -> None:
        """Have the rest of an incomplete frame fit behind its beginning."""
        held = end - at
        needed = HEAD_BYTES
        if held >= HEAD_BYTES:
            needed += _HEAD.unpack_from(self._buffer, at)[0]  # within the limit
        if needed > len(self._usual):
            if not self._large:
                self._replace(bytearray(needed), at, end)
        elif at + max(needed, HEAD_BYTES + 1) > len(self._buffer):
            self._view[:held] = self._view[at:end]
            self._begin, self._end = 0, held

    def _replace(self, large: bytearray, at: int, end: int) -> None:
        view = memoryview(large)
        view[: end - at] = self._view[at:end]
        self._buffer, self._view, self._large = large, view, True
        self._begin, self._end = 0, end - at
