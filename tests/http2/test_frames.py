"""Frame encoding, `pixy.http2.frames`, against the package `hyperframe` as oracle, and the rules
for frame headers.
"""

from typing import Any

import pytest
from hyperframe import frame as oracle
from hypothesis import given
from hypothesis import strategies as st

from pixy.http2 import ErrorCode
from pixy.http2 import frames as f
from pixy.http2.errors import Http2ConnectionError, Http2StreamError
from pixy.http2.frames import RULES, Frame, FrameType

STREAMS = st.integers(1, f.STREAM_ID_MAX)


def parse(data: bytes) -> Any:
    """The oracle's frame object; it has many classes of them."""
    found, length = oracle.Frame.parse_frame_header(memoryview(data)[:9])
    found.parse_body(memoryview(data)[9:])
    assert len(data) == 9 + length
    return found


@pytest.mark.slow
@given(STREAMS, st.integers(0, 13), st.integers(1, f.STREAM_ID_MAX), st.binary(min_size=8, max_size=8))
def test_control_frames_are_read_by_the_oracle(
    stream_id: int, code: int, increment: int, payload: bytes
) -> None:
    reset = parse(f.rst_stream(stream_id, code))
    assert (type(reset), reset.stream_id, reset.error_code) == (oracle.RstStreamFrame, stream_id, code)
    away = parse(f.goaway(stream_id, code, payload))
    assert (away.last_stream_id, away.error_code, away.additional_data) == (stream_id, code, payload)
    update = parse(f.window_update(stream_id, increment))
    assert (type(update), update.stream_id, update.window_increment) == (
        oracle.WindowUpdateFrame,
        stream_id,
        increment,
    )
    pong = parse(f.ping(payload, ack=True))
    assert (type(pong), pong.opaque_data, pong.flags) == (oracle.PingFrame, payload, {"ACK"})
    assert not parse(f.ping(payload, ack=False)).flags


@pytest.mark.slow
@given(STREAMS, st.sampled_from([0, 1, 16_384, 16_385, 40_000]), st.booleans())
def test_a_header_block_is_split_into_frames_that_every_peer_accepts(
    stream_id: int, size: int, end_stream: bool
) -> None:
    block = bytes(range(256)) * (size // 256) + bytes(size % 256)
    first, *rest = map(parse, f.headers(stream_id, block, end_stream=end_stream))
    assert isinstance(first, oracle.HeadersFrame)
    assert ("END_STREAM" in first.flags) == end_stream
    assert all(isinstance(frame, oracle.ContinuationFrame) for frame in rest)
    assert ["END_HEADERS" in frame.flags for frame in (first, *rest)] == [False] * len(rest) + [True]
    assert b"".join(frame.data for frame in (first, *rest)) == block
    assert {frame.stream_id for frame in (first, *rest)} == {stream_id}


@pytest.mark.slow
@given(st.binary(max_size=50), st.integers(0, 60))
def test_padding_is_stripped_or_rejected_if_it_exceeds_the_payload(content: bytes, padding: int) -> None:
    payload = bytes((padding,)) + content
    frame = Frame(FrameType.DATA, f.PADDED, 1, payload)
    if padding <= len(content):
        assert f.strip_padding(frame) == content[: len(content) - padding]
        return
    with pytest.raises(Http2ConnectionError) as caught:
        f.strip_padding(frame)
    assert caught.value.code is ErrorCode.PROTOCOL_ERROR


@pytest.mark.slow
def test_a_padded_frame_without_payload_is_a_frame_size_error() -> None:
    with pytest.raises(Http2ConnectionError) as caught:
        f.strip_padding(Frame(FrameType.HEADERS, f.PADDED, 1, b""))
    assert caught.value.code is ErrorCode.FRAME_SIZE_ERROR
    assert f.strip_padding(Frame(FrameType.HEADERS, 0, 1, b"x")) == b"x"


def test_the_priority_of_headers_is_stripped_and_its_dependency_returned() -> None:
    payload = (0x8000_0007).to_bytes(4, "big") + b"\x10block"
    assert f.strip_priority(Frame(FrameType.HEADERS, f.PRIORITY, 1, payload), payload) == (b"block", 7)
    assert f.strip_priority(Frame(FrameType.HEADERS, 0, 1, payload), payload) == (payload, 0)
    with pytest.raises(Http2ConnectionError) as caught:
        f.strip_priority(Frame(FrameType.HEADERS, f.PRIORITY, 1, b"1234"), b"1234")
    assert caught.value.code is ErrorCode.FRAME_SIZE_ERROR


def test_a_window_increment_of_zero_is_rejected() -> None:
    assert f.read_increment(Frame(FrameType.WINDOW_UPDATE, 0, 1, b"\x80\0\0\x05")) == 5
    with pytest.raises(Http2StreamError) as of_stream:
        f.read_increment(Frame(FrameType.WINDOW_UPDATE, 0, 1, b"\x80\0\0\0"))
    assert (of_stream.value.code, of_stream.value.stream_id) == (ErrorCode.PROTOCOL_ERROR, 1)
    with pytest.raises(Http2ConnectionError):
        f.read_increment(Frame(FrameType.WINDOW_UPDATE, 0, 0, bytes(4)))


@pytest.mark.parametrize("frame_type", FrameType)
def test_a_frame_header_that_violates_the_rules_of_its_type_is_rejected(frame_type: FrameType) -> None:
    rule = RULES[frame_type]
    length = 16 if rule.length is None else rule.length
    for stream_id in (0, 1):
        if rule.on_stream in (None, stream_id > 0):
            f.check_head(frame_type, stream_id, length)
            continue
        with pytest.raises(Http2ConnectionError) as caught:
            f.check_head(frame_type, stream_id, length)
        assert caught.value.code is ErrorCode.PROTOCOL_ERROR
    stream_id = int(rule.on_stream is not False)
    for wrong in (length - 1, length + 1) if rule.length is not None else ():
        error = Http2ConnectionError if rule.length_breaks_connection else Http2StreamError
        with pytest.raises(error) as of_size:
            f.check_head(frame_type, stream_id, wrong)
        assert of_size.value.code is ErrorCode.FRAME_SIZE_ERROR
