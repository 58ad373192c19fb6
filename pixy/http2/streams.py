"""Streams of a connection: their states (RFC 9113 §5.1) and the action for each frame type in each
state.

A server that never pushes sees the states below. Half-closed (local) is not among them: once the
response is complete, the client is told to stop with RST_STREAM(NO_ERROR) (RFC 9113 §8.1) and the
stream is closed.

    IDLE                 its id is above all ids used so far
    OPEN                 the request has begun
    HALF_CLOSED_REMOTE   the request is complete, the response is not
    CLOSED               both are complete
    RESET                we have reset it: frames that the client sent before it knew are ignored
    SKIPPED              never used; closed when a higher id was used

A stream whose request arrived in one piece and whose response has not begun has no state of its
own: its windows are the initial ones. All such streams share one object, `UNANSWERED`;
`StreamTable.materialize` gives a stream its own object once it needs one.
"""

from collections import deque
from enum import Enum, auto

from pixy.http2.flow import ReceiveWindow
from pixy.http2.frames import FrameType

_RESET_IDS_MAX = 1024
_SKIPPED_RANGES_MAX = 16


class StreamState(Enum):
    """See the module's docstring."""

    IDLE = auto()
    OPEN = auto()
    HALF_CLOSED_REMOTE = auto()
    CLOSED = auto()
    RESET = auto()
    SKIPPED = auto()


class FrameAction(Enum):
    """Action for a frame in a stream state."""

    TAKE = auto()
    IGNORE = auto()
    STREAM_CLOSED = auto()
    """Stream error with that code."""
    CONNECTION_STREAM_CLOSED = auto()
    """Connection error with code STREAM_CLOSED."""
    PROTOCOL_ERROR = auto()
    """Connection error with that code."""


_OF_ANY_STREAM = {
    StreamState.IDLE: FrameAction.PROTOCOL_ERROR,
    StreamState.OPEN: FrameAction.TAKE,
    StreamState.HALF_CLOSED_REMOTE: FrameAction.TAKE,
    StreamState.CLOSED: FrameAction.IGNORE,
    StreamState.RESET: FrameAction.IGNORE,
    StreamState.SKIPPED: FrameAction.IGNORE,
}
"""Actions for frames that may come behind the end of a stream."""

FRAME_ACTIONS: dict[FrameType, dict[StreamState, FrameAction]] = {
    FrameType.DATA: {
        StreamState.IDLE: FrameAction.PROTOCOL_ERROR,
        StreamState.OPEN: FrameAction.TAKE,
        StreamState.HALF_CLOSED_REMOTE: FrameAction.STREAM_CLOSED,
        StreamState.CLOSED: FrameAction.STREAM_CLOSED,
        StreamState.RESET: FrameAction.IGNORE,
        StreamState.SKIPPED: FrameAction.STREAM_CLOSED,
    },
    FrameType.HEADERS: {
        # With an id of the client's it opens a stream; this row is for ids of the server's.
        StreamState.IDLE: FrameAction.PROTOCOL_ERROR,
        StreamState.OPEN: FrameAction.TAKE,
        StreamState.HALF_CLOSED_REMOTE: FrameAction.STREAM_CLOSED,
        StreamState.CLOSED: FrameAction.CONNECTION_STREAM_CLOSED,
        StreamState.RESET: FrameAction.IGNORE,
        StreamState.SKIPPED: FrameAction.PROTOCOL_ERROR,
    },
    FrameType.RST_STREAM: _OF_ANY_STREAM,
    FrameType.WINDOW_UPDATE: _OF_ANY_STREAM,
}


