"""Reading entries by index from journal files: for lagging followers, and for relocation.

Whole histories are in `test_journal_entries`.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from pixy.entry_ids import ProposalId
from pixy.errors import CorruptData, DataDirectoryError
from pixy.storage import (
    EntryRange,
    FilePart,
    JournalFile,
    JournalReader,
    JournalRecord,
    RealDisk,
    RealFile,
    RecordKind,
    TermRun,
    parts_with,
    recover_journal,
)
from tests.storage.journals import (
    OWNER,
    applied,
    content,
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

TERM_1: Sequence[TermRun] = [(1, 1)]
FLUSHES = [
    [hard_state(), entry(1, b"one"), entry(1, b"other", 1001)],
    [entry(2, b"two"), applied(1001, 1)],
    [incarnation(3), entry(3, b"three")],
]
FIRST = journal_file(FLUSHES, size=900)
SECOND = journal_file([[entry(4, b"four")], [entry(5, b"five")]], file=2, first_flush=4, size=800)
PAYLOADS = [b"one", b"two", b"three", b"four", b"five"]


class ReadSizes(RealDisk):
    """Notes the size of each read, and whether reads are in the background."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.background: set[bool] = set()

    def open(self, path: Path, *, create: bool = False, background: bool = False) -> RealFile:
        self.background.add(background)
        file, sizes = super().open(path), self.sizes

        class _File(RealFile):
            def read_at(self, size: int, position: int) -> bytes:
                sizes.append(size)
                return file.read_at(size, position)

            def close(self) -> None:
                file.close()

        return _File(-1, self._durable_writes)


def files_of(directory: Path) -> list[JournalFile]:
    return recover_journal(RealDisk(), directory, OWNER).files


def reader(directory: Path, disk: RealDisk | None = None, piece_bytes: int = 1 << 20) -> JournalReader:
    return JournalReader(disk or RealDisk(), directory, OWNER, piece_bytes)


def read(
    directory: Path,
    lo: int,
    hi: int,
    max_bytes: int = 1 << 20,
    *,
    terms: Sequence[TermRun] = TERM_1,
    parts: Sequence[FilePart] | None = None,
) -> list[bytes]:
    """Payloads of entries [lo, hi) of raft group 1000."""
    if parts is None:
        parts = parts_with(files_of(directory), 1000, lo, hi)
    found = reader(directory).entries(parts, EntryRange(1000, lo, hi, terms), max_bytes).entries
    assert [each.index for each in found] == list(range(lo, lo + len(found)))
    return [bytes(each.payload) for each in found]


def name(number: int) -> str:
    return f"{number:020d}.journal"


def part_of(data: bytes, number: int = 1, begin: int = 64) -> FilePart:
    return FilePart(number, begin, len(data.rstrip(b"\0")))


# --- by index -------------------------------------------------------------------------------------


def test_any_range_is_read_from_any_number_of_files(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST, SECOND)
    for lo in range(1, 6):
        for hi in range(lo, 8):
            assert read(tmp_path, lo, hi) == PAYLOADS[lo - 1 : hi - 1]


def test_the_limit_of_bytes_is_kept_but_for_the_first_entry(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST, SECOND)
    assert read(tmp_path, 1, 6, max_bytes=0) == read(tmp_path, 1, 6, max_bytes=5) == [b"one"]
    assert read(tmp_path, 1, 6, max_bytes=6) == read(tmp_path, 1, 6, max_bytes=10) == [b"one", b"two"]
    assert read(tmp_path, 3, 6, max_bytes=9) == [b"three", b"four"]


def test_a_read_goes_on_where_the_one_before_ended(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST, SECOND)
    parts, found = parts_with(files_of(tmp_path), 1000, 1, 6), []
    begins = []
    for index in range(1, 6):
        result = reader(tmp_path).entries(parts, EntryRange(1000, index, 6, TERM_1), 1)
        parts = result.rest
        begins.append((parts[0].number, parts[0].begin))
        found += [bytes(each.payload) for each in result.entries]
    assert found == PAYLOADS
    flushes = [at for at in range(len(FIRST)) if FIRST[at : at + 4] == b"FLSH"]
    assert begins == [*((1, at) for at in flushes), (2, 64), (2, SECOND.rindex(b"FLSH"))]


