"""pixy/rpc/large_fields.py: fields that bypass protobuf are as protobuf would parse them."""

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from pixy.large_fields import Parted, Serialized, parse_apart, parse_with, serialize_with
from pixy.proto.copies_pb2 import FetchCopyResponse
from pixy.proto.pixy_log_pb2 import (
    END_OF_RANGE,
    AppendRequest,
    FetchResponse,
    PartitionBatches,
    Seal,
    StageRequest,
    TopicVersion,
)
from pixy.rpc.messages import Encoding, MessageReader, pack_message, pack_pieces
from tests.rpc.test_messages import take

PARSERS = [
    {each: parse_with(each, "partitions", "batches", bytes_min) for each in (AppendRequest, StageRequest)}
    for bytes_min in (0, 65_536)
]
LARGE = bytes(range(256)) * 400


# --- out ------------------------------------------------------------------------------------------


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


# --- in -------------------------------------------------------------------------------------------


def as_protobuf_says(body: bytes, message_class: Any) -> tuple[Any, list[bytes]] | None:
    """A message without its batches, and these, by protobuf; None if it is malformed."""
    try:
        message = message_class.FromString(body)
    except DecodeError:
        return None
    batches = [each.batches for each in message.partitions]
    for each in message.partitions:
        each.ClearField("batches")
    return message, batches


def as_parted(body: bytes, message_class: Any) -> tuple[Any, list[bytes]] | None:
    """The same by each of the tested parsers."""
    found = [_as_parted(body, parsers[message_class]) for parsers in PARSERS]
    assert found[0] == found[1]
    return found[0]


def _as_parted(body: bytes, parse: Callable[[bytearray], Parted]) -> tuple[Any, list[bytes]] | None:
    try:
        message, batches = parse(bytearray(body))
    except DecodeError:
        return None
    for each in message.partitions:
        each.ClearField("batches")
    return message, [bytes(each) for each in batches]


PARTITIONS = st.lists(
    st.builds(
        PartitionBatches,
        topic=st.text(max_size=5),
        partition=st.integers(-(2**31), 2**31 - 1),
        batches=st.sampled_from([b"", b"x", LARGE, LARGE[:16_000], LARGE + b"!"]),
    ),
    max_size=4,
)
VERSIONS = st.lists(st.builds(TopicVersion, topic=st.text(max_size=5), version=st.integers(0, 9)), max_size=2)
APPENDS = st.builds(AppendRequest, cluster=st.text(max_size=5), partitions=PARTITIONS, versions=VERSIONS)
STAGES = st.builds(
    StageRequest,
    sink_id=st.text(max_size=5),
    piece=st.integers(0, 2**31 - 1),
    partitions=PARTITIONS,
    versions=VERSIONS,
    seal=st.builds(Seal, pieces=st.integers(0, 9), crc=st.integers(0, 2**32 - 1)),
)
REQUESTS = APPENDS | STAGES


@pytest.mark.slow
@given(REQUESTS)
def test_a_request_is_parsed_as_protobuf_parses_it(request: Any) -> None:
    body = request.SerializeToString()
    assert as_parted(body, type(request)) == as_protobuf_says(body, type(request))


