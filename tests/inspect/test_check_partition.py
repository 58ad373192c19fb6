"""The segments and indexes of one partition: each verdict, on files damaged byte by byte."""

import errno
import os
from pathlib import Path

import pytest

from pixy.inspect import ReadOnlyDisk, Report, Verdict, check_partition
from pixy.inspect.replayed_entries import ReplayedEntries
from pixy.proto.state_pb2 import AppliedPosition
from pixy.records import ProducerTable, patch_batch, read_header
from pixy.storage import PRODUCERS_FILE, PRODUCERS_PART, RealDisk, write_table
from pixy.storage.disk.disk import RealFile
from pixy.storage.disk.scan import scan_batches
from pixy.storage.partition.log_segments import AgedSegments
from tests.storage.batches import batch
from tests.storage.logs import append, partition_log

NOTHING = ReplayedEntries()


class Partition:
    """A log with segments of 400 bytes, synced."""

    def __init__(self, directory: Path, batches: int, size: int = 10, segment_bytes: int = 400) -> None:
        self.directory = directory
        log = partition_log(RealDisk(), directory, segment_bytes)
        written = [batch(2, size, 1000 + at) for at in range(batches)]
        for each in written:
            append(log, each)
        log.write(written, AgedSegments())
        position = log.sync()
        self.applied = AppliedPosition(
            raft_group=1000,
            index=batches,
            term=1,
            end_offset=log.end_offset,
            segment_base_offset=position.segment_base_offset,
            segment_bytes=position.segment_bytes,
        )

    def segments(self) -> list[Path]:
        return sorted(self.directory.glob("*.log"))

    def checked(self, replayed: ReplayedEntries | None = NOTHING, *, applied: bool = True) -> Report:
        report = Report(self.directory.parent)
        position = self.applied if applied else None
        check_partition(ReadOnlyDisk(), self.directory, position, replayed, report)
        return report

    def wrong(self, replayed: ReplayedEntries | None = NOTHING) -> list[tuple[str, str, str]]:
        """All but the line of the partition itself that is not ok."""
        return [
            (str(each.verdict), each.where, each.found)
            for each in self.checked(replayed).findings[:-1]
            if each.verdict is not Verdict.OK
        ]


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition(tmp_path / "topic-0", 10)


def test_a_whole_partition_is_ok(partition: Partition) -> None:
    report = partition.checked()
    size = sum(path.stat().st_size for path in partition.segments())
    [finding] = report.findings
    assert (finding.where, finding.found) == ("topic-0", f"offsets 0 to 19 in 3 segments, {size} bytes")
    assert (finding.verdict, report.bytes, report.records) == (Verdict.OK, size, 20)


def test_a_partition_without_anything_is_ok(tmp_path: Path) -> None:
    report = Report(tmp_path)
    check_partition(ReadOnlyDisk(), tmp_path / "topic-0", None, NOTHING, report)
    assert [(each.found, each.verdict) for each in report.findings] == [("no synced records", Verdict.OK)]


@pytest.mark.slow
def test_every_flipped_byte_of_every_segment_is_damage(partition: Partition) -> None:
    for path in partition.segments():
        whole = path.read_bytes()
        for at in range(len(whole)):
            data = bytearray(whole)
            data[at] ^= 0xFF
            path.write_bytes(data)
            assert partition.checked().verdict is Verdict.DAMAGED, (path.name, at)
        path.write_bytes(whole)


@pytest.mark.slow
def test_every_cut_of_every_segment_is_damage(partition: Partition) -> None:
    for path in partition.segments():
        whole = path.read_bytes()
        for size in range(len(whole)):
            path.write_bytes(whole[:size])
            assert partition.checked().verdict is Verdict.DAMAGED, (path.name, size)
        path.write_bytes(whole)


def test_every_missing_segment_is_damage(partition: Partition) -> None:
    paths = partition.segments()
    found = []
    for path in paths:
        whole = path.read_bytes()
        path.unlink()
        found += [text for _, _, text in partition.wrong()]
        path.write_bytes(whole)
    assert found == [
        f"no segment has offsets 0 to {int(paths[1].stem) - 1}",
        f"the segment before it ends with offset {int(paths[1].stem) - 1}",
        f"missing: {partition.applied.segment_bytes} bytes of it were synced",
    ]