def test_entries_that_are_not_there_any_more_are_not_found(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST, SECOND)
    parts = parts_with(files_of(tmp_path), 1000, 1, 6)
    assert read(tmp_path, 6, 9) == read(tmp_path, 6, 9, parts=parts) == read(tmp_path, 3, 3) == []
    (tmp_path / name(1)).unlink()
    assert read(tmp_path, 1, 6, parts=parts) == read(tmp_path, 3, 6, parts=parts) == []
    assert read(tmp_path, 4, 6, parts=parts) == [b"four", b"five"]
    write_files(tmp_path, journal_file([[entry(5, b"five")]]))
    assert read(tmp_path, 4, 6, parts=[FilePart(1, 64, 64 + 40 + 60 + 4)]) == []
    unchanged = reader(tmp_path).entries(parts[1:], EntryRange(1000, 9, 12, [(9, 1)]), 99)
    assert unchanged == ([], parts[1:])


def test_entries_of_other_terms_are_passed_over(tmp_path: Path) -> None:
    replaced = [entry(3, b"two", term=2), entry(4, b"two", term=2)]
    write_files(
        tmp_path,
        journal_file([[entry(1, b"1"), entry(2, b"2"), entry(3, b"3"), *replaced]]),
        journal_file([[entry(2, b"new", term=3), entry(3, b"new", term=3)]], file=2, first_flush=2),
    )
    assert read(tmp_path, 1, 9, terms=[(1, 1), (2, 3)]) == [b"1", b"new", b"new"]
    assert read(tmp_path, 1, 9, terms=[(1, 1), (3, 3)]) == [b"1", b"2", b"new"]
    assert read(tmp_path, 1, 9, terms=[(1, 1), (3, 2)]) == [b"1", b"2", b"two", b"two"]
    assert read(tmp_path, 1, 9, terms=[(2, 3)]) == []
    assert read(tmp_path, 2, 9, terms=[(1, 4)]) == []


def test_entries_that_a_reset_voided_are_passed_over(tmp_path: Path) -> None:
    records = [entry(1, b"1"), entry(2, b"2"), entry(3, b"3"), reset(1, 2), entry(2, b"new", term=2)]
    write_files(tmp_path, journal_file([records]))
    assert read(tmp_path, 2, 9, terms=[(2, 2)]) == [b"new"]


def test_copies_count_although_they_are_behind_younger_originals(tmp_path: Path) -> None:
    old = journal_file([[entry(index, b"%d" % index) for index in range(3, 8)]], file=2, first_flush=3)
    copies = [relocated(index, b"r%d" % index) for index in (1, 2, 3)]
    (tmp_path / name(2)).write_bytes(old)
    (tmp_path / name(3)).write_bytes(journal_file([[entry(8, b"8")], copies], file=3, first_flush=4))
    assert read(tmp_path, 1, 9) == [b"r1", b"r2", b"3", b"4", b"5", b"6", b"7", b"8"]
    # What was found too early, and is above the limit, is dropped.
    for limit in range(2, 12):
        expected = [b"r1", b"r2", b"3", b"4", b"5", b"6", b"7", b"8"]
        while sum(map(len, expected)) > limit:
            expected.pop()
        assert read(tmp_path, 1, 9, max_bytes=limit) == expected


def test_entries_have_everything_that_was_written_with_them(tmp_path: Path) -> None:
    proposed = record(1, 2, index=2, payload=b"command", commit=1, proposal=(4, 5, 6))
    write_files(
        tmp_path,
        journal_file([[entry(1, b"old", version=1)]], version=1),
        journal_file([[proposed]], file=2, first_flush=2),
    )
    parts = parts_with(files_of(tmp_path), 1000, 1, 3)
    old, new = reader(tmp_path).entries(parts, EntryRange(1000, 1, 3, TERM_1), 99).entries
    assert (old.version, old.commit, old.proposal, old.payload) == (1, 0, None, b"old")
    assert new == JournalRecord(
        RecordKind.ENTRY, new.entry_type, 1000, 2, 1, b"command", 2, 1, ProposalId(4, 5, 6)
    )
    assert type(old.payload) is type(new.payload) is bytes


