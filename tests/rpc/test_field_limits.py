"""pixy/rpc/field_limits.py: maxima of fields hold for every encoding, and the scan is short."""

import time
from contextlib import suppress

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from pixy.proto import kafkapixy_pb2, pixy_cluster_pb2, pixy_log_pb2, pixy_topics_pb2
from pixy.rpc.field_limits import (
    FIELD_BYTES_MAX,
    OTHER_FIELDS_MAX,
    REPEATED_MIN,
    SMALL_REQUEST_BYTES,
    FieldLimits,
    repeated_fields,
)
from pixy.rpc.status import GrpcError, Status

MAXIMUM = 1000
APPEND = FieldLimits(
    pixy_log_pb2.AppendRequest.DESCRIPTOR,
    {"partitions": MAXIMUM, "versions": MAXIMUM + 1},
    {"partitions.batches"},
)
CREATE = FieldLimits(pixy_topics_pb2.CreateTopicRequest.DESCRIPTOR, {"config": MAXIMUM})
PRODUCE = FieldLimits(kafkapixy_pb2.ProdRq.DESCRIPTOR, {"headers": 10_000}, {"message", "headers.value"})
SET_OFFSETS = FieldLimits(kafkapixy_pb2.SetOffsetsRq.DESCRIPTOR, {"offsets": 2000})
NONE = FieldLimits(kafkapixy_pb2.GetOffsetsRq.DESCRIPTOR, {})

ELEMENTS = {
    "empty": b"\x12\x00",
    "short": b"\x12\x03\x0a\x01t",
    "long": b"\x12\xac\x02\x1a\xa9\x02" + bytes(297),
    "longer": b"\x12\x84\x80\x01\x1a\x80\x80\x01" + bytes(16384),
    "length in five bytes": b"\x12\x80\x80\x80\x80\x00",
}


@pytest.mark.parametrize("element", ELEMENTS.values(), ids=ELEMENTS)
def test_one_element_more_than_the_maximum_is_refused(element: bytes) -> None:
    largest = element * MAXIMUM
    assert len(pixy_log_pb2.AppendRequest.FromString(largest).partitions) == MAXIMUM
    APPEND.check(largest)
    with pytest.raises(GrpcError) as refused:
        APPEND.check(largest + b"\x0a\x01c" + element)
    assert refused.value.status == Status.INVALID_ARGUMENT
    text = "the request has 1001 elements of partitions or more, at most 1000 are allowed"
    assert refused.value.message == text


def test_a_request_too_small_to_exceed_a_maximum_needs_no_scan() -> None:
    assert APPEND.bytes_min == 2 * MAXIMUM
    assert NONE.bytes_min == PRODUCE.bytes_min == FIELD_BYTES_MAX + 1
    PRODUCE.check(b"\x3a\x00" * 10_000)
    PRODUCE.check(b"\x78\x01" * OTHER_FIELDS_MAX)


def test_a_request_takes_its_bytes_and_256_for_each_element_but_for_large_fields() -> None:
    assert APPEND.check(b"\x12\x00" * 10 + b"\x1a\x00" * 20) == 60 + 30 * 256
    batches = long_field(3, 100_000)
    assert APPEND.check(b"\x12\x00" + long_field(2, len(batches), batches)) == 2 + 2 * 256 + 8
    assert PRODUCE.check(long_field(5, 100_000)) == 4
    assert NONE.check(bytes(FIELD_BYTES_MAX)) == FIELD_BYTES_MAX


