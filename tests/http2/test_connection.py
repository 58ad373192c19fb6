"""Whole connections, `pixy.http2.connection`: start, end, timeouts, and conversations with `h2` as
the client.
"""

import random
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events
import h2.settings
import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.http2 import (
    ConnectionTerminated,
    DataReceived,
    DataSent,
    Delivery,
    ErrorCode,
    Event,
    Http2Connection,
    Options,
    RequestReceived,
    StreamReset,
    TrailersReceived,
)
from pixy.http2 import frames as f
from pixy.http2.frames import FrameType, frame
from pixy.http2.hpack import encode
from pixy.http2.http1 import http1_answer
from tests.http2.peer import GREETING, OK, REQUEST, TRAILERS, Peer, cut

SETTINGS_ACK = frame(FrameType.SETTINGS, f.ACK, 0)


# --- the start ----------------------------------------------------------------------------------


def test_a_connection_begins_with_our_settings_and_the_large_window() -> None:
    peer = Peer(greet=False)
    peer.send(f.PREFACE[:-1])
    assert peer.frames() == []
    peer.send(f.PREFACE[-1:])
    settings, window = peer.frames()
    assert (settings.type, settings.flags) == (FrameType.SETTINGS, 0)
    assert (window.type, window.stream_id) == (FrameType.WINDOW_UPDATE, 0)
    assert f.read_uint32(window.payload) == Options().connection_window_bytes - 65_535


def test_a_window_of_the_default_size_needs_no_update() -> None:
    peer = Peer(Options(connection_window_bytes=65_535), greet=False)
    peer.send(f.PREFACE)
    assert peer.sent() == [("SETTINGS", 0)]


def test_settings_are_acknowledged_and_pings_answered() -> None:
    peer = Peer(greet=False)
    peer.send(f.PREFACE)
    peer.frames()
    peer.send(GREETING.removeprefix(f.PREFACE), frame(FrameType.PING, 0, 0, b"12345678"))
    assert peer.frames() == [(FrameType.SETTINGS, f.ACK, 0, b""), (FrameType.PING, f.ACK, 0, b"12345678")]


def test_a_request_of_http1_before_any_frame_of_ours_is_answered_in_http1_alone() -> None:
    peer = Peer(greet=False)
    peer.send(b"GET / HTTP/1.1\r\n")
    peer.send(b"\r\n")
    peer.connection.announce_drain()
    peer.connection.terminate(ErrorCode.NO_ERROR, "")
    assert peer.connection.take_output() == http1_answer(Options().http1_hint)
    peer = Peer(greet=False)
    peer.connection.announce_drain()
    peer.send(b"GET / HTTP/1.1\r\n\r\n")
    assert peer.sent() == [("SETTINGS", 0), ("WINDOW_UPDATE", 0), ("GOAWAY", 0), ("GOAWAY", 0)]


# --- the end ------------------------------------------------------------------------------------


def test_a_drain_says_goaway_twice_and_waits_for_running_calls() -> None:
    peer = Peer()
    peer.send(peer.request(1))
    peer.connection.begin_drain(peer.now)
    peer.connection.begin_drain(peer.now)
    first, ping = peer.frames()
    assert (f.read_uint32(first.payload), f.read_uint32(first.payload[4:])) == (
        f.STREAM_ID_MAX,
        ErrorCode.NO_ERROR,
    )
    # Requests that the client sent before it knew of the drain are served.
    assert len(peer.send(peer.request(3), frame(FrameType.PING, f.ACK, 0, ping.payload))) == 1
    (final,) = peer.frames()
    assert (final.type, f.read_uint32(final.payload)) == (FrameType.GOAWAY, 3)
    # Streams that it opens later are not, and disturb no other.
    assert peer.send(peer.request(5), f.window_update(5, 1), peer.request(7)) == []
    assert peer.frames() == []
    closed = [peer.connection.closed]
    for stream_id in (3, 1):
        assert peer.connection.respond(stream_id, OK, b"") is Delivery.SENT
        closed.append(peer.connection.closed)
    assert closed == [False, False, True]
    assert peer.sent()[-1] == ("HEADERS", 1)


def test_a_drain_continues_without_the_answer_to_its_ping() -> None:
    peer = Peer(Options(drain_ping_s=1))
    peer.connection.begin_drain(peer.now)
    peer.frames()
    assert peer.pass_time(0.9) == []
    assert not peer.connection.closed
    peer.pass_time(0.1)
    assert peer.goaway() == (0, ErrorCode.NO_ERROR)
    assert peer.pass_time(1) == []


