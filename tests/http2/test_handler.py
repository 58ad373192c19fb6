"""Client errors, accidental or malicious, and the response of `pixy.http2.handler`: a table of
errors, floods, memory.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from pixy.http2 import ConnectionTerminated, Delivery, ErrorCode, Options, RequestReceived, StreamReset
from pixy.http2 import frames as f
from pixy.http2.frames import FrameType, frame
from pixy.http2.settings import Setting, encode_settings
from pixy.http2.token_buckets import TokenBucketOptions
from tests.http2.peer import GREETING, OK, REQUEST, SETTINGS_ACK, TRAILERS, Peer, content, data, headers

CALM = ErrorCode.ENHANCE_YOUR_CALM


# --- faults -------------------------------------------------------------------------------------


def with_open_stream(*parts: bytes) -> Callable[[Peer], bytes]:
    return lambda peer: headers(1, peer.block()) + b"".join(parts)


def with_whole_request(*parts: bytes) -> Callable[[Peer], bytes]:
    return lambda peer: peer.request(1) + b"".join(parts)


def plain(*parts: bytes) -> Callable[[Peer], bytes]:
    return lambda peer: b"".join(parts)


TRAILER = b"\x00\x01x\x01y"
BAD_TRAILER = b"\x00\x01X\x01y"
PADDED_DATA = data(1, b"\x03four\0\0\0", f.PADDED)

CONNECTION_FAULTS: list[tuple[str, Callable[[Peer], bytes], ErrorCode]] = [
    ("DATA on stream 0", plain(data(0, b"")), ErrorCode.PROTOCOL_ERROR),
    ("DATA on an idle stream", plain(data(1, b"")), ErrorCode.PROTOCOL_ERROR),
    ("DATA on a stream of the server", plain(data(2, b"")), ErrorCode.PROTOCOL_ERROR),
    ("DATA with too much padding", with_open_stream(data(1, b"\x02a", f.PADDED)), ErrorCode.PROTOCOL_ERROR),
    (
        "DATA without its padding's length",
        with_open_stream(data(1, b"", f.PADDED)),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    ("DATA that is too large", with_open_stream(data(1, bytes(49_153))), ErrorCode.FRAME_SIZE_ERROR),
    (
        "a frame that claims to be too large",
        plain(b"\x00\xc0\x01\x00\x00\0\0\0\x01"),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    ("HEADERS on stream 0", lambda peer: headers(0, peer.block()), ErrorCode.PROTOCOL_ERROR),
    ("HEADERS on a stream of the server", lambda peer: headers(2, peer.block()), ErrorCode.PROTOCOL_ERROR),
    (
        "HEADERS on a stream that was skipped",
        lambda peer: peer.request(5) + headers(3, peer.block()),
        ErrorCode.PROTOCOL_ERROR,
    ),
    (
        "HEADERS with too much padding",
        plain(headers(1, b"\x09\x82", f.PADDED | f.END_HEADERS)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    (
        "HEADERS without room for their priority",
        plain(headers(1, b"1234", f.PRIORITY | f.END_HEADERS)),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    ("a block that is not HPACK", plain(headers(1, b"\x80")), ErrorCode.COMPRESSION_ERROR),
    (
        "a whole request that is not HPACK",
        plain(headers(1, b"\x80") + data(1, b"")),
        ErrorCode.COMPRESSION_ERROR,
    ),
    ("trailers that are not HPACK", with_open_stream(headers(1, b"\xff")), ErrorCode.COMPRESSION_ERROR),
    ("DATA inside a header block", plain(headers(1, b"", 0) + data(1, b"")), ErrorCode.PROTOCOL_ERROR),
    (
        "HEADERS inside a header block",
        plain(headers(1, b"", 0) + headers(3, b"", 0)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    (
        "a whole request on the stream of an open header block",
        lambda peer: headers(1, b"", 0) + peer.request(1),
        ErrorCode.PROTOCOL_ERROR,
    ),
    (
        "another frame inside a header block",
        plain(headers(1, b"", 0) + frame(FrameType.PING, 0, 0, bytes(8))),
        ErrorCode.PROTOCOL_ERROR,
    ),
    (
        "CONTINUATION of another stream",
        plain(headers(1, b"", 0) + frame(FrameType.CONTINUATION, f.END_HEADERS, 3)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    (
        "CONTINUATION behind nothing",
        plain(frame(FrameType.CONTINUATION, f.END_HEADERS, 1)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    ("PRIORITY on stream 0", plain(frame(FrameType.PRIORITY, 0, 0, bytes(5))), ErrorCode.PROTOCOL_ERROR),
    (
        "PRIORITY of a wrong size on an idle stream",
        plain(frame(FrameType.PRIORITY, 0, 1, bytes(4))),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    ("RST_STREAM on stream 0", plain(f.rst_stream(0, 0)), ErrorCode.PROTOCOL_ERROR),
    ("RST_STREAM on an idle stream", plain(f.rst_stream(1, 0)), ErrorCode.PROTOCOL_ERROR),
    (
        "RST_STREAM of a wrong size",
        with_open_stream(frame(FrameType.RST_STREAM, 0, 1, bytes(5))),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    ("SETTINGS on a stream", plain(frame(FrameType.SETTINGS, 0, 1)), ErrorCode.PROTOCOL_ERROR),
    (
        "SETTINGS of a wrong size",
        plain(frame(FrameType.SETTINGS, 0, 0, bytes(5))),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    (
        "SETTINGS acknowledged with a payload",
        plain(frame(FrameType.SETTINGS, f.ACK, 0, bytes(6))),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    (
        "PUSH_PROMISE",
        with_open_stream(frame(FrameType.PUSH_PROMISE, f.END_HEADERS, 1, bytes(4))),
        ErrorCode.PROTOCOL_ERROR,
    ),
    ("PING on a stream", plain(frame(FrameType.PING, 0, 1, bytes(8))), ErrorCode.PROTOCOL_ERROR),
    ("PING of a wrong size", plain(frame(FrameType.PING, 0, 0, bytes(7))), ErrorCode.FRAME_SIZE_ERROR),
    ("GOAWAY on a stream", plain(frame(FrameType.GOAWAY, 0, 1, bytes(8))), ErrorCode.PROTOCOL_ERROR),
    ("GOAWAY of a wrong size", plain(frame(FrameType.GOAWAY, 0, 0, bytes(7))), ErrorCode.FRAME_SIZE_ERROR),
    (
        "WINDOW_UPDATE of a wrong size",
        plain(frame(FrameType.WINDOW_UPDATE, 0, 0, bytes(3))),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    ("WINDOW_UPDATE by 0 on the connection", plain(f.window_update(0, 0)), ErrorCode.PROTOCOL_ERROR),
    ("WINDOW_UPDATE on an idle stream", plain(f.window_update(1, 1)), ErrorCode.PROTOCOL_ERROR),
    (
        "WINDOW_UPDATE beyond the largest window",
        plain(f.window_update(0, 2**31 - 1)),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
]

STREAM_FAULTS: list[tuple[str, Callable[[Peer], bytes], ErrorCode]] = [
    ("DATA behind the end", with_whole_request(data(1, b"")), ErrorCode.STREAM_CLOSED),
    ("padded DATA behind the end", with_whole_request(PADDED_DATA), ErrorCode.STREAM_CLOSED),
    (
        "padded DATA on a skipped stream",
        lambda peer: peer.request(3) + PADDED_DATA,
        ErrorCode.STREAM_CLOSED,
    ),
    (
        "padded DATA beyond the content-length",
        lambda peer: headers(1, peer.block([*REQUEST, (b"content-length", b"3")])) + PADDED_DATA,
        ErrorCode.PROTOCOL_ERROR,
    ),
    (
        "DATA on a skipped stream",
        lambda peer: peer.request(3) + data(1, b"x"),
        ErrorCode.STREAM_CLOSED,
    ),
    (
        "HEADERS behind the end",
        with_whole_request(headers(1, TRAILER, f.END_HEADERS | f.END_STREAM)),
        ErrorCode.STREAM_CLOSED,
    ),
    ("HEADERS in the middle of a request", with_open_stream(headers(1, TRAILER)), ErrorCode.PROTOCOL_ERROR),
    (
        "malformed trailers",
        with_open_stream(headers(1, BAD_TRAILER, f.END_HEADERS | f.END_STREAM)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    (
        "a malformed request",
        lambda peer: headers(1, peer.block([*REQUEST, (b"A", b"")])),
        ErrorCode.PROTOCOL_ERROR,
    ),
    (
        "a malformed request that is whole",
        lambda peer: headers(1, peer.block([*REQUEST, (b"A", b"")])) + data(1, b"x"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    (
        "HEADERS that depend on themselves",
        lambda peer: headers(1, b"\0\0\0\x01\x10" + peer.block(), f.END_HEADERS | f.PRIORITY),
        ErrorCode.PROTOCOL_ERROR,
    ),
    (
        "PRIORITY that depends on itself",
        with_open_stream(frame(FrameType.PRIORITY, 0, 1, b"\0\0\0\x01\x10")),
        ErrorCode.PROTOCOL_ERROR,
    ),
    (
        "PRIORITY of a wrong size",
        with_open_stream(frame(FrameType.PRIORITY, 0, 1, bytes(6))),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    ("WINDOW_UPDATE by 0", with_open_stream(f.window_update(1, 0)), ErrorCode.PROTOCOL_ERROR),
    (
        "WINDOW_UPDATE beyond the largest window",
        with_whole_request(f.window_update(1, 2**31 - 1)),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    (
        "a header list that is too large",
        lambda peer: headers(1, peer.block([*REQUEST, (b"x", b"a" * 20_000)])),
        CALM,
    ),
]


@pytest.mark.parametrize(
    ("name", "make", "code"), CONNECTION_FAULTS, ids=[name for name, _, _ in CONNECTION_FAULTS]
)
def test_a_connection_error_ends_the_connection_with_its_code(
    name: str, make: Callable[[Peer], bytes], code: ErrorCode
) -> None:
    peer = Peer()
    events = peer.send(make(peer))
    assert isinstance(events[-1], ConnectionTerminated)
    assert events[-1].code is code
    assert peer.goaway()[1] == code
    assert peer.connection.running == 0
    assert peer.send(GREETING) == []


@pytest.mark.parametrize(("name", "make", "code"), STREAM_FAULTS, ids=[name for name, _, _ in STREAM_FAULTS])
def test_a_stream_error_ends_only_its_stream(
    name: str, make: Callable[[Peer], bytes], code: ErrorCode
) -> None:
    peer = Peer()
    events = peer.send(make(peer))
    opened = any(isinstance(event, RequestReceived) and event.stream_id == 1 for event in events)
    assert (StreamReset(1, code, by_client=False) in events) == opened
    assert peer.resets() == {1: code}
    assert content(peer.send(peer.request(5, b"next")))[-1] == (5, b"next")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "make", "code"), CONNECTION_FAULTS + STREAM_FAULTS)
def test_an_error_does_not_depend_on_how_its_bytes_are_split(
    name: str, make: Callable[[Peer], bytes], code: ErrorCode
) -> None:
    whole, peer = Peer(), Peer()
    chunk = make(whole)
    expected = content(whole.send(chunk))
    assert content([event for at in range(len(chunk)) for event in peer.send(chunk[at : at + 1])]) == expected
    assert peer.frames() == whole.frames()


def test_headers_on_a_closed_stream_end_the_connection() -> None:
    peer = Peer()
    peer.send(peer.request(1))
    peer.connection.respond(1, OK, b"")
    peer.send(headers(1, peer.block()))
    assert peer.goaway() == (1, ErrorCode.STREAM_CLOSED)


def test_frames_before_an_error_take_effect() -> None:
    peer = Peer()
    assert content(peer.send(peer.request(1, b"good"), f.window_update(0, 0)))[1:] == [
        (1, b"good"),
        (0, ErrorCode.PROTOCOL_ERROR),
    ]
    assert peer.goaway() == (1, ErrorCode.PROTOCOL_ERROR)


@pytest.mark.parametrize(
    "first", [frame(FrameType.PING, 0, 0, bytes(8)), SETTINGS_ACK, data(1, b""), headers(1, b"\x82")]
)
def test_the_first_frame_is_settings(first: bytes) -> None:
    peer = Peer(greet=False)
    peer.send(f.PREFACE + first)
    assert peer.goaway() == (0, ErrorCode.PROTOCOL_ERROR)


@pytest.mark.parametrize(
    "start", [b"gET / HTTP/1.1\r\n", b"PRI * HTTP/1.1", b"\x16\x03\x01", f.PREFACE[:-1] + b"x"]
)
def test_a_wrong_preface_ends_the_connection_at_its_first_wrong_byte(start: bytes) -> None:
    peer = Peer(greet=False)
    ends = [bool(peer.send(start[at : at + 1])) for at in range(len(start))]
    right = next(at for at, byte in enumerate(start) if byte != f.PREFACE[at])
    assert ends == [at == right for at in range(len(start))]
    assert peer.goaway() == (0, ErrorCode.PROTOCOL_ERROR)


def test_frames_on_a_reset_stream_are_ignored_but_update_the_dynamic_table() -> None:
    peer = Peer()
    peer.begin(1)
    peer.connection.reset(1, ErrorCode.CANCEL)
    assert peer.resets() == {1: ErrorCode.CANCEL}
    inserting = headers(1, peer.block([(b"new", b"field")]), f.END_HEADERS | f.END_STREAM)
    assert peer.send(data(1, bytes(1000), 0), f.window_update(1, 5), inserting, f.rst_stream(1, 0)) == []
    assert peer.frames() == []
    assert content(peer.send(peer.request(3, b"x")))[0] == (3, (b"/KafkaPixy/Produce", REQUEST[4:]))


# --- attacks ------------------------------------------------------------------------------------

SMALL = Options(
    max_concurrent_streams=4,
    resets=TokenBucketOptions(5, 0, 0),
    pings=TokenBucketOptions(5, 0, 0),
    settings=TokenBucketOptions(5, 0, 0),
    overhead=TokenBucketOptions(5, 0, 0),
)
MANY_SETTINGS = encode_settings([(Setting.MAX_FRAME_SIZE, 16_384)] * 64)


def rapid(peer: Peer, stream_id: int) -> bytes:
    return peer.request(stream_id) + f.rst_stream(stream_id, ErrorCode.CANCEL)


def opened_only(peer: Peer, stream_id: int) -> bytes:
    return headers(stream_id, peer.block())


def malformed(peer: Peer, stream_id: int) -> bytes:
    return headers(stream_id, peer.block([*REQUEST, (b"A", b"")]))


def zero_window(peer: Peer, stream_id: int) -> bytes:
    """The client provokes a reset (CVE-2025-8671)."""
    return peer.request(stream_id) + f.window_update(stream_id, 0)


# Name, frames to repeat, and how often they are tolerated.
FLOODS: list[tuple[str, Callable[[Peer, int], bytes], int]] = [
    ("rapid reset", rapid, 5),
    ("malformed requests", malformed, 5),
    ("resets that we are made to send", zero_window, 4),
    ("streams beyond the limit", opened_only, 9),
    ("PING", lambda peer, _: frame(FrameType.PING, 0, 0, bytes(8)), 5),
    ("PING that was never asked for", lambda peer, _: frame(FrameType.PING, f.ACK, 0, bytes(8)), 5),
    ("SETTINGS", lambda peer, _: frame(FrameType.SETTINGS, 0, 0), 4),
    ("SETTINGS of many entries", lambda peer, _: frame(FrameType.SETTINGS, 0, 0, MANY_SETTINGS), 1),
    ("PRIORITY", lambda peer, _: frame(FrameType.PRIORITY, 0, 99, bytes(5)), 4),
    ("WINDOW_UPDATE", lambda peer, _: f.window_update(0, 1), 4),
    ("unknown frames", lambda peer, _: frame(0xFA, 0, 0), 4),
    ("GOAWAY", lambda peer, _: f.goaway(0, 0), 4),
]


@pytest.mark.parametrize(("name", "make", "taken"), FLOODS, ids=[name for name, _, _ in FLOODS])
def test_a_flood_ends_the_connection_when_its_token_bucket_is_empty(
    name: str, make: Callable[[Peer, int], bytes], taken: int
) -> None:
    peer = Peer(SMALL)
    # The acknowledgement of our SETTINGS is overhead as well.
    for number in range(taken + (name == "PING that was never asked for") * -1):
        peer.send(make(peer, 2 * number + 1))
        assert not peer.connection.closed, number
        peer.frames()
    peer.send(make(peer, 2 * taken + 101))
    assert peer.goaway()[1] == CALM


@pytest.mark.parametrize("payload", [b"", b"\x05" + bytes(5)])
def test_empty_data_frames_are_charged(payload: bytes) -> None:
    peer = Peer(SMALL)
    peer.begin()
    for _ in range(4):
        peer.send(data(1, payload, f.PADDED if payload else 0))
    assert not peer.connection.closed
    peer.send(data(1, payload, f.PADDED if payload else 0))
    assert peer.goaway() == (1, CALM)


def test_frames_for_closed_streams_are_charged() -> None:
    peer = Peer(SMALL)
    peer.send(rapid(peer, 1))
    for _ in range(4):
        peer.send(f.window_update(1, 1)[:0] + f.rst_stream(1, 0))
    assert not peer.connection.closed
    peer.send(f.rst_stream(1, 0))
    assert peer.goaway() == (1, CALM)


def test_clients_that_are_served_may_send_control_frames_in_proportion() -> None:
    peer = Peer(replace(SMALL, pings=TokenBucketOptions(5, 0, 1), overhead=TokenBucketOptions(10, 0, 4)))
    for stream_id in range(1, 1000, 2):
        peer.send(peer.request(stream_id), frame(FrameType.PING, 0, 0, bytes(8)), f.window_update(0, 100))
        peer.connection.respond(stream_id, OK, b"x")
        assert peer.frames()[-1].stream_id == stream_id
    assert not peer.connection.closed


def peer_with_waiting_answer(options: Options, body: bytes) -> Peer:
    """A response on stream 1 to a client whose window is closed."""
    peer = Peer(options)
    closed_windows = encode_settings([(Setting.INITIAL_WINDOW_SIZE, 0)])
    peer.send(frame(FrameType.SETTINGS, 0, 0, closed_windows), f.window_update(0, 2**30), peer.request(1))
    assert peer.connection.respond(1, OK, body) is Delivery.QUEUED
    peer.frames()
    return peer


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 10, 127])
def test_a_response_released_in_tiny_frames_ends_the_connection(step: int) -> None:
    """CVE-2019-9511."""
    peer = peer_with_waiting_answer(Options(), bytes(2_000_000))
    for _ in range(10):
        peer.send(f.window_update(1, step) * 999)
        assert not peer.connection.closed
        assert len(peer.frames()) == 999
    peer.send(f.window_update(1, step) * 999)
    assert peer.goaway() == (1, CALM)


@pytest.mark.slow
@pytest.mark.parametrize("step", [128, 512, 16_384, 40_000])
def test_window_updates_in_small_steps_are_paid_for_by_the_frames_they_release(step: int) -> None:
    body = bytes(range(256)) * 4000
    peer = peer_with_waiting_answer(replace(SMALL, overhead=TokenBucketOptions(5, 0, 4)), body)
    received, update = b"", f.window_update(1, step) + f.window_update(0, step)
    while len(received) < len(body):
        peer.send(update)
        received += b"".join(sent.payload for sent in peer.frames() if sent.type == FrameType.DATA)
    assert received == body
    assert not peer.connection.closed


@pytest.mark.slow
def test_small_uncut_parts_of_a_response_earn_as_much_as_others() -> None:
    peer = Peer(replace(SMALL, overhead=TokenBucketOptions(13, 0, 4)))
    for stream_id in range(1, 1000, 2):
        peer.send(peer.request(stream_id))
        peer.connection.send_headers(stream_id, [(b":status", b"200")])
        peer.connection.send_data(stream_id, b"x")
        peer.connection.send_trailers(stream_id, TRAILERS)
        assert len(peer.frames()) == 3
        peer.send(f.window_update(0, 1) * 12)
    assert not peer.connection.closed


def test_streams_beyond_the_limit_are_refused_and_free_of_charge_until_the_client_knows_it() -> None:
    peer = Peer(replace(SMALL, overhead=TokenBucketOptions(100, 0, 0)), greet=False)
    peer.send(GREETING)
    peer.send(*(peer.request(stream_id) for stream_id in range(1, 61, 2)))
    assert peer.resets() == dict.fromkeys(range(9, 61, 2), ErrorCode.REFUSED_STREAM)
    assert peer.connection.running == 4
    peer.connection.respond(1, OK, b"")
    assert len(peer.send(SETTINGS_ACK, peer.request(61))) == 1
    peer.send(*(peer.request(stream_id) for stream_id in range(63, 73, 2)))
    assert not peer.connection.closed
    peer.send(peer.request(73))
    assert peer.goaway()[1] == CALM


def test_a_header_block_that_never_ends_ends_the_connection() -> None:
    for payload, frames in ((b"", 16), (bytes(4_000), 4)):
        peer = Peer()
        peer.send(headers(1, b"\x82", 0))
        for _ in range(frames):
            assert not peer.send(frame(FrameType.CONTINUATION, 0, 1, payload))
        peer.send(
            frame(FrameType.CONTINUATION, 0, 1, payload or b""),
            frame(FrameType.CONTINUATION, 0, 1, bytes(16_000)),
        )
        assert peer.goaway() == (0, CALM)


def test_one_byte_at_a_time_counts_as_silence() -> None:
    peer = Peer(Options(keepalive_s=60, keepalive_timeout_s=20))
    request = peer.request(1, b"x" * 100)
    at = 0
    while not peer.connection.closed:
        peer.send(request[at : at + 1])
        peer.pass_time(5)
        at += 1
    assert at * 5 == 80


def test_at_most_one_incomplete_frame_is_buffered() -> None:
    peer = Peer()
    peer.send(frame(FrameType.HEADERS, 0, 1, bytes(16_384))[:-1])
    assert len(peer.connection._receiver._partial) == 16_384 + 8
    peer.send(b"\0")
    assert len(peer.connection._receiver._partial) == 0
