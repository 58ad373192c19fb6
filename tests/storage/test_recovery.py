"""Reading the journal at a start: the decision table of `pixy.storage.recovery`, and what every group has then."""

from pathlib import Path

import pytest

from pixy.errors import CorruptData, DataDirectoryError
from pixy.proto.state_pb2 import HardState
from pixy.storage import JournalFile, JournalPosition, RealDisk, RecordKind, RecoveredJournal, recover_journal
from tests.fakes.disk import Call, RecordingDisk
from tests.storage.journals import (
    OWNER,
    applied,
    content,
    entry,
    flush,
    header,
    journal_file,
    record,
    write_files,
)

FLUSHES = [[entry(1, b"one"), entry(1, b"other", 1001)], [entry(2, b"two")], [entry(3, b"three")]]
FIRST = journal_file(FLUSHES, size=800)
SECOND = journal_file([[entry(4, b"four")], [entry(5, b"five")]], file=2, first_flush=4, size=800)
EVERYTHING = [
    (1000, 1, b"one"),
    (1000, 2, b"two"),
    (1000, 3, b"three"),
    (1000, 4, b"four"),
    (1000, 5, b"five"),
]


def recover(directory: Path) -> RecoveredJournal:
    return recover_journal(RealDisk(), directory, OWNER)


def name(number: int) -> str:
    return f"{number:020d}.journal"


def of_1000(journal: RecoveredJournal) -> list[tuple[int, int, bytes]]:
    return [each for each in content(journal) if each[0] == 1000]


def test_an_empty_directory_is_an_empty_journal(tmp_path: Path) -> None:
    assert recover(tmp_path) == RecoveredJournal(JournalPosition(0, 0, 1), [], {})


def test_files_are_read_in_order_and_every_group_gets_its_entries(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST, SECOND)
    journal = recover(tmp_path)
    assert of_1000(journal) == EVERYTHING
    assert journal.files == [JournalFile(1, {1000: 3, 1001: 1}), JournalFile(2, {1000: 5})]
    assert journal.at == JournalPosition(2, len(SECOND.rstrip(b"\0")), 6)


def test_the_oldest_files_may_be_gone(tmp_path: Path) -> None:
    (tmp_path / name(2)).write_bytes(SECOND)
    journal = recover(tmp_path)
    assert of_1000(journal) == EVERYTHING[3:]
    assert journal.at.flush_number == 6


def test_the_newest_hard_state_and_applied_position_of_a_group_win(tmp_path: Path) -> None:
    def state(term: int) -> bytes:
        return record(RecordKind.HARD_STATE, 0, 1000, 0, 1, HardState(term=term).SerializeToString())

    write_files(
        tmp_path,
        journal_file([[state(1), applied(1000, 1)], [state(2), applied(1001, 7)]]),
        journal_file([[applied(1000, 2)]], file=2, first_flush=3),
    )
    group = recover(tmp_path).groups[1000]
    assert group.hard_state is not None
    assert (HardState.FromString(group.hard_state).term, group.hard_state_file) == (2, 1)
    assert group.applied is not None
    assert (group.applied.index, group.applied_file) == (2, 2)
    assert recover(tmp_path).groups[1001].applied_file == 1


def test_an_index_that_is_there_already_replaces_it_and_what_is_behind(tmp_path: Path) -> None:
    write_files(tmp_path, journal_file([[entry(1, b"a"), entry(2, b"b"), entry(3, b"c")], [entry(2, b"B")]]))
    assert content(recover(tmp_path)) == [(1000, 1, b"a"), (1000, 2, b"B")]


def test_a_hole_in_the_indexes_is_corruption(tmp_path: Path) -> None:
    write_files(tmp_path, journal_file([[entry(1)], [entry(3)]]))
    with pytest.raises(CorruptData, match="raft group 1000 has entry 3 where 2 was expected"):
        recover(tmp_path)


# --- the decision table -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["1.journal", "notes.txt", name(1) + ".bak"])
def test_a_name_that_is_not_a_journal_files__refused(tmp_path: Path, other: str) -> None:
    (tmp_path / other).touch()
    with pytest.raises(DataDirectoryError, match="is not a journal file; move it out of the way"):
        recover(tmp_path)


