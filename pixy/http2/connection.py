"""The server's side of one HTTP/2 connection (RFC 9113). Pure: bytes in; events and bytes out; time is an argument.

The shell around it owns the transport and does four things: it gives `receive` what the transport brought, acts on the events, calls
`tick` about once a second, and once per turn of its loop writes what `take_output` returns and closes the transport when `closed`.
While the transport's buffer is full it neither takes output nor reads, so that a client that does not read cannot make us buffer.

The way in is `receiver`, the way out `sender`; here are faults, time and the end. Nothing here knows gRPC.

A stream error resets its stream, a connection error sends GOAWAY and ends everything (RFC 9113 §5.4). What came before a fault in the
same chunk counts. An event's stream may be gone when the event is looked at, because a later frame of the chunk has reset it;
whatever is sent on it is GONE.
"""

from collections.abc import Callable, Sequence

from pixy.http2 import frames
from pixy.http2.errors import ErrorCode, Http2ConnectionError
from pixy.http2.events import ConnectionTerminated, Event, StreamReset
from pixy.http2.flow import ReceiveWindow
from pixy.http2.frames import STREAM_ID_MAX, FrameType
from pixy.http2.handler import DRAIN_PING
from pixy.http2.headers import encode_headers
from pixy.http2.hpack import Field
from pixy.http2.liveness import Due, Liveness
from pixy.http2.options import DEFAULT_WINDOW_BYTES, Options
from pixy.http2.receiver import UNBOUNDED, Receiver
from pixy.http2.sender import Delivery, Sender
from pixy.http2.settings import our_settings
from pixy.http2.streams import StreamTable

__all__ = ["Http2Connection"]

_KEEPALIVE_PING = b"pixykeep"
_DEBUG_BYTES_MAX = 256