def test_a_drain_of_a_silent_connection_waits_for_the_answer_to_its_ping_too() -> None:
    peer = Peer(Options(drain_ping_s=1))
    peer.now += 30
    peer.connection.begin_drain(peer.now)
    peer.pass_time(0.1)
    assert peer.sent() == [("GOAWAY", 0), ("PING", 0)]


def test_an_announced_drain_serves_everything_until_it_begins() -> None:
    peer = Peer()
    peer.connection.announce_drain()
    peer.connection.announce_drain()
    (first,) = peer.frames()
    assert f.read_uint32(first.payload) == f.STREAM_ID_MAX
    assert peer.pass_time(5) == []
    assert len(peer.send(peer.request(1))) == 1
    peer.connection.begin_drain(peer.now)
    assert [each.type for each in peer.frames()] == [FrameType.PING]


def test_another_ping_does_not_end_a_drain() -> None:
    peer = Peer()
    peer.connection.begin_drain(peer.now)
    peer.send(frame(FrameType.PING, f.ACK, 0, bytes(8)))
    assert not peer.connection.closed


def test_an_idle_connection_is_drained() -> None:
    peer = Peer(Options(idle_s=30, keepalive_s=0))
    peer.pass_time(29)
    assert peer.frames() == []
    peer.pass_time(1)
    assert peer.sent() == [("GOAWAY", 0), ("PING", 0)]


def test_termination_sends_goaway_and_nothing_more() -> None:
    peer = Peer()
    peer.send(peer.request(1))
    peer.connection.terminate(ErrorCode.INTERNAL_ERROR, "a bug")
    peer.connection.terminate(ErrorCode.NO_ERROR, "again")
    assert peer.connection.respond(1, OK, b"") is Delivery.GONE
    (last,) = peer.frames()
    assert last.payload == bytes((0, 0, 0, 1, 0, 0, 0, 2)) + b"a bug"
    peer.connection.begin_drain(peer.now)
    assert [*peer.pass_time(1000), *peer.send(GREETING), *peer.frames()] == []


def test_the_debug_data_of_a_goaway_is_short() -> None:
    peer = Peer()
    peer.connection.terminate(ErrorCode.INTERNAL_ERROR, "x" * 10_000)
    assert len(peer.frames()[-1].payload) == 8 + 256


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [
        # An incomplete block, an incomplete frame, a dynamic table, cached blocks, and unprocessed
        # input.
        frame(FrameType.HEADERS, 0, 1, bytes(15_000)),
        frame(FrameType.HEADERS, f.END_HEADERS, 1, bytes(40_000))[:30_000],
        frame(FrameType.HEADERS, f.END_HEADERS, 1, hpack.Encoder().encode([*REQUEST, (b"x", b"y" * 3900)])),
        b"".join(
            frame(FrameType.HEADERS, f.END_HEADERS, 2 * i + 1, encode([*REQUEST, (b"%d" % i, b"")]))
            for i in range(50)
        ),
        b"".join(
            frame(FrameType.HEADERS, f.END_HEADERS, stream_id, encode(REQUEST))
            for stream_id in range(1, 1000, 2)
        ),
        # Streams that we have reset: requests without a path.
        b"".join(
            frame(FrameType.HEADERS, f.END_HEADERS | f.END_STREAM, stream_id, encode(REQUEST[:1]))
            for stream_id in range(1, 1000, 2)
        ),
    ],
    ids=["block", "frame", "table", "cached blocks", "unprocessed", "resets"],
)
def test_a_failed_connection_frees_its_memory(sent: bytes) -> None:
    # The first connection fills shared caches.
    for _ in range(2):
        connection = Http2Connection(Options(), 0)
        tracemalloc.start()
        try:
            connection.receive(GREETING, 0)
            # A copy, because memory allocated earlier is not traced.
            connection.receive(bytes(bytearray(sent)), 0, 20_000)
            had = tracemalloc.get_traced_memory()[0]
            connection.terminate(ErrorCode.ENHANCE_YOUR_CALM, "")
            connection.take_output()
            keeps = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    assert had > 5000
    assert keeps < 4000


# --- time ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", f.PREFACE[:10], f.PREFACE, GREETING])
def test_a_handshake_timeout_ends_the_connection(sent: bytes) -> None:
    peer = Peer(Options(handshake_s=10), greet=False)
    peer.send(sent)
    assert peer.pass_time(9.9) == []
    assert isinstance(peer.pass_time(0.1)[0], ConnectionTerminated)
    assert peer.goaway() == (0, ErrorCode.SETTINGS_TIMEOUT)


