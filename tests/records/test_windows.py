"""Records are decoded in windows: none is lost, and none makes more objects than a window has."""

import random
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from pixy.errors import InvalidRecords, Undecodable
from pixy.records import (
    BatchLimits,
    build_batch,
    check_forwarded_batches,
    check_new_batches,
    read_records,
)
from pixy.records.codec import Record
from pixy.records.windows import HEADERS_MAX, decode_windows, visit_windows
from tests.fakes.batches import as_stored, crowded_record, patched, raw_batch, raw_record, varint

MIB = 1 << 20
SIZES = {
    "small": [10, 100],
    "of many sizes": [0, 10, 100, 1000, 10_000],
    "larger than a window": [0, 70_000, 200_000],
    "equal": [100],
}


@contextmanager
def at_most(bytes_max: int) -> Iterator[None]:
    """Fails if the block allocates more memory than that at a time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < bytes_max
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_windows_have_all_records_in_order(sizes: list[int]) -> None:
    chooser = random.Random(1)
    values = [bytes(chooser.choice(sizes)) for _ in range(2000 if max(sizes) < 1000 else 100)]
    batch = build_batch([(b"k", value, [("name", b"v")], 1000) for value in values])
    windows = [
        (window.begin, window.number, [(each.offset, each.value) for each in window.records])
        for window in decode_windows(batch, len(values))
    ]
    assert len(windows) > 1
    assert [each for _, _, records in windows for each in records] == list(enumerate(values))
    for _, number, records in windows:
        assert records[0][0] == number


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_each_record_is_visited_at_its_number_and_none_is_left_out(sizes: list[int]) -> None:
    chooser = random.Random(2)
    values = [bytes(chooser.choice(sizes)) for _ in range(2000 if max(sizes) < 1000 else 100)]
    batch = build_batch([(b"k", value, [("name", b"v")], 1000) for value in values])
    visited: dict[int, bytes | None] = {}

    def visit(records: Iterable[Record], first: int) -> None:
        for number, record in enumerate(records, first):
            assert record.offset == number
            visited[number] = record.value

    visit_windows(bytearray(batch), len(values), visit)
    assert visited == dict(enumerate(values))


def test_where_a_window_of_many_records_ends_is_told_by_the_codec() -> None:
    batch = build_batch([(None, bytes(100), (), 1000)] * 1000)
    assert all(isinstance(window.records, list) for window in decode_windows(batch, 1000))


def test_readers_have_few_headers_ahead() -> None:
    records = [crowded_record(number, 600) for number in range(200)]
    found = read_records(as_stored(raw_batch(records), 0))
    with at_most(MIB):
        assert [next(found).offset, next(found).offset] == [0, 1]


CROWDED = {
    "more headers than are read": [crowded_record(1, 2 * MIB - 40_000)],
    "a length that is too small": [crowded_record(1, 2 * MIB - 40_000, length=9)],
    "a count that is too large": [crowded_record(1, 0, count=2**31), bytes(4 * MIB - 80_000)],
    "bytes that are headers of the record before": [
        crowded_record(1, 0, count=2 * MIB - 40_000),
        b"\0\1" * (2 * MIB - 40_000),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("records", CROWDED.values(), ids=CROWDED)
@pytest.mark.parametrize("before", [0, 3000])
def test_headers_of_a_lie_are_not_made(records: list[bytes], before: int) -> None:
    first = [raw_record(number, b"x") for number in range(before)]
    batch = raw_batch([*first, *records], count=before + 1, codec=4)
    with at_most(20 * MIB), pytest.raises(InvalidRecords, match=f"record {before} "):
        check_new_batches(batch, BatchLimits(MIB))
    with at_most(20 * MIB), pytest.raises(Undecodable, match=f"record {before} of {before + 1}"):
        list(read_records(as_stored(batch, 10)))


def test_what_a_node_forwards_has_as_many_headers_as_any_configuration_allows() -> None:
    check_forwarded_batches(raw_batch([crowded_record(0, HEADERS_MAX)]))
    for headers in (HEADERS_MAX + 1, 10 * HEADERS_MAX):
        with pytest.raises(InvalidRecords, match=f"record 0 has {headers} headers"):
            check_forwarded_batches(raw_batch([crowded_record(0, headers)]))


def _of_size(delta: int, size: int) -> bytes:
    """A record with so many bytes."""
    return next(each for left in range(size, 0, -1) if len(each := raw_record(delta, bytes(left))) == size)


def _hiding(ahead: int, *, first: int = 56, count: int = 220) -> bytes:
    """A batch with a wrong record behind `first` ones, the last of which ends `ahead` bytes behind
    the first window, in a number of `ahead` + 1 bytes. If the check went on as many bytes before
    the end of the window, it would find the head of a record there, in the name of a header, with
    all that is wrong as its value.
    """
    null = bytes([0x81, *[0x80] * (ahead - 1), 0])
    wrong = b"\xff" * 40
    size = len(null) + len(wrong)
    key = bytes(ahead - 7)
    body = b"\0\0" + varint(first) + varint(len(key)) + key + varint(size)
    name = b"n" + varint(len(body) + size + 1) + body
    before = [_of_size(delta, 1169) for delta in range(first - 1)]
    last = next(
        each
        for left in range(9000, 0, -1)
        if len(
            each := raw_record(first - 1, bytes(left), headers=varint(1) + varint(len(name)) + name + null)
        )
        + sum(map(len, before))
        == 65536 + ahead
    )
    for size in range(1168, 800, -1):  # the codec is asked for as many records as there are before
        behind = [wrong, b"\0", *(_of_size(delta, size) for delta in range(first + 1, count))]
        if count * (57344) // sum(map(len, [*before, last, *behind])) == first:
            return raw_batch([*before, last, *behind], count=count)
    raise AssertionError("no size fits")


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [8, 9])
def test_a_number_that_ends_behind_its_window_hides_no_record(ahead: int) -> None:
    batch = _hiding(ahead)
    with pytest.raises(InvalidRecords, match="record 56 of 220"):
        check_new_batches(batch, BatchLimits(MIB))
    with pytest.raises(Undecodable, match="record 56 of 220"):
        list(read_records(batch))


@pytest.mark.parametrize("seed", range(20))
def test_readers_find_the_records_that_the_check_has_found(seed: int) -> None:
    chooser = random.Random(seed)
    values = [chooser.randbytes(chooser.randrange(600)) for _ in range(600)]
    batch = bytearray(raw_batch([raw_record(at, each) for at, each in enumerate(values)]))
    for _ in range(chooser.randrange(3)):
        batch[chooser.randrange(61, len(batch))] = chooser.choice([0, 1, 0x7F, 0x80, 0xFF])
    batch = bytearray(patched(bytes(batch), 0, b""))
    try:
        check_new_batches(batch, BatchLimits(MIB))
    except InvalidRecords:
        return
    assert [each.offset for each in read_records(bytes(batch))] == list(range(600))


@pytest.mark.parametrize("headers", [HEADERS_MAX + 1, 10 * HEADERS_MAX])
def test_readers_take_no_more_headers_than_that_and_all_records_behind(headers: int) -> None:
    records = [raw_record(0, b"a"), crowded_record(1, headers), raw_record(2, b"b")]
    batch = as_stored(raw_batch(records), 10)
    found = read_records(batch)
    assert next(found).value == b"a"
    with pytest.raises(Undecodable, match=f"record 1 of 3: it has {headers} headers") as caught:
        next(found)
    assert (caught.value.offset, caught.value.next_offset) == (11, 12)
    assert [each.value for each in read_records(batch, first_offset=12) if each.offset >= 12] == [b"b"]
