"""pixy/api/grpc/messages.py: messages cut anywhere, against a naive model; compressed ones; every limit."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.api.grpc.messages import (
    Encoding,
    MessageReader,
    Serialized,
    pack_message,
    pack_pieces,
    serialize_with,
)
from pixy.api.grpc.status import GrpcError, Status
from pixy.api.grpc.unpacking import Unpacker
from pixy.proto.pixy_log_pb2 import END_OF_RANGE, FetchResponse

LIMIT = 100


def reader(body: bytes = b"", encoding: Encoding = Encoding.GZIP) -> MessageReader:
    made = MessageReader(encoding, LIMIT)
    made.feed(body, 0, len(body))
    return made


def take(reader: MessageReader) -> bytes | bytearray | None:
    """The next message, unpacked."""
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
    assert not made.buffer


def test_a_message_of_the_limit_is_taken_and_one_more_byte_refused() -> None:
    for encode in (False, True):
        assert take(reader(pack_message(bytes(LIMIT), compressed=encode))) == bytes(LIMIT)
        assert fails(reader(pack_message(bytes(LIMIT + 1), compressed=encode))) == Status.RESOURCE_EXHAUSTED


def test_the_length_is_refused_before_the_message_is_there() -> None:
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
def test_what_is_not_what_its_flag_says_is_internal(body: bytes) -> None:
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
def test_one_message_is_wanted_where_one_is_wanted(body: bytes, status: Status) -> None:
    with pytest.raises(GrpcError) as caught:
        reader(body).take_only()
    assert caught.value.status == status


def test_a_request_that_is_not_complete_may_still_become_one_message() -> None:
    for body in (b"", b"\0\0", pack_message(b"a")[:-1], pack_message(b"a")):
        reader(body).check_only()
    with pytest.raises(GrpcError, match="more than one"):
        reader(pack_message(b"a") + b"\0").check_only()


@given(
    st.integers(-1, 2**31 - 1),
    st.lists(st.binary(max_size=40_000).map(lambda drawn: drawn * 3), max_size=5),
)
def test_a_message_with_buffers_in_a_field_is_the_message_that_protobuf_makes(
    number: int, buffers: list[bytes]
) -> None:
    head = FetchResponse(range=number, next_offset=7, state=END_OF_RANGE)
    pieces = serialize_with(head, "batches", [memoryview(buffer) for buffer in buffers])
    whole = FetchResponse(range=number, next_offset=7, state=END_OF_RANGE, batches=b"".join(buffers))
    assert FetchResponse.FromString(b"".join(pieces)) == whole
    assert b"".join(pack_pieces(pieces, compressed=False)) == pack_message(b"".join(pieces))
    assert unpacked(pack_pieces(pieces, compressed=True)) == b"".join(pieces)


def unpacked(pieces: Serialized) -> bytes:
    body = b"".join(pieces)
    made = MessageReader(Encoding.GZIP, 1 << 20)
    made.feed(body, 0, len(body))
    return bytes(take(made) or b"")


def test_large_buffers_are_sent_as_they_are_and_small_ones_together() -> None:
    large, small = bytes(20_000), b"x" * 100
    buffers = [small, small, large, large, small]
    first, *rest = serialize_with(FetchResponse(), "batches", buffers)
    assert len(first) < 10
    assert [len(piece) for piece in rest] == [200, 20_000, 20_000, 100]
    assert rest[1] is rest[2] is large
