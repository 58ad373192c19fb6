"""Frames between peers, byte by byte."""

import struct
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.peers.frames import (
    ALIVE,
    CALL,
    HANDSHAKE_BYTES_MAX,
    HEAD_BYTES,
    MESSAGE,
    FrameDamage,
    Payload,
    PeerFrame,
    PeerFrameReader,
    frame_head,
)
from pixy.records import crc32c

LIMIT = 1 << 20

VECTORS = [
    ((ALIVE, 0, 0, 0, b""), "00000000 ea06266d 05 00 4bc7 00000000 0000000000000000"),
    ((MESSAGE, 1, 0, 0, b"raft"), "00000004 5a2d7062 08 01 dcd8 00000000 0000000000000000 72616674"),
    (
        (CALL, 2, 1500, 0x0102030405060708, b"\x00\xff"),
        "00000002 d1289a4e 09 02 3b30 000005dc 0102030405060708 00ff",
    ),
]


def encoded(frame: PeerFrame, parts: int = 1) -> bytes:
    """Bytes of a frame whose payload is given in parts."""
    kind, method, milliseconds, number, payload = frame
    pieces = split(bytes(payload), parts)
    return frame_head(kind, method, milliseconds, number, pieces, len(payload)) + b"".join(pieces)


def split(payload: bytes, parts: int) -> list[bytes]:
    size = len(payload) // parts + 1
    return [payload[at : at + size] for at in range(0, len(payload), size)]


def read(chunks: list[bytes], limit: int = LIMIT) -> list[PeerFrame]:
    """Frames of a connection that brings chunks, with copies of their payloads."""
    reader, frames = PeerFrameReader(limit), list[PeerFrame]()
    for each in chunks:
        chunk: Payload = each
        while chunk:
            buffer = reader.buffer()
            size = min(len(buffer), len(chunk))
            assert size
            buffer[:size] = chunk[:size]
            chunk = chunk[size:]
            frames += [(*frame[:4], bytes(frame[4])) for frame in reader.received(size)]
    return frames


@pytest.mark.parametrize(("frame", "vector"), VECTORS)
def test_a_frame_has_these_bytes(frame: PeerFrame, vector: str) -> None:
    assert encoded(frame).hex() == vector.replace(" ", "")
    assert read([bytes.fromhex(vector)]) == [frame]


def test_the_checksum_is_crc_32c_of_what_is_behind_it() -> None:
    frame = encoded(VECTORS[2][0])
    length, crc = struct.unpack(">II", frame[:8])
    assert length == len(frame) - HEAD_BYTES
    assert crc == crc32c(frame[8:])


def test_parts_of_a_payload_are_one_payload() -> None:
    frame: PeerFrame = (MESSAGE, 1, 0, 0, bytes(range(256)))
    assert encoded(frame, parts=7) == encoded(frame)


def test_every_prefix_of_frames_gives_the_frames_that_are_complete() -> None:
    frames = [frame for frame, _ in VECTORS]
    pieces = [encoded(frame) for frame in frames]
    whole = b"".join(pieces)
    for size in range(len(whole) + 1):
        complete = sum(sum(map(len, pieces[: count + 1])) <= size for count in range(len(pieces)))
        assert read([whole[:size]]) == frames[:complete]
        assert read([whole[:size], whole[size:]]) == frames


def test_every_flipped_bit_is_damage() -> None:
    whole = encoded(VECTORS[1][0])
    for bit in range(len(whole) * 8):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameDamage):
            read([bytes(changed)])


def test_a_damaged_length_is_noticed_before_bytes_are_waited_for() -> None:
    head = bytearray(encoded(VECTORS[1][0])[:HEAD_BYTES])
    head[1] ^= 1
    with pytest.raises(FrameDamage, match="the length of a frame, 65540 bytes, is damaged"):
        read([bytes(head)])