def test_batches_behind_a_damaged_one_are_still_checked(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "topic-0", 5, segment_bytes=10_000)
    [path] = partition.segments()
    data = bytearray(path.read_bytes())
    length = len(data) // 5
    data[length + 70] ^= 1
    data[3 * length + 70] ^= 1
    path.write_bytes(data)
    [(verdict, where, found)] = partition.wrong()
    assert (verdict, where) == ("damaged", f"topic-0/{path.name}")
    assert found.startswith(f"corrupt at byte {length}: record batch at offset 2 has CRC")
    assert found.endswith("(and 1 more batches)")
    assert partition.checked().records == 6


def test_what_is_behind_the_applied_position_is_applied_again(partition: Partition) -> None:
    last = partition.segments()[-1]
    last.write_bytes(last.read_bytes() + b"rubbish")
    (partition.directory / f"{20:020d}.log").write_bytes(b"more")
    report = partition.checked(ReplayedEntries(1, 2))
    assert report.verdict is Verdict.OK
    assert report.findings[0].found == "11 bytes behind the applied position, to be applied again"
    assert report.findings[1].found.endswith("; 2 records in the journal to be applied again")
    assert partition.wrong() == [
        ("damaged", "topic-0", "11 bytes that no entry of the journal speaks of: the partition is not ready")
    ]


def test_segments_without_an_applied_position(partition: Partition) -> None:
    assert partition.checked(NOTHING, applied=False).verdict is Verdict.DAMAGED
    assert partition.checked(ReplayedEntries(1, 2), applied=False).verdict is Verdict.OK
    assert partition.checked(None, applied=False).verdict is Verdict.OK
    last = partition.segments()[-1]
    last.write_bytes(last.read_bytes()[:-1])
    assert partition.checked(None, applied=False).verdict is Verdict.WARNING


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"end_offset": 21}, "offset 20 follows, the applied position says 21"),
        ({"term": 0}, "leader epoch 1, the applied position has term 0"),
    ],
)
def test_an_applied_position_that_does_not_fit_is_damage(
    partition: Partition, change: dict[str, int], reason: str
) -> None:
    for name, value in change.items():
        setattr(partition.applied, name, value)
    assert [(verdict, found) for verdict, _, found in partition.wrong()] == [("damaged", reason)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"log_begin_offset": 21}, "has records from offset 21 to 20"),
        ({"log_begin_offset": -5}, "has records from offset -5 to 20"),
        ({"log_begin_offset": -9, "end_offset": -1}, "has records from offset -9 to -1"),
        ({"end_offset": 2**63 - 1}, f"has records from offset 0 to {2**63 - 1}"),
        ({"segment_base_offset": 21}, "has a segment that begins at offset 21, and records up to 20"),
        ({"segment_base_offset": -1}, "has a segment that begins at offset -1, and records up to 20"),
        ({"index": 2**62}, f"has index {2**62}, at most {2**62 - 1} is possible"),
        ({"publication": 2**64 - 1}, f"has publication {2**64 - 1}, at most {2**62 - 1} is possible"),
    ],
)
def test_an_applied_position_that_no_log_has_is_damage(
    partition: Partition, change: dict[str, int], reason: str
) -> None:
    for name, value in change.items():
        setattr(partition.applied, name, value)
    found = f"its applied position {reason}: the partition is not ready"
    assert partition.wrong(ReplayedEntries(fault="a batch does not follow")) == [
        ("damaged", "topic-0", found)
    ]


