"""A client that writes raw bytes, so it can break every rule.

`Peer` wraps an `Http2Connection`: it feeds in what it sends, and splits the output into frames.
After every step it checks the connection's invariants.
"""

import hpack

from pixy.http2 import (
    ConnectionTerminated,
    DataReceived,
    Event,
    Http2Connection,
    Options,
    RequestReceived,
    ResponseTemplate,
    StreamReset,
    TrailersReceived,
)
from pixy.http2 import frames as f
from pixy.http2.frames import Frame, FrameType, frame

GREETING = f.PREFACE + frame(FrameType.SETTINGS, 0, 0)
SETTINGS_ACK = frame(FrameType.SETTINGS, f.ACK, 0)
REQUEST = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/KafkaPixy/Produce"),
    (b":authority", b"localhost"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
]
TRAILERS = [(b"grpc-status", b"0")]
OK = ResponseTemplate([(b":status", b"200"), (b"content-type", b"application/grpc")], TRAILERS)


def cut(output: bytes) -> list[Frame]:
    """Split a server's output into frames; asserts that they are whole."""
    frames, at = [], 0
    while at < len(output):
        head, flags, stream_id = f.unpack_head(output, at)
        end = at + f.FRAME_HEAD_BYTES + (head >> 8)
        assert end <= len(output)
        frames.append(Frame(head & 0xFF, flags, stream_id, output[at + f.FRAME_HEAD_BYTES : end]))
        at = end
    return frames


def headers(stream_id: int, block: bytes, flags: int = f.END_HEADERS) -> bytes:
    """A HEADERS frame."""
    return frame(FrameType.HEADERS, flags, stream_id, block)


def data(stream_id: int, payload: bytes, flags: int = f.END_STREAM) -> bytes:
    """A DATA frame."""
    return frame(FrameType.DATA, flags, stream_id, payload)


def content(events: list[Event]) -> list[tuple[int, object]]:
    """Normalized events, independent of how a body was split: bodies joined, by stream, the end of
    the connection last.
    """
    bodies: dict[int, bytes] = {}
    found: list[tuple[int, object]] = []
    for event in events:
        if isinstance(event, RequestReceived):
            varying_field = [] if event.varying_field is None else [event.varying_field]
            found.append((event.stream_id, (event.headers.path, [*event.headers.fields, *varying_field])))
        if isinstance(event, RequestReceived | DataReceived):
            part = event.buffer[event.begin : event.end]
            bodies[event.stream_id] = bodies.get(event.stream_id, b"") + part
            if event.ended:
                found.append((event.stream_id, bodies.pop(event.stream_id)))
        elif isinstance(event, TrailersReceived):
            found.append((event.stream_id, (bodies.pop(event.stream_id), event.fields)))
        elif isinstance(event, StreamReset):
            found.append((event.stream_id, event.code))
        elif isinstance(event, ConnectionTerminated):
            found.append((0, event.code))
    return sorted(found, key=lambda one: one[0] or f.STREAM_ID_MAX)


class Peer:
    """A client and the connection that serves it.

    Args:
        options: options of the connection.
        greet: exchange preface and SETTINGS, and discard the output.
    """

    def __init__(self, options: Options | None = None, *, greet: bool = True) -> None:
        self.now = 100.0
        self.connection = Http2Connection(options or Options(), self.now)
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        if greet:
            assert self.send(GREETING, frame(FrameType.SETTINGS, f.ACK, 0)) == []
            self.frames()

    def send(self, *parts: bytes) -> list[Event]:
        """Feed bytes to the connection in one chunk; returns the events."""
        events = self.connection.receive(b"".join(parts), self.now)
        self.connection.check_invariants()
        return events

    def pass_time(self, seconds: float) -> list[Event]:
        """Advance the time, then tick."""
        self.now += seconds
        events = self.connection.tick(self.now)
        self.connection.check_invariants()
        return events

    def frames(self) -> list[Frame]:
        """Frames sent by the connection since the last call."""
        frames = cut(self.connection.take_output())
        self.connection.check_invariants()
        return frames

    def sent(self) -> list[tuple[str, int]]:
        """Type and stream of the frames sent by the connection since the last call."""
        return [(FrameType(sent.type).name, sent.stream_id) for sent in self.frames()]

    def goaway(self) -> tuple[int, int]:
        """Last stream id and error code of the GOAWAY that is the last frame sent."""
        last = self.frames()[-1]
        assert last.type == FrameType.GOAWAY
        assert self.connection.closed
        return f.read_uint32(last.payload), f.read_uint32(last.payload[4:])

    def resets(self) -> dict[int, int]:
        """Error codes by stream that the connection has reset since the last call."""
        return {
            sent.stream_id: f.read_uint32(sent.payload)
            for sent in self.frames()
            if sent.type == FrameType.RST_STREAM
        }

    def block(self, fields: list[tuple[bytes, bytes]] | None = None) -> bytes:
        """A header block; blocks have to be sent in the order of the calls."""
        return self.encoder.encode(fields or REQUEST)

    def request(self, stream_id: int, body: bytes = b"", flags: int = f.END_STREAM) -> bytes:
        """HEADERS and DATA of a request."""
        return headers(stream_id, self.block()) + data(stream_id, body, flags)

    def begin(self, stream_id: int = 1) -> None:
        """Begin a request without its body."""
        (event,) = self.send(headers(stream_id, self.block()))
        assert isinstance(event, RequestReceived)
        assert not event.ended
