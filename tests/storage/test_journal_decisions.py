"""Decisions of recovery about every kind of journal file: one test for each row of the table in
`docs/storage.md`, with its name.

Each test runs a check as well: a refused file is damaged there, a truncated or removed one is a
warning, and a check changes nothing. On every case, check and start agree.
"""

from collections.abc import Iterable
from pathlib import Path

import pytest

from pixy.cluster.log.recovery import recover_node
from pixy.errors import CorruptData, DataDirectoryError
from pixy.inspect import ReadOnlyDisk, Report, Verdict, check_journal
from pixy.proto.state_pb2 import NodeIdentity, StagedPiece
from pixy.raft.messages import ConfChangeV2
from pixy.raft.wire import encode_conf_change
from pixy.records import NewRecord, build_batch
from pixy.storage import (
    EntryType,
    RealDisk,
    RecordKind,
    RecoveredJournal,
    load_identity,
    recover_journal,
    why_undecodable,
)
from pixy.storage.journal import JournalPosition
from tests.fakes.disk import RecordingDisk
from tests.storage.journals import (
    CLUSTER,
    OWNER,
    applied,
    assert_check_and_start_agree,
    content,
    entry,
    flush,
    hard_state,
    header,
    incarnation,
    journal_file,
    record,
    write_files,
)

BATCH = bytes(build_batch([NewRecord(None, b"value", (), 1)]))
FLUSHES = [[entry(1, BATCH)], [entry(2, BATCH)], [entry(3, BATCH)]]
FIRST_END = len(journal_file(FLUSHES))
FIRST = journal_file(FLUSHES, size=900)
SECOND = journal_file([[entry(4, BATCH)], [entry(5, BATCH)]], file=2, first_flush=4, size=900)
LAST_FLUSH = SECOND.rindex(b"FLSH")
END = LAST_FLUSH + len(flush(5, LAST_FLUSH, [entry(5, BATCH)], 2))
# The last flush spans six sectors.
LARGE = journal_file(
    [[entry(4, BATCH)], [entry(5, BATCH), entry(6, bytes(range(1, 251)) * 10)]],
    file=2,
    first_flush=4,
    size=4096,
)
LARGE_FLUSH = SECOND.rindex(b"FLSH")
LARGE_END = len(LARGE.rstrip(b"\0"))


def without_sectors(data: bytes, begin: int, sectors: Iterable[int]) -> bytes:
    """A file without the data written to some sectors from byte `begin` on."""
    other = bytearray(data)
    for sector in sectors:
        first, end = max(begin, 512 * sector), 512 * (sector + 1)
        other[first:end] = bytes(end - first)
    return bytes(other)


def name(number: int) -> str:
    return f"{number:020d}.journal"


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def verdict(directory: Path) -> Verdict:
    before = contents(directory)
    report = Report(directory)
    check_journal(ReadOnlyDisk(), directory, OWNER, report)
    assert contents(directory) == before
    assert_check_and_start_agree(directory)
    return report.verdict


def refused(directory: Path, reason: str, error: type[Exception] = CorruptData) -> None:
    """The start is refused for this reason, a check reports damage, and nothing is changed."""
    assert verdict(directory) is Verdict.DAMAGED
    before = contents(directory)
    with pytest.raises(error, match=reason):
        recover_journal(RealDisk(), directory, OWNER)
    assert contents(directory) == before


def taken(directory: Path, expected: Verdict = Verdict.OK) -> RecoveredJournal:
    """The start is accepted, and a check reports the expected findings; the next start finds
    nothing to do.
    """
    assert verdict(directory) is expected
    journal = recover_journal(RealDisk(), directory, OWNER)
    assert verdict(directory) is Verdict.OK
    assert content(recover_journal(RealDisk(), directory, OWNER)) == content(journal)
    return journal


def indexes(journal: RecoveredJournal) -> list[int]:
    return [index for _, index, _ in content(journal)]


