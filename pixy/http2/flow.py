"""Flow control (RFC 9113 §5.2 and §6.9).

What we may send is a plain number per stream and connection, because only the peer opens it; it can be negative after the peer
has lowered its initial window. What the peer may send is a `ReceiveWindow`: bytes come back into it when they were consumed, and
the peer is told in steps of half the window, so that a WINDOW_UPDATE is rare.
"""

from pixy.http2.errors import ErrorCode, Http2ConnectionError, Http2StreamError
from pixy.http2.frames import STREAM_ID_MAX

__all__ = ["WINDOW_MAX", "ReceiveWindow", "increase_window"]

WINDOW_MAX = STREAM_ID_MAX
"""Largest window (RFC 9113 §6.9.1)."""


class ReceiveWindow:
    """What the peer may still send, on a stream or on the connection.

    Args:
        size_bytes: how much it may have sent that was not consumed.
    """

    __slots__ = ("left", "size_bytes", "unannounced")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        # Bytes the peer may send now. Invariant: 0 <= left, left + owed + bytes received and not consumed == size_bytes.
        self.left = size_bytes
        # Bytes that were consumed and that the peer was not told of.
        self.unannounced = 0

    def take(self, size: int) -> bool:
        """The peer has sent so many bytes; False if it was not allowed to."""
        if size > self.left:
            return False
        self.left -= size
        return True

    def due(self) -> int:
        """By how much to open the window now: nothing, or at least half of its size."""
        unannounced = self.unannounced
        if unannounced * 2 < self.size_bytes or not unannounced:
            return 0
        self.unannounced = 0
        self.left += unannounced
        return unannounced


def increase_window(window: int, increment: int, stream_id: int) -> int:
    """A window of what we may send, behind a WINDOW_UPDATE.

    Raises:
        Http2ConnectionError, Http2StreamError: FLOW_CONTROL_ERROR, it became larger than allowed (RFC 9113 §6.9.1).
    """
    window += increment
    if window <= WINDOW_MAX:
        return window
    reason = f"the window of stream {stream_id} became {window}, at most {WINDOW_MAX} are allowed"
    if stream_id:
        raise Http2StreamError(stream_id, ErrorCode.FLOW_CONTROL_ERROR, reason)
    raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, reason)
