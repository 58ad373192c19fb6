"""The outbound path, `pixy.http2.sender`, tested through a connection: windows, fairness, limits,
delivery.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.http2 import DataSent, Delivery, ErrorCode, Options, RequestReceived, ResponseTemplate, StreamReset
from pixy.http2 import frames as f
from pixy.http2.frames import Frame, FrameType, frame
from pixy.http2.settings import Setting, encode_settings
from tests.http2.peer import OK, TRAILERS, Peer, cut, data, headers

STATUS = [(b":status", b"200")]


def settings(**values: int) -> bytes:
    return frame(
        FrameType.SETTINGS, 0, 0, encode_settings((Setting[name], value) for name, value in values.items())
    )


def peer_with_requests(count: int, options: Options | None = None, **values: int) -> Peer:
    """Requests on streams 1, 3, 5 ..., and SETTINGS of the client."""
    peer = Peer(options)
    peer.send(settings(**values))
    for stream_id in range(1, 2 * count, 2):
        peer.send(peer.request(stream_id))
    peer.frames()
    return peer


def bodies(frames: list[Frame]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for sent in frames:
        if sent.type == FrameType.DATA:
            found[sent.stream_id] = found.get(sent.stream_id, b"") + sent.payload
    return found


def test_a_whole_response_is_headers_data_and_trailers() -> None:
    peer = peer_with_requests(1)
    assert peer.connection.respond(1, OK, b"body") is Delivery.SENT
    first, second, third = peer.frames()
    assert first == (FrameType.HEADERS, f.END_HEADERS, 1, OK.headers)
    assert second == (FrameType.DATA, 0, 1, b"body")
    assert third == (FrameType.HEADERS, f.END_HEADERS | f.END_STREAM, 1, OK.trailers)
    assert peer.connection.running == 0


def test_a_response_in_parts_has_the_same_frames_as_a_whole_one() -> None:
    whole, parts = peer_with_requests(1), peer_with_requests(1)
    whole.connection.respond(1, ResponseTemplate(STATUS, TRAILERS), b"body")
    assert parts.connection.send_headers(1, STATUS) is Delivery.SENT
    assert parts.connection.send_data(1, b"body") is Delivery.SENT
    assert parts.connection.send_trailers(1, TRAILERS) is Delivery.SENT
    assert whole.frames() == parts.frames()


def test_a_response_may_be_trailers_only() -> None:
    peer = peer_with_requests(1)
    assert peer.connection.send_trailers(1, [*STATUS, *TRAILERS]) is Delivery.SENT
    (only,) = peer.frames()
    assert (only.type, only.flags) == (FrameType.HEADERS, f.END_HEADERS | f.END_STREAM)


def test_data_sent_on_a_closed_stream_is_gone() -> None:
    peer = peer_with_requests(1)
    peer.connection.respond(1, OK, b"")
    peer.frames()
    for stream_id in (1, 3, 99):
        assert peer.connection.respond(stream_id, OK, b"x") is Delivery.GONE
        assert peer.connection.send_headers(stream_id, STATUS) is Delivery.GONE
        assert peer.connection.send_data(stream_id, b"x") is Delivery.GONE
        assert peer.connection.send_trailers(stream_id, TRAILERS) is Delivery.GONE
        assert not peer.connection.reset(stream_id, ErrorCode.CANCEL)
    assert peer.frames() == []


@pytest.mark.parametrize("size", [0, 1, 16_383, 16_384, 16_385, 40_000, 65_535])
def test_a_body_within_the_windows_is_sent_at_once_in_frames_of_the_peers_maximum_size(size: int) -> None:
    peer = peer_with_requests(1)
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert peer.connection.respond(1, OK, body) is Delivery.SENT
    sent = peer.frames()
    assert bodies(sent).get(1, b"") == body
    assert all(len(one.payload) <= 16_384 for one in sent)
    assert sent[-1].flags & f.END_STREAM


def test_a_body_beyond_the_streams_window_waits_and_its_sending_is_reported() -> None:
    peer = peer_with_requests(1, INITIAL_WINDOW_SIZE=10)
    assert peer.connection.respond(1, OK, b"0123456789abcdefghij") is Delivery.QUEUED
    assert bodies(peer.frames()) == {1: b"0123456789"}
    assert peer.connection.queued_bytes == 10
    assert peer.send(f.window_update(1, 4)) == []
    assert bodies(peer.frames()) == {1: b"abcd"}
    assert peer.send(f.window_update(1, 100)) == [DataSent(1, ended=True)]
    assert peer.sent() == [("DATA", 1), ("HEADERS", 1)]
    assert peer.connection.queued_bytes == peer.connection.running == 0


def test_parts_of_a_response_wait_until_the_previous_one_is_sent() -> None:
    peer = peer_with_requests(1, INITIAL_WINDOW_SIZE=3)
    peer.connection.send_headers(1, STATUS)
    assert peer.connection.send_data(1, b"abcde") is Delivery.QUEUED
    assert peer.connection.send_data(1, b"f") is Delivery.QUEUED
    assert peer.send(f.window_update(1, 3)) == [DataSent(1, ended=False)]
    assert bodies(peer.frames()) == {1: b"abcdef"}
    assert peer.connection.send_trailers(1, TRAILERS) is Delivery.SENT


def test_a_stuck_stream_delays_no_other() -> None:
    peer = peer_with_requests(3, INITIAL_WINDOW_SIZE=10)
    assert peer.connection.respond(1, OK, bytes(1000)) is Delivery.QUEUED
    assert peer.connection.respond(3, OK, b"three") is Delivery.SENT
    assert peer.connection.respond(5, OK, b"five") is Delivery.SENT
    assert bodies(peer.frames())[5] == b"five"


def test_streams_that_wait_for_the_connection_send_frames_round_robin() -> None:
    peer = peer_with_requests(4, INITIAL_WINDOW_SIZE=2**20)
    assert peer.connection.respond(1, OK, bytes(65_535)) is Delivery.SENT
    for stream_id in (3, 5):
        assert peer.connection.respond(stream_id, OK, bytes(40_000)) is Delivery.QUEUED
    # Even a small response queues behind the others.
    assert peer.connection.respond(7, OK, b"small") is Delivery.QUEUED
    peer.frames()
    events = peer.send(f.window_update(0, 2**20))
    assert [sent for sent in peer.sent() if sent[0] == "DATA"] == [
        ("DATA", stream_id) for stream_id in (3, 5, 7, 3, 5, 3, 5)
    ]
    assert events == [DataSent(7, ended=True), DataSent(3, ended=True), DataSent(5, ended=True)]


def test_the_connections_window_is_used_to_the_last_byte() -> None:
    peer = peer_with_requests(2)
    assert peer.connection.respond(1, OK, bytes(65_530)) is Delivery.SENT
    assert peer.connection.respond(3, OK, b"123456") is Delivery.QUEUED
    assert bodies(peer.frames())[3] == b"12345"
    peer.send(f.window_update(0, 1))
    assert bodies(peer.frames())[3] == b"6"


def test_a_lower_initial_window_can_make_windows_negative() -> None:
    """RFC 9113 §6.9.2."""
    peer = peer_with_requests(1, INITIAL_WINDOW_SIZE=20)
    peer.connection.respond(1, OK, bytes(30))
    peer.frames()
    peer.send(settings(INITIAL_WINDOW_SIZE=5), f.window_update(1, 15))
    assert bodies(peer.frames()) == {}
    peer.send(f.window_update(1, 1))
    assert bodies(peer.frames()) == {1: b"\0"}
    assert peer.send(settings(INITIAL_WINDOW_SIZE=100)) == [DataSent(1, ended=True)]


def test_a_window_overflow_by_settings_ends_the_connection() -> None:
    peer = peer_with_requests(1, INITIAL_WINDOW_SIZE=10)
    peer.send(f.window_update(1, 2**31 - 1 - 10))
    peer.send(settings(INITIAL_WINDOW_SIZE=11))
    assert peer.goaway() == (1, ErrorCode.FLOW_CONTROL_ERROR)


def test_a_body_beyond_the_output_limit_resets_its_stream() -> None:
    peer = peer_with_requests(3, Options(output_bytes=100), INITIAL_WINDOW_SIZE=0)
    assert peer.connection.respond(1, OK, bytes(60)) is Delivery.QUEUED
    assert peer.connection.respond(3, OK, bytes(60)) is Delivery.GONE
    assert peer.resets() == {3: ErrorCode.ENHANCE_YOUR_CALM}
    assert peer.connection.respond(5, OK, bytes(40)) is Delivery.QUEUED
    assert peer.connection.queued_bytes == 100
    peer.send(f.rst_stream(1, ErrorCode.CANCEL))
    assert peer.connection.queued_bytes == 40


def test_unwritten_output_counts_as_buffered() -> None:
    peer = peer_with_requests(3, Options(output_bytes=100))
    assert peer.connection.respond(1, OK, bytes(60)) is Delivery.SENT
    assert peer.connection.respond(3, OK, bytes(60)) is Delivery.GONE
    peer.frames()
    assert peer.connection.respond(5, OK, bytes(60)) is Delivery.SENT


def test_much_output_is_taken_in_parts_and_counts_until_all_of_it_is() -> None:
    peer = peer_with_requests(3, Options(output_bytes=100))
    for stream_id in (1, 3):
        assert peer.connection.respond(stream_id, OK, bytes(40)) is Delivery.SENT
    first = peer.connection.take_output(50)
    assert len(first) >= 50
    assert peer.connection.has_output
    assert peer.connection.send_capacity < 100
    peer.connection.check_invariants()
    whole = cut(first + peer.connection.take_output())
    assert bodies(whole) == {1: bytes(40), 3: bytes(40)}
    assert (peer.connection.has_output, peer.connection.send_capacity) == (False, 100)


def test_a_cancelled_response_is_dropped() -> None:
    peer = peer_with_requests(2, INITIAL_WINDOW_SIZE=5)
    peer.connection.respond(1, OK, bytes(30))
    peer.frames()
    assert peer.send(f.rst_stream(1, ErrorCode.CANCEL)) == [StreamReset(1, ErrorCode.CANCEL, by_client=True)]
    assert peer.send(f.window_update(1, 100)) == []
    assert peer.frames() == []


def test_a_response_before_the_end_of_the_request_tells_the_client_to_stop() -> None:
    """RFC 9113 §8.1."""
    peer = Peer()
    peer.begin(1)
    assert peer.connection.send_trailers(1, [*STATUS, *TRAILERS]) is Delivery.SENT
    assert peer.resets() == {1: ErrorCode.NO_ERROR}
    # Frames in flight are ignored.
    assert (
        peer.send(data(1, b"more", 0), headers(1, peer.block([(b"a", b"b")]), f.END_HEADERS | f.END_STREAM))
        == []
    )
    assert peer.frames() == []


@pytest.mark.parametrize("lowered", [0, 100, 4095])
def test_a_lowered_table_size_is_confirmed_once_before_the_next_block(lowered: int) -> None:
    """RFC 9113 §4.3.1; enforced by the decoder of `hpack`."""
    peer = peer_with_requests(3, HEADER_TABLE_SIZE=lowered)
    peer.decoder.max_allowed_table_size = lowered
    for stream_id in (1, 3, 5):
        assert peer.connection.respond(stream_id, OK, b"x") is Delivery.SENT
        blocks = [sent.payload for sent in peer.frames() if sent.type == FrameType.HEADERS]
        assert blocks[0].startswith(b"\x20") == (stream_id == 1)
        assert [[tuple(field) for field in peer.decoder.decode(block, raw=True)] for block in blocks] == [
            [(b":status", b"200"), (b"content-type", b"application/grpc")],
            TRAILERS,
        ]


def test_a_large_trailer_section_takes_several_frames() -> None:
    peer = peer_with_requests(1)
    peer.connection.send_trailers(1, [*STATUS, (b"grpc-message", b"\xff" * 40_000)])
    assert peer.sent() == [("HEADERS", 1), ("CONTINUATION", 1), ("CONTINUATION", 1)]


def test_a_stalled_stream_is_reset_and_one_with_progress_is_not() -> None:
    peer = peer_with_requests(3, Options(send_stall_s=30, keepalive_s=0), INITIAL_WINDOW_SIZE=5)
    for stream_id in (1, 3, 5):
        peer.connection.respond(stream_id, OK, bytes(1000))
    assert peer.pass_time(29) == []
    # Tiny frames do not count as progress (CVE-2019-9511).
    peer.send(f.window_update(3, 128), f.window_update(5, 127))
    assert bodies(peer.frames())[5] == bytes(5 + 127)
    assert peer.pass_time(1) == [
        StreamReset(stream_id, ErrorCode.CANCEL, by_client=False) for stream_id in (1, 5)
    ]
    assert peer.resets() == dict.fromkeys((1, 5), ErrorCode.CANCEL)
    assert peer.pass_time(28.5) == []
    assert peer.pass_time(0.5) == [StreamReset(3, ErrorCode.CANCEL, by_client=False)]


def test_sending_in_the_wrong_order_is_a_bug() -> None:
    peer = peer_with_requests(1, INITIAL_WINDOW_SIZE=1)
    with pytest.raises(AssertionError, match="data in front"):
        peer.connection.send_data(1, b"x")
    peer.connection.send_headers(1, STATUS)
    with pytest.raises(AssertionError, match="second header section"):
        peer.connection.send_headers(1, STATUS)
    peer.connection.send_data(1, b"xy")
    peer.connection.send_trailers(1, TRAILERS)
    with pytest.raises(AssertionError, match="behind the end"):
        peer.connection.send_data(1, b"x")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["respond", "window", "connection", "initial", "reset", "take"]),
        st.integers(0, 9),
        st.integers(0, 30),
    ),
    max_size=60,
)


@pytest.mark.slow
@given(STEPS)
def test_any_order_of_window_updates_and_responses_sends_each_body_once_within_its_windows(
    steps: list[tuple[str, int, int]],
) -> None:
    peer = peer_with_requests(10, Options(output_bytes=120), INITIAL_WINDOW_SIZE=10)
    peer.connection._sender._send_window = 25
    allowed, initial, connection_allowed = dict.fromkeys(range(1, 20, 2), 10), 10, 25
    expected: dict[int, bytes] = {}
    frames: list[Frame] = []
    for action, number, size in steps:
        stream_id = 2 * number + 1
        if action == "respond" and stream_id not in expected:
            body = bytes((number,)) * size
            expected[stream_id] = body
            if peer.connection.respond(stream_id, OK, body) is Delivery.GONE:
                del expected[stream_id]
        elif action == "window" and size:
            peer.send(f.window_update(stream_id, size))
            allowed[stream_id] += size
        elif action == "connection" and size:
            peer.send(f.window_update(0, size))
            connection_allowed += size
        elif action == "initial":
            peer.send(settings(INITIAL_WINDOW_SIZE=size))
            allowed = {stream: window + size - initial for stream, window in allowed.items()}
            initial = size
        elif action == "reset":
            peer.send(f.rst_stream(stream_id, ErrorCode.CANCEL))
            expected.pop(stream_id, None)
        frames += peer.frames() if action == "take" else []
        peer.connection.check_invariants()
    frames += peer.frames()
    found = bodies(frames)
    assert sum(map(len, found.values())) <= connection_allowed
    for stream_id, body in expected.items():
        sent = found.get(stream_id, b"")
        assert body.startswith(sent)
        ended = any(one.stream_id == stream_id and one.flags & f.END_STREAM for one in frames)
        assert ended == (sent == body)
    waiting = sum(map(len, expected.values())) - sum(len(found.get(stream, b"")) for stream in expected)
    assert peer.connection.queued_bytes == waiting


def test_requests_answered_late_are_not_lost() -> None:
    peer = Peer()
    events = [event for stream_id in (1, 3) for event in peer.send(peer.request(stream_id, b"body"))]
    assert [event.stream_id for event in events if isinstance(event, RequestReceived)] == [1, 3]
    assert peer.connection.running == 2


@given(
    sizes=st.lists(st.sampled_from([0, 1, 10, 100, 16_384, 16_385]), min_size=1, max_size=8),
    window=st.sampled_from([0, 50, 65_535]),
    gone=st.sets(st.integers(0, 7)),
)
def test_responses_together_are_those_one_by_one_up_to_the_first_that_waits(
    sizes: list[int], window: int, gone: set[int]
) -> None:
    one_by_one, together = (
        peer_with_requests(len(sizes), Options(output_bytes=20_000), INITIAL_WINDOW_SIZE=window)
        for _ in range(2)
    )
    stream_ids = [2 * at + 1 for at in range(len(sizes))]
    for at in gone.intersection(range(len(sizes))):
        for peer in (one_by_one, together):
            peer.connection.reset(stream_ids[at], ErrorCode.CANCEL)
    sent = 0
    while sent < len(sizes) and one_by_one.connection.maybe_respond(stream_ids[sent], OK, bytes(sizes[sent])):
        sent += 1
    answers = [bytes(size) for size in sizes]
    assert together.connection.maybe_respond_all(stream_ids, OK, answers) == sent
    for seen in ("send_capacity", "running", "queued_bytes"):
        assert getattr(together.connection, seen) == getattr(one_by_one.connection, seen), seen
    assert together.frames() == one_by_one.frames()
