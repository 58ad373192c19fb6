"""Reading the journal at a start: what every group has then, and what is read for relocation.

What is taken, cut and refused is in `test_journal_decisions`.
"""

import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import pytest

from pixy.errors import CorruptData, DataDirectoryError
from pixy.proto.state_pb2 import HardState
from pixy.storage import (
    EntryType,
    JournalFile,
    JournalPosition,
    JournalRecord,
    RealDisk,
    RecordKind,
    RecoveredJournal,
    read_entries,
    recover_journal,
)
from tests.fakes.disk import Call, RecordingDisk
from tests.storage.journals import (
    OWNER,
    Content,
    applied,
    content,
    entry,
    header,
    journal_file,
    record,
    relocated,
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
    with pytest.raises(CorruptData, match=r"0001\.journal: raft group 1000 has entry 3 where 2 was expected"):
        recover(tmp_path)


def test_a_hole_is_refused_if_the_group_needs_what_is_missing(tmp_path: Path) -> None:
    copies = [relocated(3, b"three"), relocated(6, b"six")]
    write_files(tmp_path, journal_file([[entry(7, b"seven")], copies]))
    group = recover(tmp_path).groups[1000]
    assert content(group.entries) == [(1000, 3, b"three"), (1000, 6, b"six"), (1000, 7, b"seven")]
    with pytest.raises(CorruptData, match="raft group 1000 has entries 3 and 6, but not those in between"):
        group.entries_after(2)
    with pytest.raises(CorruptData, match="applied up to entry 4, but the journal goes on with entry 6"):
        group.entries_after(4)
    assert content(group.entries_after(5)) == [(1000, 6, b"six"), (1000, 7, b"seven")]


def test_applied_positions_that_cannot_be_decoded_are_corruption(tmp_path: Path) -> None:
    write_files(tmp_path, journal_file([[record(RecordKind.APPLIED_POSITIONS, 0, 0, 0, 0, b"\xff")]]))
    with pytest.raises(CorruptData, match=r"0001\.journal: applied positions cannot be decoded"):
        recover(tmp_path)


def test_entries_up_to_the_applied_position_are_left_out_wherever_it_is(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        journal_file([[entry(1), entry(2, b"two"), entry(1, b"one", 1001), applied(1002, 1)]]),
        journal_file([[entry(3, b"three"), entry(2, b"two", 1001)]], file=2, first_flush=2),
        journal_file([[applied(1000, 1), applied(1001, 2), entry(1, b"x", 1002)]], file=3, first_flush=3),
    )
    journal = recover(tmp_path)
    assert content(journal) == [(1000, 2, b"two"), (1000, 3, b"three")]
    assert sorted(journal.groups) == [1000, 1001, 1002]
    assert [file.last_index for file in journal.files] == [{1000: 2, 1001: 1}, {1000: 3, 1001: 2}, {1002: 1}]


def test_relocated_entries_come_in_front_of_younger_ones_and_hold_their_file(tmp_path: Path) -> None:
    second = journal_file(
        [[entry(3, b"three"), relocated(1, b"one")], [relocated(2, b"two")]], file=2, first_flush=4
    )
    (tmp_path / name(2)).write_bytes(second)
    journal = recover(tmp_path)
    assert content(journal) == [(1000, 1, b"one"), (1000, 2, b"two"), (1000, 3, b"three")]
    assert [each.kind for each in journal.groups[1000].entries] == [
        RecordKind.RELOCATED_ENTRY,
        RecordKind.RELOCATED_ENTRY,
        RecordKind.ENTRY,
    ]
    assert journal.files == [JournalFile(2, {1000: 3})]


def test_a_crash_before_the_old_file_went_leaves_originals_and_copies(tmp_path: Path) -> None:
    copies = journal_file([[relocated(1, b"one"), relocated(2, b"two")]], file=2, first_flush=4)
    write_files(tmp_path, FIRST, copies)
    assert of_1000(recover(tmp_path)) == EVERYTHING[:3]


# --- memory ---------------------------------------------------------------------------------------


def test_payloads_are_copies_so_no_entry_keeps_a_file_alive(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST, SECOND)
    groups = recover(tmp_path).groups.values()
    assert {type(each.payload) for group in groups for each in group.entries} == {bytes}


def test_one_file_at_a_time_is_in_memory_and_of_what_is_applied_nothing_stays(tmp_path: Path) -> None:
    size, files, of_a_slow_group = 1 << 20, 8, b"needed"
    write_files(
        tmp_path,
        *(
            journal_file(
                [[entry(at, bytes(size - 500)), entry(at, of_a_slow_group, 1001)], [applied(1000, at)]],
                file=at,
                first_flush=2 * at - 1,
                size=size,
            )
            for at in range(1, files + 1)
        ),
    )
    recover(tmp_path)
    tracemalloc.start()
    try:
        journal = recover(tmp_path)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert content(journal) == [(1001, at, of_a_slow_group) for at in range(1, files + 1)]
    # A file, and the last flush of one; the double would be three.
    assert size < peak < 2.2 * size
    assert kept < size / 10


# --- entries to relocate --------------------------------------------------------------------------


def entries_of(directory: Path, number: int, above: Mapping[int, int]) -> Content:
    return content(read_entries(RealDisk(), directory, OWNER, number, above))


def test_the_entries_of_the_groups_that_are_asked_for_are_read_from_a_file(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST, SECOND)
    assert entries_of(tmp_path, 1, {1001: 0, 1000: 1}) == [*EVERYTHING[1:3], (1001, 1, b"other")]
    assert entries_of(tmp_path, 1, {1000: 3, 1001: 1, 1002: 0}) == []
    assert entries_of(tmp_path, 1, {}) == []
    found = read_entries(RealDisk(), tmp_path, OWNER, 1, {1000: 2})
    assert found == [JournalRecord(RecordKind.ENTRY, EntryType.RECORD_BATCH, 1000, 3, 1, b"three")]


def test_relocated_entries_are_read_too_and_what_was_replaced_in_the_file_is_not(tmp_path: Path) -> None:
    records = [
        entry(8, b"old"),
        entry(9, b"old"),
        relocated(5, b"copy"),
        relocated(9, b"copy"),
        entry(8, b"new", term=2),
    ]
    write_files(
        tmp_path,
        journal_file([records, [applied(1000, 7)]]),
        journal_file([[entry(9)]], file=2, first_flush=3),
    )
    assert entries_of(tmp_path, 1, {1000: 0}) == [(1000, 5, b"copy"), (1000, 8, b"new")]


def test_every_flipped_byte_of_a_file_that_is_read_for_relocation_is_noticed(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST, SECOND)
    for at in range(len(FIRST)):
        (tmp_path / name(1)).write_bytes(FIRST[:at] + bytes([FIRST[at] ^ 0x55]) + FIRST[at + 1 :])
        with pytest.raises((CorruptData, DataDirectoryError), match=r"0001\.journal"):
            entries_of(tmp_path, 1, {1000: 0})


def test_a_file_that_is_read_for_relocation_ends_where_the_next_one_begins(tmp_path: Path) -> None:
    last = FIRST.rindex(b"FLSH")
    for lost in (FIRST[:last], FIRST[:last] + bytes(300), header(1) + bytes(700)):
        write_files(tmp_path, lost, SECOND)
        with pytest.raises(
            CorruptData,
            match=r"0001\.journal is corrupt at byte \d+: it ends there, but .*0002.journal begins",
        ):
            entries_of(tmp_path, 1, {1000: 0})
    write_files(tmp_path, FIRST, header(2) + bytes(100))  # nothing was written there yet
    assert entries_of(tmp_path, 1, {1000: 0}) == EVERYTHING[:3]


# --- every damage ---------------------------------------------------------------------------------


def test_every_truncation_of_the_last_file_gives_a_prefix_or_a_refusal(tmp_path: Path) -> None:
    last_flush = SECOND.rindex(b"FLSH")
    for size in range(len(SECOND.rstrip(b"\0"))):
        write_files(tmp_path, FIRST, SECOND[:size])
        try:
            found = of_1000(recover(tmp_path))
        except CorruptData:
            assert size > last_flush
        else:
            assert size <= last_flush
            assert found == EVERYTHING[: 3 + (size == last_flush)], size


def test_every_flipped_byte_is_refused(tmp_path: Path) -> None:
    for number, data in ((1, FIRST), (2, SECOND)):
        for at in range(len(data.rstrip(b"\0"))):
            flipped = bytearray(data)
            flipped[at] ^= 0x55
            write_files(tmp_path, FIRST, SECOND)
            (tmp_path / name(number)).write_bytes(flipped)
            with pytest.raises((CorruptData, DataDirectoryError)):
                recover(tmp_path)


# --- what may not be durable yet ------------------------------------------------------------------


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
