"""Inbound path of a connection: splits bytes, cut anywhere, into frames. `handler` has the frames'
semantics.

The fast path is `_take_fast`. It handles nearly all traffic: a HEADERS frame with a whole block and
one DATA frame with END_STREAM, both in the same chunk. Clients with many concurrent calls send all
HEADERS first and the DATA afterwards, so the two need not be adjacent. The fast path checks each
condition once, makes one event of both frames, and stops before any frame that does not meet the
conditions; `_take_frame` handles that one with all rules. Every condition that could change the
outcome is checked, so no rule exists twice.

DATA payloads are passed on as they arrive. All other frames are buffered until they are complete.

Work per call is bounded. `take` processes a given number of bytes, continues in the same chunk when
called again, and copies nothing to do so. Off the fast path, length is a poor measure of cost: a
frame handled by `_take_frame`, a response frame it releases, an uncached header block, and a stream
affected by new settings are charged extra, while DATA payloads, which are only passed on, are free.
A frame is never divided; a header block is the most expensive one.
"""

from pixy.http2.errors import ErrorCode, Http2ConnectionError, Http2StreamError
from pixy.http2.events import Event, RequestReceived
from pixy.http2.flow import ReceiveWindow
from pixy.http2.frames import (
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD_BYTES,
    PADDED,
    PREFACE,
    STREAM_ID_MAX,
    Frame,
    FrameType,
    unpack_head,
    unpack_short_head,
)
from pixy.http2.handler import BLOCK_WORK, FrameHandler
from pixy.http2.headers import Request
from pixy.http2.http1 import no_preface
from pixy.http2.options import Options
from pixy.http2.sender import Sender
from pixy.http2.streams import UNANSWERED, StreamTable

UNBOUNDED = 1 << 62
"""Unlimited work."""

_DATA = int(FrameType.DATA)
_LAST_DATA = _DATA << 8 | END_STREAM
_WHOLE_BLOCK = FrameType.HEADERS << 8 | END_HEADERS
"""Type and flags of the two frames of a request on the fast path."""

_FRAME_WORK = 32
"""Work charged for a frame off the fast path, in bytes; 15 bytes equal one microsecond of the
reference machine.
"""