# --- names ----------------------------------------------------------------------------------------


def test_absent(tmp_path: Path) -> None:
    directory = tmp_path / "node" / "journal"
    directory.mkdir(parents=True)
    assert taken(directory) == RecoveredJournal(JournalPosition(0, 0, 1), [], {})
    node = directory.parent
    directory.rmdir()
    load_identity(RealDisk(), node, NodeIdentity(cluster_id=CLUSTER, node_id=1))
    (node / "topics").mkdir()
    with pytest.raises(DataDirectoryError, match=r"has no journal files, although .* has 'topics'"):
        recover_node(RealDisk(), node, bytes)


@pytest.mark.parametrize("other", ["1.journal", "notes.txt"])
def test_foreign_name(tmp_path: Path, other: str) -> None:
    write_files(tmp_path, FIRST)
    (tmp_path / other).touch()
    refused(tmp_path, f"{other} is not a journal file; move it out of the way", DataDirectoryError)


@pytest.mark.parametrize("ending", [".part", ".tmp", ".bak", "~"])
def test_temporary_file(tmp_path: Path, ending: str) -> None:
    write_files(tmp_path, FIRST)
    (tmp_path / (name(2) + ending)).write_bytes(SECOND)
    refused(tmp_path, f"journal{ending} is not a journal file; move it out of the way", DataDirectoryError)


def test_missing_file(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST, SECOND, journal_file([], file=3))
    (tmp_path / name(2)).unlink()
    refused(tmp_path, "holds journal files 1 and 3, but not those in between")


# --- headers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "newer",
    [
        header(2, version=9),
        header(2, version=3)[:16] + b"another layout",
        header(2, version=3)[:12] + bytes(500),
    ],
)
def test_newer_version(tmp_path: Path, newer: bytes) -> None:
    write_files(tmp_path, FIRST, newer)
    refused(tmp_path, r"0002\.journal: format version \d is newer than 2", DataDirectoryError)


def old_file(*, file: int = 1, first_flush: int = 1, size: int = 0) -> bytes:
    """A file of version 1 with entries 1 to 3."""
    flushes = [
        [entry(1, BATCH, version=1), hard_state(version=1)],
        [entry(2, BATCH, version=1)],
        [entry(3, BATCH, version=1)],
    ]
    return journal_file(flushes, file=file, first_flush=first_flush, size=size, version=1)


def test_older_version(tmp_path: Path) -> None:
    whole = old_file(size=900)
    write_files(tmp_path, whole)
    journal = taken(tmp_path)
    assert (indexes(journal), contents(tmp_path)) == ([1, 2, 3], {name(1): whole})
    assert {each.version for each in journal.groups[1000].entries} == {1}
    write_files(tmp_path, whole, SECOND)
    assert indexes(taken(tmp_path)) == [1, 2, 3, 4, 5]
    # It has the same verdicts.
    at = whole.rindex(b"FLSH") + 50
    write_files(tmp_path, whole[:at] + b"?" + whole[at + 1 :], SECOND)
    refused(tmp_path, r"0001\.journal is corrupt at byte \d+: .*; a later journal file follows")
    write_files(tmp_path, whole[:at] + b"?" + whole[at + 1 :])
    (tmp_path / name(2)).unlink()
    refused(tmp_path, "no crash tears it so")


def test_version_goes_back(tmp_path: Path) -> None:
    records = [[entry(4, BATCH, version=1)]]
    write_files(tmp_path, FIRST, journal_file(records, file=2, first_flush=4, version=1))
    refused(tmp_path, r"0002\.journal: has format version 1 behind a file of version 2")
    write_files(tmp_path, FIRST, journal_file([], file=2, size=500, version=1))
    refused(tmp_path, r"0002\.journal: has format version 1 behind a file of version 2")


def test_version_0(tmp_path: Path) -> None:
    write_files(tmp_path, header(version=0) + FIRST[64:])
    refused(tmp_path, r"0001\.journal: format version 0 was never written", DataDirectoryError)