def test_an_epoch_that_goes_back_is_damage(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "topic-0", 3, segment_bytes=10_000)
    [path] = partition.segments()
    data = bytearray(path.read_bytes())
    patched = data[: len(data) // 3]
    patch_batch(patched, 0, 2)
    path.write_bytes(patched + data[len(patched) :])
    partition.applied.term = 2
    assert partition.wrong()[0][2].startswith(f"corrupt at byte {len(patched)}: leader epoch 1 after 2")


def test_files_that_do_not_belong(partition: Partition) -> None:
    (partition.directory / "notes").write_bytes(b"x")
    (partition.directory / f"{98:020d}.log.deleted").write_bytes(b"x")
    (partition.directory / f"{99:020d}.index").write_bytes(b"")
    (partition.directory / "x.log").write_bytes(b"x")
    assert partition.wrong() == [
        ("warning", f"topic-0/{98:020d}.log.deleted", "left from a removal: removed by the next start"),
        ("warning", f"topic-0/{99:020d}.index", "an index without its segment"),
        ("warning", "topic-0/notes", "does not belong here"),
        ("damaged", "topic-0/x.log", "not a segment: the next start is refused"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_is_wrong_or_missing_is_a_warning(tmp_path: Path, suffix: str) -> None:
    partition = Partition(tmp_path / "topic-0", 12, 10_000, segment_bytes=1 << 20)
    [path] = partition.segments()
    index = path.with_suffix(suffix)
    assert partition.wrong() == []
    whole = index.read_bytes()
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 0x01
        index.write_bytes(data)
        assert partition.checked().verdict <= Verdict.WARNING
        assert [where for _, where, _ in partition.wrong()] == [f"topic-0/{index.name}"], at
    index.unlink()
    assert [(verdict, found) for verdict, _, found in partition.wrong()] == [
        ("warning", "missing or empty: reads look from the segment's start")
    ]


def test_a_scan_finds_batches_larger_than_a_block(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    batches = [batch(1, 700_000), batch(1, 3_000_000), batch(1, 10)]
    path.write_bytes(b"".join(batches))
    found = [(position, bytes(view)) for position, _, view, _ in scan_batches(ReadOnlyDisk(), path)]
    at = [0, len(batches[0]), len(batches[0]) + len(batches[1])]
    assert found == list(zip(at, map(bytes, batches), strict=True))
    assert read_header(batches[0]).records == 1


class FailingFile(RealFile):
    """A file that cannot be read."""

    error: BaseException

    def read_at(self, size: int, position: int) -> bytes:
        raise self.error


class FailingDisk(ReadOnlyDisk):
    """A disk whose segments cannot be read."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    def open(self, path: Path, *, create: bool = False, background: bool = False) -> RealFile:
        file = super().open(path, create=create, background=background)
        if path.suffix == ".log":
            file.close()
            failing = FailingFile(os.open(path, os.O_RDONLY), self._durable_writes)
            failing.error = self._error
            return failing
        return file


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), r"a batch of \d+ bytes at byte 0 does not fit into memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "Cannot allocate memory"),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
    ],
)
def test_what_the_machine_lacks_is_no_damage(partition: Partition, error: BaseException, reason: str) -> None:
    report = Report(partition.directory.parent)
    with pytest.raises(OSError, match=reason):
        check_partition(FailingDisk(error), partition.directory, partition.applied, NOTHING, report)
    assert not [each for each in report.findings if each.verdict is Verdict.DAMAGED]


def test_a_bad_sector_is_damage(partition: Partition) -> None:
    report = Report(partition.directory.parent)
    disk = FailingDisk(OSError(errno.EIO, "Input/output error"))
    check_partition(disk, partition.directory, partition.applied, NOTHING, report)
    damages = [each.found for each in report.findings if each.verdict is Verdict.DAMAGED]
    assert damages[0] == "byte 0 cannot be read: Input/output error"


def test_producers_that_are_lost_are_a_warning_and_newer_ones_refuse_the_start(partition: Partition) -> None:
    path = partition.directory / PRODUCERS_FILE
    (partition.directory / PRODUCERS_PART).write_bytes(b"half")
    assert partition.wrong() == []
    partition.applied.producers = True
    [(verdict, where, found)] = partition.wrong()
    assert (verdict, where) == ("warning", "topic-0/producers")
    assert "the next start finds the producers anew" in found
    write_table(RealDisk(), partition.directory, ProducerTable().kept(20).encoded())
    assert partition.wrong() == []
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert [verdict for verdict, _, _ in partition.wrong()] == ["warning"]
    path.write_bytes(whole[:8] + b"\x02\0\0\0" + whole[12:])
    [(verdict, _, found)] = partition.wrong()
    assert verdict == "damaged"
    assert found.endswith(": the next start is refused")
