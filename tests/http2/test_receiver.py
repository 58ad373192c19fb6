"""The inbound path, `pixy.http2.receiver`, tested through a connection: whole and split requests,
bodies, windows.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.http2 import (
    DataReceived,
    ErrorCode,
    Event,
    Options,
    RequestReceived,
    StreamReset,
)
from pixy.http2 import frames as f
from pixy.http2.frames import FrameType, frame
from pixy.http2.token_buckets import Cost
from tests.http2.peer import GREETING, REQUEST, SETTINGS_ACK, Peer, content, data, headers

EXCLUSIVE = (0x8000_0000).to_bytes(4, "big")


# --- requests -----------------------------------------------------------------------------------


@pytest.mark.parametrize("repeat", [1, 2, 3, 10])
def test_requests_of_two_frames_are_one_event(repeat: int) -> None:
    peer = Peer()
    chunk = b"".join(peer.request(2 * number + 1, b"body %d" % number) for number in range(repeat))
    events = peer.send(chunk)
    assert len(events) == repeat
    for number, event in enumerate(events):
        assert isinstance(event, RequestReceived)
        assert event.buffer is chunk
        assert event.buffer[event.begin : event.end] == b"body %d" % number
        assert (event.stream_id, event.ended) == (2 * number + 1, True)


def test_the_flags_of_headers_are_checked_in_whole_requests_too() -> None:
    peer = Peer()
    peer.send(peer.request(1))
    padded = headers(3, b"\x02" + peer.block() + b"\0\0", f.END_HEADERS | f.PADDED)
    assert content(peer.send(padded, data(3, b"x"))) == [(3, (b"/KafkaPixy/Produce", REQUEST[4:])), (3, b"x")]
    peer.send(headers(5, peer.block(), f.END_HEADERS | f.END_STREAM), data(5, b"x"))
    assert peer.resets() == {5: ErrorCode.STREAM_CLOSED}
    peer.send(headers(7, peer.block(), 0), data(7, b"x"))
    assert peer.goaway() == (5, ErrorCode.PROTOCOL_ERROR)


def test_requests_with_all_headers_before_all_data_are_one_event_each() -> None:
    peer = Peer()
    heads = [headers(stream_id, peer.block()) for stream_id in (1, 3, 5)]
    events = peer.send(*heads, data(3, b"three"), data(1, b"one"))
    assert [(event.stream_id, event.ended) for event in events if isinstance(event, RequestReceived)] == [
        (3, True),
        (1, True),
        (5, False),
    ]
    (rest,) = peer.send(data(5, b"five"))
    assert isinstance(rest, DataReceived)


def test_only_the_malformed_request_among_whole_ones_is_reset() -> None:
    peer = Peer()
    chunk = [
        peer.request(1, b"a"),
        headers(3, peer.block([*REQUEST, (b"A", b"")])),
        data(3, b"b"),
        peer.request(5, b"c"),
    ]
    assert [stream_id for stream_id, _ in content(peer.send(*chunk))] == [1, 1, 5, 5]
    assert peer.resets() == {3: ErrorCode.PROTOCOL_ERROR}


def test_requests_before_a_connection_error_are_reported_even_without_their_body() -> None:
    peer = Peer()
    events = peer.send(headers(1, peer.block()), headers(3, peer.block()), data(3, b"x"), headers(5, b"\x80"))
    assert content(events)[-1] == (0, ErrorCode.COMPRESSION_ERROR)
    assert [stream_id for stream_id, _ in content(events)] == [1, 3, 3, 0]


def test_repeated_headers_are_one_object() -> None:
    peer = Peer()
    events = [peer.send(peer.request(stream_id))[0] for stream_id in (1, 3, 5)]
    first, second, third = [event.headers for event in events if isinstance(event, RequestReceived)]
    assert first is not second
    assert second is third


def conversation(peer: Peer) -> bytes:
    """Everything that a client may send, on the fast path and off it."""
    parts = [GREETING, SETTINGS_ACK, *(peer.request(stream_id, b"body") for stream_id in (1, 3, 5))]
    parts += [
        frame(FrameType.PRIORITY, 0, 5, bytes(5)),
        headers(7, peer.block(), f.END_HEADERS | f.END_STREAM),
    ]
    block = peer.block([*REQUEST, (b"grpc-timeout", b"5S")])
    start = b"\x02" + EXCLUSIVE + b"\x10" + block[:3] + b"\0\0"
    parts += [
        frame(FrameType.HEADERS, f.PADDED | f.PRIORITY, 9, start),
        frame(FrameType.CONTINUATION, 0, 9, b""),
        frame(FrameType.CONTINUATION, f.END_HEADERS, 9, block[3:]),
        data(9, b"\x05padded" + bytes(5), f.PADDED),
        data(9, bytes(range(256)), 0),
        data(9, b"", 0),
        data(9, bytes(100)),
        frame(FrameType.PING, 0, 0, b"12345678"),
        peer.request(11, b"with trailers", 0),
        headers(11, peer.block([(b"x", b"y")]), f.END_HEADERS | f.END_STREAM),
        frame(0xFA, 0xFF, 0x7FFF_FFFF, b"unknown"),
        f.window_update(0, 1000),
        peer.request(13),
        f.rst_stream(13, ErrorCode.CANCEL),
        peer.request(17, b"skipped one"),
        *(headers(stream_id, peer.block()) for stream_id in (19, 21, 23)),
        *(data(stream_id, b"behind all headers") for stream_id in (21, 19, 23)),
        # Padded bodies that reset their streams: after the end, and longer than announced.
        peer.request(25),
        data(25, b"\x05too late" + bytes(5), f.PADDED),
        headers(27, peer.block([*REQUEST, (b"content-length", b"5")])),
        data(27, b"\x01123456\0", f.PADDED),
        data(27, b"\x01ignored\0", f.PADDED),
        peer.request(29, b"behind resets"),
        frame(FrameType.PING, 0, 0, b"87654321"),
        f.goaway(0, 0),
    ]
    return b"".join(parts)


@pytest.mark.slow
def test_a_conversation_split_at_every_byte_has_the_same_events() -> None:
    whole = Peer(greet=False)
    chunk = conversation(whole)
    expected = content(whole.send(chunk))
    answers = whole.frames()
    assert [stream_id for stream_id, _ in expected if stream_id] == [
        1,
        1,
        3,
        3,
        5,
        5,
        7,
        7,
        9,
        9,
        11,
        11,
        13,
        13,
        13,
        17,
        17,
        19,
        19,
        21,
        21,
        23,
        23,
        *(25, 25, 25),
        *(27, 27),
        *(29, 29),
    ]
    for at in range(1, len(chunk)):
        peer = Peer(greet=False)
        assert content(peer.send(chunk[:at]) + peer.send(chunk[at:])) == expected, at
        assert peer.frames() == answers, at


def test_a_conversation_in_single_bytes_has_the_same_events() -> None:
    whole, peer = Peer(greet=False), Peer(greet=False)
    chunk = conversation(whole)
    events = [event for at in range(len(chunk)) for event in peer.send(chunk[at : at + 1])]
    assert content(events) == content(whole.send(chunk))
    assert peer.frames() == whole.frames()


@pytest.mark.slow
@given(st.data())
def test_a_conversation_in_any_chunks_has_the_same_events(draw: st.DataObject) -> None:
    whole, peer = Peer(greet=False), Peer(greet=False)
    chunk = conversation(whole)
    events: list[Event] = []
    at = 0
    while at < len(chunk):
        size = draw.draw(st.sampled_from([1, 2, 8, 9, 10, 17, 100, 1000, 20_000]))
        events += peer.send(chunk[at : at + size])
        at += size
    assert content(events) == content(whole.send(chunk))


def test_data_is_passed_on_as_it_arrives() -> None:
    peer = Peer()
    peer.begin()
    whole = data(1, b"0123456789")
    assert peer.send(whole[:9]) == []
    chunk = whole[9:13]
    assert peer.send(chunk) == [DataReceived(1, chunk, 0, 4, ended=False)]
    rest = whole[13:] + data(1, b"")[:0]
    assert peer.send(rest) == [DataReceived(1, rest, 0, 6, ended=True)]


def test_the_body_length_must_equal_content_length() -> None:
    for body, parts, good in (
        (b"12345", 1, True),
        (b"12345", 2, True),
        (b"1234", 1, False),
        (b"1234", 2, False),
        (b"123456", 2, False),
    ):
        peer = Peer()
        block = peer.block([*REQUEST, (b"content-length", b"5")])
        if parts == 1:
            events = peer.send(headers(1, block), data(1, body))
        else:
            events = peer.send(headers(1, block), data(1, body[:2], 0), data(1, body[2:]))
        assert (peer.resets() == {}) == good
        assert bool(content(events)[-1][1] == body) == good
    for flags in (f.END_HEADERS, f.END_HEADERS | f.END_STREAM):
        peer = Peer()
        block = peer.block([*REQUEST, (b"content-length", b"5")])
        peer.send(headers(1, block, flags))
        if not flags & f.END_STREAM:
            peer.send(headers(1, b"\x00\x01x\x01y", f.END_HEADERS | f.END_STREAM))
        assert peer.resets() == {1: ErrorCode.PROTOCOL_ERROR}


# --- windows ------------------------------------------------------------------------------------


def test_the_connections_window_is_replenished_when_half_of_it_is_used() -> None:
    peer = Peer(Options(connection_window_bytes=100_000, stream_window_bytes=65_535))
    peer.send(peer.request(1, bytes(16_000)), peer.request(3, bytes(16_000)), peer.request(5, bytes(16_000)))
    assert peer.frames() == []
    peer.send(peer.request(7, bytes(16_000)))
    assert peer.frames() == [(FrameType.WINDOW_UPDATE, 0, 0, (64_000).to_bytes(4, "big"))]


def test_whole_requests_count_against_the_connections_window() -> None:
    peer = Peer(Options(connection_window_bytes=65_535))
    peer.send(*(peer.request(stream_id, bytes(13_107)) for stream_id in range(1, 11, 2)))
    assert peer.connection.running == 5
    peer.send(peer.request(11, b"x"))
    assert peer.goaway()[1] == ErrorCode.FLOW_CONTROL_ERROR


def test_unconsumed_data_keeps_the_windows_closed() -> None:
    peer = Peer(Options(connection_window_bytes=65_535, stream_window_bytes=65_535))
    peer.begin()
    events = peer.send(*(data(1, bytes(13_107), 0) for _ in range(5)))
    assert len(events) == 5
    assert peer.frames() == []
    peer.connection.replenish(1, 32_767)
    assert peer.frames() == []
    peer.connection.replenish(1, 1)
    assert sorted(peer.sent()) == [("WINDOW_UPDATE", 0), ("WINDOW_UPDATE", 1)]
    assert peer.send(data(1, bytes(16_384), 0), data(1, bytes(16_384), 0))
    peer.send(data(1, b"x", 0))
    assert peer.goaway() == (1, ErrorCode.FLOW_CONTROL_ERROR)


def test_a_streams_window_is_its_own() -> None:
    peer = Peer(Options(connection_window_bytes=2**20, stream_window_bytes=65_535))
    peer.begin(1)
    peer.send(*(data(1, bytes(13_107), 0) for _ in range(5)))
    assert peer.send(data(1, b"x", 0)) == [StreamReset(1, ErrorCode.FLOW_CONTROL_ERROR, by_client=False)]
    assert peer.resets() == {1: ErrorCode.FLOW_CONTROL_ERROR}
    assert content(peer.send(peer.request(3, b"ok")))[-1] == (3, b"ok")


@pytest.mark.parametrize("at", range(1, 280, 9))
def test_padded_data_beyond_a_streams_window_resets_only_that_stream(at: int) -> None:
    peer = Peer(Options(connection_window_bytes=2**20, stream_window_bytes=65_535))
    peer.begin(1)
    peer.send(*(data(1, bytes(13_107), 0) for _ in range(5)))
    chunk = (
        data(1, b"\x64" + bytes(150), f.PADDED)
        + peer.request(3, b"ok")
        + frame(FrameType.PING, 0, 0, bytes(8))
    )
    events = peer.send(chunk[:at]) + peer.send(chunk[at:])
    assert events[0] == StreamReset(1, ErrorCode.FLOW_CONTROL_ERROR, by_client=False)
    assert content(events[1:])[-1] == (3, b"ok")
    assert peer.sent() == [("RST_STREAM", 1), ("PING", 0)]


def test_consuming_more_than_received_is_a_bug_and_on_a_closed_stream_ignored() -> None:
    peer = Peer()
    peer.begin()
    peer.send(data(1, b"123", 0))
    with pytest.raises(AssertionError, match="4 bytes consumed of 3"):
        peer.connection.replenish(1, 4)
    peer.send(f.rst_stream(1, 0))
    peer.connection.replenish(1, 3)
    peer.connection.check_invariants()


def test_padding_counts_and_is_replenished_at_once() -> None:
    peer = Peer(Options(connection_window_bytes=65_535, stream_window_bytes=65_535))
    peer.begin()
    for _ in range(129):
        (event,) = peer.send(data(1, b"\xff" + b"x" + bytes(255), f.PADDED))
        assert isinstance(event, DataReceived)
        assert event.buffer[event.begin : event.end] == b"x"
    assert ("WINDOW_UPDATE", 1) in peer.sent()


# --- work ---------------------------------------------------------------------------------------


def in_slices(peer: Peer, chunk: bytes, work: int) -> list[list[Event]]:
    """Events of each slice of work on a chunk."""
    slices = [peer.connection.receive(chunk, peer.now, work)]
    while peer.connection.pending:
        slices.append(peer.connection.receive(b"", peer.now, work))
        peer.connection.check_invariants()
    return slices


@pytest.mark.parametrize("work", [1, 100, 1000, 16_384])
def test_a_conversation_in_slices_of_work_has_the_same_events(work: int) -> None:
    whole, peer = Peer(greet=False), Peer(greet=False)
    chunk = conversation(whole)
    events = [event for events in in_slices(peer, chunk, work) for event in events]
    assert content(events) == content(whole.send(chunk))
    assert peer.frames() == whole.frames()


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 400), st.integers(1, 2000)), max_size=40))
def test_a_conversation_in_any_chunks_and_slices_has_the_same_events(steps: list[tuple[int, int]]) -> None:
    whole, peer = Peer(greet=False), Peer(greet=False)
    chunk, at = conversation(whole), 0
    events: list[Event] = []
    for size, work in steps:
        # New bytes arrive although input is pending.
        events += peer.connection.receive(chunk[at : at + size], peer.now, work)
        peer.connection.check_invariants()
        at += size
    events += peer.send(chunk[at:])
    assert not peer.connection.pending
    assert content(events) == content(whole.send(chunk))


@pytest.mark.parametrize(
    ("one", "most"),
    [
        (frame(FrameType.PRIORITY, 0, 1, bytes(5)), 400),
        (f.window_update(0, 1), 400),
        (frame(0xFA, 0, 0), 400),
        (frame(FrameType.SETTINGS, f.ACK, 0), 400),
    ],
)
def test_a_slice_processes_a_bounded_number_of_small_frames(one: bytes, most: int) -> None:
    peer = Peer()
    before = peer.connection._receiver._buckets._buckets[Cost.OVERHEAD].tokens
    peer.connection.receive(one * 3000, peer.now, 16_384)
    taken = before - peer.connection._receiver._buckets._buckets[Cost.OVERHEAD].tokens
    assert 0 < taken <= most
    assert peer.connection.pending


def test_a_slice_processes_few_uncached_blocks_and_many_cached_ones() -> None:
    peer = Peer()
    peer.send(peer.request(1), peer.request(3))
    requests = b"".join(peer.request(stream_id, b"") for stream_id in range(5, 1005, 2))
    plain = [peer.block() + b"\0\1x" + bytes((3,)) + b"%03d" % number for number in range(500)]
    unknown = b"".join(
        headers(stream_id, block) + data(stream_id, b"")
        for stream_id, block in zip(range(5, 1005, 2), plain, strict=True)
    )
    other = Peer()
    other.send(other.request(1), other.request(3))
    few = len(other.connection.receive(unknown, other.now, 10_000))
    many = len(peer.connection.receive(requests, peer.now, 10_000))
    assert 0 < few * 2 < many


def test_data_payloads_cost_no_work() -> None:
    peer = Peer()
    peer.send(headers(1, peer.block()))
    chunk = data(1, bytes(16_000), 0) + data(1, bytes(16_000), 0) + frame(FrameType.PING, 0, 0, bytes(8))
    assert len(peer.connection.receive(chunk, peer.now, 1000)) == 2
    assert not peer.connection.pending
    assert [kind for kind, *_ in peer.frames()] == [FrameType.PING]


def test_input_after_an_error_is_discarded_in_later_slices() -> None:
    peer = Peer()
    chunk = (
        peer.request(1) + data(0, b"x") + b"".join(peer.request(stream_id) for stream_id in range(3, 99, 2))
    )
    events = [event for events in in_slices(peer, chunk, 1) for event in events]
    assert [stream_id for stream_id, _ in content(events)] == [1, 1, 0]
    assert not peer.connection.pending
