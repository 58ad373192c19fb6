"""The way out: everything that one connection sends, in order, under the peer's windows (RFC 9113 §5.2).

Frames gather in `output` and leave with `take`, once per turn of the event loop. Data that a window does not let out wait in their
stream. A stream that waits for its own window is woken by that window alone; streams that wait for the connection's window stand in
line, and each sends one frame in its turn. So one large or stuck answer delays no other, and no frame of the peer makes us look at
all streams but a SETTINGS that changes the initial window. A window that opens for a great many lets them out in portions: `backlogged`
says that the line has more to send, and `send_waiting` goes on.

What the peer does not take is bounded by `Options.output_bytes`: data beyond it are not accepted. A peer that opens its windows by a few
bytes at a time gets its answer in crumbs (CVE-2019-9511): frames that cost what any frame costs and bring it nowhere. So a crumb earns the
peer no tokens, see `bucket`, and is no sign that it takes what waits for it.

The fast path is `maybe_respond`: a whole answer that fits every window becomes one run of bytes between constants.
"""

from collections import deque
from enum import Enum, auto

from pixy.http2.errors import ErrorCode
from pixy.http2.events import DataSent, Event
from pixy.http2.flow import ReceiveWindow, increase_window
from pixy.http2.frames import FrameType, headers, pack_head, rst_stream, window_update
from pixy.http2.headers import ResponseTemplate
from pixy.http2.hpack import DEFAULT_TABLE_BYTES, EMPTY_TABLE
from pixy.http2.options import Options
from pixy.http2.settings import PeerSettings, Setting
from pixy.http2.streams import UNANSWERED, Stream, StreamState, StreamTable

__all__ = ["Delivery", "Sender"]

_FAST_PATH_CLOSED = -1
_WAITING_FRAMES_MAX = 128
"""What the line may send in one go: half a millisecond of work."""

_TINY_FRAME_BYTES_MAX = 127
"""A frame that a window has cut to so few bytes is a crumb. Clients open their windows in steps of kilobytes, or of half a window if that
is small. A small frame that no window has cut is what the layer above had to say, and no crumb."""


class Delivery(Enum):
    """What became of something to send."""

    SENT = auto()
    """It is in the output."""
    QUEUED = auto()
    """It waits for a window; `DataSent` or `StreamReset` follows."""
    GONE = auto()
    """The stream is closed, or was reset because the peer takes too little."""