# --- for relocation -------------------------------------------------------------------------------


def entries_of(
    directory: Path,
    part: FilePart,
    above: dict[int, int],
    *,
    terms: Sequence[TermRun] = TERM_1,
    piece_bytes: int = 1 << 20,
) -> list[tuple[int, int, bytes]]:
    wanted = [EntryRange(raft_group, index + 1, 100, terms) for raft_group, index in above.items()]
    return content(reader(directory, piece_bytes=piece_bytes).entries_of_file(part, wanted))


def test_all_entries_of_some_groups_are_read_from_one_file(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST, SECOND)
    part, three = part_of(FIRST), (1000, 3, b"three")
    assert entries_of(tmp_path, part, {1001: 0, 1000: 1}) == [
        (1000, 2, b"two"),
        three,
        (1001, 1, b"other"),
    ]
    assert entries_of(tmp_path, part, {1000: 3, 1001: 1, 1002: 0}) == []
    assert entries_of(tmp_path, part, {}) == []
    behind = FIRST.index(b"FLSH", 100)
    assert entries_of(tmp_path, part_of(FIRST, begin=behind), {1000: 0}) == [(1000, 2, b"two"), three]


def test_copies_are_read_too_with_holes_and_what_was_replaced_is_not(tmp_path: Path) -> None:
    records = [
        entry(8, b"old"),
        entry(9, b"old"),
        relocated(5, b"copy"),
        relocated(8, b"copy"),
        entry(8, b"new", term=2),
    ]
    write_files(tmp_path, data := journal_file([records, [applied(1000, 7)]]))
    terms = [(1, 1), (8, 2)]
    found = entries_of(tmp_path, part_of(data), {1000: 0}, terms=terms)
    assert found == [(1000, 5, b"copy"), (1000, 8, b"new")]


def test_a_file_to_relocate_from_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        entries_of(tmp_path, part_of(FIRST), {1000: 0})


# --- pieces ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [1, 40, 64, 100, 101, 137, 250, 1000, 5000])
def test_files_are_read_in_pieces_of_any_size(tmp_path: Path, piece: int) -> None:
    flushes = [
        [entry(index, b"%d" % index * (index % 9)) for index in range(first, first + first % 5 + 1)]
        for first in (1, 2, 5, 6, 8)
    ]
    flushes += [[entry(12, b"x" * 1500), hard_state(), entry(13, b"y" * 300)], [entry(14)]]
    write_files(tmp_path, journal_file(flushes, size=8000))
    parts, disk = parts_with(files_of(tmp_path), 1000, 1, 15), ReadSizes()
    found = reader(tmp_path, disk, piece).entries(parts, EntryRange(1000, 1, 15, TERM_1), 1 << 20)
    whole = [bytes(each.payload) for each in found.entries]
    assert whole == read(tmp_path, 1, 15)
    assert len(whole) == 14
    assert max(disk.sizes) <= max(piece, 60 + 1500, 64)
    assert disk.background == {True}


def test_a_piece_has_the_flushes_that_fit_into_it(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST, SECOND)
    parts, disk = parts_with(files_of(tmp_path), 1000, 1, 6), ReadSizes()
    reader(tmp_path, disk).entries(parts, EntryRange(1000, 1, 6, TERM_1), 1 << 20)
    assert disk.sizes == [64, parts[0].end - 64, 64, parts[1].end - 64]


def test_nothing_is_read_once_everything_is_found(tmp_path: Path) -> None:
    data = bytearray(SECOND)
    data[SECOND.rindex(b"FLSH")] ^= 1
    write_files(tmp_path, FIRST, SECOND)
    parts = parts_with(files_of(tmp_path), 1000, 1, 6)
    (tmp_path / name(2)).write_bytes(data)
    assert read(tmp_path, 1, 5, parts=parts) == PAYLOADS[:4]
    with pytest.raises(CorruptData):
        read(tmp_path, 1, 6, parts=parts)