def test_a_header_block_timeout_ends_the_connection() -> None:
    peer = Peer(Options(header_block_s=10))
    peer.send(frame(FrameType.HEADERS, 0, 1, b"\x82"))
    assert peer.pass_time(9) == []
    peer.send(frame(FrameType.CONTINUATION, 0, 1, b"\x86"))
    assert len(peer.pass_time(1)) == 1
    assert peer.goaway() == (0, ErrorCode.ENHANCE_YOUR_CALM)


def test_a_silent_client_is_pinged_and_closed_if_it_stays_silent() -> None:
    peer = Peer(Options(keepalive_s=60, keepalive_timeout_s=20))
    peer.pass_time(60)
    (ping,) = peer.frames()
    assert ping.type == FrameType.PING
    peer.send(frame(FrameType.PING, f.ACK, 0, ping.payload))
    assert peer.pass_time(59) == []
    assert peer.frames() == []
    peer.pass_time(1)
    assert peer.sent() == [("PING", 0)]
    assert peer.pass_time(20) == [ConnectionTerminated(ErrorCode.NO_ERROR, "keepalive timeout")]


def test_requests_on_the_fast_path_reset_the_keepalive_timeout() -> None:
    peer = Peer(Options(keepalive_s=60))
    for stream_id in range(1, 9, 2):
        peer.send(peer.request(stream_id))
        peer.pass_time(59)
    assert peer.frames() == []


# --- with h2 as the client ----------------------------------------------------------------------


@dataclass
class Exchange:
    """A request, and what each side has seen of it."""

    body: bytes = b""
    received: bytes = b""
    ended: bool = False
    answer: bytes = b""
    got: bytes = b""
    trailers: list[tuple[bytes, bytes]] = field(default_factory=list)
    finished: bool = False
    reset: bool = False
    left: bytes = b""


