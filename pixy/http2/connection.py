"""One HTTP/2 connection, server side (RFC 9113). Sans-I/O; time is an argument.

The I/O layer owns the transport and has four duties: it feeds received bytes to `receive`, acts on
the events, calls `tick` about once a second, and once per iteration of its event loop writes the
result of `take_output` and closes the transport once `closed` is true. While the transport's buffer
is full it neither takes output nor reads, so a client that stops reading cannot grow our buffers.

`receiver` is the inbound path and `sender` the outbound path; this module has errors, timeouts and
shutdown. Nothing here knows gRPC.

A stream error resets its stream; a connection error sends GOAWAY and closes the connection (RFC
9113 §5.4). Frames that precede an error in the same chunk take effect. The stream of an event may
already be closed when the event is handled, because a later frame of the chunk has reset it;
whatever is sent on it then is GONE.
"""

from collections.abc import Callable, Sequence

from pixy.http2 import frames
from pixy.http2.errors import ErrorCode, Http2ConnectionError
from pixy.http2.events import ConnectionTerminated, Event, StreamReset
from pixy.http2.flow import ReceiveWindow
from pixy.http2.frames import STREAM_ID_MAX
from pixy.http2.handler import DRAIN_PING
from pixy.http2.headers import encode_headers
from pixy.http2.hpack import Field
from pixy.http2.http1 import HTTP1_REQUEST, http1_answer
from pixy.http2.liveness import Due, Liveness
from pixy.http2.options import Options
from pixy.http2.receiver import UNBOUNDED, Receiver
from pixy.http2.sender import Delivery, Sender
from pixy.http2.streams import StreamTable

_KEEPALIVE_PING = b"pixykeep"
_DEBUG_BYTES_MAX = 256


