"""Byte vectors, round trips, and malformed bytes of the field types."""

from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.kafka_protocol.fields import (
    BOOLEAN,
    BYTES,
    COMPACT_BYTES,
    COMPACT_STRING,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    TAGGED_FIELDS,
    UINT16,
    UUID,
    Array,
    CompactArray,
    FieldType,
    Struct,
)

MIXED = Struct(
    ("number", INT64),
    ("name", STRING),
    ("topics", CompactArray(("name", COMPACT_STRING), ("partitions", Array(INT32)), ("tags", TAGGED_FIELDS))),
    ("data", COMPACT_BYTES),
)
VALUE = (2**40, "n", [("t\u00fc", [1, 2], {0: b"x", 300: b""}), ("", [], {})], b"\0" * 200)


@pytest.mark.parametrize(
    ("field_type", "value", "encoded"),
    [
        (INT8, -1, "ff"),
        (INT16, 258, "0102"),
        (INT32, -2, "fffffffe"),
        (INT64, 1, "0000000000000001"),
        (UINT16, 65535, "ffff"),
        (BOOLEAN, True, "01"),
        (UUID, bytes(range(16)), bytes(range(16)).hex()),
        (STRING, "a\u00fc", "0003 61c3bc"),
        (STRING, None, "ffff"),
        (BYTES, b"ab", "00000002 6162"),
        (BYTES, None, "ffffffff"),
        (COMPACT_STRING, "ab", "03 6162"),
        (COMPACT_STRING, None, "00"),
        (COMPACT_BYTES, b"", "01"),
        (COMPACT_BYTES, b"x" * 127, "8001" + "78" * 127),
        (TAGGED_FIELDS, {}, "00"),
        (TAGGED_FIELDS, {2: b"ab", 0: b""}, "02 0000 0202 6162"),
        (Array(INT16), [1, 2], "00000002 0001 0002"),
        (Array(INT16), None, "ffffffff"),
        (CompactArray(INT8), [7], "02 07"),
        (CompactArray(INT8), None, "00"),
        (Array(("a", INT8), ("b", INT8)), [(1, 2)], "00000001 0102"),
        (Array(Array(INT8)), [[1], []], "00000002 00000001 01 00000000"),
    ],
)
def test_values_have_the_expected_bytes(field_type: FieldType, value: Any, encoded: str) -> None:
    assert field_type.encode(value) == bytes.fromhex(encoded)
    assert field_type.decode(BytesIO(bytes.fromhex(encoded))) == value


@pytest.mark.slow
@given(st.integers(-(2**63), 2**63 - 1), st.none() | st.text(), st.none() | st.binary(max_size=300))
def test_values_decode_to_themselves(number: int, text: str | None, content: bytes | None) -> None:
    struct = Struct(("a", INT64), ("b", COMPACT_STRING), ("c", STRING), ("d", BYTES), ("e", COMPACT_BYTES))
    value = (number, text, text, content, content)
    assert struct.decode(BytesIO(struct.encode(value))) == value


def test_every_truncation_of_a_message_is_malformed() -> None:
    encoded = MIXED.encode(VALUE)
    assert MIXED.decode(BytesIO(encoded)) == VALUE
    for size in range(len(encoded)):
        with pytest.raises(ValueError, match=r"are left|has \d+ bytes"):
            MIXED.decode(BytesIO(encoded[:size]))


@pytest.mark.parametrize(
    ("field_type", "encoded", "reason"),
    [
        (COMPACT_STRING, "ffffffffff01", "more than 5 bytes"),
        (Array(INT8), "7fffffff 01", "an array of 2147483647 elements has 1 bytes"),
        (CompactArray(INT8), "ffffffff07 01", "elements has 1 bytes"),
        (TAGGED_FIELDS, "02 0100 0100", "tag 1 follows tag 1"),
        (STRING, "0002 c328", "invalid continuation byte"),
    ],
)
def test_malformed_bytes_are_rejected(field_type: FieldType, encoded: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        field_type.decode(BytesIO(bytes.fromhex(encoded)))


def test_a_number_out_of_range_and_a_missing_field_are_rejected() -> None:
    with pytest.raises(ValueError, match="cannot be encoded"):
        INT8.encode(128)
    with pytest.raises(ValueError, match="shorter"):
        MIXED.encode((1,))
