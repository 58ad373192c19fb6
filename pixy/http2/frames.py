"""HTTP/2 frames (RFC 9113 §4, §6): constants, rules and encoding.

A frame is a 9-byte header and a payload; all integers are big-endian:

    byte  size  field
    0     3     length of the payload
    3     1     type (`FrameType`)
    4     1     flags
    5     4     stream id; its first bit is reserved and ignored

`RULES` has the constraints that hold regardless of the connection's state; `check_head` enforces
them.
"""

import struct
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import NamedTuple

from pixy.http2.errors import ErrorCode, Http2ConnectionError, Http2Error, Http2StreamError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD_BYTES = 9
STREAM_ID_MAX = 0x7FFF_FFFF
MIN_MAX_FRAME_BYTES = 16_384
"""Frame size that every peer accepts (RFC 9113 §4.2)."""

# Flags. END_STREAM belongs to DATA and HEADERS, ACK to SETTINGS and PING.
END_STREAM = 0x01
ACK = 0x01
END_HEADERS = 0x04
PADDED = 0x08
PRIORITY = 0x20

_HEAD = struct.Struct(">IBI")
unpack_head: Callable[[bytes, int], tuple[int, int, int]] = _HEAD.unpack_from
"""Read a frame header from a buffer: length << 8 | type, flags, stream id including its reserved
bit.
"""
unpack_short_head: Callable[[bytes, int], tuple[int, int, int, int]] = struct.Struct(">BHHI").unpack_from
"""Read a frame header in the parts that the common case compares: length >> 16, length & 0xFFFF,
type << 8 | flags, stream id including its reserved bit.
"""
pack_head = _HEAD.pack
"""Encode a frame header: length << 8 | type, flags, stream id."""

_CODE = struct.Struct(">I")
_GOAWAY = struct.Struct(">II")
_PRIORITY_BYTES = 5


class FrameType(IntEnum):
    """Frame types. Unknown ones are ignored (RFC 9113 §4.1)."""

    DATA = 0x0
    HEADERS = 0x1
    PRIORITY = 0x2
    RST_STREAM = 0x3
    SETTINGS = 0x4
    PUSH_PROMISE = 0x5
    PING = 0x6
    GOAWAY = 0x7
    WINDOW_UPDATE = 0x8
    CONTINUATION = 0x9


class Frame(NamedTuple):
    """A complete frame."""

    type: int
    flags: int
    stream_id: int
    payload: bytes


class FrameRule(NamedTuple):
    """Constraints on all frames of one type.

    Attributes:
        on_stream: the stream id must be nonzero (True), zero (False), or may be either (None).
        length: required payload length, None if it varies.
        length_breaks_connection: a wrong length is a connection error, not a stream error.
    """

    on_stream: bool | None
    length: int | None = None
    length_breaks_connection: bool = True


RULES = {
    FrameType.DATA: FrameRule(on_stream=True),
    FrameType.HEADERS: FrameRule(on_stream=True),
    FrameType.PRIORITY: FrameRule(on_stream=True, length=_PRIORITY_BYTES, length_breaks_connection=False),
    FrameType.RST_STREAM: FrameRule(on_stream=True, length=4),
    FrameType.SETTINGS: FrameRule(on_stream=False),
    FrameType.PUSH_PROMISE: FrameRule(on_stream=True),
    FrameType.PING: FrameRule(on_stream=False, length=8),
    FrameType.GOAWAY: FrameRule(on_stream=False),
    FrameType.WINDOW_UPDATE: FrameRule(on_stream=None, length=4),
    FrameType.CONTINUATION: FrameRule(on_stream=True),
}


def check_head(frame_type: FrameType, stream_id: int, length: int) -> None:
    """Check a frame header against the rules of its type.

    Raises:
        Http2ConnectionError: PROTOCOL_ERROR if the stream id must not be zero and is, or the
            reverse; FRAME_SIZE_ERROR.
        Http2StreamError: FRAME_SIZE_ERROR if only the stream is affected.
    """
    rule = RULES[frame_type]
    if rule.on_stream is not None and rule.on_stream != (stream_id > 0):
        raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"{frame_type.name} on stream {stream_id}")
    if rule.length is not None and rule.length != length:
        raise _wrong_length(
            f"{frame_type.name} of {length} bytes, expected {rule.length}",
            None if rule.length_breaks_connection else stream_id,
        )


