"""A crash always leaves a torn flush, whatever its content; damage never does."""

from collections.abc import Iterable, Sequence
from itertools import product
from random import Random

import pytest

from pixy.storage.journal.journal_format import FileHeader, head_bytes
from pixy.storage.journal.torn_flush import SECTOR_BYTES, why_not_torn
from tests.storage.journals import CLUSTER, entry, flush, header, journal_file

FILE_BYTES = 8192
RANDOM = Random(1).randbytes(3000)
PAYLOADS = {
    "random": [RANDOM[:1300], RANDOM[1300:1500], RANDOM[1500:2600]],
    "zeros": [bytes(1300), b"", bytes(1100)],
    "zeros at the end": [RANDOM[:900] + bytes(1024), RANDOM[:100]],
    "small": [b"x" * 10, b"", b"y"],
    "many": [b"%d" % number for number in range(50)],
}
# The beginning of a flush in its sector decides which of its parts share a sector.
BEGINS = (64, 511, 512, 513, 640, 961, 985, 1000, 1023)
VERSIONS = (1, 2)


def write(payloads: Sequence[bytes], begin: int, version: int = 2) -> tuple[bytes, int, int]:
    """A file with a second flush from byte `begin` on; returns the file and that flush's bounds."""
    number, data = 1, header(version=version)
    if begin > len(data):
        first = b"f" * (begin - 64 - 40 - head_bytes(version))
        data += flush(1, 64, [entry(1, first, version=version)])
        number = 2
    assert len(data) == begin
    records = [entry(at, payload, version=version) for at, payload in enumerate(payloads, 2)]
    data += flush(number, begin, records)
    return data.ljust(FILE_BYTES, b"\0"), begin, len(data)


def why_not(data: bytes | bytearray, begin: int) -> str:
    file_header = FileHeader(data[8], 1, CLUSTER, 1)
    return why_not_torn(memoryview(data), begin, file_header, 1 if begin == 64 else 2)


def flipped(data: bytes, at: int, change: int) -> bytearray:
    other = bytearray(data)
    other[at] ^= change
    return other


def torn(data: bytes, begin: int, sectors: Iterable[int]) -> bytearray:
    """The file with some sectors from byte `begin` on set to zeros."""
    other = bytearray(data)
    for sector in sectors:
        first, end = max(begin, sector * SECTOR_BYTES), (sector + 1) * SECTOR_BYTES
        other[first:end] = bytes(end - first)
    return other


@pytest.mark.slow
@pytest.mark.parametrize("payloads", PAYLOADS)
@pytest.mark.parametrize("begin", BEGINS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_flush_without_any_of_its_sectors_is_torn(payloads: str, begin: int, version: int) -> None:
    data, begin, end = write(PAYLOADS[payloads], begin, version)
    sectors = range(begin // SECTOR_BYTES, -(-end // SECTOR_BYTES))
    for kept in product((False, True), repeat=len(sectors)):
        left = torn(data, begin, [sector for sector, keep in zip(sectors, kept, strict=True) if not keep])
        assert left == data or why_not(left, begin) == "", kept


@pytest.mark.slow
def test_wherever_a_flush_ends_it_is_torn_without_its_last_sector() -> None:
    for size in range(400, 1100):
        data, begin, end = write([RANDOM[:700], RANDOM[:size]], 640)
        assert why_not(torn(data, begin, [(end - 1) // SECTOR_BYTES]), begin) == "", end


@pytest.mark.slow
@pytest.mark.parametrize("payloads", PAYLOADS)
@pytest.mark.parametrize("begin", BEGINS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_flush_with_one_wrong_byte_is_damaged(payloads: str, begin: int, version: int) -> None:
    data, begin, end = write(PAYLOADS[payloads], begin, version)
    every = range(begin, end) if end - begin < 400 else sorted(Random(begin).sample(range(begin, end), 60))
    for at in every:
        for change in (1 << at % 8, 0xFF, data[at]):
            # A crash may leave the same: the flush has a single byte in that sector.
            alone = at % SECTOR_BYTES == 511 == begin % SECTOR_BYTES or (
                at == end - 1 and not at % SECTOR_BYTES
            )
            if change and not (alone and change == data[at]):
                assert why_not(flipped(data, at, change), begin), (at, change)


@pytest.mark.slow
def test_every_bit_of_a_flush_with_sectors_of_zeros() -> None:
    data, begin, end = write([bytes(1300)], 640)
    for at in [*range(begin, begin + 120), *range(begin + 120, end, 97)]:
        for bit in range(8):
            assert why_not(flipped(data, at, 1 << bit), begin), (at, bit)


def test_wrong_bytes_beside_missing_sectors_of_another_record_are_damage() -> None:
    data, begin, _ = write(PAYLOADS["random"], 640)
    left = torn(data, begin, [4])  # in the last record
    assert why_not(left, begin) == ""
    assert (
        why_not(flipped(bytes(left), 900, 1), begin)
        == f"every sector of the record at byte {begin + 40} was written"
    )


@pytest.mark.parametrize("at", [2800, 5000, FILE_BYTES - 1])
def test_bytes_behind_a_flush_prove_that_it_was_durable(at: int) -> None:
    data, begin, end = write([RANDOM[:1500]], 640)
    assert end < 2800
    assert why_not(flipped(bytes(torn(data, begin, [3])), at, 1), begin) == "something was written behind it"


def test_only_the_first_flush_of_a_file_may_be_longer_than_the_file() -> None:
    for size in range(65, 2500, 61):
        data, begin, end = write([RANDOM[:2500]], 64)
        assert why_not(data[:size], begin) == "", size
    data, begin, end = write([RANDOM[:2500]], 640)
    for size in (641, 1024, end - 1):
        assert why_not(data[:size], begin) == "the file was cut off within it"


@pytest.mark.parametrize(
    "other", [flush(9, 640, [entry(1)]), flush(2, 640, [entry(1)], file=7), flush(2, 600, [entry(1)])]
)
def test_a_frame_of_another_flush_is_not_torn(other: bytes) -> None:
    data, begin, _ = write([], 640)
    assert why_not(data[:begin] + other + bytes(500), begin) == "its frame is another flush's"


def test_garbage_is_not_torn() -> None:
    data, begin, _ = write([], 640)
    assert why_not(data[:begin] + RANDOM, begin) == "every sector of its frame was written"


def test_a_record_that_is_longer_than_its_flush_is_not_torn() -> None:
    data, begin, _ = write([RANDOM[:1500]], 640)
    left = torn(data, begin, [3])
    left[begin + 42] ^= 1
    assert why_not(left, begin) == f"the record at byte {begin + 40} is longer than the flush"


def test_a_large_torn_record_is_not_taken_for_a_damaged_one() -> None:
    large = journal_file([[entry(1, Random(2).randbytes(1 << 20))]], size=2 << 20)
    for seed in range(5):
        sectors = Random(seed).sample(range(1, 2048), 900)
        assert why_not(torn(large, 64, sectors), 64) == ""


@pytest.mark.slow
def test_a_flipped_bit_in_a_large_record_with_sectors_of_zeros_is_damage() -> None:
    large = journal_file([[entry(1, RANDOM + bytes(100_000) + RANDOM)]], size=200_000)
    for at in (70, 500, 2500, 50_000, 104_000):
        assert why_not(flipped(large, at + 64, 4), 64)
