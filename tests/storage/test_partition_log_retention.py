"""Retention, removal of segments during reads, full segments and deletion of a partition log."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from structlog.testing import capture_logs

from pixy.errors import CorruptData, OffsetOutOfRange, StorageFault
from pixy.proto.state_pb2 import AppliedPosition
from pixy.storage import LogOptions, PartitionLog, RealDisk, TopicLogs
from pixy.storage.disk.disk import File
from pixy.storage.disk.removal import remove_files
from pixy.storage.partition import SyncedPosition
from pixy.storage.partition.log_segments import AgedSegments
from tests.fakes.disk import Call, RecordingDisk, full
from tests.sim.disk import SimulatedDisk
from tests.storage.batches import batch
from tests.storage.logs import (
    LONG_MS,
    append,
    applied_position,
    exhaust,
    fill,
    identity,
    partition_log,
    remove_log,
    unstamped,
)

ONE = len(batch())
NOW = 1_700_000_000_000
DAY_MS = 86_400_000


class WatchedDisk(RealDisk):
    """The real disk with callbacks around opening a file and a count of open files; no syncs."""

    def __init__(self) -> None:
        super().__init__()
        self.before_open: Callable[[Path], None] = lambda _: None
        self.after_open: Callable[[Path], None] = lambda _: None
        self.open_files = 0
        self.open_files_max = 0

    def open(self, path: Path, *, create: bool = False, background: bool = False) -> File:  # type: ignore[override]  # counts
        self.before_open(path)
        file = super().open(path, create=create)
        self.open_files += 1
        self.open_files_max = max(self.open_files_max, self.open_files)
        close = file.close

        def counted() -> None:
            self.open_files -= 1
            close()

        counting = _File(file, counted)
        self.after_open(path)
        return counting

    def sync_directory(self, path: Path) -> None:
        pass


class _File:
    def __init__(self, file: File, close: Callable[[], None]) -> None:
        self.write_at = file.write_at
        self.write_direct = file.write_direct
        self.write_durably = file.write_durably
        self.read_at = file.read_at
        self.size = file.size
        self.allocate = file.allocate
        self.truncate = file.truncate
        self.begin_sync = file.begin_sync
        self.close = close

    def sync(self) -> None:
        pass


@pytest.fixture
def disk() -> WatchedDisk:
    return WatchedDisk()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "topic-0"


@pytest.fixture
def log(disk: WatchedDisk, directory: Path) -> PartitionLog:
    """Segments from 0, 3 and 6 with three records, from 9 with one; timestamps 1000 + offset."""
    log = partition_log(disk, directory, 3 * ONE)
    fill(log, 10)
    applied_position(log)
    return log


def bases(directory: Path) -> list[int]:
    return [int(path.stem) for path in sorted(directory.glob("*.log"))]


def write(log: PartitionLog, *timestamps: int) -> None:
    for timestamp in timestamps:
        append(log, unstamped(batch()) if timestamp < 0 else batch(timestamp_ms=timestamp))
    unwritten = log.unwritten()
    log.write(unwritten.batches, AgedSegments())
    log.wrote(unwritten)


# --- the log begin offset -------------------------------------------------------------------------


def test_the_log_begin_offset_moves_up_to_the_end_and_never_back(log: PartitionLog) -> None:
    assert [log.move_begin(offset) for offset in (0, 4, 4, 3, 99, 99)] == [
        False,
        True,
        False,
        False,
        True,
        False,
    ]
    assert (log.begin_offset, log.end_offset) == (10, 10)


def test_records_without_timestamps_have_the_time_of_the_write_whatever_the_clock_of_the_machine(
    disk: WatchedDisk, directory: Path
) -> None:
    log = partition_log(disk, directory, ONE)
    log.topic.options = LogOptions(ONE, LONG_MS, retention_ms=1000)
    present_ms = disk.modified_ms(directory.parent)
    log.topic.file_time_ms = lambda: present_ms - 86_400_000
    write(log, -1, -1)
    applied_position(log)
    log.topic.file_time_ms = lambda: None
    write(log, -1)
    applied_position(log)
    assert log.retained_from(present_ms - 86_400_000 + 999) == 0
    assert log.retained_from(present_ms - 86_400_000 + 1001) == 2


def test_retention_moves_to_the_end_of_the_last_expired_segment(log: PartitionLog) -> None:
    asked = []
    for size in (9, 7, 6, 4, 1):
        log.topic.options = LogOptions(3 * ONE, LONG_MS, retention_bytes=size * ONE)
        asked.append(log.retained_from(0))
    assert asked == [0, 3, 3, 6, 9]
    log.topic.options = LogOptions(3 * ONE, LONG_MS, retention_ms=100)
    assert [log.retained_from(100 + 1000 + offset) for offset in (0, 2, 3, 5, 6, 9, 10)] == [
        0,
        0,
        3,
        3,
        6,
        9,
        10,
    ]


def test_a_timestamp_far_in_the_future_does_not_stop_retention_for_ever(directory: Path) -> None:
    log = partition_log(RecordingDisk(), directory)
    log.topic.options = LogOptions(1, LONG_MS, retention_ms=1000)
    now_ms = int(time.time() * 1000)
    write(log, now_ms - 5000)
    write(log, 2**62)
    write(log, now_ms - 5000)
    write(log, -1)
    write(log, now_ms - 5000)
    assert log.retained_from(now_ms) == 1
    assert log.retained_from(now_ms + 60_000) == 5
    log.close()


@pytest.mark.parametrize("timestamp_ms", [NOW + 10 * DAY_MS, -1])
def test_a_file_that_was_written_while_the_clock_was_ahead_ages_from_when_that_is_noticed(
    directory: Path, timestamp_ms: int
) -> None:
    log = partition_log(RecordingDisk(), directory)
    log.topic.options = LogOptions(1, LONG_MS, retention_ms=DAY_MS)
    for _ in range(2):
        write(log, timestamp_ms)
    for path in directory.glob("*.log"):
        os.utime(path, ns=((NOW + 10 * DAY_MS) * 1_000_000,) * 2)
    for later_ms, begin in ((0, 0), (DAY_MS, 0), (DAY_MS + 1, 2)):
        assert log.retained_from(NOW + later_ms) == begin
    # Another write, while the clock is ahead again.
    (last,) = directory.glob("*1.log")
    os.utime(last, ns=((NOW + 20 * DAY_MS) * 1_000_000,) * 2)
    for later_ms, begin in ((DAY_MS + 1, 1), (2 * DAY_MS + 1, 1), (2 * DAY_MS + 2, 2)):
        assert log.retained_from(NOW + later_ms) == begin
    log.close()


def test_retention_never_exceeds_the_written_offset(directory: Path) -> None:
    log = partition_log(RecordingDisk(), directory)
    log.topic.options = LogOptions(1 << 20, LONG_MS, 0, 0)
    assert log.retained_from(NOW) == 0
    append(log, batch())
    assert log.retained_from(NOW) == 0
    unwritten = log.unwritten()
    log.write(unwritten.batches, AgedSegments())
    append(log, batch())
    assert log.retained_from(NOW) == 0  # the write is not noted yet
    log.wrote(unwritten)
    assert log.retained_from(NOW) == 1
    log.move_begin(2)
    assert log.retained_from(NOW) == 2
    log.close()


def test_files_are_removed_only_below_an_applied_position(log: PartitionLog, directory: Path) -> None:
    log.move_begin(9)
    assert bases(directory) == [0, 3, 6, 9]
    assert not log.has_segments_below(2)
    log.drop_segments(2)
    assert bases(directory) == [0, 3, 6, 9]
    assert log.has_segments_below(6)
    log.drop_segments(6)
    assert bases(directory) == [6, 9]
    assert not log.has_segments_below(6)
    log.drop_segments(8)
    assert bases(directory) == [6, 9]


def test_indexes_are_removed_with_their_segments(disk: WatchedDisk, directory: Path) -> None:
    log = partition_log(disk, directory, 100_000)
    fill(log, 30, 8000)
    applied_position(log)
    assert len(list(directory.glob("*.index"))) == len(list(directory.glob("*.timeindex"))) == 3
    log.move_begin(30)
    exhaust(remove_files(disk, log.drop_segments(30)))
    assert [path.name for path in directory.iterdir()] == ["identity"]


@pytest.mark.parametrize("at", ["once", "a start"])
def test_segments_are_removed_at_once_on_a_disk_without_room_for_another_name(
    directory: Path, at: str
) -> None:
    disk = RecordingDisk()
    log = partition_log(disk, directory, 100_000)
    fill(log, 30, 8000)
    log.move_begin(12)
    position = applied_position(log)
    fill(log, 20, 8000)  # behind the position, where the journal has it
    full(disk, "rename", "")
    if at == "once":
        assert log.drop_segments(12) == []
        assert bases(directory) == [12, 24, 36, 48]
    else:
        log.close()
        log = partition_log(disk, directory, 100_000)
        assert log.open(position, exists=True) == []
        assert bases(directory) == [12, 24]
    assert {int(path.stem) for path in directory.glob("*index")} <= set(bases(directory))
    assert log.read(12, 1).next_offset == 13
    log.close()


def test_a_segment_that_a_full_disk_cannot_remove_is_left_to_the_next_start(directory: Path) -> None:
    disk = RecordingDisk()
    log = partition_log(disk, directory, 3 * ONE)
    fill(log, 10)
    log.move_begin(6)
    position = applied_position(log)

    def before(call: Call) -> None:
        if call.what in ("rename", "unlink"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), call.name)

    disk.before = before
    with capture_logs() as logs:
        assert log.drop_segments(6) == []
    assert [line["event"] for line in logs if line["log_level"] == "error"] == [
        "no room to remove a segment, the next start tries again"
    ] * 2
    log.close()
    for is_full, left in ((True, [0, 3, 6, 9]), (False, [6, 9])):
        again = partition_log(disk, directory, 3 * ONE)
        exhaust(remove_files(disk, again.open(position, exists=True)))
        assert bases(directory) == left
        assert again.read(6, 1).next_offset == 7
        again.close()
        if is_full:
            disk.heal()


def test_after_removal_of_all_segments_the_next_record_has_the_next_offset(
    log: PartitionLog, directory: Path
) -> None:
    log.move_begin(10)
    position = applied_position(log)
    assert (position.log_begin_offset, position.end_offset, position.segment_bytes) == (10, 10, 0)
    log.drop_segments(10)
    assert bases(directory) == []
    for opened in (log, partition_log(RealDisk(), directory, 3 * ONE)):
        if opened is not log:
            opened.open(position, exists=True)
        assert append(opened, batch()) == 10
    unwritten = opened.unwritten()
    opened.write(unwritten.batches, AgedSegments())
    opened.wrote(unwritten)
    assert bases(directory) == [10]
    assert opened.read(10, 1).next_offset == 11
    opened.close()


def test_a_segment_that_begins_below_the_log_begin_offset_takes_no_more_records(
    log: PartitionLog, directory: Path
) -> None:
    fill(log, 1)
    log.move_begin(10)
    fill(log, 1)
    assert bases(directory) == [0, 3, 6, 9, 11]
    log.close()


def test_the_log_begin_offset_of_a_position_never_exceeds_the_written_offset(
    disk: WatchedDisk, directory: Path
) -> None:
    log = partition_log(disk, directory)
    fill(log, 3)
    append(log, batch())
    log.move_begin(4)
    assert log.sync() == SyncedPosition(3, 3, 0)
    assert log.begin_offset == 4


# --- removal during reads -------------------------------------------------------------------------


def drop_at(disk: WatchedDisk, log: PartitionLog, name: str, *, opened: bool) -> None:
    """Remove everything below offset 6 before or after a file of that name is opened."""

    def drop(path: Path) -> None:
        if path.name == name:
            disk.before_open = disk.after_open = lambda _: None
            log.move_begin(6)
            log.drop_segments(6)

    if opened:
        disk.after_open = drop
    else:
        disk.before_open = drop


@pytest.mark.parametrize("offset", [0, 2, 3, 5])
def test_a_read_of_a_removed_offset_reports_the_served_range_and_no_damage(
    log: PartitionLog, offset: int
) -> None:
    log.move_begin(6)
    log.drop_segments(6)
    with pytest.raises(
        OffsetOutOfRange, match=f"offset {offset} is out of range: 6 to 10 are served"
    ) as caught:
        log.read(offset, 100)
    assert (caught.value.begin, caught.value.end) == (6, 10)
    assert log.read(6, 1).next_offset == 7


def test_a_read_after_removal_of_all_segments_reports_the_served_range(log: PartitionLog) -> None:
    log.move_begin(10)
    log.drop_segments(10)
    with pytest.raises(OffsetOutOfRange, match="offset 9 is out of range: 10 to 10 are served"):
        log.read(9, 100)


def test_a_read_of_a_segment_removed_before_opening_reports_the_served_range(
    disk: WatchedDisk, log: PartitionLog
) -> None:
    drop_at(disk, log, f"{0:020d}.log", opened=False)
    with pytest.raises(OffsetOutOfRange, match="offset 1 is out of range: 6 to 10 are served"):
        log.read(1, 100)


def test_a_read_in_progress_continues_when_its_segment_is_removed(
    disk: WatchedDisk, log: PartitionLog, directory: Path
) -> None:
    drop_at(disk, log, f"{0:020d}.log", opened=True)
    assert log.read(1, 2 * ONE).next_offset == 3
    assert bases(directory) == [6, 9]


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize(("timestamp", "expected"), [(0, 6), (1002, 6), (1008, 8), (2000, None)])
def test_a_search_by_timestamp_skips_segments_removed_meanwhile(
    disk: WatchedDisk, log: PartitionLog, opened: bool, timestamp: int, expected: int | None
) -> None:
    drop_at(disk, log, f"{0:020d}.log", opened=opened)
    found = log.find_timestamp(timestamp)
    assert found == expected or (opened and found == max(timestamp - 1000, 0))
    assert disk.open_files == 0


def test_a_search_by_timestamp_begins_at_the_log_begin_offset(log: PartitionLog) -> None:
    log.move_begin(4)
    assert log.find_timestamp(0) == 3  # the segment that holds it; who asked knows where it begins
    log.move_begin(6)
    assert log.find_timestamp(0) == 6


def test_a_missing_segment_is_a_fault_in_a_search_too(log: PartitionLog, directory: Path) -> None:
    log.move_begin(4)
    (directory / f"{3:020d}.log").unlink()
    with pytest.raises(StorageFault, match="cannot be read"):
        log.find_timestamp(0)
    with pytest.raises(StorageFault, match="cannot be read"):
        log.read(4, 1)


# --- full segments --------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    ("timestamps", "expected"),
    [
        ((100, 109, 110, 111, 119, 120), [0, 2, 5]),
        ((100, 50, 109, 60, 110), [0, 4]),  # what is older does not fill it
        ((100, 90, 80, 70), [0]),
        ((100, 10**12, 100, 101, 10**12 + 9, 10**12 + 10), [0, 1, 5]),  # one far ahead begins a segment
        ((100, -1, -1, 105), [0]),
        ((-1, -1, -1), [0]),
        ((-1, 100, 105), [0, 1]),
    ],
)
def test_a_segment_is_full_when_the_next_record_exceeds_the_age_of_the_first(
    directory: Path, timestamps: tuple[int, ...], expected: list[int], at_once: bool
) -> None:
    log = partition_log(RecordingDisk(), directory, segment_ms=10)
    for each in [timestamps] if at_once else [(timestamp,) for timestamp in timestamps]:
        write(log, *each)
    assert bases(directory) == expected
    log.close()


def test_a_segment_is_as_full_after_a_restart_as_before(directory: Path) -> None:
    position: AppliedPosition | None = None
    for timestamp in (100, 105, 109, 110):
        log = partition_log(RecordingDisk(), directory, segment_ms=10)
        log.open(position, exists=directory.exists())
        write(log, timestamp)
        position = applied_position(log)
    assert bases(directory) == [0, 3]


def test_new_options_count_from_the_next_batch_on(directory: Path) -> None:
    log = partition_log(RecordingDisk(), directory, 10 * ONE)
    fill(log, 3)
    log.topic.options = LogOptions(2 * ONE, LONG_MS)
    fill(log, 3)
    log.topic.options = LogOptions(10 * ONE, LONG_MS)
    fill(log, 3)
    log.topic.options = LogOptions(10 * ONE, 1)
    fill(log, 2)
    assert bases(directory) == [0, 3, 5, 9, 10]
    log.close()


def test_a_log_has_one_file_open_however_many_segments_are_not_synced_yet(
    disk: WatchedDisk, directory: Path
) -> None:
    log = partition_log(disk, directory, 1)
    fill(log, 50)
    assert len(bases(directory)) == 50
    assert (disk.open_files, disk.open_files_max) == (1, 1)
    log.sync()
    assert disk.open_files == 0


def test_a_full_segment_is_synced_before_the_next_one_begins(directory: Path) -> None:
    disk = RecordingDisk()
    fill(log := partition_log(disk, directory, ONE), 3)
    log.close()
    calls = [(call.what, int(call.name[:20])) for call in disk.calls if call.name.endswith(".log")]
    steps = [(what, base) for base in range(3) for what in ("create", "write", "sync")]
    assert calls == steps[:-1]


def test_a_full_disk_in_the_sync_of_a_full_segment_is_not_retried(directory: Path) -> None:
    disk = RecordingDisk()
    log = partition_log(disk, directory, ONE)
    full(disk, "sync", ".log")
    with pytest.raises(StorageFault, match=r"0000\.log cannot be synced: .*No space left"):
        fill(log, 2)
    log.close()


# --- startup --------------------------------------------------------------------------------------


def test_an_identity_without_a_position_is_rewritten_before_the_next_segment(
    directory: Path,
) -> None:
    disk = RecordingDisk()
    disk.fail("sync", "identity.part", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        fill(partition_log(disk, directory), 1)
    disk.heal()
    position: AppliedPosition | None = None
    for synced in (False, True):
        log = partition_log(disk, directory)
        log.open(position, exists=True)
        disk.calls.clear()
        fill(log, 1)
        position = applied_position(log)
        assert len(disk.did("sync", "identity.part")) == (not synced)
        names = [call.name for call in disk.calls]
        assert synced or names.index("identity") < names.index(f"{0:020d}.log")


def test_a_missing_directory_with_a_position_is_created_again(directory: Path) -> None:
    log = partition_log(RealDisk(), directory)
    fill(log, 3)
    log.move_begin(3)
    position = applied_position(log)
    exhaust(remove_files(RealDisk(), log.drop_segments(3)))
    (directory / "identity").unlink()
    directory.rmdir()
    again = partition_log(RealDisk(), directory)
    again.open(position, exists=False)
    fill(again, 1)
    assert sorted(path.name for path in directory.iterdir()) == [f"{3:020d}.log", "identity"]
    again.close()


@pytest.mark.parametrize("seed", range(30))
def test_bytes_cut_by_an_earlier_start_never_return(seed: int) -> None:
    disk, directory = SimulatedDisk(Random(seed)), Path("/topics/topic-0")
    log = partition_log(disk, directory)
    fill(log, 2)
    position = applied_position(log)
    fill(log, 2)
    for _ in range(2):  # killed, also right behind the cut
        disk.end()
        disk.restart()
        log = partition_log(disk, directory, segment_bytes=ONE)
        log.open(position, exists=True)
    fill(log, 1)
    position = applied_position(log)
    disk.lose_power()
    disk.restart()
    log = partition_log(disk, directory)
    log.open(position, exists=True)
    assert [log.read(offset, 1).next_offset for offset in range(3)] == [1, 2, 3]


# --- deletion -------------------------------------------------------------------------------------


def test_a_deleted_log_has_no_files_and_writes_none(
    log: PartitionLog, directory: Path, disk: WatchedDisk
) -> None:
    fill(log, 1)
    assert disk.open_files == 1
    remove_log(disk, log)
    assert (directory.exists(), disk.open_files) == (False, 0)
    fill(log, 3)
    assert log.written_offset == 14
    assert log.sync() == SyncedPosition(11, 11, 0)
    log.move_begin(5)
    assert not log.has_segments_below(5)
    assert log.drop_segments(5) == []
    remove_log(disk, log)
    assert list(directory.parent.iterdir()) == []
    with pytest.raises(CorruptData):
        log.read(7, 1)  # who reads knows that the topic is no more
    assert log.find_timestamp(0) is None


def test_a_log_that_was_never_written_needs_no_removal(tmp_path: Path) -> None:
    disk = RecordingDisk()
    remove_log(disk, partition_log(disk, tmp_path / "topic-0"))
    assert disk.calls == []


def test_a_damaged_log_that_was_never_opened_is_removed(tmp_path: Path) -> None:
    directory = tmp_path / "topic-0"
    fill(log := partition_log(RealDisk(), directory), 1)
    log.close()
    (directory / "identity").write_bytes(b"damaged")
    remove_log(RealDisk(), PartitionLog(RealDisk(), directory, identity(), TopicLogs(LogOptions(1, 1))))
    assert list(tmp_path.iterdir()) == []


def test_a_read_in_progress_continues_when_the_log_is_deleted(
    disk: WatchedDisk, log: PartitionLog, directory: Path
) -> None:
    def remove(path: Path) -> None:
        disk.after_open = lambda _: None
        remove_log(disk, log)

    disk.after_open = remove
    chunk = log.read(6, 1)
    assert not directory.exists()
    assert chunk.next_offset == 7