@pytest.mark.slow
@given(REQUESTS, st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=3)), min_size=1, max_size=3))
def test_a_request_that_was_changed_anywhere_is_parsed_as_protobuf_parses_it(
    request: Any, changes: list[tuple[float, bytes]]
) -> None:
    body = request.SerializeToString()
    # Most of it is batches, where a change changes nothing else.
    edges = [at for at in range(0, len(body), 20) if body[at : at + 60] not in LARGE] or [0]
    places = [min(edge + more, len(body)) for edge in edges for more in range(60)]
    for part, put in changes:
        at = places[min(int(part * len(places)), len(places) - 1)]
        body = body[:at] + put + body[at + len(put) // 2 + (not put) :]
    assert as_parted(body, type(request)) == as_protobuf_says(body, type(request))


@pytest.mark.slow
@pytest.mark.parametrize(
    "inner",
    [
        # Other fields, known or not, of every wire type, before and behind.
        b"\x1a\x80\x80\x04" + bytes(65_536) + b"\x10\x07" + b"\x21" + bytes(8) + b"\x2d" + bytes(4),
        b"\x32\x01x" + b"\x38\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" + b"\x1a\x80\x80\x04" + bytes(65_536),
        # The field twice: the last one counts. A group. A field number above 15. The number 0.
        b"\x1a\x80\x80\x04" + bytes(65_536) + b"\x1a\x01x",
        b"\x1a\x80\x80\x04" + bytes(65_536) + b"\x23\x08\x01\x24",
        b"\x1a\x80\x80\x04" + bytes(65_536) + b"\x82\x01\x01x",
        b"\x1a\x80\x80\x04" + bytes(65_536) + b"\x02\x01x",
        # Another wire type for the field, and a length that is longer than it need be.
        b"\x18\x01" + b"\x12\x80\x80\x04" + bytes(65_536),
        b"\x1a\x80\x80\x84\x00" + bytes(65_536),
        b"\x1a\x80\x80\x84\x80\x80\x00" + bytes(65_536),
        b"\x1a\x80\x80\x84\x80\x80\x80\x80\x80\x80\x00" + bytes(65_536),
        b"\x1a\x80\x80\x84\x80\x80\x80\x80\x80\x80\x80\x00" + bytes(65_536),
        # Its second byte begins like a field, its value like the one that is looked for.
        b"\x80\x01\x1a" + b"\x10\x07" + b"\x22\x0d" + bytes(13) + b"\x22\x80\x80\x04" + bytes(65_536),
        # It ends behind what it is in.
        b"\x1a\x81\x80\x04" + bytes(65_536),
        b"\x10\x80" + bytes(65_534) + b"\x10\x80",
    ],
)
def test_an_unusual_encoding_is_parsed_as_protobuf_parses_it(inner: bytes) -> None:
    length = bytes([len(inner) & 0x7F | 0x80, len(inner) >> 7 & 0x7F | 0x80, len(inner) >> 14])
    for body in (b"\x12" + length + inner, b"\x12" + length + inner + b"\x1a\x03\x0a\x01t"):
        assert as_parted(body, AppendRequest) == as_protobuf_says(body, AppendRequest)


@pytest.mark.slow
def test_every_cut_of_a_request_is_parsed_as_protobuf_parses_it() -> None:
    partitions = [PartitionBatches(topic="t", partition=number, batches=LARGE) for number in range(2)]
    body = AppendRequest(
        cluster="c", partitions=partitions, versions=[TopicVersion(topic="t")]
    ).SerializeToString()
    heads = [at for at in range(len(body)) if body[at : at + 20] not in LARGE]
    for cut in [*heads, *(at + len(LARGE) // 2 for at in heads)]:
        assert as_parted(body[:cut], AppendRequest) == as_protobuf_says(body[:cut], AppendRequest)


def test_large_batches_are_not_copied() -> None:
    partitions = [PartitionBatches(topic="t", partition=number, batches=LARGE) for number in range(3)]
    body = bytearray(AppendRequest(partitions=partitions).SerializeToString())
    _, batches = parse_with(AppendRequest, "partitions", "batches")(body)
    assert len(batches) == 3
    assert all(isinstance(each, memoryview) and each.obj is body for each in batches)


CHUNK = FetchCopyResponse(segment=5, position=1 << 40, data=LARGE, crc=7, total_bytes=9, clients_write=True)


def apart(body: bytes, bytes_min: int) -> tuple[bytes, bytes] | None:
    """The other fields, and the data; None: malformed."""
    try:
        message, data = parse_apart(FetchCopyResponse, "data", bytes_min)(body)
    except DecodeError:
        return None
    message.ClearField("data")
    return message.SerializeToString(), bytes(data)


def test_a_field_apart_is_a_view_of_a_large_message_and_the_others_are_there() -> None:
    body = b"".join(serialize_with(FetchCopyResponse(segment=5, crc=7), "data", [LARGE]))
    message, data = parse_apart(FetchCopyResponse, "data")(body)
    assert (message.segment, message.crc) == (5, 7)
    assert isinstance(data, memoryview)
    assert data.obj is body
    assert data == LARGE


@pytest.mark.parametrize(
    "behind",
    [
        b"",
        b"\x1a\x00",  # the field again: the last one counts
        b"\x1a\x02xy",
        b"\x23\x08\x01\x24",  # a group, and a field that is cut
        b"\x10",
        b"\x28\x01" * 200,  # many fields
    ],
)
def test_a_field_apart_is_as_protobuf_parses_it(behind: bytes) -> None:
    body = CHUNK.SerializeToString()
    for each in (body + behind, body[: len(body) // 2], body[:-1], behind + body, behind):
        assert apart(each, 0) == apart(each, 1 << 30)
