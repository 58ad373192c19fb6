"""The streams of one connection: their states (RFC 9113 §5.1), and what each state makes of each frame.

A server that never pushes sees these states. That we have ended our side while the client goes on is none of them: the client
is told to stop with RST_STREAM(NO_ERROR) behind the answer (RFC 9113 §8.1), and the stream is closed.

    IDLE                 its id is above all that were used
    OPEN                 the request has begun
    HALF_CLOSED_REMOTE   the request is complete, the answer is not
    CLOSED               over
    RESET                over because we reset it: what the client sent before it knew is ignored
    SKIPPED              never used, and closed when a higher id was

A stream whose request came whole and whose answer has not begun has nothing of its own: its windows are the initial ones. All such
streams are one object, `UNANSWERED`; `StreamTable.materialize` gives a stream an object when something happens to it alone.
"""

from collections import deque
from enum import Enum, auto

from pixy.http2.flow import ReceiveWindow
from pixy.http2.frames import FrameType

__all__ = ["FRAME_ACTIONS", "UNANSWERED", "FrameAction", "Stream", "StreamState", "StreamTable"]

_RESET_IDS_MAX = 1024
_SKIPPED_RANGES_MAX = 16


class StreamState(Enum):
    """See the module."""

    IDLE = auto()
    OPEN = auto()
    HALF_CLOSED_REMOTE = auto()
    CLOSED = auto()
    RESET = auto()
    SKIPPED = auto()


class FrameAction(Enum):
    """What is done with a frame on a stream."""

    TAKE = auto()
    IGNORE = auto()
    STREAM_CLOSED = auto()
    """A stream error of that code."""
    CONNECTION_STREAM_CLOSED = auto()
    """A connection error of that code."""
    PROTOCOL_ERROR = auto()
    """A connection error of that code."""


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
        # On an id of the client's they open a stream; this is for the server's.
        StreamState.IDLE: FrameAction.PROTOCOL_ERROR,
        StreamState.OPEN: FrameAction.TAKE,
        StreamState.HALF_CLOSED_REMOTE: FrameAction.STREAM_CLOSED,
        StreamState.CLOSED: FrameAction.CONNECTION_STREAM_CLOSED,
        StreamState.RESET: FrameAction.IGNORE,
        StreamState.SKIPPED: FrameAction.PROTOCOL_ERROR,
    },
    FrameType.RST_STREAM: {
        StreamState.IDLE: FrameAction.PROTOCOL_ERROR,
        StreamState.OPEN: FrameAction.TAKE,
        StreamState.HALF_CLOSED_REMOTE: FrameAction.TAKE,
        StreamState.CLOSED: FrameAction.IGNORE,
        StreamState.RESET: FrameAction.IGNORE,
        StreamState.SKIPPED: FrameAction.IGNORE,
    },
    FrameType.WINDOW_UPDATE: {
        StreamState.IDLE: FrameAction.PROTOCOL_ERROR,
        StreamState.OPEN: FrameAction.TAKE,
        StreamState.HALF_CLOSED_REMOTE: FrameAction.TAKE,
        StreamState.CLOSED: FrameAction.IGNORE,
        StreamState.RESET: FrameAction.IGNORE,
        StreamState.SKIPPED: FrameAction.IGNORE,
    },
}


class Stream:
    """A stream that is not closed.

    Args:
        stream_id: its number.
        state: OPEN or HALF_CLOSED_REMOTE.
        send_window: bytes that we may send; negative after the peer lowered its initial window.
        receive_window: what the client may send, None if the request is complete.
        content_left: bytes of the body that content-length promises beyond those received, None if not said.
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
        # Bytes received that the layer above has not consumed; they are missing in the connection's window.
        self.unconsumed_bytes = 0
        self.headers_sent = False
        # Parts of the answer's body that wait for a window. Invariant: queued_bytes is their sum, and none is empty.
        self.queue: deque[memoryview] | None = None
        self.queued_bytes = 0
        # The block of the trailer section that waits behind the body, None if the answer goes on.
        self.trailers: bytes | None = None
        # Since when nothing of the queue could be sent but crumbs, None if nothing waits.
        self.blocked_since: float | None = None

    def end_request(self) -> None:
        """The client has sent everything."""
        self.state = StreamState.HALF_CLOSED_REMOTE
        self.receive_window = None


UNANSWERED = Stream(0, StreamState.HALF_CLOSED_REMOTE, 0)
"""Stands for every stream that has nothing of its own; never changed."""


class StreamTable:
    """All streams of a connection.

    Args:
        window: what the client may send on all streams together; bytes that a closed stream leaves unconsumed go back to it.
    """

    __slots__ = ("_reset", "_skipped", "_window", "active", "next_id")

    def __init__(self, window: ReceiveWindow) -> None:
        self._window = window
        # Invariant: exactly the streams that are OPEN or HALF_CLOSED_REMOTE, by id.
        self.active: dict[int, Stream] = {}
        # The id of the next stream if the client skips none. Invariant: odd, and above all that were used.
        self.next_id = 1
        # The last streams that we reset, oldest first. One that was dropped counts as CLOSED.
        self._reset: dict[int, None] = {}
        # The last ids that were skipped.
        self._skipped: list[range] = []

    def state(self, stream_id: int) -> StreamState:
        """Where a stream is. Even ids are the server's, and always idle."""
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
        """The client has used an idle id; all below it are closed."""
        if stream_id > self.next_id:
            self._skipped = [*self._skipped[1 - _SKIPPED_RANGES_MAX :], range(self.next_id, stream_id, 2)]
        self.next_id = stream_id + 2

    def materialize(self, stream_id: int, initial_send_window: int) -> Stream | None:
        """The stream with an object of its own, None if it is closed.

        Args:
            stream_id: its number.
            initial_send_window: what the peer lets us send on a stream on which nothing was sent.
        """
        stream = self.active.get(stream_id)
        if stream is UNANSWERED:
            stream = Stream(stream_id, StreamState.HALF_CLOSED_REMOTE, initial_send_window)
            self.active[stream_id] = stream
        return stream

    def close(self, stream_id: int) -> Stream | None:
        """The stream is over; returns it, None if it was before."""
        stream = self.active.pop(stream_id, None)
        if stream is not None:
            self._window.unannounced += stream.unconsumed_bytes
            stream.unconsumed_bytes = 0
        return stream

    def release(self) -> None:
        """All streams are over, and there will be no more. A dictionary keeps room for what was taken out of it one by one."""
        self.active.clear()
        self._reset.clear()

    def remember_reset(self, stream_id: int) -> None:
        """We have reset the stream, so what follows on it is ignored."""
        self._reset[stream_id] = None
        if len(self._reset) > _RESET_IDS_MAX:
            del self._reset[next(iter(self._reset))]