@pytest.mark.parametrize("limits", [APPEND, CREATE, PRODUCE, SET_OFFSETS, NONE])
def test_requests_too_small_to_be_weighed_take_little(limits: FieldLimits) -> None:
    tags = [bytes((number << 3 | 2, 0)) for number in range(1, 16)]
    largest = max(limits.check(tag * ((limits.weighed_bytes_min - 1) // 2)) for tag in tags)
    assert largest <= SMALL_REQUEST_BYTES


def test_each_field_has_its_own_maximum() -> None:
    largest = b"\x12\x00" * MAXIMUM + b"\x1a\x00" * (MAXIMUM + 1)
    APPEND.check(largest)
    with pytest.raises(GrpcError, match="1002 elements of versions or more, at most 1001 are allowed"):
        APPEND.check(largest + b"\x1a\x00")


def test_entries_of_a_map_are_counted() -> None:
    CREATE.check(b"\x22\x00" * MAXIMUM)
    with pytest.raises(GrpcError, match="1001 elements of config"):
        CREATE.check(b"\x22\x00" * (MAXIMUM + 1))


OTHERS = {
    "a number": b"\x78\x01",
    "a long number": b"\x78" + b"\xff" * 9 + b"\x01",
    "eight bytes": b"\x79" + bytes(8),
    "four bytes": b"\x7d" + bytes(4),
    "text": b"\x7a\x01x",
    "groups": b"\x7b\x7c",
    "a known field": b"\x0a\x01x",
    "a repeated field as a number": b"\x10\x01",
}


@pytest.mark.parametrize("field", OTHERS.values(), ids=OTHERS)
def test_other_fields_are_counted_too(field: bytes) -> None:
    CREATE.check(field * (OTHER_FIELDS_MAX // 2))
    with pytest.raises(GrpcError, match="fields or more, at most"):
        CREATE.check(field * (OTHER_FIELDS_MAX + 2 * MAXIMUM + 1))


@pytest.mark.parametrize(
    ("field", "fields"),
    [(b"\x78\x7f", 1), (b"\x78\x80\x01", 2), (b"\x79" + bytes(8), 2), (b"\x7d" + bytes(4), 2)],
    ids=["one byte", "two bytes", "eight bytes", "four bytes"],
)
def test_a_number_that_takes_longer_to_skip_counts_as_two_fields(field: bytes, fields: int) -> None:
    most = OTHER_FIELDS_MAX // fields
    CREATE.check(field * most)
    with pytest.raises(GrpcError, match="1001 fields or more"):
        CREATE.check(field * (most + 1))


def long_field(number: int, size: int, content: bytes = b"x") -> bytes:
    """A field of at least 16384 bytes, which repeat a content."""
    length = size.to_bytes(3, "big")
    value = int.from_bytes(length, "big")
    varint = bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    return bytes((number << 3 | 2,)) + varint + (content * (size // len(content) + 1))[:size]


SIZES = {
    "a text": (PRODUCE, long_field(2, FIELD_BYTES_MAX), long_field(2, FIELD_BYTES_MAX + 1), " in topic"),
    "an element": (
        CREATE,
        long_field(4, FIELD_BYTES_MAX, long_field(1, FIELD_BYTES_MAX - 4)),
        long_field(4, FIELD_BYTES_MAX + 1, long_field(1, FIELD_BYTES_MAX - 3)),
        " in config",
    ),
    "an unknown field": (
        APPEND,
        long_field(15, FIELD_BYTES_MAX),
        long_field(15, FIELD_BYTES_MAX + 1),
        " in 15",
    ),
    "beside a large field of an element": (
        APPEND,
        long_field(2, FIELD_BYTES_MAX + 4, long_field(1, FIELD_BYTES_MAX)),
        long_field(2, FIELD_BYTES_MAX + 5, long_field(1, FIELD_BYTES_MAX + 1)),
        " in partitions.topic",
    ),
    "a small request": (NONE, bytes(FIELD_BYTES_MAX), bytes(FIELD_BYTES_MAX + 1), ""),
}


@pytest.mark.parametrize(("limits", "allowed", "larger", "where"), SIZES.values(), ids=SIZES)
def test_a_field_has_a_maximum_of_bytes(
    limits: FieldLimits, allowed: bytes, larger: bytes, where: str
) -> None:
    limits.check(allowed)
    with pytest.raises(GrpcError) as refused:
        limits.check(larger)
    assert refused.value.status == Status.INVALID_ARGUMENT
    assert refused.value.message == f"the request has 16385 bytes{where}, at most 16384 are allowed"


def test_large_fields_have_no_maximum() -> None:
    PRODUCE.check(long_field(5, 100_000) + long_field(7, 100_004, long_field(2, 100_000)))
    APPEND.check(long_field(2, 100_004, long_field(3, 100_000)))


LONG = {
    "a tag in two bytes": b"\xf8\x00\x01",
    "a tag in ten bytes": b"\xf8" + b"\x80" * 8 + b"\x00\x01",
    "an unknown tag in five bytes": b"\xf8\xff\xff\xff\x0f\x01",
    "all of it": b"\xf8\xff\xff\xff\x0f" + b"\xff" * 9 + b"\x01",
}


@pytest.mark.slow
@pytest.mark.parametrize("size", [200, 16_000, 100_000])
@pytest.mark.parametrize("unit", [*OTHERS.values(), *LONG.values()], ids=[*OTHERS, *LONG])
def test_fields_of_elements_are_counted_too(unit: bytes, size: int) -> None:
    """Whatever is in them: as many as that many elements have, and a thousand."""
    count = size // len(unit)
    element = long_field(2, count * len(unit), unit)
    allowed = 4 * (2 * MAXIMUM + 1) + OTHER_FIELDS_MAX
    APPEND.check(element * (allowed // (len(unit) * count)))
    with pytest.raises(GrpcError, match=r"the elements of the request have more fields|bytes in"):
        APPEND.check(element * min(allowed // count + 2, MAXIMUM))


def test_fields_of_elements_above_32_bytes_are_counted() -> None:
    """Smaller ones have at most sixteen."""
    most = 2000
    smaller, larger = (b"\x22" + bytes((size,)) + b"\x78\x01" * (size // 2) for size in (32, 34))
    SET_OFFSETS.check(smaller * most)
    with pytest.raises(GrpcError, match="the elements of the request have more fields"):
        SET_OFFSETS.check(larger * most)


def test_a_request_with_the_largest_fields_of_all_elements_is_allowed() -> None:
    whole = kafkapixy_pb2.PartitionOffset(
        partition=-1, begin=-1, end=-1, count=-1, offset=-1, lag=-1, metadata="m" * 100, sparse_acks="1-2"
    )
    body = kafkapixy_pb2.SetOffsetsRq(topic="t", group="g", offsets=[whole] * 2000).SerializeToString()
    SET_OFFSETS.check(body)


@pytest.mark.slow
@pytest.mark.parametrize("unit", [*OTHERS.values(), *LONG.values()], ids=[*OTHERS, *LONG])
@pytest.mark.parametrize("is_inside", [False, True])
def test_the_scan_takes_as_long_whatever_the_fields_are(unit: bytes, is_inside: bool) -> None:
    """Some milliseconds of the processor; a Python call for each field takes ten times as long."""
    body = unit * (1 << 17)
    if is_inside:
        value = kafkapixy_pb2.RecordHeader(key="k", value=b"v" * 60).SerializeToString()
        element = value + unit * 2
        body = (b"\x3a" + bytes((len(element),)) + element) * 10_000
    begun = time.thread_time()
    with suppress(GrpcError):
        PRODUCE.check(body)
    assert time.thread_time() - begun < 0.03


def test_the_scan_ends_at_the_maximum() -> None:
    class Counted(bytes):
        read = 0

        def __getitem__(self, at: object) -> int:  # type: ignore[override]
            Counted.read += 1
            return super().__getitem__(at)  # type: ignore[call-overload, no-any-return]

    with pytest.raises(GrpcError):
        APPEND.check(Counted(b"\x12\x00" * 2_000_000))
    assert Counted.read < 5 * MAXIMUM


@pytest.mark.slow
@given(st.lists(st.sampled_from([*ELEMENTS.values(), *OTHERS.values()]), max_size=30), st.data())
@settings(max_examples=200)
def test_what_protobuf_refuses_is_left_to_it(fields: list[bytes], draw: st.DataObject) -> None:
    body = bytearray(b"".join(fields))
    if body:
        body = body[: draw.draw(st.integers(0, len(body)))]
    if body:
        body[draw.draw(st.integers(0, len(body) - 1))] ^= draw.draw(st.integers(0, 255))
    APPEND.check(bytes(body))


@pytest.mark.slow
@given(st.binary(max_size=40))
@settings(max_examples=500)
def test_no_encoding_hides_elements(unit: bytes) -> None:
    """Whatever is repeated: what protobuf finds more often than allowed, the scan refuses."""
    body = unit * 1200
    try:
        found = pixy_log_pb2.AppendRequest.FromString(body)
    except DecodeError:
        return
    if len(found.partitions) > MAXIMUM or len(found.versions) > MAXIMUM + 1:
        with pytest.raises(GrpcError):
            APPEND.check(body)


def test_repeated_fields_are_found_in_nested_messages() -> None:
    assert repeated_fields(pixy_log_pb2.StageRequest.DESCRIPTOR) == ["partitions", "versions"]
    assert repeated_fields(pixy_topics_pb2.AlterTopicRequest.DESCRIPTOR) == ["set", "unset"]
    found = repeated_fields(pixy_cluster_pb2.StatusResponse.DESCRIPTOR)
    assert {"nodes", "nodes.reasons_to_stay", "groups.members"} <= {*found}


def test_a_field_without_a_maximum_or_that_cannot_be_counted_is_a_fault_of_the_table() -> None:
    stage, partitions = pixy_log_pb2.StageRequest.DESCRIPTOR, {"partitions": MAXIMUM}
    with pytest.raises(AssertionError, match=r"StageRequest repeats \['partitions', 'versions'\]"):
        FieldLimits(stage, partitions)
    with pytest.raises(AssertionError, match="too small for a scan"):
        FieldLimits(stage, {**partitions, "versions": REPEATED_MIN - 1})
    with pytest.raises(AssertionError, match="may be packed"):
        FieldLimits(kafkapixy_pb2.ConsumerPartitions.DESCRIPTOR, {"partitions": MAXIMUM})
    both = {"partitions": MAXIMUM, "versions": MAXIMUM}
    with pytest.raises(AssertionError, match="partitions is a message: its large fields are missing"):
        FieldLimits(stage, both, {"partitions"})
