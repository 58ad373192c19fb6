"""Decisions about segments and indexes: a test for each row of the table in `docs/storage.md`.

There are three segments. The applied position is in the last one; the journal has the two batches
behind it.
"""

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from pixy.errors import CorruptData, DataDirectoryError
from pixy.proto.state_pb2 import AppliedPosition
from pixy.records import patch_batch, read_header
from pixy.storage import PartitionLog
from pixy.storage.disk.removal import remove_files
from tests.fakes.disk import RecordingDisk
from tests.fakes.steps import result_of
from tests.storage.batches import batch
from tests.storage.logs import applied_position, exhaust, fill, partition_log

SIZE = 7000
SEGMENT_BYTES = 100_000
FIRST, MIDDLE, LAST = 0, 14, 28
SYNCED, END = 40, 42
BATCH = len(batch(1, SIZE))


class Partition:
    """The directory of a partition, its applied position, and its expected batches."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.unreadable: set[Path] = set()
        log = self.log()
        fill(log, SYNCED, SIZE)
        self.synced = applied_position(log)
        self.applied: AppliedPosition | None = self.synced
        fill(log, END - SYNCED, SIZE)
        log.close()
        self.begin = 0
        assert self.segments() == [self.path(base) for base in (FIRST, MIDDLE, LAST)]

    def log(self) -> PartitionLog:
        disk = RecordingDisk()
        disk.unreadable = self.unreadable
        return partition_log(disk, self.directory, SEGMENT_BYTES)

    def path(self, base: int, suffix: str = ".log") -> Path:
        return self.directory / f"{base:020d}{suffix}"

    def segments(self) -> list[Path]:
        return sorted(self.directory.glob("*.log"))

    def contents(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.directory.iterdir()}

    def change(self, base: int, change: Callable[[bytes], bytes], suffix: str = ".log") -> None:
        path = self.path(base, suffix)
        path.write_bytes(change(path.read_bytes()))

    def overwrite(self, base: int, at: int, new: bytes) -> None:
        self.change(base, lambda whole: whole[:at] + new + whole[at + len(new) :])

    def begin_at(self, offset: int) -> None:
        """Move the log begin offset in the applied position, and leave the files."""
        assert self.applied is not None
        self.begin = self.applied.log_begin_offset = offset
        if offset == SYNCED:
            self.applied.segment_base_offset, self.applied.segment_bytes = offset, 0

    def open(self, *, replayed: bool = True) -> PartitionLog:
        log = self.log()
        left = log.open(self.applied, exists=True, replayed=replayed)
        exhaust(remove_files(RecordingDisk(), left))
        return log

    def taken(self) -> None:
        """Assert that all synced batches are found and the others replayed, at every start."""
        for _ in range(2):
            log = self.open()
            assert (log.begin_offset, log.end_offset) == (self.begin, SYNCED if self.applied else 0)
            check(log)
            fill(log, END - log.end_offset, SIZE)
            check(log)
            applied_position(log)
            log.close()
        self.applied = applied_position(log)
        check(self.open())

    def not_ready(self, reason: str, *, replayed: bool = True) -> None:
        """Assert that the partition is damaged for that reason, and nothing is changed."""
        before = self.contents()
        with pytest.raises(CorruptData, match=reason):
            self.open(replayed=replayed)
        assert self.contents() == before


def check(log: PartitionLog) -> None:
    """Assert that all offsets and timestamps are found, and each segment has the right age."""
    for offset in range(log.begin_offset, log.written_offset):
        chunk = log.read(offset, 1)
        assert [read_header(each).base_offset for each in chunk.batches] == [offset]
        assert log.find_timestamp(1000 + offset) == offset
    for segment in log._files.segments:
        assert (segment.first_timestamp, segment.max_timestamp) == (
            1000 + segment.base_offset,
            1000 + segment.end_offset - 1,
        )


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition(tmp_path / "topic-0")


# --- segments -------------------------------------------------------------------------------------


def test_absent(tmp_path: Path) -> None:
    log = partition_log(RecordingDisk(), tmp_path / "topic-0")
    log.open(None, exists=False, replayed=False)
    assert (log.begin_offset, log.end_offset, log.written_offset) == (0, 0, 0)
    fill(log, 1)
    log.close()


@pytest.mark.slow
def test_whole(partition: Partition) -> None:
    size = partition.path(LAST).stat().st_size
    partition.change(LAST, lambda whole: whole[: -2 * BATCH])
    partition.taken()
    assert partition.path(LAST).stat().st_size == size


@pytest.mark.slow
def test_behind_the_position(partition: Partition) -> None:
    partition.taken()


@pytest.mark.slow
def test_torn_tail(partition: Partition) -> None:
    partition.change(LAST, lambda whole: whole[: -BATCH - 99] + b"torn" * 9)
    partition.taken()


@pytest.mark.slow
def test_zero_tail(partition: Partition) -> None:
    partition.change(LAST, lambda whole: whole + bytes(9999))
    partition.taken()


@pytest.mark.slow
def test_newer_segment(partition: Partition) -> None:
    for base in (SYNCED, END, 999):
        partition.path(base).write_bytes(b"never synced")
        partition.path(base, ".index").write_bytes(b"hint")
    partition.taken()
    assert not partition.path(999).exists()
    assert not partition.path(999, ".index").exists()


def test_newer_than_the_journal(partition: Partition) -> None:
    reason = r"28\.log has \d+ bytes, but of what is behind byte \d+ the journal does not know"
    partition.not_ready(reason, replayed=False)
    # Nor may they be a segment of their own.
    whole = partition.path(LAST).read_bytes()
    partition.path(LAST).write_bytes(whole[: partition.synced.segment_bytes])
    partition.path(SYNCED).write_bytes(whole[partition.synced.segment_bytes :])
    partition.not_ready(r"40\.log has \d+ bytes", replayed=False)
    # An empty segment is no evidence.
    partition.path(SYNCED).write_bytes(b"")
    partition.open(replayed=False)
    assert not partition.path(SYNCED).exists()


@pytest.mark.slow
def test_without_a_position(partition: Partition) -> None:
    partition.applied = None
    partition.taken()


def test_unknown_to_the_journal(partition: Partition) -> None:
    partition.applied = None
    partition.not_ready("has segments, but the journal does not know of any record there", replayed=False)


def test_impossible_position(partition: Partition) -> None:
    whole = AppliedPosition()
    whole.CopyFrom(partition.synced)
    for name, value in (
        ("log_begin_offset", SYNCED + 1),
        ("log_begin_offset", -1),
        ("end_offset", -1),
        ("segment_base_offset", SYNCED + 1),
    ):
        partition.applied = AppliedPosition()
        partition.applied.CopyFrom(whole)
        setattr(partition.applied, name, value)
        partition.not_ready("its applied position has")


def test_short(partition: Partition) -> None:
    partition.change(LAST, lambda whole: whole[: -2 * BATCH - 1])
    synced = (SYNCED - LAST) * BATCH
    partition.not_ready(rf"{LAST}\.log has {synced - 1} bytes, {synced} were synced")


def test_short_before(partition: Partition) -> None:
    whole = partition.path(MIDDLE).read_bytes()
    for cut in (1, BATCH - 1, BATCH + 1):
        partition.path(MIDDLE).write_bytes(whole[:-cut])
        partition.not_ready(rf"{MIDDLE}\.log is corrupt at byte \d+")


def test_batch_missing(partition: Partition) -> None:
    partition.change(MIDDLE, lambda whole: whole[:-BATCH])
    partition.not_ready(
        rf"{MIDDLE}\.log is corrupt at byte {13 * BATCH}: its records end before offset {LAST - 1}, {LAST} was expected"
    )


def test_long_before(partition: Partition) -> None:
    partition.change(MIDDLE, lambda whole: whole + b"rubbish")
    partition.not_ready(rf"{MIDDLE}\.log is corrupt at byte {14 * BATCH}: 7 bytes are no record batch")


def test_batch_too_many(partition: Partition) -> None:
    more = batch(1, SIZE, 1)
    patch_batch(more, LAST, 1)
    partition.change(MIDDLE, lambda whole: whole + more)
    partition.not_ready(rf"{MIDDLE}\.log .* its records end before offset {LAST + 1}, {LAST} was expected")


def test_empty(partition: Partition) -> None:
    partition.change(MIDDLE, lambda whole: b"")
    partition.not_ready(rf"{MIDDLE}\.log .* its records end before offset {MIDDLE}, {LAST} was expected")


def test_missing(partition: Partition) -> None:
    partition.path(LAST).unlink()
    partition.not_ready(rf"{LAST}\.log is missing, it was synced")


def test_missing_in_the_middle(partition: Partition) -> None:
    partition.path(MIDDLE).unlink()
    partition.not_ready(rf"{FIRST}\.log .* its records end before offset {MIDDLE}, {LAST} was expected")


def test_missing_in_front(partition: Partition) -> None:
    partition.path(FIRST).unlink()
    partition.not_ready(rf"{MIDDLE}\.log is the first segment, but records from offset 0 on were synced")


def test_directory_missing(partition: Partition) -> None:
    log = partition.log()
    with pytest.raises(
        CorruptData, match=rf"{LAST}\.log is the first segment, but records from offset 0 on were synced"
    ):
        log.open(partition.applied, exists=False)


@pytest.mark.slow
def test_older_segment(partition: Partition) -> None:
    partition.begin_at(MIDDLE)
    partition.taken()
    assert partition.segments()[0] == partition.path(MIDDLE)


def test_half_a_removal(partition: Partition) -> None:
    partition.begin_at(LAST)
    partition.path(MIDDLE).unlink()
    partition.taken()
    assert partition.segments()[0] == partition.path(LAST)


@pytest.mark.slow
def test_begin_in_a_segment(partition: Partition) -> None:
    partition.begin_at(MIDDLE + 3)
    partition.taken()
    assert partition.segments()[0] == partition.path(MIDDLE)


def test_nothing_kept(partition: Partition) -> None:
    partition.begin_at(SYNCED)
    partition.taken()
    assert partition.segments() == [partition.path(SYNCED)]


def test_bad_checksum(partition: Partition) -> None:
    partition.overwrite(MIDDLE, 99, b"x")
    log = partition.open()
    with pytest.raises(
        CorruptData, match=rf"{MIDDLE}\.log is corrupt at byte 0: record batch at offset {MIDDLE} has CRC"
    ):
        log.read(MIDDLE, 1)


def test_bad_header(partition: Partition) -> None:
    at, whole = 13 * BATCH, partition.path(MIDDLE).read_bytes()
    for field, value in (
        (0, struct.pack(">q", 5)),
        (8, struct.pack(">i", 1)),
        (8, struct.pack(">i", 1 << 30)),
    ):
        partition.path(MIDDLE).write_bytes(whole)
        partition.overwrite(MIDDLE, at + field, value)
        partition.not_ready(rf"{MIDDLE}\.log is corrupt at byte {at}: a batch with")


def test_newer_version(partition: Partition) -> None:
    partition.overwrite(MIDDLE, 13 * BATCH + 16, b"\3")
    partition.not_ready(rf"{MIDDLE}\.log is corrupt at byte {13 * BATCH}: a batch with magic 3")


def test_other_segment(partition: Partition) -> None:
    shutil.copy(partition.path(FIRST), partition.path(MIDDLE))
    for suffix in (".index", ".timeindex"):
        partition.path(MIDDLE, suffix).unlink()
    partition.not_ready(rf"{MIDDLE}\.log is corrupt at byte 0: a batch with base offset 0, expected {MIDDLE}")


@pytest.mark.slow
def test_other_partition(tmp_path: Path, partition: Partition) -> None:
    other = Partition(tmp_path / "other-0")
    shutil.copy(other.path(MIDDLE), partition.path(MIDDLE))
    partition.taken()


def test_foreign_name(partition: Partition) -> None:
    for name in ("debug.log", "1.log", f"{FIRST:020d}x.log"):
        (partition.directory / name).touch()
        before = partition.contents()
        with pytest.raises(DataDirectoryError, match=f"{name} is not a segment; move it out of the way"):
            partition.open()
        assert partition.contents() == before
        (partition.directory / name).unlink()


@pytest.mark.slow
def test_temporary_file(partition: Partition) -> None:
    for name in (f"{FIRST:020d}.log.part", "notes", "notes.deleted"):
        (partition.directory / name).write_bytes(b"mine")
    partition.taken()
    assert (partition.directory / "notes").read_bytes() == b"mine"


@pytest.mark.slow
def test_retired(partition: Partition) -> None:
    for base in (FIRST, END):
        for suffix in (".log", ".index", ".timeindex"):
            partition.path(base, f"{suffix}.deleted").write_bytes(b"needed no more")
    partition.taken()
    assert list(partition.directory.glob("*.deleted")) == []


# --- indexes --------------------------------------------------------------------------------------


def each_index(partition: Partition, change: Callable[[bytes], bytes], *, rebuilt: bool = False) -> None:
    """Assert that a change to either index or both, in all segments, loses nothing.

    Args:
        rebuilt: the indexes must be as before afterwards.
    """
    for suffixes in ((".index",), (".timeindex",), (".index", ".timeindex")):
        before = partition.contents()
        for base in (FIRST, MIDDLE, LAST):
            for suffix in suffixes:
                partition.change(base, change, suffix)
        partition.taken()
        assert not rebuilt or partition.contents() == before
        partition.applied = partition.synced
        for name, data in before.items():
            (partition.directory / name).write_bytes(data)


@pytest.mark.slow
def test_index_missing(partition: Partition) -> None:
    before = partition.contents()
    for path in [*partition.directory.glob("*.index"), *partition.directory.glob("*.timeindex")]:
        path.unlink()
    partition.taken()
    assert partition.contents() == before


@pytest.mark.slow
def test_index_empty(partition: Partition) -> None:
    each_index(partition, lambda whole: b"", rebuilt=True)


@pytest.mark.slow
def test_index_short(partition: Partition) -> None:
    each_index(partition, lambda whole: whole[:-5], rebuilt=True)


@pytest.mark.slow
def test_index_zeroed(partition: Partition) -> None:
    each_index(partition, lambda whole: bytes(len(whole)), rebuilt=True)


@pytest.mark.slow
def test_index_too_long(partition: Partition) -> None:
    each_index(partition, lambda whole: whole + struct.pack(">IIIIII", 1 << 20, 1 << 30, 7, 7, 7, 1 << 31))


@pytest.mark.slow
def test_index_torn(partition: Partition) -> None:
    each_index(partition, lambda whole: bytes(len(whole) - 9) + whole[-9:])
    each_index(partition, lambda whole: whole[:9] + bytes(len(whole) - 9))


@pytest.mark.slow
@pytest.mark.parametrize("suffixes", [(".index",), (".timeindex",), (".index", ".timeindex")])
def test_index_unreadable(partition: Partition, suffixes: tuple[str, ...]) -> None:
    before = partition.contents()
    log = partition.open()
    partition.unreadable.update(
        partition.path(base, suffix) for base in (FIRST, MIDDLE, LAST) for suffix in suffixes
    )
    check(log)
    log.close()
    partition.taken()
    log = partition.open()
    log.replace_indexes(result_of(log.find_torn_indexes()))
    log.close()
    assert not partition.unreadable
    assert partition.contents() == before


@pytest.mark.slow
def test_index_of_another_segment(partition: Partition) -> None:
    for suffix in (".index", ".timeindex"):
        for base in (MIDDLE, LAST):
            shutil.copy(partition.path(FIRST, suffix), partition.path(base, suffix))
    partition.taken()


@pytest.mark.slow
def test_index_without_its_segment(partition: Partition) -> None:
    for suffix in (".index", ".timeindex"):
        partition.path(999, suffix).write_bytes(b"hint")
    partition.taken()
    assert [path for path in partition.directory.iterdir() if "999" in path.name] == []