def test_file_numbers_with_a_hole__refused(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST, SECOND, journal_file([], file=3))
    (tmp_path / name(2)).unlink()
    with pytest.raises(CorruptData, match="holds journal files 1 and 3"):
        recover(tmp_path)


@pytest.mark.parametrize(
    "leftover", [b"", bytes(10), bytes(64), header(2)[:40], header(2)[:40] + bytes(500), bytes(800)]
)
def test_the_last_file_with_no_valid_header_and_zeros__removed(tmp_path: Path, leftover: bytes) -> None:
    write_files(tmp_path, FIRST, leftover)
    disk = RecordingDisk()
    journal = recover_journal(disk, tmp_path, OWNER)
    assert of_1000(journal) == EVERYTHING[:3]
    assert journal.at == JournalPosition(1, len(FIRST.rstrip(b"\0")), 4)
    calls = [(call.what, call.name) for call in disk.calls]
    assert calls[:2] == [("unlink", name(2)), ("sync_directory", tmp_path.name)]


def test_the_very_first_file_may_be_a_leftover(tmp_path: Path) -> None:
    write_files(tmp_path, bytes(100))
    assert recover(tmp_path) == RecoveredJournal()
    assert list(tmp_path.iterdir()) == []


def test_the_same_with_no_file_before_it_and_a_number_above_1__refused(tmp_path: Path) -> None:
    (tmp_path / name(2)).write_bytes(bytes(800))
    with pytest.raises(CorruptData, match="file begins with"):
        recover(tmp_path)
    assert (tmp_path / name(2)).exists()


@pytest.mark.parametrize(
    "damage", [header(2), header(2) + b"x" + flush(3, 65, [], 2), header(2) + bytes(500)]
)
def test_the_first_file_above_1_without_a_valid_first_flush__refused(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / name(2)).write_bytes(damage)
    with pytest.raises(
        CorruptData, match=r"corrupt at byte 64: no valid flush frame; the files before it are gone"
    ):
        recover(tmp_path)


def test_any_other_header_that_is_not_valid__refused(tmp_path: Path) -> None:
    write_files(tmp_path, b"X" + FIRST[1:])
    with pytest.raises(CorruptData, match="file begins with b'XIXYJRNL'"):
        recover(tmp_path)
    write_files(tmp_path, bytes(800), SECOND)
    with pytest.raises(CorruptData, match="file begins with"):
        recover(tmp_path)


def test_the_number_in_the_header_is_that_of_the_name(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST, FIRST)
    with pytest.raises(CorruptData, match="says that it is journal file 1"):
        recover(tmp_path)


@pytest.mark.parametrize(
    ("foreign", "reason"),
    [
        (header(cluster=b"x" * 16), "belongs to node 1 of cluster 7878"),
        (header(node=2), "belongs to node 2"),
        (header(version=9), "format version 9 is newer"),
    ],
)
def test_somebody_elses_or_a_newer_version__refused(tmp_path: Path, foreign: bytes, reason: str) -> None:
    write_files(tmp_path, foreign)
    with pytest.raises(DataDirectoryError, match=reason):
        recover(tmp_path)


def test_the_last_file_with_a_torn_tail__cut_and_the_cut_synced(tmp_path: Path) -> None:
    torn = bytearray(SECOND)
    end = len(SECOND.rstrip(b"\0"))
    torn[end - 3] ^= 1
    write_files(tmp_path, FIRST, bytes(torn))
    disk = RecordingDisk()
    journal = recover_journal(disk, tmp_path, OWNER)
    assert of_1000(journal) == EVERYTHING[:4]
    calls = [(call.what, call.name) for call in disk.calls]
    assert calls[:3] == [("truncate", name(2)), ("allocate", name(2)), ("sync", name(2))]
    cut = (tmp_path / name(2)).read_bytes()
    assert cut == SECOND[: journal.at.position] + bytes(800 - journal.at.position)
    again = recover(tmp_path)
    assert (again.at, content(again)) == (journal.at, content(journal))