class Conversation:
    """A client of `h2` and a connection that exchange bytes in chunks of random sizes.

    The server responds when a request has ended: at once, or in parts that wait for each other.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=False))
        self.server = Http2Connection(
            Options(stream_window_bytes=65_535, connection_window_bytes=100_000), 0.0
        )
        self.exchanges: dict[int, Exchange] = {}
        self.client.initiate_connection()
        self.client.update_settings(
            {
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: self.random.choice([0, 1, 100, 65_535, 10**6]),
                h2.settings.SettingCodes.HEADER_TABLE_SIZE: self.random.choice([0, 100, 4096, 8192]),
                h2.settings.SettingCodes.MAX_FRAME_SIZE: self.random.choice([16_384, 50_000]),
            }
        )

    def ask(self) -> None:
        """Begin a request with everything that a client may add."""
        stream_id = self.client.get_next_available_stream_id()
        size = self.random.choice([0, 0, 5, 100, 16_384, 40_000])
        exchange = self.exchanges[stream_id] = Exchange(body=self.random.randbytes(size))
        exchange.left = exchange.body
        extra = [(b"grpc-timeout", b"%dm" % self.random.randrange(99))] if self.random.random() < 0.3 else []
        extra += [(b"content-length", b"%d" % size)] if self.random.random() < 0.2 else []
        extra += [(b"x", b"y" * 17_000)] if self.random.random() < 0.02 else []
        self.client.send_headers(stream_id, [*REQUEST, *extra], end_stream=False)
        if len(extra) and extra[-1][0] == b"x":
            exchange.reset, exchange.left = True, b""
            return
        if self.random.random() < 0.2:
            self.client.prioritize(stream_id, weight=self.random.randrange(1, 256))
        self.upload(stream_id)

    def upload(self, stream_id: int) -> None:
        """Send as much of a body as the windows allow, then the end."""
        exchange = self.exchanges[stream_id]
        if exchange.reset:
            return
        while exchange.left:
            room = min(self.client.local_flow_control_window(stream_id), self.client.max_outbound_frame_size)
            padding = self.random.choice([None, None, None, 0, 7])
            room -= 0 if padding is None else padding + 1
            if room <= 0:
                return
            part = exchange.left[: self.random.randint(1, room)]
            exchange.left = exchange.left[len(part) :]
            self.client.send_data(stream_id, part, pad_length=padding)
        if not exchange.ended:
            exchange.ended = True
            if self.random.random() < 0.1:
                self.client.send_headers(stream_id, [(b"checksum", b"1")], end_stream=True)
            else:
                self.client.end_stream(stream_id)

    def cancel(self) -> None:
        """Cancel a random active request."""
        running = [number for number, of in self.exchanges.items() if not (of.finished or of.reset)]
        if running:
            stream_id = self.random.choice(running)
            self.exchanges[stream_id].reset = True
            self.client.reset_stream(stream_id, ErrorCode.CANCEL)

    def ping(self) -> None:
        self.client.ping(bytes(8))

    def travel(self) -> None:
        """Pass on the bytes that both sides have sent until there are none left."""
        while True:
            up = self.client.data_to_send()
            for chunk in self.chunks(up):
                for event in self.server.receive(chunk, 0.0):
                    self.serve(event)
                self.server.check_invariants()
            down = self.server.take_output()
            cut(down)
            for chunk in self.chunks(down):
                for seen in self.client.receive_data(chunk):
                    self.see(seen)
            for stream_id, exchange in self.exchanges.items():
                if not exchange.ended:
                    self.upload(stream_id)
                if down and not (exchange.finished or exchange.reset) and self.random.random() < 0.2:
                    self.client.increment_flow_control_window(self.random.randrange(1, 1000), stream_id)
            if not up and not down:
                return

    def chunks(self, sent: bytes) -> Iterator[bytes]:
        at = 0
        while at < len(sent):
            size = self.random.choice([1, 9, 30, 1000, 20_000, 10**6])
            yield sent[at : at + size]
            at += size

    def serve(self, event: Event) -> None:
        """Act as the layer above the server's connection."""
        if isinstance(event, RequestReceived):
            assert event.headers.path == b"/KafkaPixy/Produce"
        if isinstance(event, RequestReceived | DataReceived):
            part = event.buffer[event.begin : event.end]
            self.exchanges[event.stream_id].received += part
            if isinstance(event, DataReceived):
                self.server.replenish(event.stream_id, len(part))
            if event.ended:
                self.answer(event.stream_id)
        elif isinstance(event, TrailersReceived):
            assert event.fields == [(b"checksum", b"1")]
            self.answer(event.stream_id)
        elif isinstance(event, StreamReset):
            assert self.exchanges[event.stream_id].reset
        elif isinstance(event, DataSent) and not event.ended:
            self.server.send_trailers(event.stream_id, TRAILERS)
        else:
            assert not isinstance(event, ConnectionTerminated), event

    def answer(self, stream_id: int) -> None:
        exchange = self.exchanges[stream_id]
        assert exchange.received == exchange.body
        exchange.answer = self.random.randbytes(self.random.choice([0, 5, 500, 70_000]))
        if self.random.random() < 0.7:
            self.server.respond(stream_id, OK, exchange.answer)
            return
        self.server.send_headers(stream_id, [(b":status", b"200"), (b"authorization", b"secret")])
        if self.server.send_data(stream_id, exchange.answer) is Delivery.SENT:
            self.server.send_trailers(stream_id, TRAILERS)

    def see(self, event: h2.events.Event) -> None:
        """Act as the layer above the client's connection."""
        if isinstance(event, h2.events.DataReceived):
            self.exchanges[event.stream_id].got += event.data
            self.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.TrailersReceived):
            self.exchanges[event.stream_id].trailers = [(name, value) for name, value in event.headers]
        elif isinstance(event, h2.events.StreamEnded):
            self.exchanges[event.stream_id].finished = True
        elif isinstance(event, h2.events.StreamReset):
            assert self.exchanges[event.stream_id].reset
        else:
            assert not isinstance(event, h2.events.ConnectionTerminated), event

    def open_all_windows(self) -> None:
        """Open the windows that pending responses need."""
        self.client.increment_flow_control_window(2**24)
        for stream_id, exchange in self.exchanges.items():
            if not (exchange.finished or exchange.reset):
                self.client.increment_flow_control_window(100_000, stream_id)


@pytest.mark.slow
@given(st.integers(0, 2**32))
def test_any_conversation_with_h2_delivers_all_data_of_both_sides(seed: int) -> None:
    talk = Conversation(seed)
    talk.travel()
    for _ in range(talk.random.randint(1, 12)):
        for _ in range(talk.random.randint(1, 6)):
            talk.random.choices([talk.ask, talk.cancel, talk.ping], [8, 1, 1])[0]()
        talk.travel()
    talk.open_all_windows()
    talk.travel()
    for exchange in talk.exchanges.values():
        assert exchange.reset or (
            exchange.finished and exchange.got == exchange.answer and exchange.trailers == TRAILERS
        )
    assert talk.server.running == talk.server.queued_bytes == 0