@pytest.mark.parametrize("leftover", [bytes(64), bytes(800), header(2)[:40] + bytes(500)])
def test_half_created(tmp_path: Path, leftover: bytes) -> None:
    write_files(tmp_path, FIRST, leftover)
    disk = RecordingDisk()
    assert verdict(tmp_path) is Verdict.WARNING
    journal = recover_journal(disk, tmp_path, OWNER)
    assert (indexes(journal), journal.at) == ([1, 2, 3], JournalPosition(1, FIRST_END, 4))
    calls = [(call.what, call.name) for call in disk.calls]
    assert calls[:2] == [("unlink", name(2)), ("sync_directory", tmp_path.name)]
    assert list(contents(tmp_path)) == [name(1)]


@pytest.mark.slow
def test_short(tmp_path: Path) -> None:
    for size in range(64):
        for before in ([], [FIRST]):
            write_files(tmp_path, *before, header(len(before) + 1)[:size])
            assert indexes(taken(tmp_path, Verdict.WARNING)) == [1, 2, 3][: 3 * len(before)]
            assert list(contents(tmp_path)) == [name(1)][: len(before)]


@pytest.mark.slow
def test_short_before(tmp_path: Path) -> None:
    for size in range(64):
        write_files(tmp_path, FIRST[:size], SECOND)
        refused(tmp_path, f"0001.journal: {size} bytes are shorter than the file header of 64")


@pytest.mark.parametrize("leftover", [b"", bytes(800)])
def test_lone_leftover(tmp_path: Path, leftover: bytes) -> None:
    (tmp_path / name(2)).write_bytes(leftover)
    refused(tmp_path, "file begins with|0 bytes are shorter")


def test_bad_header(tmp_path: Path) -> None:
    write_files(tmp_path, bytes(64) + FIRST[64:])
    refused(tmp_path, "file begins with")
    write_files(tmp_path, bytes(800), SECOND)
    refused(tmp_path, "file begins with")
    write_files(tmp_path, FIRST[:20] + b"\xff" + FIRST[21:])
    refused(tmp_path, "the file header's checksum is wrong")


def test_foreign_cluster(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST, header(2, cluster=b"x" * 16))
    refused(
        tmp_path, "belongs to node 1 of cluster 7878.*, this is node 1 of cluster 3031", DataDirectoryError
    )


def test_foreign_node(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST, header(2, node=2))
    refused(
        tmp_path, "belongs to node 2 of cluster 3031.*, this is node 1 of cluster 3031", DataDirectoryError
    )


def test_renamed(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST, FIRST)
    refused(tmp_path, r"0002\.journal says that it is journal file 1")


@pytest.mark.parametrize("first", [b"", b"x" + flush(3, 65, [], 2), bytes(500)])
def test_beheaded(tmp_path: Path, first: bytes) -> None:
    (tmp_path / name(2)).write_bytes(header(2) + first)
    refused(tmp_path, "corrupt at byte 64: no valid flush frame; the files before it are gone")
    (tmp_path / name(2)).write_bytes(SECOND)
    assert indexes(taken(tmp_path)) == [4, 5]


# --- flushes --------------------------------------------------------------------------------------


def test_whole(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST, SECOND)
    assert indexes(taken(tmp_path)) == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_zero_tail(tmp_path: Path) -> None:
    for size in (*range(END, END + 50), 4096):
        write_files(tmp_path, FIRST, SECOND[:END] + bytes(size - END))
        journal = taken(tmp_path)
        assert (indexes(journal), journal.at) == ([1, 2, 3, 4, 5], JournalPosition(2, END, 6))


