"""The journal of a stopped node: each verdict, on files damaged byte by byte."""

import shlex
import subprocess
from pathlib import Path

import pytest

from pixy.errors import CorruptData
from pixy.inspect import ReadOnlyDisk, Report, Verdict, check_journal
from pixy.inspect.check_journal import CheckedJournal
from pixy.records import NewRecord, build_batch, patch_batch
from tests.storage.journals import (
    CLUSTER,
    OWNER,
    applied,
    entry,
    flush,
    header,
    incarnation,
    journal_file,
    record,
    relocated,
    reset,
    write_files,
)

BATCH = bytes(build_batch([NewRecord(None, b"value", (), 1), NewRecord(None, b"other", (), 2)]))
FIRST = journal_file([[entry(1, BATCH), entry(1, BATCH, 1001)], [entry(2, BATCH)]], size=700)
SECOND = journal_file(
    [[entry(3, BATCH), applied(1000, 2)], [entry(4, BATCH)]], file=2, first_flush=3, size=700
)
LAST_FLUSH = SECOND.rindex(b"FLSH")
END = SECOND.rindex(BATCH) + len(BATCH)
Found = list[tuple[str, str]]


def stamped(base_offset: int) -> bytes:
    batch = bytearray(BATCH)
    patch_batch(batch, base_offset, 1)
    return bytes(batch)


def name(number: int) -> str:
    return f"{number:020d}.journal"


def checked(directory: Path, owner: tuple[bytes, int] | None = OWNER) -> tuple[CheckedJournal, Report]:
    report = Report(directory)
    return check_journal(ReadOnlyDisk(), directory, owner, report), report


def wrong(report: Report) -> Found:
    """Findings other than ok: verdict and text."""
    return [(str(each.verdict), each.found) for each in report.findings if each.verdict is not Verdict.OK]


# --- the journal ----------------------------------------------------------------------------------


def test_a_whole_journal_is_ok_and_tells_what_every_group_has(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST, SECOND)
    journal, report = checked(tmp_path)
    assert wrong(report) == []
    assert [finding.found for finding in report.findings] == [
        f"flushes 1 to 2, 3 records, {FIRST.rindex(BATCH) + len(BATCH)} of 700 bytes",
        f"flushes 3 to 4, 3 records, {SECOND.rindex(BATCH) + len(BATCH)} of 700 bytes",
    ]
    assert (journal.whole, journal.files, report.bytes) == (True, 2, 1400)
    group = journal.group(1000)
    assert [(each.index, each.offsets) for each in group.entries] == [(3, 2), (4, 2)]
    assert [each.batches for each in group.entries] == [((0, 2),), ((0, 2),)]
    assert [each.index for each in group.entries_after(1000, 3)] == [4]
    assert [each.index for each in journal.group(1001).entries] == [1]
    assert group.applied is not None
    assert group.applied.index == 2


def test_no_journal_is_an_empty_one(tmp_path: Path) -> None:
    journal, report = checked(tmp_path / "journal")
    assert (journal.files, journal.whole, report.findings) == (0, True, [])


@pytest.mark.slow
def test_every_flipped_byte_of_a_file_before_the_last_is_damage(tmp_path: Path) -> None:
    for at in range(len(FIRST)):
        data = bytearray(FIRST)
        data[at] ^= 0xFF
        write_files(tmp_path, bytes(data), SECOND)
        journal, report = checked(tmp_path)
        assert report.verdict is Verdict.DAMAGED, at
        assert not journal.whole


@pytest.mark.slow
def test_every_flipped_byte_of_the_last_file_is_found(tmp_path: Path) -> None:
    for at in range(len(SECOND)):
        data = bytearray(SECOND)
        data[at] ^= 0xFF
        write_files(tmp_path, FIRST, bytes(data))
        _, report = checked(tmp_path)
        assert report.verdict is (
            Verdict.DAMAGED if at < END else Verdict.WARNING if at >= 1024 else report.verdict
        ), at


