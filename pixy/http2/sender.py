"""Outbound path of a connection: all frames in order, subject to the peer's flow control (RFC 9113
§5.2).

Frames accumulate in `output` and leave with `take`, once per iteration of the event loop. Data that
exceeds a window waits in its stream. A stream blocked by its own window is woken by that window
alone. Streams blocked by the connection's window queue up and send one frame each in round-robin
order. So a large or stuck response delays no other, and no frame of the peer makes us iterate over
all streams, except a SETTINGS that changes the initial window size. A window that unblocks very
many streams releases them in portions: `backlogged` is true until `send_waiting` has sent them all.

Data that the peer does not take is bounded by `Options.output_bytes`; data beyond that is not
accepted. A peer that opens its windows by a few bytes at a time makes us send tiny frames
(CVE-2019-9511), which cost as much as any frame. So a tiny frame earns the peer no tokens (see
`token_buckets`) and does not count as progress.

The fast path is `maybe_respond`: a complete response that fits all windows becomes a single run of
bytes between constants.
"""

from collections import deque
from collections.abc import Sequence
from enum import Enum, auto

from pixy.http2.errors import ErrorCode
from pixy.http2.events import DataSent, Event
from pixy.http2.flow import ReceiveWindow, increase_window
from pixy.http2.frames import FrameType, headers, pack_head, rst_stream, window_update
from pixy.http2.headers import ResponseTemplate
from pixy.http2.hpack import DEFAULT_TABLE_BYTES, EMPTY_TABLE
from pixy.http2.options import Options
from pixy.http2.settings import PeerSettings, Setting, our_preface
from pixy.http2.streams import UNANSWERED, Stream, StreamState, StreamTable

OUTPUT_LIMIT = "response larger than the output buffer's space"
"""Reason of a stream that was reset because its response did not fit `Options.output_bytes`."""
_FAST_PATH_CLOSED = -1
_WAITING_FRAMES_MAX = 128
"""Most frames that waiting streams send in one go: half a millisecond of work."""

_TINY_FRAME_BYTES_MAX = 127
"""A frame that was cut to this size or less by a window is a tiny frame.

Clients open their windows in steps of kilobytes, or of half a window if that is small. A small
frame that no window has cut is not a tiny frame: the layer above had no more to send.
"""


class Delivery(Enum):
    """Outcome of a send."""

    SENT = auto()
    """The data is in the output."""
    QUEUED = auto()
    """The data waits for a window; `DataSent` or `StreamReset` follows."""
    GONE = auto()
    """The stream is closed, or was reset because the peer takes too little."""