@pytest.mark.slow
def test_torn_tail(tmp_path: Path) -> None:
    write_files(tmp_path, FIRST, without_sectors(LARGE, LARGE_FLUSH, [1]))
    assert verdict(tmp_path) is Verdict.WARNING
    disk = RecordingDisk()
    assert indexes(recover_journal(disk, tmp_path, OWNER)) == [1, 2, 3, 4]
    calls = [(call.what, call.name) for call in disk.calls]
    assert calls[:3] == [("truncate", name(2)), ("allocate", name(2)), ("sync", name(2))]
    assert contents(tmp_path)[name(2)] == LARGE[:LARGE_FLUSH] + bytes(4096 - LARGE_FLUSH)
    for missing in range(1, 1 << 6, 5):
        sectors = [sector for sector in range(6) if missing >> sector & 1]
        write_files(tmp_path, FIRST, without_sectors(LARGE, LARGE_FLUSH, sectors))
        assert indexes(taken(tmp_path, Verdict.WARNING)) == [1, 2, 3, 4], sectors


@pytest.mark.slow
def test_damaged_tail(tmp_path: Path) -> None:
    where = rf"0002\.journal is corrupt at byte {LAST_FLUSH}: .*, but no crash tears it so: "
    for at in range(LAST_FLUSH, END):
        write_files(tmp_path, FIRST, SECOND[:at] + bytes([SECOND[at] ^ 1 << at % 8]) + SECOND[at + 1 :])
        refused(tmp_path, where)
    for size in range(LAST_FLUSH + 1, END - 1, 7):  # the last byte is zero
        for rest in (0, 100):
            write_files(tmp_path, FIRST, SECOND[:size] + bytes(rest))
            refused(tmp_path, where)
    # A torn record proves nothing about a damaged one.
    data = without_sectors(LARGE, LARGE_FLUSH, [5])
    for at in range(LARGE_FLUSH, LARGE_FLUSH + 40 + len(entry(5, BATCH)), 9):
        write_files(tmp_path, FIRST, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        refused(tmp_path, "no crash tears it so")


@pytest.mark.slow
def test_bad_checksum(tmp_path: Path) -> None:
    for at in range(64, LAST_FLUSH):
        write_files(tmp_path, FIRST, SECOND[:at] + bytes([SECOND[at] ^ 1]) + SECOND[at + 1 :])
        refused(
            tmp_path, rf"0002\.journal is corrupt at byte 64: .*; a valid flush follows at byte {LAST_FLUSH}"
        )


@pytest.mark.slow
def test_bad_end(tmp_path: Path) -> None:
    begin = FIRST.rindex(b"FLSH")
    for at in range(begin, FIRST_END):
        write_files(tmp_path, FIRST[:at] + bytes([FIRST[at] ^ 1]) + FIRST[at + 1 :], SECOND)
        refused(tmp_path, rf"0001\.journal is corrupt at byte {begin}: .*; a later journal file follows")


def test_older_file(tmp_path: Path) -> None:
    older = journal_file([[entry(2, BATCH)], [entry(3, BATCH)]], file=2, first_flush=2)
    write_files(tmp_path, FIRST, older)
    refused(
        tmp_path, r"0002\.journal is corrupt at byte 64: flush 2 of file 2 .*, expected flush 4 of file 2"
    )


def test_newer_file(tmp_path: Path) -> None:
    newer = journal_file([[entry(4, BATCH)]], file=2, first_flush=5)
    write_files(tmp_path, FIRST, newer)
    refused(
        tmp_path, r"0002\.journal is corrupt at byte 64: flush 5 of file 2 .*, expected flush 4 of file 2"
    )
    # The end of the previous file is missing.
    write_files(tmp_path, FIRST[: FIRST.rindex(b"FLSH")] + bytes(100), SECOND)
    refused(
        tmp_path, r"0002\.journal is corrupt at byte 64: flush 4 of file 2 .*, expected flush 3 of file 2"
    )


def test_unknown_kind(tmp_path: Path) -> None:
    write_files(tmp_path, journal_file([[entry(1, BATCH)], [record(77)]]))
    refused(tmp_path, r"0001\.journal: a valid record has kind 77 .* a newer one wrote it")


@pytest.mark.parametrize(("kind", "entry_type"), [(5, 0), (7, 0), (8, 0), (1, 3), (4, 5)])
def test_later_kind(tmp_path: Path, kind: int, entry_type: int) -> None:
    records = [[entry(1, BATCH, version=1)], [record(kind, entry_type, version=1)]]
    write_files(tmp_path, journal_file(records, version=1))
    found = f"kind {kind} and entry type {entry_type}, which format version 1 does not have"
    refused(tmp_path, rf"0001\.journal: a valid record has {found}")


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (RecordKind.HARD_STATE, "raft group 1000: hard state"),
        (RecordKind.APPLIED_POSITIONS, "applied positions"),
        (RecordKind.LOG_RESET, "raft group 1000: log reset"),
        (RecordKind.RELOCATED_LOG_RESET, "raft group 1000: log reset"),
        (RecordKind.PEER_STARTS, "starts of other nodes"),
        (RecordKind.REPLICA_GONE, "raft group 1000: replica that is gone"),
    ],
)
def test_undecodable(tmp_path: Path, kind: RecordKind, what: str) -> None:
    for payload in (b"\xff", b"\x0a\x05x"):
        write_files(
            tmp_path, FIRST, journal_file([[record(kind, 0, payload=payload)]], file=2, first_flush=4)
        )
        refused(tmp_path, rf"0002\.journal: {what} cannot be decoded")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [RecordKind.ENTRY, RecordKind.RELOCATED_ENTRY])