def test_damage_before_a_later_valid_flush__refused_with_file_byte_and_reason(tmp_path: Path) -> None:
    damaged = bytearray(FIRST)
    damaged[64 + 50] ^= 1
    write_files(tmp_path, bytes(damaged))
    with pytest.raises(
        CorruptData, match=r"0001\.journal is corrupt at byte 64: .* a valid flush follows at byte"
    ):
        recover(tmp_path)


def test_damage_before_a_later_file__refused(tmp_path: Path) -> None:
    damaged = bytearray(FIRST)
    damaged[len(FIRST.rstrip(b"\0")) - 2] ^= 1
    write_files(tmp_path, bytes(damaged), SECOND)
    with pytest.raises(
        CorruptData, match=r"0001\.journal is corrupt at byte \d+: .* a later journal file follows"
    ):
        recover(tmp_path)


def test_a_flush_that_vanished_before_a_later_file__refused(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        journal_file(FLUSHES[:2], size=800),
        journal_file([[entry(4, b"four")]], file=2, first_flush=4, size=800),
    )
    with pytest.raises(
        CorruptData, match=r"0002\.journal is corrupt at byte 64: flush 4 .* expected flush 3"
    ):
        recover(tmp_path)


def test_a_record_of_a_newer_release__refused_with_its_file(tmp_path: Path) -> None:
    write_files(tmp_path, journal_file([[record(77)]]))
    with pytest.raises(CorruptData, match=r"0001\.journal: a valid record has kind 77"):
        recover(tmp_path)


# --- every damage -------------------------------------------------------------------------------------------------


def test_every_truncation_of_the_last_file_gives_a_prefix_and_never_a_refusal(tmp_path: Path) -> None:
    for size in range(len(SECOND.rstrip(b"\0")) + 3):
        write_files(tmp_path, FIRST, SECOND[:size])
        journal = recover(tmp_path)
        found = of_1000(journal)
        assert found == EVERYTHING[: len(found)], size
        assert len(found) >= 3, size


def test_every_flipped_byte_gives_a_prefix_or_a_refusal_and_nothing_before_a_later_flush_is_lost(
    tmp_path: Path,
) -> None:
    last_flush = SECOND.rindex(b"FLSH")
    for number, data in ((1, FIRST), (2, SECOND)):
        for at in range(len(data.rstrip(b"\0"))):
            flipped = bytearray(data)
            flipped[at] ^= 0x55
            write_files(tmp_path, FIRST, SECOND)
            (tmp_path / name(number)).write_bytes(flipped)
            try:
                found = of_1000(recover(tmp_path))
            except (CorruptData, DataDirectoryError):
                assert (number, at) < (2, last_flush)
            else:
                assert found == EVERYTHING[:4], (number, at)
                assert (number, at) >= (2, last_flush)


# --- what may not be durable yet ----------------------------------------------------------------------------------


def test_the_last_file_and_the_directory_are_synced_before_anything_relies_on_them(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST, SECOND)
    disk = RecordingDisk()
    recover_journal(disk, tmp_path, OWNER)
    assert [(call.what, call.name) for call in disk.calls[-2:]] == [
        ("sync", name(2)),
        ("sync_directory", tmp_path.name),
    ]


def test_what_a_failed_sync_may_have_left_in_memory_only_is_written_again_before_that_sync(
    tmp_path: Path,
) -> None:
    write_files(tmp_path, FIRST, SECOND)
    disk = RecordingDisk()
    recover_journal(disk, tmp_path, OWNER)
    assert disk.calls[:2] == [
        Call("write", name(2), 0),
        Call("write", name(2), SECOND.rindex(b"FLSH")),
    ]
    assert (tmp_path / name(2)).read_bytes() == SECOND


def test_of_a_file_without_a_flush_the_header_is_written_again(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST, header(2) + bytes(100))
    disk = RecordingDisk()
    recover_journal(disk, tmp_path, OWNER)
    assert disk.did("write") == [Call("write", name(2), 0)]
    assert (tmp_path / name(2)).read_bytes() == header(2) + bytes(100)
