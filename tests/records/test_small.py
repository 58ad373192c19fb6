"""Small batches are recognized, and nothing that the whole check would reject is taken for one."""

import random

import pytest

from pixy.errors import PixyError
from pixy.records import NOT_SMALL, BatchLimits, CheckEffort, NewRecord, build_batch, headers_of_small
from pixy.records.batch_validation import check_forwarded_batches, check_new_batches
from tests.fakes.batches import batch_of, batch_of_producer, patched, raw_batch, raw_record

ATTRIBUTES, MAX_TIMESTAMP = 21, 35
HEADERS = [("name", b"value"), ("other", None)]


def small(count: int, size: int = 20, headers: int = 0) -> bytes:
    return bytes(
        build_batch(
            [NewRecord(b"k" * (at % 3), bytes(size), HEADERS[:headers], 1000 + at % 4) for at in range(count)]
        )
    )


@pytest.mark.parametrize("count", [1, 2, 63])
@pytest.mark.parametrize("headers", [0, 2])
@pytest.mark.parametrize("size", [0, 100, 300])
def test_what_programs_write_is_recognized(count: int, size: int, headers: int) -> None:
    batch = small(count, size, headers)
    assert headers_of_small(batch) == count * headers
    assert headers_of_small(bytearray(batch)) == count * headers


@pytest.mark.parametrize(
    "batch",
    [
        b"",
        small(64),
        batch_of(bytes(40_000)),
        batch_of(bytes(1000), compression=1),
        small(2)[:-1],
        small(2) + b"\0",
        small(2) * 2,
        raw_batch([raw_record(0, b"x"), raw_record(2, b"y")]),
        raw_batch([raw_record(0, b"x", timestamp_delta=5)]),
        raw_batch([raw_record(0, b"x"), raw_record(1, b"y", timestamp_delta=-2000)]),
        raw_batch([raw_record(0, b"x", timestamp_delta=3000)], base_timestamp=-2000),
        patched(patched(small(1), MAX_TIMESTAMP, (999).to_bytes(8)), ATTRIBUTES, b"\0\x08"),
        patched(patched(small(2), 57, bytes((0, 0, 0, 1))), 23, bytes(4)),
    ],
    ids=range(13),  # the header of gzip has the time: workers have to collect the same names
)
def test_anything_else_is_left_to_the_whole_check(batch: bytes) -> None:
    assert headers_of_small(batch) == NOT_SMALL


def test_batches_of_producers_are_recognized_where_they_are_taken() -> None:
    batch = bytes(batch_of_producer(2**40, 3, 70_000, b"x", b"y"))
    assert headers_of_small(batch) == NOT_SMALL
    assert headers_of_small(batch, producers=True) == 0
    for at, size in ((43, 8), (51, 2), (53, 4)):
        wrong = patched(batch, at, b"\xff" * size if at > 43 else b"\xfe" * size)
        assert headers_of_small(wrong, producers=True) == NOT_SMALL


def whole_check(batch: bytes, monkeypatch: pytest.MonkeyPatch) -> bool:
    with monkeypatch.context() as patch:
        patch.setattr("pixy.records.batch_validation.SMALL_BYTES_MAX", 0)
        try:
            check_forwarded_batches(batch)
        except PixyError:
            return False
    return True


@pytest.mark.parametrize(("count", "size", "headers"), [(1, 0, 0), (1, 9, 2), (5, 3, 1), (63, 1, 0)])
def test_whatever_is_changed_is_recognized_exactly_if_the_whole_check_agrees(
    count: int, size: int, headers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chooser = random.Random(count)
    original = small(count, size, headers)
    verdicts = set()
    for _ in range(600):
        batch = bytearray(original)
        for _ in range(chooser.randint(1, 2)):
            at = chooser.choice((chooser.randrange(8), chooser.randrange(16, len(batch))))
            batch[at] ^= 1 << chooser.randrange(8)
        # With the right checksum, but for one in ten.
        changed = bytes(batch) if not chooser.randrange(10) else patched(bytes(batch), 0, b"")
        recognized = headers_of_small(changed) != NOT_SMALL
        accepted = whole_check(changed, monkeypatch)
        assert recognized <= accepted
        if accepted and not recognized:
            # What the codec reads only from a padded copy, or with offsets that leave 64 bits.
            assert changed[-1] >= 0x80 or changed[0] == 0x7F
        verdicts.add(recognized)
    assert verdicts == {False, True}


def test_the_limits_of_clients_hold_for_small_batches_as_well() -> None:
    batch = small(3, headers=2)
    assert check_new_batches(batch, BatchLimits(len(batch), 1002, 2))
    for limits in (
        BatchLimits(len(batch) - 1),
        BatchLimits(1000, 1001),
        BatchLimits(1000, headers_max=1),
    ):
        with pytest.raises(PixyError):
            check_new_batches(batch, limits)


def test_a_small_batch_costs_as_much_of_an_effort_as_any(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, spent = small(40), []
    for _ in range(2):
        effort = CheckEffort()
        check_forwarded_batches(batch, effort)
        spent.append(CheckEffort().records - effort.records)
        monkeypatch.setattr("pixy.records.batch_validation.SMALL_BYTES_MAX", 0)
    assert spent[0] == spent[1]