@pytest.mark.parametrize(
    ("entry_type", "good", "bad"),
    [
        (EntryType.CONF_CHANGE, b"\x10\x01\x18\x02", [b"\xff", b"\x10\x09"]),
        (EntryType.CONF_CHANGE_V2, encode_conf_change(ConfChangeV2()), [b"\xff", b"\x08\x09"]),
        (EntryType.STAGED_PIECE, StagedPiece(sink_id="a", length=9).SerializeToString(), [b"\xff", b"\x0a"]),
        (EntryType.RECORD_BATCHES, 2 * BATCH, [b"", BATCH[:60], 2 * BATCH + b"x", BATCH + BATCH[:-1]]),
    ],
)
def test_undecodable_entry(
    tmp_path: Path, kind: RecordKind, entry_type: EntryType, good: bytes, bad: list[bytes]
) -> None:
    def write(payload: bytes) -> None:
        records = [record(kind, entry_type, 1001, 7, payload=payload), applied(1001, 7)]
        write_files(tmp_path, FIRST, journal_file([records], file=2, first_flush=4))

    for payload in (good, *bad):
        write(payload)
        assert indexes(taken(tmp_path)) == [1, 2, 3]
        assert bool(why_undecodable(entry_type, payload)) == (payload is not good)


def test_incarnation_goes_back(tmp_path: Path) -> None:
    def write(*numbers: int) -> None:
        flushes = [[incarnation(number)] for number in numbers]
        write_files(tmp_path, FIRST, journal_file(flushes, file=2, first_flush=4))

    for numbers in ((1, 2, 3), (1, 1), (4, 7, 7, 8)):
        write(*numbers)
        journal = taken(tmp_path)
        assert (journal.incarnation, journal.incarnation_file) == (numbers[-1], 2)
    for numbers in ((2, 1), (1, 2, 3, 2), (3, 3, 1)):
        write(*numbers)
        before = max(numbers[:-1])
        refused(tmp_path, rf"0002\.journal: incarnation {numbers[-1]} of the node behind {before}")


def test_wrong_count(tmp_path: Path) -> None:
    for count in (0, 2):
        write_files(tmp_path, FIRST, header(2) + flush(4, 64, [entry(4, BATCH)], 2, count))
        refused(tmp_path, rf"0002\.journal: flush 4 at byte 64 has 1 records, its frame says {count}")
