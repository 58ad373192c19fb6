import struct
from random import Random

import pytest

from pixy.wire.core import RefusedFrame, WireCore

LARGEST = 1000


def make_core() -> WireCore:
    return WireCore(lambda key: LARGEST if key == 0 else 100)


def frame(content: bytes, key: int = 0) -> bytes:
    body = struct.pack(">h", key) + content.ljust(8, b"-")
    return struct.pack(">i", len(body)) + body


def frames_of(core: WireCore) -> list[bytes]:
    found = []
    while (each := core.next_frame()) is not None:
        found.append(each)
    return found


def test_frames_come_whole_however_the_input_is_cut() -> None:
    frames = [frame(bytes([n]) * n * 30) for n in range(1, 20)]
    whole, rng = b"".join(frames), Random(1)
    for _ in range(50):
        core, found, at = make_core(), [], 0
        while at < len(whole):
            size = rng.choice((1, 2, 7, 100, 5000))
            core.receive(whole[at : at + size])
            found += frames_of(core)
            at += size
        assert found == [each[4:] for each in frames]
        assert not core.pending
        assert core.buffered_bytes == 0


def test_the_rest_of_a_frame_is_expected() -> None:
    core = make_core()
    core.receive(frame(bytes(500))[:100])
    assert core.next_frame() is None
    assert core.data_expected == 506 - 100
    assert core.buffered_bytes == 96
    assert not core.pending


@pytest.mark.parametrize("size", [-1, 0, 9, LARGEST + 1, (1 << 31) - 1])
def test_a_length_that_is_not_allowed_ends_the_input(size: int) -> None:
    core = make_core()
    core.receive(struct.pack(">ih", size, 0))
    with pytest.raises(RefusedFrame):
        core.next_frame()
    assert core.closed
    core.receive(frame(b""))
    assert core.next_frame() is None


def test_bare_frames_may_have_no_bytes_and_come_whole_however_the_input_is_cut() -> None:
    tokens = [bytes(size) for size in (0, 1, 9, 100, 0)]
    whole = b"".join(struct.pack(">i", len(each)) + each for each in tokens)
    for size in (1, 3, len(whole)):
        core, found = make_core(), list[bytes]()
        core.is_bare = True
        for at in range(0, len(whole), size):
            core.receive(whole[at : at + size])
            found += frames_of(core)
        assert found == tokens
        assert core.buffered_bytes == 0


@pytest.mark.parametrize("size", [-1, 101, (1 << 31) - 1])
def test_the_length_of_a_bare_frame_is_that_of_no_api(size: int) -> None:
    core = make_core()
    core.is_bare = True
    core.receive(struct.pack(">i", size))
    with pytest.raises(RefusedFrame, match="expected 0 to 100"):
        core.next_frame()


def test_the_largest_frame_depends_on_the_api() -> None:
    core = make_core()
    core.receive(frame(bytes(500), key=0) + frame(bytes(500), key=1))
    assert core.next_frame()
    with pytest.raises(RefusedFrame):
        core.next_frame()


def test_answers_are_written_in_the_order_of_requests() -> None:
    core = make_core()
    core.running = 3
    core.respond(2, [b"c"])
    core.respond(1, [])
    assert not core.has_output
    assert core.queued_bytes == 1
    core.respond(0, [b"a", b"b"])
    assert core.line == 3
    assert core.take_output(100) == b"abc"
    assert core.queued_bytes == 0


def test_a_request_without_an_answer_lets_the_next_one_through() -> None:
    core = make_core()
    core.running = 2
    core.respond(0, [])
    assert not core.has_output
    core.respond(1, [b"x"])
    assert core.take_output(100) == b"x"


def test_output_is_taken_in_parts() -> None:
    core = make_core()
    core.running = 1
    core.respond(0, [b"a" * 10, b"b" * 10, b"c" * 10])
    assert core.take_output(15) == b"a" * 10 + b"b" * 10
    assert core.has_output
    assert core.take_output(15) == b"c" * 10
    assert not core.has_output


def test_a_large_chunk_is_not_copied() -> None:
    core, large = make_core(), bytes(100)
    core.running = 1
    core.respond(0, [b"head", large])
    assert core.take_output(4) == b"head"
    assert core.take_output(4) is large


def test_it_is_closed_when_the_last_request_is_answered() -> None:
    core = make_core()
    core.running = 1
    core.end()
    ends = [core.closed]
    core.respond(0, [b"x"])
    ends.append(core.closed)
    assert (ends, core.has_output) == ([False, True], True)


def test_answers_after_the_end_are_left_out() -> None:
    core = make_core()
    core.running = 2
    core.terminate()
    core.respond(0, [b"x"])
    assert core.closed
    assert not core.has_output