class Sender:
    """Sends frames on all streams of a connection.

    Args:
        streams: streams of the connection.
        window: receive window of the connection, for its WINDOW_UPDATE frames.
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
        "greeting",
        "limits_hit",
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
        # Seconds of the connection's clock, as of the last input or tick.
        self.now = 0.0
        # Our preface (RFC 9113 §3.4), until it is sent: before all other frames, and not before the
        # client's preface, in place of which a request of HTTP/1 may come.
        self.greeting = our_preface(options)
        # Bytes for the transport.
        self.output: list[bytes | memoryview] = []
        # Response frames so far, and how many of them were tiny. A complete response on the fast
        # path counts as one.
        self.frames = self._tiny_frames = 0
        # Streams that were reset because of an error.
        self.resets = 0
        # How often streams met a limit since the layer above asked last, by reason.
        self.limits_hit: dict[str, int] = {}
        # Send window of the connection.
        self._send_window = self.peer.initial_window_bytes
        # Data bytes accepted at present. Invariant: at most _output_bytes together with data that
        # is queued, in the output or in the transport's buffer.
        self._output_bytes = self.send_capacity = options.output_bytes
        # Data bytes in the queues of all streams.
        self._queued_bytes = 0
        # Streams with queued data and an open window of their own, waiting for the connection's
        # window.
        self._waiting: dict[int, Stream] = {}
        # True if waiting streams may have more to send although the window is open: `send_waiting`
        # stopped half-way.
        self.backlogged = False
        # Prepended to the next header block (RFC 9113 §4.3.1).
        self._table_update = b""
        # Largest body that qualifies for the fast path. Invariant: as set by `_set_fast_max`.
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
        """Response frames so far that refill the peer's token buckets."""
        return self.frames - self._tiny_frames

    # --- responses --------------------------------------------------------------------------------

    def maybe_respond(self, stream_id: int, template: ResponseTemplate, body: bytes) -> bool:
        """Send a complete response if it takes one DATA frame and nothing blocks it; else do
        nothing.

        Returns:
            True if it was SENT.
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
            # The stream id separates byte strings that are the same for all responses of this size.
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

    def maybe_respond_all(
        self, stream_ids: Sequence[int], template: ResponseTemplate, bodies: Sequence[bytes]
    ) -> int:
        """Send complete responses as `maybe_respond` does, up to the first that it would not send.

        Returns:
            How many were SENT.
        """
        open_streams, output, largest = self._open, self.output, self._fast_max
        room = before = min(self._send_window, self.send_capacity)
        headers_start, headers_to_data, trailers_start, trailers = (
            template.headers_start,
            template.headers_to_data,
            template.trailers_start,
            template.trailers,
        )
        begun = len(output)
        for stream_id, body in zip(stream_ids, bodies, strict=True):
            size = len(body)
            if size > largest or size > room or open_streams.get(stream_id) is not UNANSWERED:
                break
            del open_streams[stream_id]
            room -= size
            output.append(
                stream_id.to_bytes(4, "big").join(
                    (headers_start, headers_to_data(size), body + trailers_start, trailers)
                )
            )
        sent = len(output) - begun
        self._send_window -= before - room
        self.send_capacity -= before - room
        self.frames += sent
        return sent

    def respond(self, stream_id: int, template: ResponseTemplate, body: bytes) -> Delivery:
        """Send a complete response.

        Args:
            stream_id: stream of the request.
            template: header and trailer section.
            body: sent as one DATA frame, or as many as the windows demand.

        Returns:
            GONE also if the body exceeds the send capacity; the stream was reset then.
        """
        if self.maybe_respond(stream_id, template, body):
            return Delivery.SENT
        if self.send_headers(stream_id, template.headers) is Delivery.GONE:
            return Delivery.GONE
        if self.send_data(stream_id, body) is Delivery.GONE:
            return Delivery.GONE
        return self.send_trailers(stream_id, template.trailers)

    def send_headers(self, stream_id: int, block: bytes) -> Delivery:
        """Begin a response. See `Http2Connection.send_headers`."""
        stream = self._own(stream_id)
        if stream is None:
            return Delivery.GONE
        assert not stream.headers_sent, f"a second header section on stream {stream_id}"
        stream.headers_sent = True
        self._send_block(stream_id, block, end_stream=False)
        return Delivery.SENT

    def send_data(self, stream_id: int, data: bytes | bytearray | memoryview) -> Delivery:
        """Send part of a body. See `Http2Connection.send_data`."""
        stream = self._own(stream_id)
        if stream is None:
            return Delivery.GONE
        assert stream.headers_sent, f"data in front of the header section on stream {stream_id}"
        assert stream.trailers is None, f"data behind the end of stream {stream_id}"
        if len(data) > self.send_capacity:
            self.reset(stream_id, ErrorCode.ENHANCE_YOUR_CALM)
            self.hit_limit(OUTPUT_LIMIT)
            return Delivery.GONE
        if data:
            self._queue(stream, data)
            self._send_queued(stream)
        return Delivery.QUEUED if stream.queue else Delivery.SENT

    def send_trailers(self, stream_id: int, block: bytes) -> Delivery:
        """End a response. See `Http2Connection.send_trailers`."""
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
        """Reset a stream; False if it is closed."""
        if self.discard(stream_id) is None:
            return False
        self.refuse(stream_id, code)
        return True

    def refuse(self, stream_id: int, code: int) -> None:
        """Send RST_STREAM for a stream that is not active, and ignore later frames on it."""
        self.resets += code != ErrorCode.NO_ERROR
        self.output.append(rst_stream(stream_id, code))
        self._streams.remember_reset(stream_id)

    def hit_limit(self, reason: str) -> None:
        """Count a stream that met a limit."""
        self.limits_hit[reason] = self.limits_hit.get(reason, 0) + 1

    def discard(self, stream_id: int) -> Stream | None:
        """Close a stream and drop its queue; returns the stream, None if it was closed."""
        stream = self._streams.close(stream_id)
        if stream is not None and stream.queue:
            self._queued_bytes -= stream.queued_bytes
            self.send_capacity += stream.queued_bytes
            self._waiting.pop(stream_id, None)
        return stream

    def discard_all(self) -> None:
        """Close all streams after the end of input."""
        for stream_id in list(self._open):
            self.discard(stream_id)
        self._receive_window.unannounced = 0

    def control(self, frame: bytes) -> None:
        """Send a frame on stream 0."""
        self.greet()
        self.output.append(frame)

    def greet(self) -> None:
        """Send our preface, once."""
        if self.greeting:
            self.output.append(self.greeting)
            self.greeting = b""

    def replenish(self, stream: Stream, size: int) -> None:
        """Replenish the receive windows of a stream and of the connection by bytes that have left
        memory.
        """
        assert size <= stream.unconsumed_bytes, (
            f"{size} bytes consumed of {stream.unconsumed_bytes} on stream {stream.stream_id}"
        )
        self.replenish_connection(stream, size)
        self.replenish_stream(stream, size)

    def replenish_connection(self, stream: Stream, size: int) -> None:
        """Replenish the connection's receive window by bytes that stay in memory: the client may
        send as many on other streams, not on this one.
        """
        assert size <= stream.unconsumed_bytes
        stream.unconsumed_bytes -= size
        self._receive_window.unannounced += size

    def replenish_stream(self, stream: Stream, size: int) -> None:
        """Replenish a stream's receive window by bytes that only the connection's got back."""
        if stream.receive_window is not None:
            stream.receive_window.unannounced += size
            due = stream.receive_window.due()
            if due:
                self.output.append(window_update(stream.stream_id, due))

    # --- output -----------------------------------------------------------------------------------

    def take(self, most: int) -> bytes:
        """Bytes that can be sent now, which belong to the caller: all, or if these are more than
        `most`, at least as many. The rest stays in `output`.
        """
        due = self._receive_window.due()
        if due:
            self.output.append(window_update(0, due))
        if not self.output:
            return b""
        left = 0
        if self._output_bytes - self._queued_bytes - self.send_capacity > most:
            rest = self._cut_output(most)
            left = sum(map(len, rest))
            taken, self.output = b"".join(self.output), rest
        else:
            taken = b"".join(self.output)
            self.output.clear()
        self.send_capacity = max(self._output_bytes - self._queued_bytes - left, 0)
        return taken

    def _cut_output(self, most: int) -> list[bytes | memoryview]:
        """Cut the output behind as many bytes; returns the rest."""
        for at, part in enumerate(self.output):
            most -= len(part)
            if most <= 0:
                rest = self.output[at + 1 :]
                del self.output[at + 1 :]
                return rest
        return []

    def set_unwritten(self, size: int) -> None:
        """See `Http2Connection.set_unwritten`."""
        self.send_capacity = max(self.send_capacity - size, 0)

    # --- the limits of the peer -------------------------------------------------------------------

    def open_connection_window(self, increment: int, events: list[Event]) -> None:
        """The peer opened the connection's send window.

        Raises:
            Http2ConnectionError: FLOW_CONTROL_ERROR if the window overflows.
        """
        self._send_window = increase_window(self._send_window, increment, 0)
        self.send_waiting(events)

    def open_stream_window(self, stream_id: int, increment: int, events: list[Event]) -> None:
        """The peer opened the send window of an active stream.

        Raises:
            Http2StreamError: FLOW_CONTROL_ERROR if the window overflows.
        """
        stream = self._own(stream_id)
        assert stream is not None
        stream.send_window = increase_window(stream.send_window, increment, stream_id)
        self._wake(stream, events)

    def apply_settings(self, entries: list[tuple[int, int]], events: list[Event]) -> None:
        """Apply the peer's SETTINGS.

        Raises:
            Http2ConnectionError: FLOW_CONTROL_ERROR if a stream's window overflows (RFC 9113
                §6.9.2).
        """
        before = self.peer.initial_window_bytes
        self.peer.apply(entries)
        if any(
            setting == Setting.HEADER_TABLE_SIZE and value < DEFAULT_TABLE_BYTES for setting, value in entries
        ):
            # Our table is and stays empty: size 0 is within every limit that the peer may set
            # later.
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
        """Streams whose data has been blocked since that time or longer."""
        if not self._queued_bytes:
            return []
        return [
            stream_id
            for stream_id, stream in self._open.items()
            if stream.blocked_since is not None and stream.blocked_since <= since
        ]

    def check_invariants(self) -> None:
        """Assert the documented invariants."""
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

    # --- internals --------------------------------------------------------------------------------

    def _own(self, stream_id: int) -> Stream | None:
        return self._streams.materialize(stream_id, self.peer.initial_window_bytes)

    def _set_fast_max(self) -> None:
        """Recompute the largest body for the fast path: none while a table size update is pending.

        Waiting streams need no check, because the connection's window is closed while there are
        any.
        """
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
        """Send as much of a stream's queue as the windows allow, unless it is waiting; then let it
        wait for the window it needs.
        """
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
        """Send after a stream's own window was opened."""
        if stream.queue:
            self._send_queued(stream)
            self._report_if_sent(stream, events)

    def send_waiting(self, events: list[Event]) -> None:
        """Let waiting streams send one frame each, round-robin, until the connection's window is
        closed, none is waiting, or the portion is used up.
        """
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