class Receiver(FrameHandler):
    """Receives frames on all streams of a connection. See `FrameHandler` for the arguments."""

    __slots__ = ("_partial", "_partial_need", "_preface", "_rest", "_rest_at", "pending")

    def __init__(
        self, streams: StreamTable, window: ReceiveWindow, sender: Sender, options: Options, now: float
    ) -> None:
        super().__init__(streams, window, sender, options, now)
        # The rest of the client's preface that is still to come.
        self._preface = PREFACE
        # The start of an incomplete frame, and the length at which it can be processed. Invariant:
        # empty, or shorter than _partial_need; empty while data_left > 0.
        self._partial = bytearray()
        self._partial_need = 0
        # A partly processed chunk, and the position of the next frame in it. Invariant: while _rest
        # is not empty, _partial is empty and data_left is 0.
        self._rest = b""
        self._rest_at = 0
        # True if `take` can continue without new bytes.
        self.pending = False

    @property
    def buffered_bytes(self) -> int:
        """Bytes of an incomplete frame or header block, and of a partly processed chunk."""
        block = self.block.size if self.block is not None else 0
        return len(self._partial) + len(self._rest) - self._rest_at + block

    def take(self, chunk: bytes, now: float, events: list[Event], work: int) -> None:
        """Process new bytes after those left from earlier calls.

        Args:
            chunk: new bytes, possibly none.
            now: seconds of the connection's clock.
            events: list to append events to.
            work: bytes to process, at least 1; at least one frame is processed.

        Raises:
            Http2ConnectionError: the connection is over. Earlier frames of the chunk have taken
                effect.
        """
        self.now = self._sender.now = now
        if self._rest:
            chunk, at = (self._rest + chunk if chunk else self._rest), self._rest_at
        else:
            at = self._begin_chunk(chunk, events)
        self._stop = at + work
        end, sender = len(chunk), self._sender
        if sender.backlogged:
            before = sender.frames
            sender.send_waiting(events)
            self._stop -= _FRAME_WORK * (sender.frames - before)
        while at < end and at < self._stop and not sender.backlogged:
            if self.block is None and self.settings_received:
                at = self._take_requests(chunk, at, events)
                if at >= end or at >= self._stop:
                    break
            before = sender.frames
            at = self._take_frame(chunk, at, events)
            self._stop -= _FRAME_WORK * (1 + sender.frames - before)
        self._rest, self._rest_at = (chunk, at) if at < end else (b"", 0)
        self.pending = at < end or sender.backlogged

    def release(self) -> None:
        """See `FrameHandler`."""
        super().release()
        self._partial, self._rest = bytearray(), b""
        self.pending = False

    def check_invariants(self) -> None:
        """Assert the documented invariants."""
        assert not self._partial or len(self._partial) < self._partial_need
        assert not (self._partial and self.data_left)
        assert not self._rest or (
            self._rest_at < len(self._rest) and not self._partial and not self.data_left
        )
        open_streams = self._streams.active
        unconsumed = sum(stream.unconsumed_bytes for stream in open_streams.values())
        window = self._window
        assert window.left >= 0
        assert window.left + window.unannounced + unconsumed == window.size_bytes
        assert all(stream_id & 1 and stream_id < self._streams.next_id for stream_id in open_streams)
        assert UNANSWERED.queue is None
        assert UNANSWERED.unconsumed_bytes == 0
        self._headers.check_invariants()

    # --- frames -----------------------------------------------------------------------------------

    def _take_requests(self, chunk: bytes, at: int, events: list[Event]) -> int:
        """Process requests on the fast path; returns the position of the first frame that needs the
        slow path.
        """
        begun: dict[int, Request] = {}
        try:
            begins = at
            at = self._take_fast(chunk, at, begun, events)
            if at > begins:
                self.last_frame_at = self.now
        finally:
            for stream_id, (headers, varying_field) in begun.items():
                self._open(stream_id, headers, varying_field, events)
        return at

    def _take_fast(
        self,
        chunk: bytes,
        at: int,
        begun: dict[int, Request],
        events: list[Event],
    ) -> int:
        """The fast path: a whole header block in one frame and the whole body in another, in the
        same chunk.

        Incomplete requests are left in `begun`, as returned by `HeaderReader.request`; all complete
        ones are in `events` when this returns or raises.
        """
        cache, streams, window, end = self._headers.cache, self._streams, self._window, len(chunk)
        free_streams, max_body = self._max_streams - len(streams.active), self._options.max_frame_bytes
        make = tuple.__new__
        last_at = min(end - FRAME_HEAD_BYTES, self._stop - 1)
        before = left = window.left
        try:
            while at <= last_at:
                high, size, kind, stream_id = unpack_short_head(chunk, at)
                payload_at = at + FRAME_HEAD_BYTES
                next_at = payload_at + size
                if next_at > end or size > max_body or high:
                    break
                if kind == _LAST_DATA:
                    request = begun.get(stream_id)
                    if request is None or size > left:
                        break
                    headers, varying_field = request
                    promised = headers.content_length
                    if promised is not None and promised != size:
                        break
                    del begun[stream_id]
                    streams.active[stream_id] = UNANSWERED
                    left -= size
                    # Same as `RequestReceived(...)` in two thirds of the time: a named tuple's
                    # constructor is a Python function.
                    events.append(
                        make(
                            RequestReceived,
                            (stream_id, headers, chunk, payload_at, next_at, True, varying_field),
                        )
                    )
                elif kind == _WHOLE_BLOCK and stream_id == streams.next_id and free_streams > 0:
                    block = chunk[payload_at:next_at]
                    streams.next_id = stream_id + 2
                    free_streams -= 1
                    request = cache.get(block)
                    if request is not None:
                        begun[stream_id] = request
                    else:
                        self._stop -= BLOCK_WORK + size
                        if last_at >= self._stop:
                            last_at = self._stop - 1
                        try:
                            begun[stream_id] = self._headers.request(stream_id, block)
                        except Http2StreamError as error:
                            self._reset_stream(error, events)
                else:
                    break
                at = next_at
            return at
        finally:
            window.left -= before - left
            window.unannounced += before - left

    def _begin_chunk(self, chunk: bytes, events: list[Event]) -> int:
        """Process the end of whatever an earlier chunk began; returns the position of the first new
        frame.
        """
        at = 0
        if self._preface:
            at = min(len(self._preface), len(chunk))
            if chunk[:at] != self._preface[:at]:
                raise no_preface(PREFACE[: len(PREFACE) - len(self._preface)] + chunk)
            self._preface = self._preface[at:]
            if not self._preface:
                self._sender.greet()
        elif self.data_left:
            at = self._pass_data(chunk, 0, events)
        while self._partial and at < len(chunk):
            part = chunk[at : at + self._partial_need - len(self._partial)]
            self._partial += part
            at += len(part)
            if len(self._partial) >= self._partial_need:
                whole = bytes(self._partial)
                self._partial.clear()
                self._take_frame(whole, 0, events)
                if self.data_left:
                    at = self._pass_data(chunk, at, events)
        return at

    def _take_frame(self, chunk: bytes, at: int, events: list[Event]) -> int:
        """Process one frame, or its available part, with all rules; returns the position of the
        next one.
        """
        end = len(chunk)
        payload_at = at + FRAME_HEAD_BYTES
        if payload_at > end:
            return self._keep(chunk, at, FRAME_HEAD_BYTES)
        head, flags, stream_id = unpack_head(chunk, at)
        length, frame_type = head >> 8, head & 0xFF
        stream_id &= STREAM_ID_MAX
        if length > self._options.max_frame_bytes:
            reason = f"frame of {length} bytes, limit is {self._options.max_frame_bytes}"
            raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, reason)
        if (
            frame_type == _DATA
            and not flags & PADDED
            and stream_id
            and self.block is None
            and self.settings_received
        ):
            # Set first: the payload has to be skipped even if the frame is invalid.
            self.data_left = length
            try:
                self._begin_data(stream_id, length, length, ends=bool(flags & END_STREAM))
            except Http2StreamError as error:
                self._reset_stream(error, events)
            next_at = self._pass_data(chunk, payload_at, events)
            # The work is the frame itself, whatever its length.
            self._stop += next_at - payload_at
            return next_at
        if payload_at + length > end:
            return self._keep(chunk, at, FRAME_HEAD_BYTES + length)
        self.last_frame_at = self.now
        try:
            self._handle(Frame(frame_type, flags, stream_id, chunk[payload_at : payload_at + length]), events)
        except Http2StreamError as error:
            self._reset_stream(error, events)
        return payload_at + length

    def _keep(self, chunk: bytes, at: int, need: int) -> int:
        """Buffer the frame at `at` until `need` bytes of it are available."""
        self._partial += chunk[at:]
        self._partial_need = need
        return len(chunk)
