"""Parts of stages in a partition log: reads before, during and after the write, and crashes."""

import errno
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pixy.errors import CorruptData, PixyError, StorageFault
from pixy.proto.state_pb2 import AppliedPosition
from pixy.records import read_header, read_records
from pixy.storage import PartitionLog, RealDisk, StagedPart
from pixy.storage.disk.disk import RealFile
from pixy.storage.partition import log_segments as module
from pixy.storage.partition.log_segments import AgedSegments
from tests.fakes.disk import Call, RecordingDisk, full
from tests.staging.stages import batches_of
from tests.storage.batches import batch
from tests.storage.logs import append, applied_position, partition_log, remove_log

WAYS = ["copied", "linked"]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(module, "LINK_BYTES_MIN", 1 << 40 if request.param == "copied" else 0)
    return str(request.param)


def staged(tmp_path: Path, *values: bytes, name: str = "part.batches") -> StagedPart:
    path = tmp_path / name
    path.write_bytes(batches_of(*values))
    return StagedPart(path, path.stat().st_size, len(values))


def write(log: PartitionLog) -> None:
    unwritten = log.unwritten()
    log.write(unwritten.batches, AgedSegments())
    log.wrote(unwritten)


def read(log: PartitionLog, max_bytes: int = 100) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < log.end_offset:
        chunk = log.read_memory(len(found), max_bytes) or log.read(len(found), max_bytes)
        for each in chunk.batches:
            assert read_header(each).leader_epoch == 4
            found += [record.value for record in read_records(each)]
        assert chunk.next_offset == len(found)
    return found


def fill(log: PartitionLog, part: StagedPart) -> list[bytes | None]:
    """Append a batch, the part, and a batch; returns the content of the log."""
    append(log, batch(1, 3), 4)
    log.append_part(part, 4)
    append(log, batch(1, 5), 4)
    return [b"vvv", b"a", b"b", b"c", b"vvvvv"]


def test_a_part_is_readable_at_once_and_the_same_in_segments(tmp_path: Path, way: str) -> None:
    disk = RecordingDisk()
    log = partition_log(disk, tmp_path / "log")
    expected = fill(log, staged(tmp_path, b"a", b"b", b"c"))
    assert read(log) == expected
    write(log)
    assert read(log) == expected
    log.sync()
    while log.evict():
        pass
    assert read(log) == expected
    segments = sorted(path.name for path in (tmp_path / "log").glob("*.log"))
    bases = [0] if way == "copied" else [0, 1, 4]
    assert segments == [f"{base:020d}.log" for base in bases]


def test_a_linked_part_and_its_name_are_synced_before_the_position(tmp_path: Path) -> None:
    disk = RecordingDisk()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LINK_BYTES_MIN", 0)
        log = partition_log(disk, tmp_path / "log")
        log.append_part(staged(tmp_path, b"a", b"b"), 4)
        write(log)
        disk.calls.clear()
        position = log.sync()
    assert [(call.what, call.name) for call in disk.calls] == [
        ("sync", "part.batches"),
        ("sync_directory", "log"),
    ]
    assert position.segment_bytes == (tmp_path / "part.batches").stat().st_size


def test_a_read_during_the_removal_of_the_stage_finds_the_segment(tmp_path: Path, way: str) -> None:
    log = partition_log(RecordingDisk(), tmp_path / "log")
    part = staged(tmp_path, b"a", b"b", b"c")
    log.append_part(part, 4)
    unwritten = log.unwritten()
    log.write(unwritten.batches, AgedSegments())
    part.path.unlink()
    # The event loop has not noted the write yet.
    assert read(log) == [b"a", b"b", b"c"]


def test_a_crash_before_the_position_finds_the_part_again(tmp_path: Path, way: str) -> None:
    disk = RecordingDisk()
    log = partition_log(disk, tmp_path / "log")
    append(log, batch(1, 3), 4)
    write(log)
    position: AppliedPosition = applied_position(log)
    part = staged(tmp_path, b"a", b"b", b"c")
    log.append_part(part, 4)
    append(log, batch(1, 5), 4)
    write(log)
    log.close()
    again = partition_log(disk, tmp_path / "log")
    again.open(position, exists=True)
    assert part.path.exists()
    again.append_part(part, 4)
    append(again, batch(1, 5), 4)
    write(again)
    assert read(again) == [b"vvv", b"a", b"b", b"c", b"vvvvv"]


def test_with_a_position_behind_the_part_its_stage_is_not_needed(tmp_path: Path, way: str) -> None:
    disk = RecordingDisk()
    log = partition_log(disk, tmp_path / "log")
    part = staged(tmp_path, b"a", b"b", b"c")
    log.append_part(part, 4)
    write(log)
    position = applied_position(log)
    part.path.unlink()
    again = partition_log(disk, tmp_path / "log")
    again.open(position, exists=True)
    append(again, batch(1, 5), 4)
    write(again)
    assert read(again) == [b"a", b"b", b"c", b"vvvvv"]


def test_a_retry_after_a_full_disk_writes_no_part_twice(tmp_path: Path, way: str) -> None:
    disk = RecordingDisk()
    log = partition_log(disk, tmp_path / "log", segment_bytes=150)
    expected = fill(log, staged(tmp_path, b"a", b"b", b"c"))
    for what, ending in (("create", ".log"), ("write", "0.log"), ("write", "1.log"), ("link", ".log")):
        full(disk, what, ending)
        unwritten = log.unwritten()
        with suppress(OSError):
            log.write(unwritten.batches, AgedSegments())
        disk.heal()
    write(log)
    while log.evict():
        pass
    assert read(log) == expected