@pytest.mark.parametrize("limit", [100, HANDSHAKE_BYTES_MAX, LIMIT])
def test_a_frame_above_the_limit_is_refused_by_its_head(limit: int) -> None:
    assert read([encoded((MESSAGE, 0, 0, 0, bytes(limit)))], limit) == [(MESSAGE, 0, 0, 0, bytes(limit))]
    head = frame_head(MESSAGE, 0, 0, 0, [], limit + 1)
    with pytest.raises(FrameDamage, match=f"a frame has {limit + 1} bytes, at most {limit} are allowed"):
        read([head], limit)


def test_no_memory_is_allocated_for_a_frame_above_the_limit() -> None:
    reader = PeerFrameReader(LIMIT)
    head = frame_head(MESSAGE, 0, 0, 0, [], (1 << 32) - 1)
    reader.buffer()[: len(head)] = head
    before = len(reader.buffer())
    with pytest.raises(FrameDamage):
        reader.received(len(head))
    assert len(reader.buffer()) <= before


def test_the_limit_may_grow_between_frames() -> None:
    reader = PeerFrameReader(10)
    large = encoded((MESSAGE, 0, 0, 0, bytes(100)))
    reader.limit = 100
    reader.buffer()[: len(large)] = large
    assert len(reader.received(len(large))) == 1


def test_a_large_payload_is_received_without_a_copy_and_stays_valid() -> None:
    reader = PeerFrameReader(LIMIT)
    payload = Random(1).randbytes(300_000)
    whole = encoded((MESSAGE, 0, 0, 0, payload))
    at = 0
    found: list[PeerFrame] = []
    buffers = set()
    while at < len(whole):
        buffer = reader.buffer()
        buffers.add(id(buffer.obj))
        size = min(len(buffer), 50_000, len(whole) - at)
        buffer[:size] = whole[at : at + size]
        at += size
        found += reader.received(size)
    (frame,) = found
    assert len(buffers) == 2, "that of the head, and one for all the rest"
    assert isinstance(frame[4], memoryview)
    assert frame[4].readonly
    small = encoded((MESSAGE, 0, 0, 0, b"x" * 60_000))
    reader.buffer()[: len(small)] = small
    assert len(reader.received(len(small))) == 1
    assert frame[4] == payload


def test_a_large_frame_never_takes_bytes_of_the_next() -> None:
    frames: list[PeerFrame] = [
        (MESSAGE, 0, 0, 0, bytes(size)) for size in (70_000, 3, 65_536, 65_513, 0, 200_000)
    ]
    whole = b"".join(encoded(frame) for frame in frames)
    for size in (1000, 65_536, 100_000, len(whole)):
        assert read([whole[at : at + size] for at in range(0, len(whole), size)]) == frames


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.integers(0, 255), st.integers(0, (1 << 64) - 1), st.integers(0, 80_000)), max_size=8
    ),
    st.integers(1, 100_000),
)
def test_frames_are_the_same_however_they_are_cut(heads: list[tuple[int, int, int]], size: int) -> None:
    random = Random(size)
    frames: list[PeerFrame] = [
        (kind, kind ^ 1, number & 0xFFFFFFFF, number, random.randbytes(length))
        for kind, number, length in heads
    ]
    whole = b"".join(encoded(frame) for frame in frames)
    assert read([whole[at : at + size] for at in range(0, len(whole), size)]) == frames


@pytest.mark.parametrize(
    ("begin", "reason"),
    [
        (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            "it speaks TLS: cluster.tls must be set on all nodes",
        ),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "it speaks HTTP/2, like a client of the gRPC API"),
        (b"GET / HTTP/1.1\r\nHost: example\r\n", "a frame has 1195725856 bytes, at most 65536 are allowed"),
    ],
)
def test_a_connection_that_speaks_another_protocol_is_told_so(begin: bytes, reason: str) -> None:
    reader = PeerFrameReader(HANDSHAKE_BYTES_MAX)
    data = begin.ljust(HEAD_BYTES, b"\0")
    reader.buffer()[: len(data)] = data
    with pytest.raises(FrameDamage, match=reason):
        reader.received(len(data))