@pytest.mark.slow
def test_every_cut_of_the_last_file_is_found(tmp_path: Path) -> None:
    for size in range(len(SECOND.rstrip(b"\0"))):
        write_files(tmp_path, FIRST, SECOND[:size])
        _, report = checked(tmp_path)
        expected = Verdict.DAMAGED
        if size in (64, LAST_FLUSH):
            expected = Verdict.OK  # as if the rest had never been
        elif size < LAST_FLUSH:
            expected = Verdict.WARNING
        assert report.verdict is expected, size


def test_a_torn_tail_is_said_to_be_one(tmp_path: Path) -> None:
    torn = journal_file([[entry(3, BATCH)], [entry(4, bytes(1000) + b"x")]], file=2, first_flush=3, size=2000)
    begin = torn.rindex(b"FLSH")
    write_files(tmp_path, FIRST, torn[:1024] + bytes(976))
    journal, report = checked(tmp_path)
    assert wrong(report) == [
        (
            "warning",
            f"torn tail from byte {begin} on (a record's checksum is wrong): never acknowledged, cut by the next start",
        )
    ]
    assert journal.whole


def test_of_a_damaged_last_flush_it_is_said_what_can_be_done(tmp_path: Path) -> None:
    directory = tmp_path / "with a blank"
    directory.mkdir()
    damaged = bytearray(SECOND)
    damaged[END - 9] ^= 1
    write_files(directory, FIRST, bytes(damaged))
    journal, report = checked(directory)
    [finding] = [each for each in report.findings if each.verdict is not Verdict.OK]
    assert (finding.verdict, journal.whole) == (Verdict.DAMAGED, False)
    assert finding.found == (
        f"corrupt at byte {LAST_FLUSH}: a record's checksum is wrong; no crash tears it so: every sector of the record at "
        f"byte {LAST_FLUSH + 40} was written"
    )
    assert finding.advice.startswith(
        "flush 4, the last one, is damaged, and what it holds may have been acknowledged"
    )
    # The last resort gives up this flush and nothing else.
    command = finding.advice.partition("told is stored: ")[2]
    subprocess.run(shlex.split(command), check=True)
    journal, report = checked(directory)
    assert report.verdict is Verdict.OK
    assert [each.index for each in journal.group(1000).entries] == [3]


def test_flushes_behind_damage_are_still_checked(tmp_path: Path) -> None:
    records = [[entry(at, BATCH)] for at in range(1, 5)]
    data = bytearray(journal_file(records, size=900))
    flushes = [at for at in range(len(data)) if data[at : at + 4] == b"FLSH"]
    data[flushes[1] + 50] ^= 1
    data[flushes[2] + 50] ^= 1
    write_files(tmp_path, bytes(data))
    # From a damaged flush on the search goes on with the next frame that is valid.
    assert [found for _, found in wrong(checked(tmp_path)[1])] == [
        f"corrupt at byte {flushes[1]}: a record's checksum is wrong; a valid flush follows at byte {flushes[2]}",
        f"corrupt at byte {flushes[2]}: a record's checksum is wrong; a valid flush follows at byte {flushes[3]}",
    ]


def test_missing_files_are_damage(tmp_path: Path) -> None:
    third = journal_file([[entry(5, BATCH)]], file=3, first_flush=5)
    write_files(tmp_path, FIRST, SECOND, third)
    (tmp_path / name(2)).unlink()
    assert wrong(checked(tmp_path)[1])[0] == ("damaged", "files 2 to 2 are missing")