class Http2Connection:
    """One connection. Its output holds our SETTINGS from the start.

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
        "respond",
    )

    def __init__(self, options: Options, now: float) -> None:
        window = ReceiveWindow(options.connection_window_bytes)
        self._options = options
        self._streams = StreamTable(window)
        self._sender = Sender(self._streams, window, options)
        self._receiver = Receiver(self._streams, window, self._sender, options, now)
        self._liveness = Liveness(options, now)
        # Whether the client was told to open no more streams, and whether a drain has begun.
        self._announced = self._draining = False
        # Whether a fault has ended everything.
        self._closed = False
        # Send a whole answer: see `Sender`. Bound here because they are called for every request.
        self.respond = self._sender.respond
        self.maybe_respond = self._sender.maybe_respond
        self._sender.control(frames.frame(FrameType.SETTINGS, 0, 0, our_settings(options)))
        if options.connection_window_bytes > DEFAULT_WINDOW_BYTES:
            increment = options.connection_window_bytes - DEFAULT_WINDOW_BYTES
            self._sender.control(frames.window_update(0, increment))

    # --- state ------------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Nothing is received or sent any more beyond the output: write it and close the transport."""
        return self._closed or (self._receiver.last_accepted_id is not None and not self._streams.active)

    @property
    def pending(self) -> bool:
        """Whether something received was not looked at: `receive` goes on with it."""
        return self._receiver.pending and not self.closed

    @property
    def data_expected(self) -> int:
        """Bytes that are still to come of the DATA frame in which the input has stopped."""
        return self._receiver.data_left

    @property
    def running(self) -> int:
        """Streams that are not closed."""
        return len(self._streams.active)

    @property
    def queued_bytes(self) -> int:
        """Bytes of answers that wait for the client's windows."""
        return self._sender.queued_bytes

    @property
    def buffered_bytes(self) -> int:
        """Bytes in memory: of input that is not whole or not looked at, and of answers that the client does not take."""
        return self._sender.buffered_bytes + self._receiver.buffered_bytes

    @property
    def send_capacity(self) -> int:
        """The largest answer that is accepted. `take_output` makes it larger, if the client's windows and the transport let it."""
        return self._sender.send_capacity

    @property
    def resets(self) -> int:
        """How many streams we have reset, other than to say that the rest of a request is not needed."""
        return self._sender.resets

    @property
    def client_max_header_list_bytes(self) -> int:
        """The largest header list that the client wants to see, with 32 bytes more for each field."""
        return self._sender.peer.max_header_list_bytes

    # --- the way in -------------------------------------------------------------------------------------------------

    def receive(self, chunk: bytes, now: float, work: int = UNBOUNDED) -> list[Event]:
        """Take bytes from the transport, cut anywhere.

        Args:
            chunk: kept by the events, never changed. Empty to go on with what is `pending`.
            now: seconds of the clock.
            work: bytes after which to stop, so that others have their turn. Small frames count as more than they have. What is
                left is `pending`.

        Returns:
            What happened, in order. A fault of the client is an event as well; nothing is raised.
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
        """Let the client send more: so many bytes that a `DataReceived` brought were consumed.

        For a stream that is closed this was done when it closed.
        """
        stream = self._streams.active.get(stream_id)
        if stream is not None:
            self._sender.replenish(stream, size)

    def replenish_connection(self, stream_id: int, size: int) -> None:
        """As `replenish` for all other streams: this one waits for `replenish_stream`."""
        stream = self._streams.active.get(stream_id)
        if stream is not None:
            self._sender.replenish_connection(stream, size)

    def replenish_stream(self, stream_id: int, size: int) -> None:
        """Let the client send so many bytes on a stream that were withheld."""
        stream = self._streams.active.get(stream_id)
        if stream is not None:
            self._sender.replenish_stream(stream, size)

    def refund_reset(self) -> None:
        """A reset by the client, which its `StreamReset` has told, was no sign of an attack: it does not count."""
        self._receiver.refund_reset()

    def tick(self, now: float) -> list[Event]:
        """Do what time demands. Call it about once a second."""
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

    # --- the way out ------------------------------------------------------------------------------------------------

    def send_headers(self, stream_id: int, fields: Sequence[Field]) -> Delivery:
        """Begin an answer.

        Raises:
            ValueError: a field would be malformed.
        """
        return self._sender.send_headers(stream_id, encode_headers(fields))

    def send_data(self, stream_id: int, data: bytes | bytearray | memoryview) -> Delivery:
        """Go on with an answer that has begun. Send the next part when this one is no longer QUEUED."""
        return self._sender.send_data(stream_id, data)

    def send_trailers(self, stream_id: int, fields: Sequence[Field]) -> Delivery:
        """End an answer; without `send_headers` before, the fields are the whole answer and begin with `:status`.

        Raises:
            ValueError: a field would be malformed.
        """
        return self._sender.send_trailers(stream_id, encode_headers(fields))

    def reset(self, stream_id: int, code: ErrorCode) -> bool:
        """End a stream without an answer, or in its middle; False if it is closed. No event follows."""
        return self._sender.reset(stream_id, code)

    def take_output(self) -> bytes:
        """Bytes to write, all that there are. What was SENT counts as handed to the transport from here on."""
        return self._sender.take()

    def set_unwritten(self, size: int) -> None:
        """So many bytes of the output are still with the transport, which wants no more: they count as not taken by the client until
        the next `take_output`."""
        self._sender.set_unwritten(size)

    # --- the end ----------------------------------------------------------------------------------------------------

    def announce_drain(self) -> None:
        """Send the first GOAWAY of a drain (RFC 9113 §6.8): clients open new streams elsewhere. Those that come nevertheless are served."""
        if not self._announced and not self._closed:
            self._announced = True
            self._sender.control(frames.goaway(STREAM_ID_MAX, ErrorCode.NO_ERROR))

    def begin_drain(self, now: float) -> None:
        """Let running calls finish and take no new ones (RFC 9113 §6.8).

        The first GOAWAY lets everything pass that the client has sent by the time it reads it; the PING behind it tells when that
        is. Then the final one follows, and the connection is `closed` behind the last answer.

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
        """End the connection now: GOAWAY is the last output, all streams are gone. No event follows."""
        if not self._closed:
            self._fail(Http2ConnectionError(code, reason), [])

    def _end_drain(self) -> None:
        """Send the final GOAWAY of a drain."""
        if self._receiver.last_accepted_id is None:
            self._liveness.drain_began_at = None
            self._sender.control(frames.goaway(self._receiver.refuse_new_streams(), ErrorCode.NO_ERROR))

    def _fail(self, error: Http2ConnectionError, events: list[Event]) -> None:
        """A connection error (RFC 9113 §5.4.1)."""
        self._closed = True
        self._sender.discard_all()
        debug = error.reason.encode()[:_DEBUG_BYTES_MAX]
        self._sender.control(frames.goaway(self._receiver.last_stream_id, error.code, debug))
        # A client that has not read why may stay for a while, and so may many of them.
        self._receiver.release()
        self._streams.release()
        events.append(ConnectionTerminated(error.code, error.reason))

    def _send_keepalive(self) -> None:
        self._sender.control(frames.ping(_KEEPALIVE_PING, ack=False))

    def _end_handshake(self) -> None:
        raise Http2ConnectionError(ErrorCode.SETTINGS_TIMEOUT, "the handshake takes too long")

    def _end_block(self) -> None:
        raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "a header block takes too long")

    def _end_dead(self) -> None:
        raise Http2ConnectionError(ErrorCode.NO_ERROR, "no sign of life")

    def _end_idleness(self) -> None:
        self.begin_drain(self._receiver.now)

    def check_invariants(self) -> None:
        """Prove what the fields promise."""
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
