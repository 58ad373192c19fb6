"""Decisions of a start about the offsets of a partition's entries in the journal: one test for each
row of the table in `docs/storage.md`, with its name.

A check judges the same files; it changes nothing.
"""

from pathlib import Path

import pytest

from pixy.cluster.log.recovery import RecoveredNode
from pixy.cluster.log.replica import PartitionReplica
from pixy.cluster.replicas.partition_recovery import PartitionRecovery
from pixy.errors import CorruptData
from pixy.inspect import ReadOnlyDisk, Report, check_journal
from pixy.inspect.replayed_entries import replay
from pixy.proto.state_pb2 import (
    AppliedPosition,
    AppliedPositions,
    NodeIdentity,
    PartitionCommand,
    PublishedPart,
    PublishParts,
)
from pixy.records import TopicPartition, patch_batch, read_header, split_batches
from pixy.storage import EntryType, RealDisk, RecordKind, recover_journal
from tests.fakes.batches import batch_of
from tests.storage.journals import OWNER, journal_file, record, write_files
from tests.storage.logs import partition_log

OLD = bytes(batch_of(b"old", b"old"))
"""A batch of format version 1: its base offset is 0, and says nothing."""


def batch(base_offset: int, records: int = 1) -> bytes:
    stamped = bytearray(batch_of(*[b"value"] * records))
    patch_batch(stamped, base_offset, 1)
    return bytes(stamped)


def entry(
    index: int,
    payload: bytes,
    *,
    kind: int = RecordKind.ENTRY,
    entry_type: int = EntryType.RECORD_BATCH,
    version: int = 2,
    term: int = 1,
) -> bytes:
    return record(kind, entry_type, 1000, index, term, payload, version=version)


def several(index: int, *batches: bytes) -> bytes:
    return entry(index, b"".join(batches), entry_type=EntryType.RECORD_BATCHES)


def published(index: int, publication: int, records: int, predecessor: int = 0) -> bytes:
    parts = PublishParts(
        publication=publication, parts=[PublishedPart(records=records)], predecessor=predecessor
    )
    payload = PartitionCommand(publish_parts=parts).SerializeToString()
    return entry(index, payload, entry_type=EntryType.COMMAND)


def applied(index: int, end_offset: int) -> bytes:
    position = AppliedPosition(raft_group=1000, index=index, term=1, end_offset=end_offset, publication=1)
    payload = AppliedPositions(positions=[position]).SerializeToString()
    return record(RecordKind.APPLIED_POSITIONS, 0, 0, 0, 0, payload)


def offsets(directory: Path, *files: bytes) -> list[tuple[int, int]]:
    """Base offset and leader epoch of each batch that a start applies again, from these journal
    files; a check finds nothing wrong.
    """
    assert _checked(directory, files) == ""
    return [
        (header.base_offset, header.leader_epoch)
        for each in _recovered(directory).tail
        if each.kind in (EntryType.RECORD_BATCH, EntryType.RECORD_BATCHES)
        for header in map(read_header, split_batches(memoryview(each.data)))
    ]


def refused(directory: Path, index: int, *files: bytes) -> None:
    """Refused for an entry, which a check names too."""
    assert _checked(directory, files).startswith(f"entry {index} has a batch with base offset ")
    with pytest.raises(CorruptData, match=f"raft group 1000, entry {index}: a batch with base offset"):
        _recovered(directory)


def _checked(directory: Path, files: tuple[bytes, ...]) -> str:
    (directory / "journal").mkdir()
    write_files(directory / "journal", *files)
    found = check_journal(ReadOnlyDisk(), directory / "journal", OWNER, Report(directory)).group(1000)
    return replay(found.applied, found.entries).fault


def _recovered(directory: Path) -> PartitionRecovery:
    disk = RealDisk()
    lock = disk.lock(directory / "lock")
    assert lock is not None
    journal = recover_journal(disk, directory / "journal", OWNER)
    lock.close()
    replica = PartitionReplica(1000, TopicPartition("topic", 0), partition_log(disk, directory / "topic-0"))
    return PartitionRecovery(replica, RecoveredNode(lock, NodeIdentity(), journal))


def test_continues(tmp_path: Path) -> None:
    flushes = [[applied(4, 7)], [entry(5, batch(7, 2)), entry(6, batch(9))]]
    assert offsets(tmp_path, journal_file(flushes)) == [(7, 1), (9, 1)]


def test_several_continue(tmp_path: Path) -> None:
    flushes = [[several(1, batch(0, 2), batch(2), batch(3)), entry(2, batch(4))]]
    assert offsets(tmp_path, journal_file(flushes)) == [(0, 1), (2, 1), (3, 1), (4, 1)]


def test_relocated(tmp_path: Path) -> None:
    flushes = [[entry(2, batch(1))], [entry(1, batch(0), kind=RecordKind.RELOCATED_ENTRY)]]
    assert offsets(tmp_path, journal_file(flushes)) == [(0, 1), (1, 1)]


def test_replaced(tmp_path: Path) -> None:
    flushes = [
        [entry(1, batch(0)), entry(2, batch(1, 5))],
        [entry(2, batch(1), term=2), entry(3, batch(2), term=2)],
    ]
    assert offsets(tmp_path, journal_file(flushes)) == [(0, 1), (1, 1), (2, 1)]


def test_behind_a_publication(tmp_path: Path) -> None:
    flushes = [
        [applied(4, 7)],
        # The first of them is applied, and the last one proposed twice.
        [published(5, 1, 100), published(6, 2, 3), published(7, 2, 3), entry(8, batch(10))],
    ]
    assert offsets(tmp_path, journal_file(flushes)) == [(10, 1)]


def test_behind_a_publication_out_of_order(tmp_path: Path) -> None:
    flushes = [
        [applied(4, 7)],
        [published(5, 3, 100, predecessor=2), published(6, 2, 3, predecessor=1)],
        [published(7, 3, 20, predecessor=2), entry(8, batch(30))],
    ]
    assert offsets(tmp_path, journal_file(flushes)) == [(30, 1)]


def test_without_offset(tmp_path: Path) -> None:
    old = [[entry(1, OLD, version=1), entry(2, OLD, version=1, term=3)]]
    whole = journal_file(old, version=1)
    assert offsets(tmp_path, whole) == [(0, 1), (2, 3)]
    assert (tmp_path / "journal" / f"{1:020d}.journal").read_bytes() == whole


def test_behind_one_without_offset(tmp_path: Path) -> None:
    old = journal_file([[entry(1, OLD, version=1)], [entry(2, OLD, version=1)]], version=1)
    new = journal_file([[entry(3, batch(4))]], file=2, first_flush=3)
    assert offsets(tmp_path, old, new) == [(0, 1), (2, 1), (4, 1)]


def test_out_of_place(tmp_path: Path) -> None:
    for number, base_offset in enumerate((0, 6, 8)):
        directory = tmp_path / str(number)
        directory.mkdir()
        refused(directory, 5, journal_file([[applied(4, 7)], [entry(5, batch(base_offset))]]))


def test_several_out_of_place(tmp_path: Path) -> None:
    for number, batches in enumerate([(batch(1), batch(2)), (batch(0), batch(0)), (batch(0), batch(2))]):
        directory = tmp_path / str(number)
        directory.mkdir()
        refused(directory, 1, journal_file([[several(1, *batches)]]))