def _wrong_length(reason: str, stream_id: int | None) -> Http2Error:
    if stream_id is None:
        return Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, reason)
    return Http2StreamError(stream_id, ErrorCode.FRAME_SIZE_ERROR, reason)


# --- reading payloads -----------------------------------------------------------------------------


def strip_padding(read: Frame) -> bytes:
    """Payload of a DATA or HEADERS frame without its padding (RFC 9113 §6.1).

    Raises:
        Http2ConnectionError: PROTOCOL_ERROR if the padding exceeds the payload; FRAME_SIZE_ERROR if
            the pad length is missing.
    """
    payload = read.payload
    if not read.flags & PADDED:
        return payload
    if not payload:
        raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "padded frame without a pad length")
    padding = payload[0]
    if padding >= len(payload):
        reason = f"padding of {padding} bytes in a payload of {len(payload)}"
        raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, reason)
    return payload[1 : len(payload) - padding]


def strip_priority(read: Frame, payload: bytes) -> tuple[bytes, int]:
    """Header block fragment of an unpadded HEADERS payload, and the stream dependency (0 if
    absent).

    Raises:
        Http2ConnectionError: FRAME_SIZE_ERROR if the payload is too short for its priority fields.
    """
    if not read.flags & PRIORITY:
        return payload, 0
    if len(payload) < _PRIORITY_BYTES:
        raise Http2ConnectionError(
            ErrorCode.FRAME_SIZE_ERROR, "HEADERS frame too short for its priority fields"
        )
    return payload[_PRIORITY_BYTES:], read_uint32(payload) & STREAM_ID_MAX


def read_uint32(payload: bytes) -> int:
    """The first four bytes of a payload as an unsigned integer."""
    code: int = _CODE.unpack_from(payload)[0]
    return code


def read_increment(read: Frame) -> int:
    """Increment of a WINDOW_UPDATE frame.

    Raises:
        Http2ConnectionError, Http2StreamError: PROTOCOL_ERROR if it is 0 (RFC 9113 §6.9).
    """
    increment = read_uint32(read.payload) & STREAM_ID_MAX
    if increment:
        return increment
    reason = f"WINDOW_UPDATE with increment 0 on stream {read.stream_id}"
    if read.stream_id:
        raise Http2StreamError(read.stream_id, ErrorCode.PROTOCOL_ERROR, reason)
    raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, reason)


# --- building -------------------------------------------------------------------------------------


def frame(frame_type: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Encode a frame with any payload."""
    return pack_head(len(payload) << 8 | frame_type, flags, stream_id) + payload


def headers(stream_id: int, block: bytes, *, end_stream: bool) -> Iterable[bytes]:
    """Encode a header block as a HEADERS frame and as many CONTINUATION frames as it needs, each of
    a size that every peer accepts.
    """
    flags = END_STREAM if end_stream else 0
    frame_type = FrameType.HEADERS
    for at in range(0, max(len(block), 1), MIN_MAX_FRAME_BYTES):
        end = at + MIN_MAX_FRAME_BYTES
        yield frame(frame_type, flags | (END_HEADERS if end >= len(block) else 0), stream_id, block[at:end])
        frame_type, flags = FrameType.CONTINUATION, 0


def rst_stream(stream_id: int, code: int) -> bytes:
    """Encode RST_STREAM."""
    return frame(FrameType.RST_STREAM, 0, stream_id, _CODE.pack(code))


def goaway(last_stream_id: int, code: int, debug: bytes = b"") -> bytes:
    """Encode GOAWAY."""
    return frame(FrameType.GOAWAY, 0, 0, _GOAWAY.pack(last_stream_id, code) + debug)


def window_update(stream_id: int, increment: int) -> bytes:
    """Encode WINDOW_UPDATE for a stream, or for the connection if the stream id is 0."""
    return frame(FrameType.WINDOW_UPDATE, 0, stream_id, _CODE.pack(increment))


def ping(payload: bytes, *, ack: bool) -> bytes:
    """Encode PING or its acknowledgement."""
    return frame(FrameType.PING, ACK if ack else 0, 0, payload)
