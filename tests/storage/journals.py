"""Journal files built by hand from the byte tables of `pixy.storage.journal.journal_format`."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pixy.errors import CorruptData, DataDirectoryError
from pixy.inspect import ReadOnlyDisk, Report, Verdict, check_journal
from pixy.proto.state_pb2 import AppliedPosition, AppliedPositions, HardState, NodeStart, NodeStarts
from pixy.records.crc import crc32c as _crc32c
from pixy.storage import EntryType, RecordKind, RecoveredJournal, recover_journal
from pixy.storage.journal.journal_format import JournalRecord
from tests.fakes.disk import RecordingDisk

CLUSTER = b"0123456789abcdef"
OWNER = (CLUSTER, 1)

Content = list[tuple[int, int, bytes]]
"""Raft group, index and payload of each entry."""


def crc32c(data: bytes) -> int:
    checksum: int = _crc32c(data)
    return checksum


def header(number: int = 1, version: int = 2, cluster: bytes = CLUSTER, node: int = 1) -> bytes:
    start = b"PIXYJRNL" + version.to_bytes(4, "little")
    rest = number.to_bytes(8, "little") + cluster + node.to_bytes(4, "little") + bytes(20)
    return start + crc32c(start + rest).to_bytes(4, "little") + rest


def record(  # noqa: PLR0913  # the fields of the byte table
    kind: int = 1,
    entry_type: int = 1,
    raft_group: int = 1000,
    index: int = 1,
    term: int = 1,
    payload: bytes = b"",
    *,
    commit: int = 0,
    proposal: tuple[int, int, int] = (0, 0, 0),
    version: int = 2,
) -> bytes:
    rest = bytes([kind, entry_type, 0, 0])
    rest += b"".join(number.to_bytes(8, "little") for number in (raft_group, index, term))
    if version > 1:
        node_id, started, sequence = proposal
        rest += commit.to_bytes(8, "little") + node_id.to_bytes(4, "little")
        rest += started.to_bytes(4, "little") + sequence.to_bytes(8, "little")
    rest += payload
    return len(payload).to_bytes(4, "little") + crc32c(rest).to_bytes(4, "little") + rest


def entry(
    index: int, payload: bytes = b"payload", raft_group: int = 1000, term: int = 1, *, version: int = 2
) -> bytes:
    return record(RecordKind.ENTRY, EntryType.RECORD_BATCH, raft_group, index, term, payload, version=version)


def relocated(index: int, payload: bytes = b"payload", raft_group: int = 1000, term: int = 1) -> bytes:
    return record(RecordKind.RELOCATED_ENTRY, EntryType.RECORD_BATCH, raft_group, index, term, payload)


def applied(raft_group: int, index: int, *, version: int = 2) -> bytes:
    positions = AppliedPositions(positions=[AppliedPosition(raft_group=raft_group, index=index)])
    return record(RecordKind.APPLIED_POSITIONS, 0, 0, 0, 0, positions.SerializeToString(), version=version)


def hard_state(raft_group: int = 1000, *, commit: int = 0, term: int = 1, version: int = 2) -> bytes:
    state = HardState(term=term, vote=1, commit=commit, voters=[1])
    return record(RecordKind.HARD_STATE, 0, raft_group, 0, term, state.SerializeToString(), version=version)


def reset(index: int, term: int = 1, raft_group: int = 1000) -> bytes:
    return record(RecordKind.LOG_RESET, 0, raft_group, index, term, configuration())


def carried_over(index: int, term: int = 1, raft_group: int = 1000) -> bytes:
    return record(RecordKind.RELOCATED_LOG_RESET, 0, raft_group, index, term, configuration())


def gone(term: int = 1, raft_group: int = 1000) -> bytes:
    state = HardState(term=term, vote=1)
    return record(RecordKind.REPLICA_GONE, 0, raft_group, 0, term, state.SerializeToString())


def configuration() -> bytes:
    return HardState(voters=[1, 2], learners=[3], conf_index=7).SerializeToString()


def incarnation(number: int) -> bytes:
    return record(RecordKind.INCARNATION, 0, 0, number, 0)


def peer_starts(*starts: tuple[int, int, int]) -> bytes:
    """Node id, incarnation and flush number of each."""
    record_of = [NodeStart(node_id=id, incarnation=start, flush_number=at) for id, start, at in starts]
    return record(RecordKind.PEER_STARTS, 0, 0, 0, 0, NodeStarts(starts=record_of).SerializeToString())


def flush(
    number: int, position: int, records: Sequence[bytes], file: int = 1, count: int | None = None
) -> bytes:
    body = b"".join(records)
    rest = b"".join(value.to_bytes(8, "little") for value in (number, file, position))
    rest += len(body).to_bytes(4, "little")
    rest += (len(records) if count is None else count).to_bytes(4, "little")
    return b"FLSH" + crc32c(CLUSTER + rest).to_bytes(4, "little") + rest + body


def journal_file(
    flushes: Sequence[Sequence[bytes]],
    *,
    file: int = 1,
    first_flush: int = 1,
    size: int = 0,
    version: int = 2,
) -> bytes:
    """A whole file of `size` bytes at least, with these records in its flushes."""
    data = header(file, version)
    for number, records in enumerate(flushes, first_flush):
        data += flush(number, len(data), records, file)
    return data + bytes(max(0, size - len(data)))


def content(journal: RecoveredJournal | Sequence[JournalRecord]) -> Content:
    if isinstance(journal, RecoveredJournal):
        records = [each for group in journal.groups.values() for each in group.entries]
    else:
        records = list(journal)
    return [(each.raft_group, each.index, bytes(each.payload)) for each in records]


def write_files(directory: Path, *files: bytes | bytearray) -> None:
    """Make these the journal's files, numbered from 1."""
    for number, data in enumerate(files, 1):
        (directory / f"{number:020d}.journal").write_bytes(data)