def test_a_file_that_a_crash_left_unfinished_is_a_warning(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST, SECOND, bytes(100))
    [(verdict, found)] = wrong(checked(tmp_path)[1])
    assert (verdict, found.startswith("a crash left it unfinished")) == ("warning", True)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (header(2, version=3) + bytes(100), "format version 3 is newer than 2"),
        (header(2, version=1) + bytes(100), "has format version 1 behind a file of version 2"),
        (header(2, cluster=b"f" * 16) + bytes(100), "belongs to node 1 of cluster 66666666"),
        (header(2, node=2) + bytes(100), "belongs to node 2 of cluster 30313233"),
        (header(3) + bytes(100), "says that it is journal file 3"),
        (b"rubbish" * 20, "file begins with b'rubbishr'"),
        (header(2) + flush(3, 64, [record(kind=10)], 2), "a valid record has kind 10"),
        (
            journal_file([[entry(9, BATCH)]], file=2, first_flush=3),
            "raft group 1000 has entry 9 where 3 was expected",
        ),
        (
            journal_file([[entry(3, BATCH[:-1] + b"\xff")]], file=2, first_flush=3),
            "raft group 1000, entry 3: record batch at offset 0 has CRC",
        ),
        (
            journal_file([[record(kind=3, entry_type=0, payload=b"\xff")]], file=2, first_flush=3),
            "applied positions cannot be decoded",
        ),
        (header(2, version=0) + bytes(100), "format version 0 was never written"),
        (header(2) + flush(3, 64, [entry(3, BATCH)], 2, count=2), "flush 3 at byte 64 has 1 records"),
        (
            journal_file([[entry(2, BATCH)]], file=2, first_flush=2),
            "corrupt at byte 64: flush 2 of file 2 at byte 64, expected flush 3",
        ),
        (
            journal_file(
                [[relocated(7, BATCH, 1002), relocated(7, BATCH, 1002, term=2)]], file=2, first_flush=3
            ),
            "raft group 1002 has two relocated entries 7, of terms 1 and 2",
        ),
        (
            journal_file([[relocated(7, BATCH[:-1] + b"\xff", 1002)]], file=2, first_flush=3),
            "raft group 1002, entry 7: record batch at offset 0 has CRC",
        ),
        (
            journal_file([[reset(8), entry(8, BATCH)]], file=2, first_flush=3),
            "raft group 1000 has entry 8, but its log begins behind entry 8",
        ),
        (
            journal_file([[incarnation(3), incarnation(2)]], file=2, first_flush=3),
            "incarnation 2 of the node behind 3",
        ),
        (
            journal_file(
                [[record(1, 6, index=3, payload=BATCH + BATCH[:-1] + b"\xff")]], file=2, first_flush=3
            ),
            "raft group 1000, entry 3: record batch at offset 0 has CRC",
        ),
        (
            journal_file([[record(2, 0, payload=b"\xff")]], file=2, first_flush=3),
            "raft group 1000: hard state cannot be decoded",
        ),
    ],
)
def test_what_else_is_damage(tmp_path: Path, data: bytes, reason: str) -> None:
    write_files(tmp_path, FIRST, data)
    journal, report = checked(tmp_path)
    [(verdict, found)] = wrong(report)
    assert (verdict, found[: len(reason)], journal.whole) == ("damaged", reason, False)


@pytest.mark.parametrize(
    ("entry_type", "payload"), [(1, b"x"), (4, b"\xff"), (5, b"\xff"), (6, BATCH + b"x")]
)
def test_an_entry_that_cannot_be_decoded_is_a_warning(
    tmp_path: Path, entry_type: int, payload: bytes
) -> None:
    write_files(tmp_path, journal_file([[record(1, entry_type, index=3, payload=payload)]]))
    journal, report = checked(tmp_path)
    [(verdict, found)] = wrong(report)
    assert (verdict, journal.whole) == ("warning", True)
    assert found.startswith("raft group 1000, entry 3: ")
    assert found.endswith("it has no effect, on any node")


def test_the_oldest_file_without_a_flush_is_damage_if_others_were_before_it(tmp_path: Path) -> None:
    (tmp_path / name(5)).write_bytes(header(5) + bytes(100))
    assert wrong(checked(tmp_path)[1]) == [
        ("damaged", "corrupt at byte 64: no valid flush frame; the files before it are gone")
    ]


def test_a_name_that_is_not_a_journal_files_is_damage_but_the_journal_is_whole(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST)
    (tmp_path / "notes").write_bytes(b"x")
    (tmp_path / "1.journal").mkdir()
    journal, report = checked(tmp_path)
    assert wrong(report) == [("damaged", "not a journal file: the next start is refused")] * 2
    assert journal.whole


