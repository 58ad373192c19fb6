"""Validation of clients' record batches: accepted batches, and the errors for all others."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.errors import InvalidBatch, MessageTooLarge
from pixy.records import NewBatch, build_control_batch, check_new_batches
from tests.fakes.batches import batch_of, patched

ANY_SIZE = 1 << 20
GOOD = batch_of(b"a", b"b")
ATTRIBUTES, LAST_DELTA, MAX_TIMESTAMP, PRODUCER_ID, RECORDS = 21, 23, 35, 43, 57


def number(value: int, form: str = "i") -> bytes:
    return struct.pack(f">{form}", value)


def test_batches_are_returned_with_position_and_number_of_records() -> None:
    other = batch_of(b"c", b"d", b"e", compression=1)
    at = len(GOOD)
    found = check_new_batches(GOOD + other + GOOD, ANY_SIZE)
    assert found == [
        NewBatch(0, at, 2),
        NewBatch(at, at + len(other), 3),
        NewBatch(at + len(other), 2 * at + len(other), 2),
    ]


@pytest.mark.parametrize("compression", range(5))
def test_every_codec_of_kafka_is_accepted(compression: int) -> None:
    batch = patched(batch_of(bytes(1000)), ATTRIBUTES, number(compression, "h"))
    assert [each.records for each in check_new_batches(batch, ANY_SIZE)] == [1]


def test_base_offset_and_leader_epoch_are_ignored() -> None:
    batch = bytearray(GOOD)
    batch[0:8], batch[12:16] = b"\xff" * 8, b"\xff" * 4
    assert len(check_new_batches(batch, ANY_SIZE)) == 1


def test_a_largest_batch_is_allowed_and_one_byte_more_is_not() -> None:
    assert len(check_new_batches(GOOD, len(GOOD))) == 1
    text = (
        f"record batch 0 at byte 0 has {len(GOOD)} bytes, producer.max_message_bytes allows {len(GOOD) - 1}"
    )
    with pytest.raises(MessageTooLarge, match=text):
        check_new_batches(GOOD, len(GOOD) - 1)


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (GOOD[:16] + b"\x01" + GOOD[17:], "has magic 1, expected 2"),
        (GOOD[:8] + number(48) + GOOD[12:], "has a length field of 60 bytes, expected 61 to "),
        (GOOD[:8] + number(-1) + GOOD[12:], "has a length field of 11 bytes"),
        (GOOD[:8] + number(2**31 - 1) + GOOD[12:], "has a length field of 2147483659 bytes"),
        (bytes(build_control_batch(1, b"", 0)), "is a control batch"),
        (patched(GOOD, ATTRIBUTES, number(0x10, "h")), "is transactional, which is not supported"),
        (patched(GOOD, ATTRIBUTES, number(5, "h")), "has attributes 0x0005, allowed are a codec of 0 to 4"),
        (patched(GOOD, ATTRIBUTES, number(0x40, "h")), "has attributes 0x0040"),
        (patched(GOOD, ATTRIBUTES, number(-(2**15), "h")), "has attributes -0x8000"),
        (patched(GOOD, PRODUCER_ID, number(7, "q")), "has producer id 7, expected -1"),
        (patched(GOOD, RECORDS, number(0)), "has 0 records and last offset delta 1"),
        (patched(GOOD, RECORDS, number(-1)), "has -1 records"),
        (patched(GOOD, LAST_DELTA, number(2)), "has 2 records and last offset delta 2"),
        (patched(GOOD, LAST_DELTA, number(0)), "has 2 records and last offset delta 0"),
        (
            patched(patched(GOOD, RECORDS, number(2**31 - 1)), LAST_DELTA, number(2**31 - 2)),
            f"has a count of 2147483647 records, which do not fit in its {len(GOOD)} bytes",
        ),
        (
            patched(GOOD, MAX_TIMESTAMP, number(999, "q")),
            "has max timestamp 999, less than its base timestamp 1000",
        ),
    ],
)
def test_an_invalid_batch_is_rejected_with_the_reason(batch: bytes, text: str) -> None:
    for before, place in ((b"", "record batch 0 at byte 0"), (GOOD, f"record batch 1 at byte {len(GOOD)}")):
        with pytest.raises(InvalidBatch) as caught:
            check_new_batches(before + batch, ANY_SIZE)
        assert str(caught.value).startswith(place)
        assert text in str(caught.value)


@given(st.binary(max_size=200), st.integers(0, 150), st.binary(max_size=30))
def test_any_bytes_are_whole_batches_or_rejected(noise: bytes, at: int, replacement: bytes) -> None:
    for buffer in (noise, patched(GOOD, at, replacement), GOOD + noise):
        try:
            found = check_new_batches(buffer, ANY_SIZE)
        except (InvalidBatch, MessageTooLarge):
            continue
        assert found[-1].end == len(buffer)
        assert all(each.records >= 1 for each in found)


def test_an_empty_buffer_is_rejected() -> None:
    with pytest.raises(InvalidBatch, match="no record batch"):
        check_new_batches(b"", ANY_SIZE)


def test_every_truncation_is_detected() -> None:
    for size in range(1, len(GOOD)):
        with pytest.raises(InvalidBatch):
            check_new_batches(GOOD[:size], ANY_SIZE)
        with pytest.raises(InvalidBatch, match="record batch 1"):
            check_new_batches(GOOD + GOOD[:size], ANY_SIZE)


def test_every_flipped_bit_is_detected_except_in_fields_the_server_writes() -> None:
    for at in range(len(GOOD)):
        for bit in range(8):
            changed = bytearray(GOOD)
            changed[at] ^= 1 << bit
            if at < 8 or 12 <= at < 16:
                assert len(check_new_batches(changed, ANY_SIZE)) == 1
            else:
                with pytest.raises((InvalidBatch, MessageTooLarge)):
                    check_new_batches(changed, ANY_SIZE)