class Sender:
    """Sends on all streams of a connection.

    Args:
        streams: the connection's.
        window: what the peer may send, for its WINDOW_UPDATEs.
        options: limits.
    """

    __slots__ = (
        "_fast_max",
        "_open",
        "_output_bytes",
        "_queued_bytes",
        "_receive_window",
        "_send_window",
        "_streams",
        "_table_update",
        "_tiny_frames",
        "_waiting",
        "backlogged",
        "frames",
        "now",
        "output",
        "peer",
        "resets",
        "send_capacity",
    )

    def __init__(self, streams: StreamTable, window: ReceiveWindow, options: Options) -> None:
        self._streams = streams
        self._open = streams.active
        self._receive_window = window
        self.peer = PeerSettings()
        # Seconds of the connection's clock, as of the last thing that was received or of the last tick.
        self.now = 0.0
        # Bytes for the transport.
        self.output: list[bytes | memoryview] = []
        # Frames of answers so far, and how many of them were crumbs. A whole answer on the fast path counts as one.
        self.frames = self._tiny_frames = 0
        # Streams that were reset for a reason.
        self.resets = 0
        # What we may send on all streams together.
        self._send_window = self.peer.initial_window_bytes
        # Data bytes that are accepted. Invariant: with what is queued, in the output or held at most _output_bytes.
        self._output_bytes = self.send_capacity = options.output_bytes
        # Data bytes in the queues of all streams.
        self._queued_bytes = 0
        # Streams with queued data and an open window of their own, in line for the connection's.
        self._waiting: dict[int, Stream] = {}
        # Whether the line may have more to send although nothing keeps it: `send_waiting` stopped half-way.
        self.backlogged = False
        # Goes in front of the next header block (RFC 9113 §4.3.1).
        self._table_update = b""
        # The largest body that needs no second look. Invariant: as `_set_fast_max` says.
        self._fast_max = 0
        self._set_fast_max()

    @property
    def queued_bytes(self) -> int:
        """Data bytes that wait for windows."""
        return self._queued_bytes

    @property
    def buffered_bytes(self) -> int:
        """Data bytes that the peer has not taken, as of the last `take` and `set_unwritten`."""
        return self._output_bytes - self.send_capacity

    @property
    def credited_frames(self) -> int:
        """Frames of answers so far that the peer's budgets grow with."""
        return self.frames - self._tiny_frames

    # --- answers ----------------------------------------------------------------------------------------------------

    def maybe_respond(self, stream_id: int, template: ResponseTemplate, body: bytes) -> bool:
        """Send a whole answer if that takes one DATA frame and nothing keeps it from the output; else do nothing.

        Returns:
            True if it is SENT.
        """
        size = len(body)
        if (
            size <= self._fast_max
            and size <= self._send_window
            and size <= self.send_capacity
            and self._open.get(stream_id) is UNANSWERED
        ):
            del self._open[stream_id]
            self._send_window -= size
            self.send_capacity -= size
            self.frames += 1
            # The id of the stream stands between what is the same for all answers of this size.
            self.output.append(
                stream_id.to_bytes(4, "big").join(
                    (
                        template.headers_start,
                        template.headers_to_data(size),
                        body + template.trailers_start,
                        template.trailers,
                    )
                )
            )
            return True
        return False

    def respond(self, stream_id: int, template: ResponseTemplate, body: bytes) -> Delivery:
        """Send a whole answer.

        Args:
            stream_id: of the request.
            template: header and trailer section.
            body: of one DATA frame, or as many as the windows demand.

        Returns:
            GONE also if so much cannot be queued; the stream was reset then.
        """
        if self.maybe_respond(stream_id, template, body):
            return Delivery.SENT
        if self.send_headers(stream_id, template.headers) is Delivery.GONE:
            return Delivery.GONE
        if self.send_data(stream_id, body) is Delivery.GONE:
            return Delivery.GONE
        return self.send_trailers(stream_id, template.trailers)

    def send_headers(self, stream_id: int, block: bytes) -> Delivery:
        """Begin an answer. See `Http2Connection.send_headers`."""
        stream = self._own(stream_id)
        if stream is None:
            return Delivery.GONE
        assert not stream.headers_sent, f"a second header section on stream {stream_id}"
        stream.headers_sent = True
        self._send_block(stream_id, block, end_stream=False)
        return Delivery.SENT

    def send_data(self, stream_id: int, data: bytes | bytearray | memoryview) -> Delivery:
        """Go on with an answer. See `Http2Connection.send_data`."""
        stream = self._own(stream_id)
        if stream is None:
            return Delivery.GONE
        assert stream.headers_sent, f"data in front of the header section on stream {stream_id}"
        assert stream.trailers is None, f"data behind the end of stream {stream_id}"
        if len(data) > self.send_capacity:
            self.reset(stream_id, ErrorCode.ENHANCE_YOUR_CALM)
            return Delivery.GONE
        if data:
            self._queue(stream, data)
            self._send_queued(stream)
        return Delivery.QUEUED if stream.queue else Delivery.SENT

    def send_trailers(self, stream_id: int, block: bytes) -> Delivery:
        """End an answer. See `Http2Connection.send_trailers`."""
        stream = self._own(stream_id)
        if stream is None:
            return Delivery.GONE
        assert stream.trailers is None, f"a second trailer section on stream {stream_id}"
        stream.trailers = block
        if stream.queue:
            return Delivery.QUEUED
        self._finish(stream)
        return Delivery.SENT

    def reset(self, stream_id: int, code: int) -> bool:
        """End a stream with RST_STREAM; False if it is closed."""
        if self.discard(stream_id) is None:
            return False
        self.refuse(stream_id, code)
        return True

    def refuse(self, stream_id: int, code: int) -> None:
        """Send RST_STREAM for a stream that is not open, or not any more, and ignore what follows on it."""
        self.resets += code != ErrorCode.NO_ERROR
        self.output.append(rst_stream(stream_id, code))
        self._streams.remember_reset(stream_id)

    def discard(self, stream_id: int) -> Stream | None:
        """Close a stream and drop what it has queued; returns it, None if it is closed."""
        stream = self._streams.close(stream_id)
        if stream is not None and stream.queue:
            self._queued_bytes -= stream.queued_bytes
            self.send_capacity += stream.queued_bytes
            self._waiting.pop(stream_id, None)
        return stream

    def discard_all(self) -> None:
        """Close all streams, because nothing is received any more."""
        for stream_id in list(self._open):
            self.discard(stream_id)
        self._receive_window.unannounced = 0

    def control(self, frame: bytes) -> None:
        """Send a frame that belongs to the connection."""
        self.output.append(frame)

    def replenish(self, stream: Stream, size: int) -> None:
        """Bytes that were received on a stream are not in memory any more: let the client send as many."""
        assert size <= stream.unconsumed_bytes, (
            f"{size} bytes consumed of {stream.unconsumed_bytes} on stream {stream.stream_id}"
        )
        self.replenish_connection(stream, size)
        self.replenish_stream(stream, size)

    def replenish_connection(self, stream: Stream, size: int) -> None:
        """Bytes that were received on a stream stay in memory: let the client send as many on other streams, not on this one."""
        assert size <= stream.unconsumed_bytes
        stream.unconsumed_bytes -= size
        self._receive_window.unannounced += size

    def replenish_stream(self, stream: Stream, size: int) -> None:
        """Let the client send so many bytes more on a stream, which were withheld before."""
        if stream.receive_window is not None:
            stream.receive_window.unannounced += size
            due = stream.receive_window.due()
            if due:
                self.output.append(window_update(stream.stream_id, due))

    # --- output -----------------------------------------------------------------------------------------------------

    def take(self) -> bytes:
        """Everything that can be sent now; it is the caller's."""
        due = self._receive_window.due()
        if due:
            self.output.append(window_update(0, due))
        if not self.output:
            return b""
        taken = b"".join(self.output)
        self.output.clear()
        self.send_capacity = self._output_bytes - self._queued_bytes
        return taken

    def set_unwritten(self, size: int) -> None:
        """See `Http2Connection.set_unwritten`."""
        self.send_capacity = max(self.send_capacity - size, 0)

    # --- what the peer allows ---------------------------------------------------------------------------------------

    def open_connection_window(self, increment: int, events: list[Event]) -> None:
        """The peer takes more on all streams together.

        Raises:
            Http2ConnectionError: FLOW_CONTROL_ERROR, more than is possible.
        """
        self._send_window = increase_window(self._send_window, increment, 0)
        self.send_waiting(events)

    def open_stream_window(self, stream_id: int, increment: int, events: list[Event]) -> None:
        """The peer takes more on a stream, which is not closed.

        Raises:
            Http2StreamError: FLOW_CONTROL_ERROR, more than is possible.
        """
        stream = self._own(stream_id)
        assert stream is not None
        stream.send_window = increase_window(stream.send_window, increment, stream_id)
        self._wake(stream, events)

    def apply_settings(self, entries: list[tuple[int, int]], events: list[Event]) -> None:
        """The peer's SETTINGS hold from here on.

        Raises:
            Http2ConnectionError: FLOW_CONTROL_ERROR, a stream's window became larger than possible (RFC 9113 §6.9.2).
        """
        before = self.peer.initial_window_bytes
        self.peer.apply(entries)
        if any(
            setting == Setting.HEADER_TABLE_SIZE and value < DEFAULT_TABLE_BYTES for setting, value in entries
        ):
            # Our table is empty, and stays so: size 0 is within every limit that the peer may set from then on.
            self._table_update = EMPTY_TABLE
        self._set_fast_max()
        change = self.peer.initial_window_bytes - before
        for stream in list(self._open.values()) if change else ():
            if stream is not UNANSWERED:
                stream.send_window = increase_window(stream.send_window, change, 0)
                if stream.queue:
                    self._wait(stream)
        self.send_waiting(events)

    def stalled(self, since: float) -> list[int]:
        """Streams whose data have waited since a time or longer."""
        if not self._queued_bytes:
            return []
        return [
            stream_id
            for stream_id, stream in self._open.items()
            if stream.blocked_since is not None and stream.blocked_since <= since
        ]

    def check_invariants(self) -> None:
        """Prove what the fields promise."""
        queued = {stream.stream_id: stream for stream in self._open.values() if stream.queue}
        for stream in queued.values():
            assert stream.queue is not None
            assert stream.queued_bytes == sum(map(len, stream.queue))
            assert stream.blocked_since is not None
        in_line = {stream_id for stream_id, stream in queued.items() if stream.send_window > 0}
        assert in_line <= set(self._waiting) <= set(queued)
        assert not self._waiting or self._send_window <= 0 or self.backlogged
        assert self._queued_bytes == sum(stream.queued_bytes for stream in queued.values())
        assert 0 <= self.send_capacity <= self._output_bytes - self._queued_bytes
        before = self._fast_max
        self._set_fast_max()
        assert self._fast_max == before

    # --- inside -----------------------------------------------------------------------------------------------------

    def _own(self, stream_id: int) -> Stream | None:
        return self._streams.materialize(stream_id, self.peer.initial_window_bytes)

    def _set_fast_max(self) -> None:
        """Answers take the fast path unless a table update must go in front of them. Who stands in line has no say, because then
        the connection's window is closed."""
        if self._table_update:
            self._fast_max = _FAST_PATH_CLOSED
        else:
            self._fast_max = min(self.peer.initial_window_bytes, self.peer.max_frame_bytes)

    def _send_block(self, stream_id: int, block: bytes, *, end_stream: bool) -> None:
        if self._table_update:
            block = self._table_update + block
            self._table_update = b""
            self._set_fast_max()
        self.output += headers(stream_id, block, end_stream=end_stream)
        self.frames += 1

    def _queue(self, stream: Stream, data: bytes | bytearray | memoryview) -> None:
        if stream.queue is None:
            stream.queue = deque()
        stream.queue.append(memoryview(data))
        stream.queued_bytes += len(data)
        self._queued_bytes += len(data)
        self.send_capacity -= len(data)

    def _send_queued(self, stream: Stream) -> None:
        """Send of a stream what the windows let out, unless it is in line; then put it where it waits."""
        if stream.stream_id in self._waiting:
            return
        while self._send_frame(stream):
            pass
        if stream.queue:
            self._wait(stream)

    def _send_frame(self, stream: Stream) -> bool:
        """Send one DATA frame; False if nothing is queued or a window is closed."""
        size = min(stream.send_window, self._send_window, self.peer.max_frame_bytes)
        if not stream.queue or size <= 0:
            return False
        data = stream.queue.popleft()
        cut = len(data) > size
        if cut:
            stream.queue.appendleft(data[size:])
            data = data[:size]
        stream.send_window -= len(data)
        self._send_window -= len(data)
        stream.queued_bytes -= len(data)
        self._queued_bytes -= len(data)
        self.frames += 1
        if cut and size <= _TINY_FRAME_BYTES_MAX:
            self._tiny_frames += 1
        else:
            stream.blocked_since = None
        self.output += (pack_head(len(data) << 8 | FrameType.DATA, 0, stream.stream_id), data)
        return True

    def _wait(self, stream: Stream) -> None:
        if stream.blocked_since is None:
            stream.blocked_since = self.now
        if stream.send_window > 0 and stream.stream_id not in self._waiting:
            self._waiting[stream.stream_id] = stream

    def _wake(self, stream: Stream, events: list[Event]) -> None:
        """A stream's own window was opened."""
        if stream.queue:
            self._send_queued(stream)
            self._report_if_sent(stream, events)

    def send_waiting(self, events: list[Event]) -> None:
        """Let streams send one frame each in their turn, until the connection's window is closed, or nobody waits, or it was much."""
        frames_max = self.frames + _WAITING_FRAMES_MAX
        while self._waiting and self._send_window > 0 and self.frames < frames_max:
            stream = next(iter(self._waiting.values()))
            del self._waiting[stream.stream_id]
            self._send_frame(stream)
            if stream.queue:
                self._wait(stream)
            else:
                self._report_if_sent(stream, events)
        self.backlogged = bool(self._waiting) and self._send_window > 0

    def _report_if_sent(self, stream: Stream, events: list[Event]) -> None:
        if stream.queue:
            return
        ended = stream.trailers is not None
        if ended:
            self._finish(stream)
        events.append(DataSent(stream.stream_id, ended))

    def _finish(self, stream: Stream) -> None:
        """Send the trailer section and close the stream."""
        assert stream.trailers is not None
        self._send_block(stream.stream_id, stream.trailers, end_stream=True)
        self._streams.close(stream.stream_id)
        if stream.state is StreamState.OPEN:
            # RFC 9113 §8.1: the rest of the request is not needed.
            self.refuse(stream.stream_id, ErrorCode.NO_ERROR)
