"""Frame handling off the fast path: header blocks, requests, stream states, token buckets.

`receiver` splits the input into frames and passes them to `_handle` one by one. It passes DATA
payloads to `_pass_data` as they arrive, so bodies are never reassembled here. Errors are raised
where they are detected: `_reset_stream` handles stream errors, `connection` handles connection
errors.

Processing that costs more than the length of a frame suggests moves `_stop`, the position in the
chunk where the current slice of work ends.
"""

from collections.abc import Callable

from pixy.http2 import frames
from pixy.http2.blocks import HeaderBlock
from pixy.http2.errors import ErrorCode, Http2ConnectionError, Http2StreamError
from pixy.http2.events import DataReceived, Event, RequestReceived, StreamReset, TrailersReceived
from pixy.http2.flow import ReceiveWindow
from pixy.http2.frames import ACK, END_STREAM, STREAM_ID_MAX, Frame, FrameType
from pixy.http2.headers import HeaderReader, RequestHeaders
from pixy.http2.hpack import Field
from pixy.http2.options import Options
from pixy.http2.sender import Sender
from pixy.http2.settings import read_settings
from pixy.http2.streams import FRAME_ACTIONS, UNANSWERED, FrameAction, Stream, StreamState, StreamTable
from pixy.http2.token_buckets import Cost, TokenBuckets

DRAIN_PING = b"pixydran"
"""Payload of the PING whose acknowledgement ends the first phase of a drain."""

BLOCK_WORK = 64
"""Work charged for an uncached header block, in bytes on top of its length."""
_STREAM_WORK = 4
"""Work charged for a stream that new settings affect, in bytes."""

_GOAWAY_BYTES_MIN = 8
_LIMIT_CODES = (ErrorCode.REFUSED_STREAM, ErrorCode.ENHANCE_YOUR_CALM)
_SETTINGS_PER_TOKEN = 32


