"""Assembly of header blocks, `pixy.http2.blocks`."""

import pytest

from pixy.http2 import ErrorCode, Options
from pixy.http2 import frames as f
from pixy.http2.blocks import HeaderBlock
from pixy.http2.errors import Http2ConnectionError
from pixy.http2.frames import Frame, FrameType

OPTIONS = Options(max_header_list_bytes=1024, continuation_frames=3)


def begin(payload: bytes = b"a", flags: int = 0) -> HeaderBlock:
    return HeaderBlock(Frame(FrameType.HEADERS, flags, 1, payload), OPTIONS, 0.0)


def go_on(
    payload: bytes, flags: int = 0, stream_id: int = 1, frame_type: int = FrameType.CONTINUATION
) -> Frame:
    return Frame(frame_type, flags, stream_id, payload)


def test_a_block_is_the_concatenation_of_its_frames() -> None:
    block = begin(b"\x02\0\0\0\x05\x10abPP", f.PADDED | f.PRIORITY | f.END_STREAM)
    assert (block.depends_on, block.ends_stream, block.stream_id) == (5, True, 1)
    assert block.complete(go_on(b"", 0)) is None
    block.add(go_on(b"c"))
    last = go_on(b"d", f.END_HEADERS)
    block.add(last)
    assert block.complete(last) == b"abcd"


@pytest.mark.parametrize(
    "other", [go_on(b"", stream_id=3), go_on(b"", frame_type=FrameType.DATA), go_on(b"", frame_type=0xFF)]
)
def test_no_other_frame_may_be_interleaved(other: Frame) -> None:
    with pytest.raises(Http2ConnectionError) as caught:
        begin().add(other)
    assert caught.value.code is ErrorCode.PROTOCOL_ERROR


def test_bytes_and_frames_are_limited() -> None:
    begin(bytes(1024)).add(go_on(b""))
    with pytest.raises(Http2ConnectionError) as caught:
        begin(bytes(1024)).add(go_on(b"x"))
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM
    with pytest.raises(Http2ConnectionError):
        begin(bytes(1025))
    block = begin()
    for _ in range(3):
        block.add(go_on(b""))
    with pytest.raises(Http2ConnectionError) as caught:
        block.add(go_on(b""))
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM
