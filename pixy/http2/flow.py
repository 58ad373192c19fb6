"""Flow control (RFC 9113 §5.2, §6.9).

A send window is a plain integer per stream and per connection, because only the peer opens it. It
may be negative after the peer has lowered its initial window size. A receive window is a
`ReceiveWindow`: consumed bytes return to it, and the peer is told in steps of at least half the
window, so WINDOW_UPDATE frames are rare.
"""

from pixy.http2.errors import ErrorCode, Http2ConnectionError, Http2StreamError
from pixy.http2.frames import STREAM_ID_MAX

WINDOW_MAX = STREAM_ID_MAX
"""Largest window (RFC 9113 §6.9.1)."""


class ReceiveWindow:
    """Receive window of a stream or of the connection.

    Args:
        size_bytes: most bytes that may be received and not yet consumed.
    """

    __slots__ = ("left", "size_bytes", "unannounced")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        # Bytes that the peer may send now. Invariant: 0 <= left, and left + unannounced + bytes
        # received but not consumed == size_bytes.
        self.left = size_bytes
        # Consumed bytes that no WINDOW_UPDATE has announced yet.
        self.unannounced = 0

    def take(self, size: int) -> bool:
        """Account for received bytes; False if they exceed the window."""
        if size > self.left:
            return False
        self.left -= size
        return True

    def due(self) -> int:
        """Increment to announce now: 0, or at least half of the window's size."""
        unannounced = self.unannounced
        if unannounced * 2 < self.size_bytes or not unannounced:
            return 0
        self.unannounced = 0
        self.left += unannounced
        return unannounced


def increase_window(window: int, increment: int, stream_id: int) -> int:
    """A send window after a WINDOW_UPDATE.

    Raises:
        Http2ConnectionError, Http2StreamError: FLOW_CONTROL_ERROR if it exceeds `WINDOW_MAX` (RFC
            9113 §6.9.1).
    """
    window += increment
    if window <= WINDOW_MAX:
        return window
    reason = f"the window of stream {stream_id} grew to {window}, limit is {WINDOW_MAX}"
    if stream_id:
        raise Http2StreamError(stream_id, ErrorCode.FLOW_CONTROL_ERROR, reason)
    raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, reason)