@pytest.mark.parametrize("number", [errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP])
def test_a_part_is_copied_if_the_file_system_cannot_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(module, "LINK_BYTES_MIN", 0)
    disk = RecordingDisk()
    disk.fail("link", ".log", number)
    log = partition_log(disk, tmp_path / "log")
    expected = fill(log, staged(tmp_path, b"a", b"b", b"c"))
    write(log)
    while log.evict():
        pass
    assert read(log) == expected
    assert disk.did("link") == []


def test_a_part_of_the_least_size_is_linked_and_a_smaller_one_is_copied(tmp_path: Path) -> None:
    large = staged(tmp_path, bytes(module.LINK_BYTES_MIN - 74))
    small = staged(tmp_path, bytes(module.LINK_BYTES_MIN - 75), name="small.batches")
    assert large.size - small.size == 1
    assert large.size == module.LINK_BYTES_MIN
    disk = RecordingDisk()
    log = partition_log(disk, tmp_path / "log", segment_bytes=1 << 30)
    for part in (small, large, small, small):
        log.append_part(part, 4)
    write(log)
    log.sync()
    assert [call.name for call in disk.did("link")] == [f"{1:020d}.log"]
    # A new segment begins behind the linked one.
    assert len(list((tmp_path / "log").glob("*.log"))) == 3


def test_damage_in_a_part_names_its_file(tmp_path: Path, way: str) -> None:
    log = partition_log(RecordingDisk(), tmp_path / "log")
    part = staged(tmp_path, b"a", b"b", b"c")
    data = bytearray(part.path.read_bytes())
    data[-3] ^= 1
    part.path.write_bytes(data)
    log.append_part(part, 4)
    with pytest.raises(CorruptData, match=r"part\.batches is corrupt at byte \d+"):
        read(log)


@pytest.mark.parametrize(
    ("error", "kind"), [(errno.EIO, CorruptData), (errno.EMFILE, StorageFault), (errno.ENOMEM, StorageFault)]
)
def test_a_part_with_a_bad_sector_is_damaged_and_other_failures_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, kind: type[PixyError]
) -> None:
    log = partition_log(RecordingDisk(), tmp_path / "log")
    log.append_part(staged(tmp_path, b"a"), 4)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(error, "broken")

    monkeypatch.setattr(RecordingDisk, "open", refuse)
    with pytest.raises(kind, match=r"broken"):
        log.read(0, 100)


@pytest.mark.parametrize("at", ["open", "read_at"])
def test_a_part_that_cannot_be_read_when_it_is_written_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, at: str
) -> None:
    """Not a fault of the disk that the segments are on, which ends the daemon."""
    log = partition_log(RecordingDisk(), tmp_path / "log")
    part = staged(tmp_path, b"a", b"b")
    log.append_part(part, 4)
    of: type = RecordingDisk if at == "open" else RealFile
    original = getattr(of, at)

    def refuse(self: Any, *arguments: Any, **options: Any) -> Any:
        if at == "read_at" or arguments[0] == part.path:
            raise OSError(errno.EIO, "broken")
        return original(self, *arguments, **options)

    monkeypatch.setattr(of, at, refuse)
    for _ in range(2):
        with pytest.raises(CorruptData, match=r"part\.batches cannot be read: .*broken"):
            log.write(log.unwritten().batches, AgedSegments())


def test_a_part_among_others_in_a_file_is_copied_and_the_file_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINK_BYTES_MIN", 0)
    log = partition_log(RealDisk(), tmp_path / "log")
    path = tmp_path / "some.pieces"
    other = batches_of(b"of another partition")
    path.write_bytes(content := other + batches_of(b"a", b"b", b"c") + other)
    expected = fill(log, StagedPart(path, len(content) - 2 * len(other), 3, begin=len(other)))
    assert read(log) == expected
    write(log)
    assert read(log) == expected
    assert path.read_bytes() == content
    assert len(list((tmp_path / "log").glob("*.log"))) == 1
    log.close()


def test_a_copy_instead_of_a_link_is_retried_after_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINK_BYTES_MIN", 0)
    disk = RecordingDisk()
    log = partition_log(disk, tmp_path / "log")
    expected = fill(log, staged(tmp_path, b"a", b"b", b"c"))

    def refuse(call: Call) -> None:
        if call.what == "link":
            raise OSError(errno.EPERM, "no links here")
        # The first copied batch goes into a segment of its own.
        if call.what == "write" and call.name == f"{1:020d}.log":
            raise OSError(errno.ENOSPC, "no room")

    log.topic.options = log.topic.options._replace(segment_bytes=1)
    disk.before = refuse
    for _ in range(2):
        with pytest.raises(OSError, match=r"no room"):
            log.write(log.unwritten().batches, AgedSegments())
    disk.fail("link", ".log", errno.EPERM)
    write(log)
    while log.evict():
        pass
    assert read(log) == expected


def test_the_stage_of_a_deleted_topic_may_be_removed_while_its_part_is_written(
    tmp_path: Path, way: str
) -> None:
    log = partition_log(RecordingDisk(), tmp_path / "log")
    part = staged(tmp_path, b"a", b"b", b"c")
    fill(log, part)
    unwritten = log.unwritten()
    part.path.unlink()
    with pytest.raises(CorruptData, match=r"part\.batches is missing, it was sealed"):
        log.write(unwritten.batches, AgedSegments())
    log.topic.deleted = True
    log.write(unwritten.batches, AgedSegments())
    log.sync()
    remove_log(RealDisk(), log)
    assert not (tmp_path / "log").exists()