def test_a_file_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    (tmp_path / name(1)).mkdir()
    assert wrong(checked(tmp_path)[1]) == [("damaged", "cannot be read: Is a directory")]


def test_an_owner_that_nobody_knows_is_that_of_the_first_file(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST, header(2, node=7))
    [(_, found)] = wrong(checked(tmp_path, owner=None)[1])
    assert found.startswith(f"belongs to node 7 of cluster {CLUSTER.hex()}, expected node 1")


def test_entries_of_a_new_leader_replace_what_is_there(tmp_path: Path) -> None:
    newer = record(index=2, term=2, payload=BATCH)
    write_files(tmp_path, journal_file([[entry(1, BATCH), entry(2, BATCH), entry(3, BATCH)], [newer]]))
    journal, report = checked(tmp_path)
    assert wrong(report) == []
    assert [(each.index, each.term) for each in journal.group(1000).entries] == [(1, 1), (2, 2)]


def test_relocated_entries_are_those_of_their_group(tmp_path: Path) -> None:
    third = [entry(5, BATCH), relocated(1, BATCH, 1001), relocated(2, BATCH, 1001), relocated(2, BATCH)]
    (tmp_path / name(2)).write_bytes(SECOND)
    (tmp_path / name(3)).write_bytes(journal_file([third], file=3, first_flush=5))
    journal, report = checked(tmp_path)
    assert wrong(report) == []
    assert [each.index for each in journal.group(1000).entries] == [3, 4, 5]
    assert [each.index for each in journal.group(1001).entries] == [1, 2]


def test_a_file_of_an_older_version_is_said_to_be_one(tmp_path: Path) -> None:
    old = journal_file([[entry(1, BATCH, version=1)], [entry(2, BATCH, version=1)]], version=1)
    write_files(tmp_path, old, SECOND)
    journal, report = checked(tmp_path)
    assert wrong(report) == []
    found = f"format version 1, flushes 1 to 2, 2 records, {len(old)} of {len(old)} bytes"
    assert report.findings[0].found == found
    assert [each.index for each in journal.group(1000).entries] == [3, 4]


def test_batches_of_an_older_version_have_no_offsets(tmp_path: Path) -> None:
    old = journal_file([[entry(1, BATCH, version=1)]], version=1)
    several = [record(1, 6, index=2, payload=stamped(2) + stamped(4))]
    write_files(tmp_path, old, journal_file([several], file=2, first_flush=2))
    entries = checked(tmp_path)[0].group(1000).entries
    assert [each.batches for each in entries] == [(), ((2, 4), (4, 6))]
    assert [each.offsets for each in entries] == [2, 4]


def test_a_reset_is_judged_by_who_knows_whether_its_state_is_there(tmp_path: Path) -> None:
    write_files(tmp_path, journal_file([[entry(1, BATCH), reset(7), entry(8, BATCH)], [reset(5, 1, 1001)]]))
    journal, report = checked(tmp_path)
    assert wrong(report) == []
    group = journal.group(1000)
    assert [each.index for each in group.entries_after(1000, 7)] == [8]
    with pytest.raises(CorruptData, match="applied up to entry 6, but its log begins behind entry 7"):
        group.entries_after(1000, 6)
    assert (group.end, journal.group(1001).end) == (8, 5)


def test_holes_and_terms_are_judged_by_who_knows_what_is_needed(tmp_path: Path) -> None:
    write_files(
        tmp_path, journal_file([[entry(1, BATCH, term=2), entry(2, BATCH), relocated(1, BATCH, 1001)]])
    )
    journal, report = checked(tmp_path)
    assert wrong(report) == []
    assert [each.index for each in journal.group(1000).entries_after(1000, 1)] == [2]
    with pytest.raises(CorruptData, match="raft group 1000, entry 2: term 1 after 2"):
        journal.group(1000).entries_after(1000, 0)