class FrameHandler:
    """Handles the frames of a connection.

    Args:
        streams: streams of the connection.
        window: receive window of the connection.
        sender: outbound path.
        options: limits.
        now: seconds of the connection's clock.
    """

    __slots__ = (
        "_buckets",
        "_data_ends",
        "_data_stream",
        "_headers",
        "_max_streams",
        "_options",
        "_sender",
        "_stop",
        "_streams",
        "_window",
        "block",
        "data_left",
        "drain_answered",
        "last_accepted_id",
        "last_frame_at",
        "now",
        "settings_acked",
        "settings_received",
    )

    def __init__(
        self, streams: StreamTable, window: ReceiveWindow, sender: Sender, options: Options, now: float
    ) -> None:
        self._streams = streams
        self._window = window
        self._sender = sender
        self._options = options
        self._headers = HeaderReader(options.max_header_list_bytes)
        self._buckets = TokenBuckets(options.token_buckets, now)
        self.now = now
        # Time at which the last frame was complete.
        self.last_frame_at = now
        # True once the client's first SETTINGS have arrived, and once it has acknowledged ours.
        self.settings_received = False
        self.settings_acked = False
        # DATA frame whose payload is being passed on: its stream (None if it is discarded), the
        # bytes still to come, and its END_STREAM flag.
        self._data_stream: Stream | None = None
        self.data_left = 0
        self._data_ends = False
        # Position in the chunk at which this slice of work ends. Extra work moves it back.
        self._stop = 0
        # The incomplete header block, if there is one.
        self.block: HeaderBlock | None = None
        # Invariant: no stream is opened beyond this number of active streams.
        self._max_streams = options.max_concurrent_streams
        # Last stream that is accepted; None while all are.
        self.last_accepted_id: int | None = None
        # True once the client has acknowledged the PING of a drain.
        self.drain_answered = False

    def refuse_new_streams(self) -> int:
        """Ignore streams that the client opens from now on; returns the last accepted stream id."""
        if self.last_accepted_id is None:
            self.last_accepted_id = self.last_stream_id
            self._max_streams = 0
        return self.last_accepted_id

    @property
    def last_stream_id(self) -> int:
        """Last stream that was or is processed, 0 if there is none."""
        return max(self._streams.next_id - 2, 0) if self.last_accepted_id is None else self.last_accepted_id

    def release(self) -> None:
        """Free all received data after a connection error."""
        self.block = self._data_stream = None
        self.data_left = 0
        self._headers = HeaderReader(self._options.max_header_list_bytes)

    def refund_reset(self) -> None:
        """See `Http2Connection.refund_reset`."""
        self._buckets.refund(Cost.RESET)

    # --- frames -----------------------------------------------------------------------------------

    def _handle(self, frame: Frame, events: list[Event]) -> None:
        if self.block is not None:
            self.block.add(frame)
            self._maybe_end_block(frame, events)
            return
        if not self.settings_received and (frame.type != FrameType.SETTINGS or frame.flags & ACK):
            raise _protocol_error(f"frame of type {frame.type} before the first SETTINGS")
        handler = _HANDLERS.get(frame.type)
        if handler is None:
            self._spend(Cost.OVERHEAD)
            return
        frames.check_head(FrameType(frame.type), frame.stream_id, len(frame.payload))
        handler(self, frame, events)

    def _admit(self, frame_type: FrameType, stream_id: int) -> bool:
        """True if the state of the stream permits the frame, False if the frame is to be ignored.

        Raises:
            Http2ConnectionError, Http2StreamError: the state does not permit the frame.
        """
        state = self._streams.state(stream_id)
        action = FRAME_ACTIONS[frame_type][state]
        if action is FrameAction.TAKE:
            return True
        reason = f"{frame_type.name} on stream {stream_id}, which is {state.name}"
        if action is FrameAction.PROTOCOL_ERROR:
            raise _protocol_error(reason)
        if action is FrameAction.CONNECTION_STREAM_CLOSED:
            raise Http2ConnectionError(ErrorCode.STREAM_CLOSED, reason)
        if action is FrameAction.STREAM_CLOSED:
            raise Http2StreamError(stream_id, ErrorCode.STREAM_CLOSED, reason)
        self._spend(Cost.OVERHEAD)
        return False

    # --- requests ---------------------------------------------------------------------------------

    def _handle_headers(self, frame: Frame, events: list[Event]) -> None:
        self.block = HeaderBlock(frame, self._options, self.now)
        self._maybe_end_block(frame, events)

    def _maybe_end_block(self, frame: Frame, events: list[Event]) -> None:
        """Process the open header block if the frame is its last one."""
        block = self.block
        assert block is not None
        encoded = block.complete(frame)
        if encoded is None:
            return
        self.block = None
        self._stop -= BLOCK_WORK + len(encoded)
        stream_id = block.stream_id
        if stream_id >= self._streams.next_id and stream_id & 1:
            self._open_request(block, encoded, events)
            return
        # Decode even if the section is discarded: the dynamic table must stay in step with the
        # peer's.
        fields = self._headers.read(encoded)
        if self._admit(FrameType.HEADERS, stream_id):
            self._end_with_trailers(block, fields, events)

    def _open_request(self, block: HeaderBlock, encoded: bytes, events: list[Event]) -> None:
        stream_id = block.stream_id
        self._streams.mark_used(stream_id)
        if self.last_accepted_id is not None:
            self._headers.read(encoded)
            self._streams.remember_reset(stream_id)
            return
        request, varying_field = self._headers.request(stream_id, encoded)
        if block.depends_on == stream_id:
            raise Http2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "stream depends on itself")
        if len(self._streams.active) >= self._max_streams:
            raise Http2StreamError(stream_id, ErrorCode.REFUSED_STREAM, "too many concurrent streams")
        if block.ends_stream:
            _check_content(stream_id, request.content_length, ended=True)
            self._streams.active[stream_id] = UNANSWERED
            events.append(RequestReceived(stream_id, request, b"", 0, 0, True, varying_field))
        else:
            self._open(stream_id, request, varying_field, events)

    def _open(
        self, stream_id: int, request: RequestHeaders, varying_field: Field | None, events: list[Event]
    ) -> None:
        """Open a stream whose body is still to come."""
        self._streams.active[stream_id] = Stream(
            stream_id,
            StreamState.OPEN,
            self._sender.peer.initial_window_bytes,
            ReceiveWindow(self._options.stream_window_bytes),
            request.content_length,
        )
        events.append(RequestReceived(stream_id, request, b"", 0, 0, False, varying_field))

    def _end_with_trailers(self, block: HeaderBlock, fields: list[Field], events: list[Event]) -> None:
        stream = self._streams.active[block.stream_id]
        if not block.ends_stream:
            reason = "HEADERS without END_STREAM inside a request"
            raise Http2StreamError(stream.stream_id, ErrorCode.PROTOCOL_ERROR, reason)
        _check_content(stream.stream_id, stream.content_left, ended=True)
        self._headers.trailers(stream.stream_id, fields)
        stream.end_request()
        events.append(TrailersReceived(stream.stream_id, fields))

    def _handle_padded_data(self, frame: Frame, events: list[Event]) -> None:
        data = frames.strip_padding(frame)
        length = len(frame.payload)
        self._begin_data(frame.stream_id, length, len(data), ends=bool(frame.flags & END_STREAM))
        if self._data_stream is not None:
            self._sender.replenish(self._data_stream, length - len(data))
        self.data_left = len(data)
        self._pass_data(data, 0, events)

    def _begin_data(self, stream_id: int, length: int, content: int, *, ends: bool) -> None:
        """Begin a DATA frame with `length` bytes of payload, `content` of which belong to the body.

        The caller sets `data_left`, even if this raises.
        """
        if not self._window.take(length):
            reason = f"DATA of {length} bytes exceeds the connection's window of {self._window.left}"
            raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, reason)
        # Discarded data is consumed at once.
        self._data_stream, self._data_ends = None, ends
        self._window.unannounced += length
        if not self._admit(FrameType.DATA, stream_id):
            return
        stream = self._streams.active[stream_id]
        assert stream.receive_window is not None
        if not stream.receive_window.take(length):
            reason = f"DATA of {length} bytes exceeds the stream's window of {stream.receive_window.left}"
            raise Http2StreamError(stream_id, ErrorCode.FLOW_CONTROL_ERROR, reason)
        if not content and not ends:
            self._spend(Cost.OVERHEAD)
        if stream.content_left is not None:
            stream.content_left -= content
            _check_content(stream_id, stream.content_left, ended=ends)
        self._window.unannounced -= length
        stream.unconsumed_bytes += length
        self._data_stream = stream

    def _pass_data(self, chunk: bytes, at: int, events: list[Event]) -> int:
        """Pass on the available payload of the current DATA frame; returns the end position."""
        stream, size = self._data_stream, min(self.data_left, len(chunk) - at)
        self.data_left -= size
        ended = self._data_ends and not self.data_left
        if stream is not None and (size or ended) and self._streams.active.get(stream.stream_id) is stream:
            if ended:
                stream.end_request()
            events.append(DataReceived(stream.stream_id, chunk, at, at + size, ended))
        if not self.data_left:
            self._data_stream = None
            self.last_frame_at = self.now
        return at + size

    # --- other frames -----------------------------------------------------------------------------

    def _handle_priority(self, frame: Frame, events: list[Event]) -> None:
        # RFC 9113 §5.3.2: priority signals are ignored.
        self._spend(Cost.OVERHEAD)
        if frames.read_uint32(frame.payload) & STREAM_ID_MAX == frame.stream_id:
            raise Http2StreamError(frame.stream_id, ErrorCode.PROTOCOL_ERROR, "stream depends on itself")

    def _handle_rst_stream(self, frame: Frame, events: list[Event]) -> None:
        if self._admit(FrameType.RST_STREAM, frame.stream_id):
            self._spend(Cost.RESET)
            self._sender.discard(frame.stream_id)
            events.append(StreamReset(frame.stream_id, frames.read_uint32(frame.payload), by_client=True))

    def _handle_settings(self, frame: Frame, events: list[Event]) -> None:
        if frame.flags & ACK:
            if frame.payload:
                raise Http2ConnectionError(
                    ErrorCode.FRAME_SIZE_ERROR, "SETTINGS acknowledgement with a payload"
                )
            self._spend(Cost.OVERHEAD)
            self.settings_acked = True
            return
        entries = read_settings(frame.payload)
        self._spend(Cost.SETTINGS, 1 + len(entries) // _SETTINGS_PER_TOKEN)
        self.settings_received = True
        self._sender.output.append(frames.frame(FrameType.SETTINGS, ACK, 0))
        self._stop -= _STREAM_WORK * len(self._streams.active)
        self._sender.apply_settings(entries, events)

    def _handle_ping(self, frame: Frame, events: list[Event]) -> None:
        if not frame.flags & ACK:
            self._spend(Cost.PING)
            self._sender.output.append(frames.ping(frame.payload, ack=True))
            return
        self._spend(Cost.OVERHEAD)
        if frame.payload == DRAIN_PING:
            self.drain_answered = True

    def _handle_goaway(self, frame: Frame, events: list[Event]) -> None:
        # The client will open no more streams; a server that never pushes opens none anyway.
        if len(frame.payload) < _GOAWAY_BYTES_MIN:
            raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {len(frame.payload)} bytes")
        self._spend(Cost.OVERHEAD)

    def _handle_window_update(self, frame: Frame, events: list[Event]) -> None:
        self._spend(Cost.OVERHEAD)
        if not frame.stream_id:
            self._sender.open_connection_window(frames.read_increment(frame), events)
        elif self._admit(FrameType.WINDOW_UPDATE, frame.stream_id):
            self._sender.open_stream_window(frame.stream_id, frames.read_increment(frame), events)

    def _refuse_frame(self, frame: Frame, events: list[Event]) -> None:
        raise _protocol_error(f"unexpected {FrameType(frame.type).name}")

    def _spend(self, cost: Cost, tokens: int = 1) -> None:
        self._buckets.spend(cost, self.now, self._sender.credited_frames, tokens)

    def _reset_stream(self, error: Http2StreamError, events: list[Event]) -> None:
        """Handle a stream error (RFC 9113 §5.4.2).

        It is charged like a reset by the client, which has provoked it.
        """
        if self._streams.state(error.stream_id) is StreamState.IDLE:
            # An idle stream cannot be reset.
            raise Http2ConnectionError(error.code, error.reason)
        # Refused streams are free of charge until the client knows our limit.
        if error.code is not ErrorCode.REFUSED_STREAM or self.settings_acked:
            self._spend(Cost.RESET)
        if self._sender.discard(error.stream_id) is not None:
            events.append(StreamReset(error.stream_id, error.code, by_client=False))
        self._sender.refuse(error.stream_id, error.code)
        if error.code in _LIMIT_CODES:
            self._sender.hit_limit(error.reason)


def _protocol_error(reason: str) -> Http2ConnectionError:
    return Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, reason)


def _check_content(stream_id: int, left: int | None, *, ended: bool) -> None:
    """Check the body's length against content-length (RFC 9113 §8.1.1)."""
    if left is not None and (left < 0 or (ended and left)):
        reason = "body length differs from content-length"
        raise Http2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, reason)


_HANDLERS: dict[int, Callable[[FrameHandler, Frame, list[Event]], None]] = {
    FrameType.DATA: FrameHandler._handle_padded_data,
    FrameType.HEADERS: FrameHandler._handle_headers,
    FrameType.PRIORITY: FrameHandler._handle_priority,
    FrameType.RST_STREAM: FrameHandler._handle_rst_stream,
    FrameType.SETTINGS: FrameHandler._handle_settings,
    FrameType.PUSH_PROMISE: FrameHandler._refuse_frame,
    FrameType.PING: FrameHandler._handle_ping,
    FrameType.GOAWAY: FrameHandler._handle_goaway,
    FrameType.WINDOW_UPDATE: FrameHandler._handle_window_update,
    FrameType.CONTINUATION: FrameHandler._refuse_frame,
}
