"""Reading the journal at a start: the records of every group.

What is taken, cut and refused is in `test_journal_decisions`.
"""

import tracemalloc
from pathlib import Path
from random import Random

import pytest

from pixy.entry_ids import LogPosition, ProposalId
from pixy.errors import CorruptData, DataDirectoryError
from pixy.proto.state_pb2 import HardState, NodeStart, NodeStarts
from pixy.storage import JournalFile, RealDisk, RecordKind, RecoveredGroup, RecoveredJournal, recover_journal
from pixy.storage.journal import JournalPosition
from tests.fakes.disk import Call, RecordingDisk
from tests.sim.disk import SimulatedDisk
from tests.storage.journals import (
    OWNER,
    applied,
    carried_over,
    configuration,
    content,
    entry,
    gone,
    hard_state,
    header,
    incarnation,
    journal_file,
    peer_starts,
    record,
    relocated,
    reset,
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
    ends = [len(data.rstrip(b"\0")) for data in (FIRST, SECOND)]
    assert journal.files == [
        JournalFile(1, 2, ends[0], {1000: (1, 3, 64), 1001: (1, 1, 64)}),
        JournalFile(2, 2, ends[1], {1000: (4, 5, 64)}),
    ]
    assert journal.at == JournalPosition(2, ends[1], 6)


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
    assert [file.spans for file in journal.files] == [
        {1000: (1, 2, 64), 1001: (1, 1, 64)},
        {1000: (3, 3, 64), 1001: (2, 2, 64)},
        {1002: (1, 1, 64)},
    ]


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
    assert journal.files == [JournalFile(2, 2, len(second), {1000: (1, 3, 64)})]


def test_a_crash_before_the_old_file_went_leaves_originals_and_copies(tmp_path: Path) -> None:
    copies = journal_file([[relocated(1, b"one"), relocated(2, b"two")]], file=2, first_flush=4)
    write_files(tmp_path, FIRST, copies)
    assert of_1000(recover(tmp_path)) == EVERYTHING[:3]


# --- heads, resets, incarnations ------------------------------------------------------------------


def test_entries_have_the_identity_of_their_proposal_and_the_version_of_their_file(tmp_path: Path) -> None:
    proposed = record(1, 2, index=3, payload=b"c", commit=2, proposal=(4, 5, 6))
    write_files(
        tmp_path,
        journal_file([[entry(1, b"a", version=1)]], version=1),
        journal_file([[entry(2, b"b"), proposed]], file=2, first_flush=2),
    )
    entries = recover(tmp_path).groups[1000].entries
    assert [(each.version, each.commit, each.proposal) for each in entries] == [
        (1, 0, None),
        (2, 0, None),
        (2, 2, ProposalId(4, 5, 6)),
    ]


def test_the_commit_index_is_the_highest_in_heads_of_entries_and_in_the_newest_hard_state(
    tmp_path: Path,
) -> None:
    def commit(*records: bytes) -> int:
        write_files(tmp_path, journal_file([records]))
        return recover(tmp_path).groups[1000].commit

    def at(index: int, commit: int, kind: int = 1) -> bytes:
        return record(kind, 2, index=index, commit=commit)

    assert commit(entry(1)) == commit(hard_state()) == 0
    assert commit(at(1, 0), at(2, 1), at(3, 2), applied(1000, 3)) == 2
    assert commit(at(5, 4), at(4, 3, kind=4)) == commit(at(4, 3, kind=4), at(5, 4)) == 4
    assert commit(at(1, 0), hard_state(commit=9)) == 9
    assert commit(at(9, 8), hard_state(commit=7), at(10, 8)) == 8
    assert commit(hard_state(commit=9), hard_state(commit=3)) == 3
    # What a reset voids does not count; its unit has a hard state.
    assert commit(at(9, 8), reset(9)) == 0
    assert commit(at(9, 8), hard_state(commit=9), reset(9), at(10, 6)) == 9
    assert commit(at(9, 8), reset(20), hard_state(commit=20), applied(1000, 20)) == 20


def test_the_terms_of_the_log_are_known_applied_entries_included(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        journal_file([[entry(4), entry(5), entry(6, term=2), entry(6, term=3), applied(1000, 6)]]),
        journal_file(
            [[entry(7, term=3), entry(8, term=4), entry(1, raft_group=1001)]], file=2, first_flush=2
        ),
        journal_file([[relocated(3), applied(1002, 8), hard_state(1003)]], file=3, first_flush=3),
    )
    groups = recover(tmp_path).groups
    group = groups[1000]
    assert [each.index for each in group.entries] == [7, 8]
    assert (group.first, group.last, group.terms) == (3, 8, [(3, 1), (6, 3), (8, 4)])
    assert (groups[1001].first, groups[1001].last, groups[1001].terms) == (1, 1, [(1, 1)])
    for raft_group in (1002, 1003):
        group = groups[raft_group]
        assert (group.first, group.last, group.terms, group.end) == (0, 0, [], 0)


def test_the_newest_reset_of_a_group_is_known_and_the_newest_file_that_has_it(tmp_path: Path) -> None:
    first = [[reset(5, 2), applied(1000, 5), entry(6, b"six", term=2)], [reset(7, 1, 1001)]]
    write_files(tmp_path, journal_file(first, size=900))
    group = recover(tmp_path).groups[1000]
    assert group.reset is not None
    assert group.reset.position == LogPosition(2, 5)
    assert group.reset.configuration == HardState.FromString(configuration())
    assert (group.reset_file, group.first, group.end) == (1, 6, 6)
    assert content(group.entries_after(5)) == [(1000, 6, b"six")]
    other = recover(tmp_path).groups[1001]
    assert (other.reset_file, other.first, other.last, other.end) == (1, 0, 0, 7)
    with pytest.raises(
        CorruptData, match="raft group 1001 is applied up to entry 6, but its log begins behind"
    ):
        other.entries_after(6)
    second = [[carried_over(5, 2), entry(7, b"seven", term=2), carried_over(3, 1)]]
    write_files(tmp_path, journal_file(first), journal_file(second, file=2, first_flush=3))
    for _ in range(2):
        group = recover(tmp_path).groups[1000]
        assert group.reset is not None
        assert (group.reset.position, group.reset_file, group.end) == (LogPosition(2, 5), 2, 7)
        (tmp_path / name(1)).unlink(missing_ok=True)
    assert RecoveredGroup(1000).reset is None


def test_the_newest_incarnation_is_known_and_its_file(tmp_path: Path) -> None:
    assert (recover(tmp_path).incarnation, recover(tmp_path).incarnation_file) == (0, 0)
    write_files(
        tmp_path,
        journal_file([[incarnation(1)], [entry(1), incarnation(4)]]),
        journal_file([[incarnation(4)], [entry(2)]], file=2, first_flush=3),
    )
    journal = recover(tmp_path)
    assert (journal.incarnation, journal.incarnation_file) == (4, 2)


def test_a_replica_that_is_gone_keeps_its_vote_and_nothing_else(tmp_path: Path) -> None:
    first_life = [hard_state(commit=9), reset(5), entry(6), applied(1000, 6), entry(6, b"other", 1001)]
    write_files(
        tmp_path,
        journal_file([first_life]),
        journal_file([[entry(7), entry(7, b"other", 1001), gone(4)]], file=2, first_flush=2),
    )
    journal = recover(tmp_path)
    state = HardState(term=4, vote=1).SerializeToString()
    assert journal.groups[1000] == RecoveredGroup(1000, hard_state=state, hard_state_file=2, terms=[])
    assert [entry.index for entry in journal.groups[1001].entries] == [6, 7]
    # No file stays for what it had, and nothing of it is served.
    assert [sorted(file.spans) for file in journal.files] == [[1001], [1001]]


def test_a_replica_that_is_back_has_what_came_since(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        journal_file([[hard_state(), entry(1), entry(2), applied(1000, 2)], [entry(3), gone(4)]]),
        journal_file([[hard_state(term=5), reset(2, 5), applied(1000, 2)]], file=2, first_flush=3),
        journal_file([[entry(3, b"three", term=5)]], file=3, first_flush=4),
    )
    journal = recover(tmp_path)
    found = journal.groups[1000]
    assert [bytes(entry.payload) for entry in found.entries_after(2)] == [b"three"]
    assert found.reset is not None
    assert (found.reset.position, found.reset_file) == (LogPosition(5, 2), 2)
    assert (found.applied and found.applied.index, found.applied_file) == (2, 2)
    assert [file.spans.get(1000) for file in journal.files] == [None, None, (3, 3, 64)]


def test_a_vote_that_is_written_again_voids_nothing_of_a_later_life(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        journal_file([[gone(4)], [entry(9), gone(4)]]),
        journal_file([[reset(7, 5), entry(8, term=5)]], file=2, first_flush=3),
    )
    found = recover(tmp_path).groups[1000]
    assert [entry.index for entry in found.entries] == [8]


def test_the_newest_starts_of_other_nodes_are_known_and_their_file(tmp_path: Path) -> None:
    assert (recover(tmp_path).peer_starts, recover(tmp_path).peer_starts_file) == (b"", 0)
    write_files(
        tmp_path,
        journal_file([[peer_starts((2, 1, 9), (3, 1, 7))], [entry(1), peer_starts((2, 2, 10))]]),
        journal_file([[entry(2)]], file=2, first_flush=3),
    )
    journal = recover(tmp_path)
    found = NodeStarts.FromString(journal.peer_starts)
    assert found == NodeStarts(starts=[NodeStart(node_id=2, incarnation=2, flush_number=10)])
    assert journal.peer_starts_file == 1


def test_an_older_file_with_nothing_but_a_torn_flush_becomes_one_of_the_newest_version(
    tmp_path: Path,
) -> None:
    large = [[entry(1, bytes(range(1, 251)) * 8, version=1)]]
    torn = journal_file(large, size=4096, version=1)
    write_files(tmp_path, torn[:512] + bytes(512) + torn[1024:])
    for _ in range(2):
        journal = recover(tmp_path)
        assert (content(journal), journal.at) == ([], JournalPosition(1, 64, 1))
        assert journal.files == [JournalFile(1, 2, 64)]
        assert (tmp_path / name(1)).read_bytes() == journal_file([], size=4096)


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


def test_of_applied_entries_between_needed_ones_only_near_ones_are_read_twice() -> None:
    def read(between: int) -> int:
        flushes = [[entry(1, b"needed", 1001)], [entry(1, bytes(between))], [entry(2, b"needed", 1001)]]
        data = journal_file([*flushes, [applied(1000, 1)]])
        disk = SimulatedDisk(Random(1))
        disk.make_directory(Path("/journal"))
        disk.sync_directory(Path("/journal"))
        disk.open(Path("/journal") / name(1), create=True).write_at([data], 0)
        before = disk.bytes_read
        assert len(content(recover_journal(disk, Path("/journal"), OWNER))) == 2
        return disk.bytes_read - before - len(data)

    assert read(10_000) > 10_000
    assert read(1 << 20) < 1000


# --- every damage ---------------------------------------------------------------------------------


EACH_KIND = journal_file(
    [
        [hard_state(), reset(5), applied(1000, 5), incarnation(2), entry(6, b"six")],
        [
            peer_starts((2, 3, 4)),
            gone(3, 1002),
            carried_over(5),
            relocated(3, b"three", 1001),
            record(1, 4, index=7, commit=6, proposal=(1, 2, 3)),
        ],
        [record(1, 5, index=8, payload=b"\x0a\x01a")],
    ],
    size=900,
)


@pytest.mark.slow
def test_every_flipped_byte_of_each_kind_of_record_is_refused(tmp_path: Path) -> None:
    for at in range(0, len(EACH_KIND.rstrip(b"\0")), 2):
        flipped = bytearray(EACH_KIND)
        flipped[at] ^= 0x55
        write_files(tmp_path, flipped)
        with pytest.raises((CorruptData, DataDirectoryError)):
            recover(tmp_path)


@pytest.mark.slow
def test_every_truncation_behind_each_kind_of_record_gives_a_prefix_or_a_refusal(tmp_path: Path) -> None:
    ends = [at for at in range(len(EACH_KIND)) if EACH_KIND[at : at + 4] == b"FLSH"]
    ends.append(len(EACH_KIND.rstrip(b"\0")))
    prefixes = {end: [6, 7, 8][:count] for count, end in enumerate(ends)}
    for size in {*range(64, ends[-1], 7), *ends}:
        write_files(tmp_path, EACH_KIND[:size])
        try:
            journal = recover(tmp_path)
        except CorruptData:
            assert size not in ends
        else:
            # Only the first flush may extend the file, so only that may be torn.
            expected = prefixes.get(size, [])
            entries = journal.groups[1000].entries if 1000 in journal.groups else []
            assert [each.index for each in entries] == expected
            assert size in ends or size < ends[1]


@pytest.mark.slow
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


@pytest.mark.slow
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
