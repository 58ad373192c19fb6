"""pixy/rpc/messages.py: messages cut anywhere, against a naive model; compression; every limit."""

import gc
import gzip
import tracemalloc
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.rpc.messages import Encoding, MessageReader, pack_message
from pixy.rpc.status import GrpcError, Status
from pixy.rpc.unpacking import Unpacker

LIMIT = 100


def reader(body: bytes = b"", encoding: Encoding = Encoding.GZIP) -> MessageReader:
    made = MessageReader(encoding, LIMIT)
    made.feed(body, 0, len(body))
    return made


def take(reader: MessageReader) -> bytes | bytearray | None:
    """The next message, decompressed."""
    message = reader.take()
    if not isinstance(message, Unpacker):
        return message
    while not message.step():
        pass
    return message.message


def fails(reader: MessageReader) -> Status:
    with pytest.raises(GrpcError) as caught:
        take(reader)
    return Status(caught.value.status)


@pytest.mark.slow
@given(st.lists(st.tuples(st.binary(max_size=60), st.booleans()), max_size=6), st.data())
def test_messages_come_out_as_they_went_in_wherever_they_are_cut(
    messages: list[tuple[bytes, bool]], data: st.DataObject
) -> None:
    body = b"".join(pack_message(message, compressed=compressed) for message, compressed in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8)))
    made, found = reader(), []
    for begin, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
        made.feed(b"<" + body + b">", begin + 1, end + 1)
        while (message := take(made)) is not None:
            found.append((bytes(message), made.compressed))
    assert found == messages
    assert not made.size


def test_a_message_at_the_limit_is_accepted_and_one_byte_more_refused() -> None:
    for encode in (False, True):
        assert take(reader(pack_message(bytes(LIMIT), compressed=encode))) == bytes(LIMIT)
        assert fails(reader(pack_message(bytes(LIMIT + 1), compressed=encode))) == Status.RESOURCE_EXHAUSTED


def test_a_length_beyond_the_limit_is_refused_before_the_message_comes() -> None:
    assert fails(reader(b"\0\xff\xff\xff\xff")) == Status.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    "body",
    [
        b"\2\0\0\0\0",
        b"\1\0\0\0\0",
        b"\1\0\0\0\1x",
        pack_message(b"x" * 50, compressed=True)[:4] + b"\x08" + gzip.compress(b"x" * 50, mtime=0)[:8],
        b"\1\0\0\0\x2a" + gzip.compress(b"x", mtime=0) * 2,
    ],
)
def test_a_message_with_a_wrong_flag_is_internal(body: bytes) -> None:
    assert fails(reader(body)) == Status.INTERNAL


def test_a_compressed_message_without_an_encoding_is_internal() -> None:
    assert fails(reader(pack_message(b"x", compressed=True), Encoding.IDENTITY)) == Status.INTERNAL


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", Status.UNIMPLEMENTED),
        (pack_message(b"a") + pack_message(b"b"), Status.UNIMPLEMENTED),
        (pack_message(b"a")[:-1], Status.INTERNAL),
        (b"\0\0", Status.INTERNAL),
    ],
)
def test_a_request_of_one_message_has_neither_none_nor_two(body: bytes, status: Status) -> None:
    with pytest.raises(GrpcError) as caught:
        reader(body).take_only()
    assert caught.value.status == status


def test_an_incomplete_request_may_still_become_one_message() -> None:
    for body in (b"", b"\0\0", pack_message(b"a")[:-1], pack_message(b"a")):
        reader(body).check_only()
    with pytest.raises(GrpcError, match="more than one"):
        reader(pack_message(b"a") + b"\0").check_only()


@pytest.mark.slow
@given(st.lists(st.integers(0, 9000), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_large_messages_come_out_as_they_went_in_whatever_chunks_their_parts_lie_in(
    sizes: list[int], random: Random
) -> None:
    messages = [random.randbytes(size) for size in sizes]
    body = b"".join(map(pack_message, messages))
    made, found, fed = MessageReader(Encoding.IDENTITY, 1 << 20), [], 0
    while fed < len(body):
        size = random.choice([1, 3, 4095, 4096, 8192])
        before, behind = random.choice([0, 9, 20_000]), random.choice([0, 9, 20_000])
        part = body[fed : fed + size]
        made.feed(bytes(before) + part + bytes(behind), before, before + len(part))
        fed += len(part)
        while random.random() < 0.7 and (message := take(made)) is not None:
            found.append(bytes(message))
    while (message := take(made)) is not None:
        found.append(bytes(message))
    assert found == messages
    assert not made.size


def kept_bytes(feed: Callable[[MessageReader], None]) -> tuple[int, int]:
    """Bytes that a reader has been fed, and memory that it holds for them."""
    gc.collect()
    tracemalloc.start()
    try:
        made = MessageReader(Encoding.IDENTITY, 1 << 30)
        before = tracemalloc.get_traced_memory()[0]
        feed(made)
        return made.size, tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [0, 32_768])
@pytest.mark.parametrize("part", [1, 30, 100, 4095, 4096, 16_000, 32_768])
def test_a_message_in_parts_takes_at_most_about_twice_its_bytes(part: int, chunk: int) -> None:
    def feed(made: MessageReader) -> None:
        made.feed(b"\0\x20\0\0\0", 0, 5)
        for number in range(min((1 << 20) // part, 20_000)):
            made.feed(bytes([number & 0xFF]) * max(part, chunk), 0, part)

    size, kept = kept_bytes(feed)
    assert size > 20_000
    assert kept < 2.1 * size


def test_the_rest_of_a_chunk_does_not_keep_the_chunk_in_memory() -> None:
    def feed(made: MessageReader) -> None:
        chunk = pack_message(bytes(32_763)) + b"\0"
        made.feed(chunk, 0, len(chunk))
        assert made.take() is not None

    size, kept = kept_bytes(feed)
    assert size == 1
    assert kept < 2000


def test_large_parts_are_copied_once() -> None:
    chunks = [pack_message(bytes(65_536))[:32_768], bytes(32_773)]
    made = MessageReader(Encoding.IDENTITY, 1 << 20)
    tracemalloc.start()
    try:
        for chunk in chunks:
            made.feed(chunk, 0, len(chunk))
        assert tracemalloc.get_traced_memory()[1] < 10_000
        message = take(made)
        assert tracemalloc.get_traced_memory()[1] < 65_541 + 10_000
    finally:
        tracemalloc.stop()
    assert message == bytes(65_536)
