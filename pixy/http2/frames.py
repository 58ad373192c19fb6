"""The frames of HTTP/2 (RFC 9113 §4 and §6): their numbers, their rules, and their bytes.

A frame is a head of 9 bytes and its payload, all numbers big-endian:

    byte  size  field
    0     3     length of the payload
    3     1     type (`FrameType`)
    4     1     flags
    5     4     stream id; its first bit is reserved, and ignored

What can be said of a frame without knowing its connection is in `RULES`, and checked by `check_head`.
"""

import struct
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import NamedTuple

from pixy.http2.errors import ErrorCode, Http2ConnectionError, Http2Error, Http2StreamError

__all__ = [
    "ACK",
    "END_HEADERS",
    "END_STREAM",
    "FRAME_HEAD_BYTES",
    "MIN_MAX_FRAME_BYTES",
    "PADDED",
    "PREFACE",
    "PRIORITY",
    "RULES",
    "STREAM_ID_MAX",
    "Frame",
    "FrameRule",
    "FrameType",
    "check_head",
    "frame",
    "goaway",
    "headers",
    "pack_head",
    "ping",
    "read_increment",
    "read_uint32",
    "rst_stream",
    "strip_padding",
    "strip_priority",
    "unpack_head",
    "window_update",
]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD_BYTES = 9
STREAM_ID_MAX = 0x7FFF_FFFF
MIN_MAX_FRAME_BYTES = 16_384
"""Every peer takes frames of this length (RFC 9113 §4.2)."""

# Flags. END_STREAM belongs to DATA and HEADERS, ACK to SETTINGS and PING.
END_STREAM = 0x01
ACK = 0x01
END_HEADERS = 0x04
PADDED = 0x08
PRIORITY = 0x20

_HEAD = struct.Struct(">IBI")
unpack_head: Callable[[bytes, int], tuple[int, int, int]] = _HEAD.unpack_from
"""The head of the frame at a position of a buffer: length << 8 | type, flags, stream id with its reserved bit."""
pack_head = _HEAD.pack
"""A frame's head from length << 8 | type, flags and stream id."""

_CODE = struct.Struct(">I")
_GOAWAY = struct.Struct(">II")
_PRIORITY_BYTES = 5


class FrameType(IntEnum):
    """What a frame is. Others are ignored (RFC 9113 §4.1)."""

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
    """A whole frame."""

    type: int
    flags: int
    stream_id: int
    payload: bytes


class FrameRule(NamedTuple):
    """What holds for every frame of a type.

    Attributes:
        on_stream: it must name a stream (True), must not (False), or may (None).
        length: what its payload must have, None if it varies.
        length_breaks_connection: another length is an error of the connection, not only of the stream.
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
    """Hold a frame's head against the rules of its type.

    Raises:
        Http2ConnectionError: PROTOCOL_ERROR, it names a stream and must not, or the reverse; FRAME_SIZE_ERROR.
        Http2StreamError: FRAME_SIZE_ERROR, where only the stream is concerned.
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


# --- reading payloads -----------------------------------------------------------------------------------------------


def strip_padding(read: Frame) -> bytes:
    """The payload of a DATA or HEADERS frame without its padding (RFC 9113 §6.1).

    Raises:
        Http2ConnectionError: PROTOCOL_ERROR, the padding is longer than the payload; FRAME_SIZE_ERROR, no room for its length.
    """
    payload = read.payload
    if not read.flags & PADDED:
        return payload
    if not payload:
        raise Http2ConnectionError(
            ErrorCode.FRAME_SIZE_ERROR, "a padded frame does not say how long its padding is"
        )
    padding = payload[0]
    if padding >= len(payload):
        reason = f"padding of {padding} bytes in a payload of {len(payload)}"
        raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, reason)
    return payload[1 : len(payload) - padding]


def strip_priority(read: Frame, payload: bytes) -> tuple[bytes, int]:
    """The header block in the unpadded payload of a HEADERS frame, and the stream it depends on, 0 if it does not say.

    Raises:
        Http2ConnectionError: FRAME_SIZE_ERROR, no room for the priority.
    """
    if not read.flags & PRIORITY:
        return payload, 0
    if len(payload) < _PRIORITY_BYTES:
        raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "a HEADERS frame is shorter than its priority")
    return payload[_PRIORITY_BYTES:], read_uint32(payload) & STREAM_ID_MAX


def read_uint32(payload: bytes) -> int:
    """The number of 32 bits that a payload begins with."""
    code: int = _CODE.unpack_from(payload)[0]
    return code


def read_increment(read: Frame) -> int:
    """By how much a WINDOW_UPDATE opens its window.

    Raises:
        Http2ConnectionError, Http2StreamError: PROTOCOL_ERROR, by nothing (RFC 9113 §6.9).
    """
    increment = read_uint32(read.payload) & STREAM_ID_MAX
    if increment:
        return increment
    reason = f"WINDOW_UPDATE by 0 on stream {read.stream_id}"
    if read.stream_id:
        raise Http2StreamError(read.stream_id, ErrorCode.PROTOCOL_ERROR, reason)
    raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, reason)


# --- building -------------------------------------------------------------------------------------------------------


def frame(frame_type: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """A frame with any payload."""
    return pack_head(len(payload) << 8 | frame_type, flags, stream_id) + payload


def headers(stream_id: int, block: bytes, *, end_stream: bool) -> Iterable[bytes]:
    """A header block as one HEADERS frame and as many CONTINUATION frames as it needs with every peer."""
    flags = END_STREAM if end_stream else 0
    frame_type = FrameType.HEADERS
    for at in range(0, max(len(block), 1), MIN_MAX_FRAME_BYTES):
        end = at + MIN_MAX_FRAME_BYTES
        yield frame(frame_type, flags | (END_HEADERS if end >= len(block) else 0), stream_id, block[at:end])
        frame_type, flags = FrameType.CONTINUATION, 0


def rst_stream(stream_id: int, code: int) -> bytes:
    """End one stream."""
    return frame(FrameType.RST_STREAM, 0, stream_id, _CODE.pack(code))


def goaway(last_stream_id: int, code: int, debug: bytes = b"") -> bytes:
    """Say which streams are the last to be served, and why."""
    return frame(FrameType.GOAWAY, 0, 0, _GOAWAY.pack(last_stream_id, code) + debug)


def window_update(stream_id: int, increment: int) -> bytes:
    """Let the peer send more on a stream, or with 0 on the connection."""
    return frame(FrameType.WINDOW_UPDATE, 0, stream_id, _CODE.pack(increment))


def ping(payload: bytes, *, ack: bool) -> bytes:
    """A PING, or the answer to one."""
    return frame(FrameType.PING, ACK if ack else 0, 0, payload)
