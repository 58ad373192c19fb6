"""The scan that a start and a check share: on the same files they do and say the same.

The verdict on each kind of damage is in `test_journal_decisions`.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from pixy.records import NewRecord, build_batch
from pixy.storage import RealDisk, RealFile, RecordKind, recover_journal
from pixy.storage.journal.journal_format import (
    FILE_HEADER_BYTES,
    FLUSH_FRAME_BYTES,
    FlushScan,
    first_flush_number,
    head_bytes,
    read_file_header,
)
from tests.storage.journals import (
    OWNER,
    StartOutcome,
    applied,
    assert_check_and_start_agree,
    carried_over,
    entry,
    flush,
    hard_state,
    header,
    incarnation,
    journal_file,
    record,
    relocated,
    reset,
    write_files,
)

BATCH = bytes(build_batch([NewRecord(None, b"value", (), 1)]))
FIRST = journal_file([[entry(1, BATCH), entry(1, BATCH, 1001)], [entry(2, BATCH)]], size=700)
SECOND = journal_file(
    [[entry(3, BATCH), applied(1000, 2)], [entry(4, BATCH)]], file=2, first_flush=3, size=700
)
LAST_BATCH = bytes(build_batch([NewRecord(None, bytes(range(1, 251)) * 8, (), 1)]))
# The last flush spans several sectors.
THIRD = journal_file([[relocated(1, BATCH, 1001)], [entry(5, LAST_BATCH)]], file=3, first_flush=5, size=4096)
FILES = (FIRST, SECOND, THIRD)
OLD_FIRST = journal_file(
    [
        [entry(1, BATCH, version=1), entry(1, BATCH, 1001, version=1)],
        [hard_state(version=1), entry(2, BATCH, version=1)],
    ],
    size=700,
    version=1,
)
# Behind a file of version 1, and with each kind of record.
NEW_SECOND = journal_file(
    [
        [incarnation(2), reset(7), hard_state(commit=7), applied(1000, 7)],
        [entry(8, BATCH), carried_over(7), record(1, 3, index=9, payload=b"\x10\x01", proposal=(1, 2, 3))],
        [record(1, 6, index=10, payload=2 * BATCH)],
    ],
    file=2,
    first_flush=3,
    size=1200,
)
SETS = (FILES, (OLD_FIRST, NEW_SECOND), (OLD_FIRST,))
ACCEPTED = StartOutcome("", [], [])


def name(number: int) -> str:
    return f"{number:020d}.journal"


CUT_THIRD = StartOutcome("", [(name(3), THIRD.rindex(b"FLSH"))], [])


def outcome(directory: Path, *files: bytes) -> StartOutcome:
    write_files(directory, *files)
    return assert_check_and_start_agree(directory)


def test_they_agree_on_a_whole_journal_and_on_none(tmp_path: Path) -> None:
    assert assert_check_and_start_agree(tmp_path) == ACCEPTED
    assert outcome(tmp_path, *FILES) == ACCEPTED
    for path in tmp_path.iterdir():
        path.unlink()
    assert outcome(tmp_path, OLD_FIRST) == ACCEPTED
    assert outcome(tmp_path, OLD_FIRST, NEW_SECOND) == ACCEPTED


DAMAGED = [(whole, damaged) for whole in SETS for damaged in range(len(whole))]
FILE_FIELDS = (0, 8, 12, 16, 24, 40, 44)
FRAME_FIELDS = (0, 4, 8, 16, 24, 32, 36)
HEAD_FIELDS = (0, 4, 8, 9, 10, 12, 20, 28, 36, 44, 48, 52)
"""First bytes of the fields in the byte tables of `journal_format`."""


def fields(data: bytes) -> Iterator[tuple[int, int]]:
    """First byte of each field, and of each sector of a payload, and the byte behind it."""
    file = read_file_header(data)
    assert not isinstance(file, str)
    yield from pairwise([*FILE_FIELDS, FILE_HEADER_BYTES])
    for position, places in FlushScan(data, file, first_flush_number(data) or 1):
        yield from pairwise([position + at for at in (*FRAME_FIELDS, FLUSH_FRAME_BYTES)])
        for begin, end, *_ in places:
            payload = begin + head_bytes(file.version)
            yield from pairwise([at for field in HEAD_FIELDS if (at := begin + field) < payload] + [payload])
            yield from pairwise([payload, *range(payload + -payload % 512, end, 512), end])


@pytest.mark.slow
@pytest.mark.parametrize(("whole", "damaged"), DAMAGED)
def test_they_agree_on_a_flipped_byte_of_every_field(
    tmp_path: Path, whole: tuple[bytes, ...], damaged: int
) -> None:
    files = list(whole)
    for number, (begin, end) in enumerate(fields(whole[damaged])):
        at = begin if number % 2 else end - 1
        flipped = bytearray(whole[damaged])
        flipped[at] ^= 0x55
        files[damaged] = bytes(flipped)
        assert outcome(tmp_path, *files).refused, at


@pytest.mark.slow
@pytest.mark.parametrize(("whole", "damaged"), DAMAGED)
def test_they_agree_on_a_file_that_ends_in_any_field(
    tmp_path: Path, whole: tuple[bytes, ...], damaged: int
) -> None:
    files, size = list(whole), len(whole[damaged])
    ends = {at for begin, end in fields(whole[damaged]) for at in (begin, begin + (end - begin) // 2)}
    zeros = len(whole[damaged].rstrip(b"\0"))
    for end in (*ends, *range(zeros, size, 512), size - 1):
        files[damaged] = whole[damaged][:end]
        outcome(tmp_path, *files)


@pytest.mark.slow
def test_they_agree_on_missing_sectors(tmp_path: Path) -> None:
    begin = THIRD.rindex(b"FLSH")
    for sectors in range(1 << 5):
        torn = bytearray(THIRD)
        for sector in range(5):
            if sectors >> sector & 1:
                first, end = max(begin, 512 * sector), 512 * (sector + 1)
                torn[first:end] = bytes(max(0, end - first))
        whole = bytes(torn) in {THIRD, THIRD[:begin].ljust(4096, b"\0")}
        assert outcome(tmp_path, FIRST, SECOND, bytes(torn)) == (ACCEPTED if whole else CUT_THIRD)


@pytest.mark.parametrize("leftover", [b"", bytes(64), bytes(900), header(4)[:40] + bytes(500)])
def test_they_agree_on_an_unfinished_file(tmp_path: Path, leftover: bytes) -> None:
    assert outcome(tmp_path, *FILES, leftover) == StartOutcome("", [], [name(4)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "third",
    [
        header(3, version=3) + bytes(100),
        header(3, version=0) + bytes(100),
        header(3, version=1) + bytes(100),
        header(3, cluster=b"f" * 16) + bytes(100),
        header(3, node=2) + bytes(100),
        header(4) + bytes(100),
        b"rubbish" * 20,
        bytes(500) + b"x",
        header(3) + flush(5, 64, [record(kind=10)], 3),
        header(3) + flush(5, 64, [entry(5, BATCH)], 3, count=2),
        header(3) + flush(6, 64, [entry(5, BATCH)], 3),
        journal_file([[entry(9, BATCH)]], file=3, first_flush=5),
        journal_file([[relocated(7, BATCH, 9), relocated(7, BATCH, 9, term=2)]], file=3, first_flush=5),
        journal_file([[record(RecordKind.APPLIED_POSITIONS, 0, payload=b"\xff")]], file=3, first_flush=5),
        journal_file([[record(RecordKind.HARD_STATE, 0, payload=b"\xff")]], file=3, first_flush=5),
        journal_file([[reset(8), entry(8, BATCH)]], file=3, first_flush=5),
        journal_file([[reset(8), entry(10, BATCH)]], file=3, first_flush=5),
        journal_file([[reset(8), reset(7)]], file=3, first_flush=5),
        journal_file([[reset(8), carried_over(9)]], file=3, first_flush=5),
        journal_file([[incarnation(8), incarnation(7)]], file=3, first_flush=5),
        header(3, 1) + flush(5, 64, [record(5, 0, index=8, version=1)], 3),
    ],
)
def test_they_agree_on_files_that_no_crash_leaves(tmp_path: Path, third: bytes) -> None:
    assert name(3) in outcome(tmp_path, FIRST, SECOND, third).refused
    for files in ((FIRST, third), (third,), (FIRST, SECOND, third, THIRD)):
        for path in tmp_path.iterdir():
            path.unlink()
        assert outcome(tmp_path, *files).refused


@pytest.mark.parametrize(("kind", "payload"), [(4, b"\xff"), (5, b"\xff"), (6, BATCH + b"\xff")])
def test_they_agree_on_entries_that_have_no_effect(tmp_path: Path, kind: int, payload: bytes) -> None:
    third = journal_file([[record(1, kind, payload=payload)]], file=3, first_flush=5)
    assert not outcome(tmp_path, FIRST, SECOND, third).refused


@pytest.mark.parametrize(
    "other",
    [
        "notes",
        "1.journal",
        f"{1:021d}.journal",
        f"1{0:020d}.journal",
        f"{4:020d}.journal~",
        "\u0661" * 20 + ".journal",
    ],
)
def test_they_agree_on_other_names(tmp_path: Path, other: str) -> None:
    write_files(tmp_path, *FILES)
    (tmp_path / other).write_bytes(THIRD)
    assert other in assert_check_and_start_agree(tmp_path).refused


def test_they_agree_on_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    write_files(tmp_path, *FILES)
    (tmp_path / name(4)).mkdir()
    assert name(4) in assert_check_and_start_agree(tmp_path).refused


def test_a_start_names_missing_files_before_anything_else(tmp_path: Path) -> None:
    write_files(tmp_path, b"damaged", SECOND, THIRD)
    (tmp_path / name(2)).unlink()
    assert "holds journal files 1 and 3" in assert_check_and_start_agree(tmp_path).refused


DAMAGES: list[Callable[[Random, bytearray], None]] = [
    lambda rng, data: data.__setitem__(rng.randrange(len(data)), rng.randrange(256)),
    lambda rng, data: data.__delitem__(slice(rng.randrange(len(data)), None)),
    lambda rng, data: data.__setitem__(slice(at := rng.randrange(8) * 512, at + 512), bytes(512)),
    lambda rng, data: data.extend(rng.randbytes(20)),
]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_they_agree_on_several_damages_at_once(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    for _ in range(40):
        files = [bytearray(data) for data in FILES]
        for _ in range(rng.randint(1, 3)):
            data = rng.choice(files)
            if data:
                rng.choice(DAMAGES)(rng, data)
        if rng.random() < 0.2:
            rng.shuffle(files)
        write_files(tmp_path, *map(bytes, files))
        if rng.random() < 0.2:
            (tmp_path / name(rng.randint(1, 3))).unlink()
        assert_check_and_start_agree(tmp_path)


class CountingDisk(RealDisk):
    """Counts how often each file is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: Counter[str] = Counter()

    def open(self, path: Path, *, create: bool = False, background: bool = False) -> RealFile:
        self.opened[path.name] += 1
        return super().open(path, create=create, background=background)


def test_a_start_reads_a_file_a_second_time_only_for_entries_that_are_needed(tmp_path: Path) -> None:
    whole = journal_file([[entry(1, BATCH)], [applied(1000, 1)]], size=700)
    needed = journal_file([[entry(2, BATCH)]], file=2, first_flush=3, size=700)
    write_files(tmp_path, whole, needed, journal_file([], file=3, size=700))
    disk = CountingDisk()
    recover_journal(disk, tmp_path, OWNER)
    # The last one is opened again to be synced.
    assert disk.opened == {name(1): 1, name(2): 2, name(3): 2}