def test_nothing_behind_the_durable_part_is_read(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST, SECOND)
    files = files_of(tmp_path)
    torn = SECOND[: files[1].end] + b"FLSH" + b"\xff" * 200
    (tmp_path / name(2)).write_bytes(torn)
    assert read(tmp_path, 1, 9, parts=parts_with(files, 1000, 1, 9)) == PAYLOADS


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("piece", [60, 1 << 20])
def test_every_flipped_byte_is_noticed(tmp_path: Path, piece: int) -> None:
    write_files(tmp_path, FIRST, SECOND)
    part = part_of(FIRST)
    ends = [at for at in range(len(FIRST)) if FIRST[at : at + 4] == b"FLSH"] + [part.end]
    for at in range(part.end):
        (tmp_path / name(1)).write_bytes(FIRST[:at] + bytes([FIRST[at] ^ 0x55]) + FIRST[at + 1 :])
        with pytest.raises((CorruptData, DataDirectoryError), match=r"0001\.journal") as caught:
            entries_of(tmp_path, part, {1000: 0}, piece_bytes=piece)
        if at >= 64:
            [byte] = [int(word.rstrip(":")) for word in str(caught.value).split()[3:6] if word[0].isdigit()]
            begin = next(before for before, behind in pairwise(ends) if at < behind)
            assert begin <= byte <= at, "the flush or the record is named"


@pytest.mark.slow
@pytest.mark.parametrize("piece", [60, 1 << 20])
def test_every_shorter_file_is_noticed(tmp_path: Path, piece: int) -> None:
    part = part_of(FIRST)
    for size in range(part.end):
        for padding in (0, 900 - size):
            whole = FIRST[:size] + bytes(padding)
            if whole == FIRST:
                continue
            write_files(tmp_path, whole)
            with pytest.raises(CorruptData, match=r"0001\.journal"):
                entries_of(tmp_path, part, {1000: 0}, piece_bytes=piece)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (header() + b"FLASH" + bytes(500), "corrupt at byte 64: no valid flush frame"),
        (header(2), "says that it is journal file 2"),
        (header(node=3), "belongs to node 3"),
        (header(version=3), "format version 3 is newer than 2"),
        (bytes(64), "file begins with"),
        (journal_file([[record(10)]]), "corrupt at byte 104: a valid record has kind 10"),
        (journal_file([[record(5, version=1)]], version=1), "which format version 1 does not have"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    write_files(tmp_path, data)
    with pytest.raises((CorruptData, DataDirectoryError), match=reason):
        read(tmp_path, 1, 9, parts=[FilePart(1, 64, max(len(data), 200))])


def test_flushes_have_to_follow_each_other_and_to_end_with_the_part(tmp_path: Path) -> None:
    one, two = flush(1, 64, [entry(1)]), [entry(2)]
    at = 64 + len(one)
    for data, reason in (
        (header() + one + flush(3, at, two), f"corrupt at byte {at}: flush 3 .*, expected flush 2 of file 1"),
        (header() + one + flush(2, 64, two), f"corrupt at byte {at}: flush 2 of file 1 at byte 64, expected"),
        (header() + one + flush(2, at, two, file=2), f"corrupt at byte {at}: flush 2 of file 2"),
        (header() + one + flush(2, at, two, count=2), f"corrupt at byte {at}: flush 2 has another number of"),
        (header() + one + flush(2, at, two, count=0), f"corrupt at byte {at}: flush 2 has another number of"),
    ):
        write_files(tmp_path, data)
        with pytest.raises(CorruptData, match=reason):
            read(tmp_path, 1, 9, parts=[FilePart(1, 64, len(data))])
    data = header() + one + flush(2, at, two)
    write_files(tmp_path, data)
    for end in range(at + 1, len(data)):
        with pytest.raises(CorruptData, match=f"corrupt at byte {at}"):
            read(tmp_path, 1, 9, parts=[FilePart(1, 64, end)])