class Http2Connection:
    """One connection. Its output starts with our SETTINGS.

    They follow the client's preface. A client that begins with an HTTP/1 request gets an answer of
    HTTP/1 as the whole output.

    Args:
        options: limits.
        now: seconds of a monotonic clock.
    """

    __slots__ = (
        "_announced",
        "_closed",
        "_draining",
        "_liveness",
        "_options",
        "_receiver",
        "_sender",
        "_streams",
        "maybe_respond",
        "maybe_respond_all",
        "respond",
    )

    def __init__(self, options: Options, now: float) -> None:
        window = ReceiveWindow(options.connection_window_bytes)
        self._options = options
        self._streams = StreamTable(window)
        self._sender = Sender(self._streams, window, options)
        self._receiver = Receiver(self._streams, window, self._sender, options, now)
        self._liveness = Liveness(options, now)
        # True once the client was told to open no more streams, and once a drain has begun.
        self._announced = self._draining = False
        # True once a connection error or `terminate` has closed the connection.
        self._closed = False
        # Send a complete response: see `Sender`. Bound here because every request calls them.
        self.respond = self._sender.respond
        self.maybe_respond = self._sender.maybe_respond
        self.maybe_respond_all = self._sender.maybe_respond_all

    # --- state ------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """True when nothing more is received or sent: write the remaining output, then close the
        transport.
        """
        return self._closed or (self._receiver.last_accepted_id is not None and not self._streams.active)

    @property
    def pending(self) -> bool:
        """True if received bytes are unprocessed; `receive` continues with them."""
        return self._receiver.pending and not self.closed

    @property
    def data_expected(self) -> int:
        """Bytes still to come of the DATA frame that the input has been cut in."""
        return self._receiver.data_left

    @property
    def running(self) -> int:
        """Number of active streams."""
        return len(self._streams.active)

    @property
    def queued_bytes(self) -> int:
        """Bytes of responses that wait for the client's flow-control windows."""
        return self._sender.queued_bytes

    @property
    def buffered_bytes(self) -> int:
        """Bytes in memory: incomplete or unprocessed input, and responses that the client has not
        taken.
        """
        return self._sender.buffered_bytes + self._receiver.buffered_bytes

    @property
    def send_capacity(self) -> int:
        """Largest response body accepted at present.

        It grows with `take_output`, as far as the client's windows and the transport allow.
        """
        return self._sender.send_capacity

    @property
    def resets(self) -> int:
        """Number of streams that we have reset, except those reset because the rest of the request
        is not needed.
        """
        return self._sender.resets

    def take_limits_hit(self) -> dict[str, int]:
        """Counts of streams refused or reset at a limit since the last call, by reason."""
        taken = self._sender.limits_hit
        if taken:
            self._sender.limits_hit = {}
        return taken

    # --- input ------------------------------------------------------------------------------------

    def receive(self, chunk: bytes, now: float, work: int = UNBOUNDED) -> list[Event]:
        """Process bytes from the transport, which may be split anywhere.

        Args:
            chunk: referenced by the events, never modified. Empty to continue with `pending` input.
            now: seconds of the clock.
            work: bytes to process before yielding to other connections. Small frames count as more
                than their length. The rest stays `pending`.

        Returns:
            Events in order. A client error is an event too; nothing is raised.
        """
        events: list[Event] = []
        if self._closed:
            return events
        try:
            self._receiver.take(chunk, now, events, work)
            while work == UNBOUNDED and self._receiver.pending:
                self._receiver.take(b"", now, events, work)
            if self._draining and self._receiver.drain_answered:
                self._end_drain()
        except Http2ConnectionError as error:
            self._fail(error, events)
        return events

    def replenish(self, stream_id: int, size: int) -> None:
        """Replenish the stream's and the connection's receive windows by bytes of a `DataReceived`
        that were consumed.

        For a closed stream this has already happened when it was closed.
        """
        stream = self._streams.active.get(stream_id)
        if stream is not None:
            self._sender.replenish(stream, size)

    def replenish_connection(self, stream_id: int, size: int) -> None:
        """Replenish the connection's receive window only. `replenish_stream` does the rest."""
        stream = self._streams.active.get(stream_id)
        if stream is not None:
            self._sender.replenish_connection(stream, size)

    def replenish_stream(self, stream_id: int, size: int) -> None:
        """Replenish a stream's receive window by bytes that only the connection's got back."""
        stream = self._streams.active.get(stream_id)
        if stream is not None:
            self._sender.replenish_stream(stream, size)

    def refund_reset(self) -> None:
        """Refund the token of a client's reset, which a `StreamReset` has reported: it was no sign
        of an attack.
        """
        self._receiver.refund_reset()

    def tick(self, now: float) -> list[Event]:
        """Handle expired timeouts. To be called about once a second."""
        events: list[Event] = []
        if self.closed:
            return events
        receiver = self._receiver
        receiver.now = self._sender.now = now
        due = self._liveness.tick(
            now,
            settled=receiver.settings_acked,
            last_frame_at=receiver.last_frame_at,
            block_since=receiver.block.since if receiver.block else None,
            running=self.running,
            requests=receiver.last_stream_id,
        )
        try:
            _DUE_HANDLERS[due](self)
        except Http2ConnectionError as error:
            self._fail(error, events)
            return events
        if self._options.send_stall_s:
            for stream_id in self._sender.stalled(now - self._options.send_stall_s):
                self._sender.reset(stream_id, ErrorCode.CANCEL)
                events.append(StreamReset(stream_id, ErrorCode.CANCEL, by_client=False))
        return events

    # --- output -----------------------------------------------------------------------------------

    def send_headers(self, stream_id: int, fields: Sequence[Field]) -> Delivery:
        """Begin a response.

        Raises:
            ValueError: a field would be malformed.
        """
        return self._sender.send_headers(stream_id, encode_headers(fields))

    def send_data(self, stream_id: int, data: bytes | bytearray | memoryview) -> Delivery:
        """Send part of a response body. Send the next part when this one is no longer QUEUED."""
        return self._sender.send_data(stream_id, data)

    def send_trailers(self, stream_id: int, fields: Sequence[Field]) -> Delivery:
        """End a response. Without a preceding `send_headers` the fields are the whole response and
        begin with `:status`.

        Raises:
            ValueError: a field would be malformed.
        """
        return self._sender.send_trailers(stream_id, encode_headers(fields))

    def reset(self, stream_id: int, code: ErrorCode) -> bool:
        """Reset a stream before its response is complete; False if it is closed.

        No event follows.
        """
        return self._sender.reset(stream_id, code)

    def take_output(self, most: int = UNBOUNDED) -> bytes:
        """Bytes to be written: all of them, or about `most` if these are more; `has_output` then.

        When all were taken, data that was SENT counts as handed to the transport.
        """
        return self._sender.take(most)

    @property
    def has_output(self) -> bool:
        """True if there are bytes to be written."""
        return bool(self._sender.output)

    def set_unwritten(self, size: int) -> None:
        """Report how much earlier output is still in the transport's buffer.

        It counts as not taken by the client until the next `take_output`.
        """
        self._sender.set_unwritten(size)

    # --- shutdown ---------------------------------------------------------------------------------

    def announce_drain(self) -> None:
        """Send the first GOAWAY of a drain (RFC 9113 §6.8).

        Clients then open new streams elsewhere. Streams that they open here nevertheless are
        served.
        """
        if not self._announced and not self._closed:
            self._announced = True
            self._sender.control(frames.goaway(STREAM_ID_MAX, ErrorCode.NO_ERROR))

    def begin_drain(self, now: float) -> None:
        """Shut down gracefully: finish active streams and accept no new ones (RFC 9113 §6.8).

        The first GOAWAY accepts every request that the client has sent before it reads that frame;
        the answer to the PING behind it tells when this is the case. Then the final GOAWAY follows,
        and the connection is `closed` after the last response.

        Args:
            now: seconds of the clock.
        """
        if self._draining or self._closed:
            return
        self._draining = True
        self._liveness.drain_began_at = now
        self.announce_drain()
        self._sender.control(frames.ping(DRAIN_PING, ack=False))

    def terminate(self, code: ErrorCode, reason: str) -> None:
        """Close the connection at once: GOAWAY is its last output and all streams are closed. No
        event follows.
        """
        if not self._closed:
            self._fail(Http2ConnectionError(code, reason), [])

    def _end_drain(self) -> None:
        """Send the final GOAWAY of a drain."""
        if self._receiver.last_accepted_id is None:
            self._liveness.drain_began_at = None
            self._sender.control(frames.goaway(self._receiver.refuse_new_streams(), ErrorCode.NO_ERROR))

    def _fail(self, error: Http2ConnectionError, events: list[Event]) -> None:
        """Close the connection with an error (RFC 9113 §5.4.1)."""
        self._closed = True
        self._sender.discard_all()
        if error.reason == HTTP1_REQUEST and self._sender.greeting:
            self._sender.output = [http1_answer(self._options.http1_hint)]
        else:
            debug = error.reason.encode()[:_DEBUG_BYTES_MAX]
            self._sender.control(frames.goaway(self._receiver.last_stream_id, error.code, debug))
        # The client may take long to read the GOAWAY, and there may be many such clients: free the
        # memory now.
        self._receiver.release()
        self._streams.release()
        events.append(ConnectionTerminated(error.code, error.reason))

    def _send_keepalive(self) -> None:
        self._sender.control(frames.ping(_KEEPALIVE_PING, ack=False))

    def _end_handshake(self) -> None:
        raise Http2ConnectionError(ErrorCode.SETTINGS_TIMEOUT, "handshake timeout")

    def _end_block(self) -> None:
        raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "header block timeout")

    def _end_dead(self) -> None:
        raise Http2ConnectionError(ErrorCode.NO_ERROR, "keepalive timeout")

    def _end_idleness(self) -> None:
        self.begin_drain(self._receiver.now)

    def check_invariants(self) -> None:
        """Assert the documented invariants."""
        self._sender.check_invariants()
        if not self._closed:
            self._receiver.check_invariants()


_DUE_HANDLERS: dict[Due, Callable[[Http2Connection], None]] = {
    Due.NOTHING: lambda _: None,
    Due.HANDSHAKE_TIMEOUT: Http2Connection._end_handshake,
    Due.HEADER_BLOCK_TIMEOUT: Http2Connection._end_block,
    Due.PING: Http2Connection._send_keepalive,
    Due.DEAD: Http2Connection._end_dead,
    Due.IDLE: Http2Connection._end_idleness,
    Due.DRAIN_TIMEOUT: Http2Connection._end_drain,
}
