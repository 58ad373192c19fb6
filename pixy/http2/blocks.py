"""Assembly of a header block from one HEADERS frame and its CONTINUATION frames (RFC 9113 §4.3,
§6.10).

No other frame may be interleaved on the connection, so there is at most one open block. Both its
bytes and its frames are limited, because empty CONTINUATION frames have a cost too
(CVE-2024-27316).
"""

from pixy.http2.errors import ErrorCode, Http2ConnectionError
from pixy.http2.frames import END_HEADERS, END_STREAM, Frame, FrameType, strip_padding, strip_priority
from pixy.http2.options import Options


class HeaderBlock:
    """A header block that was opened by a HEADERS frame.

    Args:
        head: the HEADERS frame.
        options: limits.
        now: seconds of the connection's clock.

    Raises:
        Http2ConnectionError: the frame is invalid; ENHANCE_YOUR_CALM if the block is too large.
    """

    __slots__ = ("_frames", "_options", "_parts", "depends_on", "ends_stream", "since", "size", "stream_id")

    def __init__(self, head: Frame, options: Options, now: float) -> None:
        part, self.depends_on = strip_priority(head, strip_padding(head))
        self.stream_id = head.stream_id
        self.ends_stream = bool(head.flags & END_STREAM)
        self.since = now
        self._options = options
        self._parts = [part]
        self.size = len(part)
        self._frames = 0
        self._check_size()

    def add(self, frame: Frame) -> None:
        """Append the next frame of the connection, whatever its type.

        Raises:
            Http2ConnectionError: PROTOCOL_ERROR if the frame does not continue this block;
                ENHANCE_YOUR_CALM if the block is too large.
        """
        if frame.type != FrameType.CONTINUATION or frame.stream_id != self.stream_id:
            raise Http2ConnectionError(
                ErrorCode.PROTOCOL_ERROR,
                f"frame of type {frame.type} on stream {frame.stream_id} inside the header block of stream {self.stream_id}",
            )
        self._parts.append(frame.payload)
        self.size += len(frame.payload)
        self._frames += 1
        self._check_size()

    def complete(self, frame: Frame) -> bytes | None:
        """The complete block if `frame` was its last one, else None."""
        return b"".join(self._parts) if frame.flags & END_HEADERS else None

    def _check_size(self) -> None:
        if self.size > self._options.header_block_bytes:
            raise Http2ConnectionError(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"header block of more than {self._options.header_block_bytes} bytes",
            )
        if self._frames > self._options.continuation_frames:
            raise Http2ConnectionError(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"header block of more than {self._options.continuation_frames} CONTINUATION frames",
            )
