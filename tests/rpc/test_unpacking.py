"""pixy/rpc/unpacking.py: decompression in steps, against gzip; every limit, every fault."""

import gzip
import tracemalloc
import zlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.rpc.status import GrpcError, Status
from pixy.rpc.unpacking import STEP_BYTES, Unpacker

LIMIT = 1_000_000


def unpack(packed: bytes, limit: int = LIMIT) -> bytes:
    """Decompress a message; each step keeps its bound."""
    unpacker, done = Unpacker(packed, limit), False
    while not done:
        before = unpacker.size
        done = unpacker.step()
        assert unpacker.size - before <= STEP_BYTES
    return unpacker.message


def fails(packed: bytes, limit: int = LIMIT) -> Status:
    with pytest.raises(GrpcError) as caught:
        unpack(packed, limit)
    return Status(caught.value.status)


@given(st.integers(0, 2**32), st.integers(0, 5 * STEP_BYTES), st.integers(0, 9), st.booleans())
def test_a_message_makes_the_round_trip(seed: int, size: int, level: int, random: bool) -> None:
    message = Random(seed).randbytes(size) if random else bytes(size)
    assert unpack(gzip.compress(message, level)) == message


@pytest.mark.parametrize("size", [STEP_BYTES, STEP_BYTES + 1, STEP_BYTES - 1, 0, 1])
def test_a_message_that_ends_at_the_edge_of_a_step_is_whole(size: int) -> None:
    assert unpack(gzip.compress(bytes(size)), max(size, 1)) == bytes(size)


def test_a_large_message_takes_many_steps() -> None:
    unpacker, steps = Unpacker(gzip.compress(bytes(LIMIT)), LIMIT), 1
    while not unpacker.step():
        steps += 1
    assert steps >= LIMIT // STEP_BYTES


@pytest.mark.parametrize("limit", [1, 100, STEP_BYTES - 1, STEP_BYTES, STEP_BYTES + 1, LIMIT])
def test_a_message_at_the_limit_is_decompressed_and_one_byte_more_refused(limit: int) -> None:
    assert len(unpack(gzip.compress(bytes(limit)), limit)) == limit
    assert fails(gzip.compress(bytes(limit + 1)), limit) == Status.RESOURCE_EXHAUSTED


@pytest.mark.slow
def test_a_bomb_takes_no_memory_beyond_the_limit() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    tracemalloc.start()
    try:
        assert fails(bomb) == Status.RESOURCE_EXHAUSTED
        assert tracemalloc.get_traced_memory()[1] < 2.5 * LIMIT
    finally:
        tracemalloc.stop()


def test_a_message_that_was_truncated_or_changed_anywhere_is_internal() -> None:
    packed = gzip.compress(Random(1).randbytes(2 * STEP_BYTES) + bytes(STEP_BYTES))
    for at in (0, 1, 9, 10, 100, STEP_BYTES, len(packed) - 9, len(packed) - 8, len(packed) - 1):
        assert fails(packed[:at]) == Status.INTERNAL, at
    for at in (0, 2, len(packed) - 8, len(packed) - 1):
        assert fails(packed[:at] + bytes((packed[at] ^ 1,)) + packed[at + 1 :]) == Status.INTERNAL, at


@pytest.mark.parametrize("more", [b"\0", bytes(2 * STEP_BYTES), gzip.compress(b"another", mtime=0)])
def test_data_after_the_end_of_gzip_are_internal(more: bytes) -> None:
    for size in (10, 3 * STEP_BYTES):
        assert fails(gzip.compress(bytes(size)) + more) == Status.INTERNAL


def test_zlib_without_the_head_of_gzip_is_internal() -> None:
    assert fails(zlib.compress(b"x")) == Status.INTERNAL