class Stream:
    """An active stream.

    Args:
        stream_id: its id.
        state: OPEN or HALF_CLOSED_REMOTE.
        send_window: bytes that we may send; negative after the peer has lowered its initial window
            size.
        receive_window: bytes that the client may send, None if the request is complete.
        content_left: bytes of the body still expected by content-length, None if that is absent.
    """

    __slots__ = (
        "blocked_since",
        "content_left",
        "headers_sent",
        "queue",
        "queued_bytes",
        "receive_window",
        "send_window",
        "state",
        "stream_id",
        "trailers",
        "unconsumed_bytes",
    )

    def __init__(
        self,
        stream_id: int,
        state: StreamState,
        send_window: int,
        receive_window: ReceiveWindow | None = None,
        content_left: int | None = None,
    ) -> None:
        self.stream_id = stream_id
        self.state = state
        self.send_window = send_window
        self.receive_window = receive_window
        self.content_left = content_left
        # Bytes received but not consumed by the layer above; the connection's receive window lacks
        # them.
        self.unconsumed_bytes = 0
        self.headers_sent = False
        # Parts of the response body that wait for a window. Invariant: queued_bytes is the sum of
        # their lengths, and none is empty.
        self.queue: deque[memoryview] | None = None
        self.queued_bytes = 0
        # Block of the trailer section that waits behind the body, None while the response
        # continues.
        self.trailers: bytes | None = None
        # Since when nothing but tiny frames could be sent of the queue; None if nothing waits.
        self.blocked_since: float | None = None

    def end_request(self) -> None:
        """The request is complete."""
        self.state = StreamState.HALF_CLOSED_REMOTE
        self.receive_window = None


UNANSWERED = Stream(0, StreamState.HALF_CLOSED_REMOTE, 0)
"""Shared by all streams that have no state of their own; never modified."""


class StreamTable:
    """Streams of a connection.

    Args:
        window: receive window of the connection; unconsumed bytes of a closed stream return to it.
    """

    __slots__ = ("_reset", "_skipped", "_window", "active", "next_id")

    def __init__(self, window: ReceiveWindow) -> None:
        self._window = window
        # Invariant: exactly the streams that are OPEN or HALF_CLOSED_REMOTE, by id.
        self.active: dict[int, Stream] = {}
        # The next stream id if the client skips none. Invariant: odd, and above all ids used so
        # far.
        self.next_id = 1
        # The streams that we have reset last, oldest first. Older ones count as CLOSED.
        self._reset: dict[int, None] = {}
        # The ranges of ids that were skipped last.
        self._skipped: list[range] = []

    def state(self, stream_id: int) -> StreamState:
        """State of a stream. Even ids are the server's and always idle."""
        stream = self.active.get(stream_id)
        if stream is not None:
            return stream.state
        if stream_id >= self.next_id or not stream_id & 1:
            return StreamState.IDLE
        if stream_id in self._reset:
            return StreamState.RESET
        return (
            StreamState.SKIPPED
            if any(stream_id in skipped for skipped in self._skipped)
            else StreamState.CLOSED
        )

    def mark_used(self, stream_id: int) -> None:
        """Mark an idle id as used; all lower ids are closed."""
        if stream_id > self.next_id:
            self._skipped = [*self._skipped[1 - _SKIPPED_RANGES_MAX :], range(self.next_id, stream_id, 2)]
        self.next_id = stream_id + 2

    def materialize(self, stream_id: int, initial_send_window: int) -> Stream | None:
        """An active stream as an object of its own, None if it is closed.

        Args:
            stream_id: its id.
            initial_send_window: the peer's initial window size.
        """
        stream = self.active.get(stream_id)
        if stream is UNANSWERED:
            stream = Stream(stream_id, StreamState.HALF_CLOSED_REMOTE, initial_send_window)
            self.active[stream_id] = stream
        return stream

    def close(self, stream_id: int) -> Stream | None:
        """Close a stream; returns it, None if it was closed already."""
        stream = self.active.pop(stream_id, None)
        if stream is not None:
            self._window.unannounced += stream.unconsumed_bytes
            stream.unconsumed_bytes = 0
        return stream

    def release(self) -> None:
        """Close all streams for good.

        Clearing the dictionary frees the memory that it keeps after single removals.
        """
        self.active.clear()
        self._reset.clear()

    def remember_reset(self, stream_id: int) -> None:
        """Remember a stream that we have reset, so that later frames on it are ignored."""
        self._reset[stream_id] = None
        if len(self._reset) > _RESET_IDS_MAX:
            del self._reset[next(iter(self._reset))]