class StartOutcome(NamedTuple):
    """Effect of a start on a journal: `refused` is the path that it names, "" if it does not."""

    refused: str
    cut: list[tuple[str, int]]
    removed: list[str]


def _predicted(directory: Path) -> StartOutcome:
    """The outcome of the next start, in the words of a check."""
    report = Report(directory)
    check_journal(ReadOnlyDisk(), directory, OWNER, report)
    outcome = StartOutcome("", [], [])
    for finding in report.findings:
        if finding.verdict is Verdict.DAMAGED:
            return outcome._replace(refused=str(directory / finding.where))
        if torn := re.match(r"torn tail from byte (\d+) on .* cut by the next start", finding.found):
            outcome.cut.append((finding.where, int(torn[1])))
        elif finding.verdict is Verdict.WARNING:
            assert finding.found.endswith("removed by the next start")
            outcome.removed.append(finding.where)
    return outcome


def _start(directory: Path) -> StartOutcome:
    disk = RecordingDisk()
    try:
        recover_journal(disk, directory, OWNER)
    except (CorruptData, DataDirectoryError, OSError) as error:
        assert disk.calls == [], "a start that is refused has changed something"
        return StartOutcome(str(error), [], [])
    cut = [(call.name, call.at) for call in disk.did("truncate")]
    return StartOutcome("", cut, [call.name for call in disk.did("unlink")])


def assert_check_and_start_agree(directory: Path) -> StartOutcome:
    """The next start does what a check predicts; tried on a copy. Returns what it does."""
    copy = directory.with_name(f"{directory.name}-start")
    if directory.exists():
        shutil.copytree(directory, copy)
    try:
        expected, done = _predicted(copy), _start(copy)
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    assert bool(done.refused) == bool(expected.refused), (done, expected)
    assert expected.refused in done.refused
    assert done[1:] == expected[1:]
    return done
