"""Directories of partitions: deletion, with failures and crashes, and names.

`test_partition_directory_decisions` tests the rows of the table.
"""

import errno
import os
from pathlib import Path
from random import Random

import pytest

from pixy.errors import DataDirectoryError
from pixy.records import check_topic_name
from pixy.storage import Disk, KnownPartitions, RealDisk
from pixy.storage.disk.identity import write_partition_identity
from tests.fakes.disk import Call, RecordingDisk, full
from tests.sim.disk import Ended, SimulatedDisk
from tests.storage.logs import (
    CLUSTER_ID,
    applied_position,
    fill,
    identity,
    partition_log,
    remove_directory,
    sort_directories,
)

SEGMENT = "00000000000000000000.log"


def make(disk: Disk, directory: Path, raft_group: int = 1000, records: int = 3) -> None:
    """A partition with several segments, synced."""
    log = partition_log(disk, directory, 100, raft_group=raft_group)
    fill(log, records)
    applied_position(log)


def sort(
    disk: Disk, topics: Path, live: dict[str, int] | None = None, next_raft_group: int = 2000
) -> list[str]:
    """The directory names that a start accepts."""
    partitions = {name: identity(raft_group) for name, raft_group in (live or {}).items()}
    found = sort_directories(disk, topics, KnownPartitions(partitions, CLUSTER_ID, next_raft_group))
    assert set(found.values()) <= {None}
    return sorted(found)


# --- deletion -------------------------------------------------------------------------------------


def test_the_rename_is_durable_before_any_file_is_removed(tmp_path: Path) -> None:
    disk = RecordingDisk()
    make(disk, tmp_path / "topic-0", records=2)
    disk.calls.clear()
    remove_directory(disk, tmp_path / "topic-0", identity())
    assert [(call.what, call.name) for call in disk.calls] == [
        ("rename", "1000-deleted"),
        ("sync_directory", tmp_path.name),
        ("unlink", SEGMENT),
        ("unlink", "00000000000000000001.log"),
        ("unlink", "identity"),
        ("remove_directory", "1000-deleted"),
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_never_existed_needs_no_removal(tmp_path: Path) -> None:
    disk = RecordingDisk()
    remove_directory(disk, tmp_path / "topic-0", identity())
    assert disk.calls == []


@pytest.mark.parametrize("damage", ["missing", "torn"])
def test_a_damaged_identity_does_not_prevent_a_deletion(tmp_path: Path, damage: str) -> None:
    make(RealDisk(), tmp_path / "topic-0")
    path = tmp_path / "topic-0" / "identity"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    remove_directory(RealDisk(), tmp_path / "topic-0", identity())
    assert list(tmp_path.iterdir()) == []


def test_a_directory_of_another_partition_is_not_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(RealDisk(), tmp_path / "topic-0", raft_group=1001)
    before = sorted(tmp_path.rglob("*"))
    remove_directory(RealDisk(), tmp_path / "topic-0", identity(1000))
    assert sorted(tmp_path.rglob("*")) == before
    assert "is another's, and stays" in capsys.readouterr().out


def test_a_directory_of_a_newer_release_is_not_deleted(tmp_path: Path) -> None:
    make(RealDisk(), tmp_path / "topic-0")
    path = tmp_path / "topic-0" / "identity"
    whole = path.read_bytes()
    path.write_bytes(whole[:8] + (2).to_bytes(4, "little") + whole[12:])
    remove_directory(RealDisk(), tmp_path / "topic-0", identity())
    assert path.exists()


@pytest.mark.parametrize(
    ("what", "ending"), [("unlink", ".log"), ("unlink", "identity"), ("remove_directory", "")]
)
def test_a_failed_removal_is_logged_and_repeated_at_a_later_start(
    tmp_path: Path, what: str, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = RecordingDisk()
    make(disk, tmp_path / "topic-0")
    disk.fail(what, ending, errno.EIO)
    remove_directory(disk, tmp_path / "topic-0", identity())
    for _ in range(2):
        assert "cannot remove a directory that is needed no more" in capsys.readouterr().out
        assert [path.name for path in tmp_path.iterdir()] == ["1000-deleted"]
        assert sort(disk, tmp_path) == []
    disk.heal()
    assert sort(disk, tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["rename", "sync_directory"])
def test_a_failed_sync_of_the_rename_is_an_error_and_removes_nothing(tmp_path: Path, what: str) -> None:
    disk = RecordingDisk()
    make(disk, tmp_path / "topic-0")
    files = sorted(path.name for path in (tmp_path / "topic-0").iterdir())
    disk.fail(what, "", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        remove_directory(disk, tmp_path / "topic-0", identity())
    [left] = tmp_path.iterdir()
    assert sorted(path.name for path in left.iterdir()) == files


def test_a_disk_without_room_for_another_name_loses_the_identity_durably_after_all_other_files(
    tmp_path: Path,
) -> None:
    disk = RecordingDisk()
    make(disk, tmp_path / "topic-0", records=2)
    disk.calls.clear()
    full(disk, "rename", "")
    remove_directory(disk, tmp_path / "topic-0", identity())
    assert [(call.what, call.name) for call in disk.calls] == [
        ("unlink", SEGMENT),
        ("unlink", "00000000000000000001.log"),
        ("sync_directory", "topic-0"),
        ("unlink", "identity"),
        ("remove_directory", "topic-0"),
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", [".log", "identity"])
def test_what_a_full_disk_cannot_remove_is_logged_and_removed_by_a_later_start(
    tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = RecordingDisk()
    make(disk, tmp_path / "topic-0")

    def before(call: Call) -> None:
        if call.what == "rename" or (call.what == "unlink" and call.name.endswith(ending)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), call.name)

    disk.before = before
    remove_directory(disk, tmp_path / "topic-0", identity())
    for _ in range(2):
        assert "cannot remove a directory that is needed no more" in capsys.readouterr().out
        assert [path.name for path in tmp_path.iterdir()] == ["topic-0"]
        assert sort(disk, tmp_path, {"topic-0": 1001}) == []
    disk.heal()
    assert sort(disk, tmp_path, {"topic-0": 1001}) == []
    assert list(tmp_path.iterdir()) == []


def test_a_failed_sync_on_a_full_disk_is_an_error_and_keeps_the_identity(tmp_path: Path) -> None:
    disk = RecordingDisk()
    make(disk, tmp_path / "topic-0")

    def before(call: Call) -> None:
        if call.what in ("rename", "sync_directory"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), call.name)

    disk.before = before
    with pytest.raises(OSError, match="cannot be synced"):
        remove_directory(disk, tmp_path / "topic-0", identity())
    assert [path.name for path in (tmp_path / "topic-0").iterdir()] == ["identity"]


def deletion_crashes(
    phase: str, *, power: bool, is_full: bool, ignored: frozenset[str] = frozenset()
) -> None:
    """End a deletion at each of its operations; the next start must remove the rest."""
    topics = Path("/topics")
    for seed in range(20):
        for die_at in range(1, 20):
            disk = SimulatedDisk(Random(seed * 100 + die_at))
            make(disk, topics / "topic-0")
            make(disk, topics / "kept-0", raft_group=1001)
            disk.restart()
            disk.ignored = ignored
            disk.die_at, disk.die_phase, disk.full = die_at, phase, is_full
            try:
                remove_directory(disk, topics / "topic-0", identity())
            except Ended:
                if power:
                    disk.lose_power()
            else:
                assert disk.names(topics) == ["kept-0"]
                if disk.operations < die_at:
                    break  # else it was to end behind the rename, which was refused
            disk.restart()
            disk.full = is_full
            assert sort(disk, topics, {"kept-0": 1001}) == ["kept-0"]
            assert disk.names(topics) == ["kept-0"]
            assert sort(disk, topics, {"kept-0": 1001}) == ["kept-0"]
        else:
            raise AssertionError("no deletion came to its end")


@pytest.mark.slow
@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("phase", ["before", "middle", "after"])
def test_after_a_crash_anywhere_in_a_deletion_the_next_start_removes_the_rest(
    phase: str, power: bool, is_full: bool
) -> None:
    deletion_crashes(phase, power=power, is_full=is_full)


def test_without_the_sync_of_a_deletion_on_a_full_disk_its_remains_have_no_owner() -> None:
    site = "storage/partition/partition_directory.py:_remove_in_place sync_directory"
    with pytest.raises(DataDirectoryError, match="identity is missing"):
        deletion_crashes("after", power=True, is_full=True, ignored=frozenset({site}))


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["before", "middle", "after"])
def test_after_a_crash_on_a_full_disk_the_name_of_a_deleted_topic_is_free_for_the_next_one(
    phase: str,
) -> None:
    topics = Path("/topics")
    for seed in range(20):
        for die_at in range(1, 60):
            disk = SimulatedDisk(Random(seed * 100 + die_at))
            make(disk, topics / "topic-0")
            disk.restart()
            disk.die_at, disk.die_phase, disk.full = die_at, phase, True
            try:
                remove_directory(disk, topics / "topic-0", identity())
                disk.full = False
                make(disk, topics / "topic-0", raft_group=1001)
            except Ended:
                disk.lose_power()
            if disk.operations < die_at:
                break
            disk.restart()
            found = sort(disk, topics, {"topic-0": 1001})
            log = partition_log(disk, topics / "topic-0", 100, raft_group=1001)
            log.open(None, exists=bool(found))
            fill(log, 3)
            applied_position(log)
            assert sort(disk, topics, {"topic-0": 1001}) == ["topic-0"]
        else:
            raise AssertionError("none was made")


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True])
def test_after_a_crash_while_a_partition_is_made_it_can_be_made_again(power: bool) -> None:
    topics = Path("/topics")
    for seed in range(20):
        for die_at in range(1, 40):
            disk = SimulatedDisk(Random(seed * 100 + die_at))
            disk.die_at, disk.die_phase = die_at, ("before", "middle", "after")[seed % 3]
            try:
                make(disk, topics / "topic-0")
            except Ended:
                if power:
                    disk.lose_power()
            else:
                break
            disk.restart()
            found = sort(disk, topics, {"topic-0": 1000})
            log = partition_log(disk, topics / "topic-0", 100)
            log.open(None, exists=bool(found))
            fill(log, 3)
            applied_position(log)
            assert sort(disk, topics, {"topic-0": 1000}) == ["topic-0"]
        else:
            raise AssertionError("none was made")


def test_a_partition_of_a_new_topic_is_not_written_into_the_directory_of_another(tmp_path: Path) -> None:
    make(RealDisk(), tmp_path / "topic-0", raft_group=1001)
    before = (tmp_path / "topic-0" / SEGMENT).read_bytes()
    with pytest.raises(Exception, match="has segments of another partition; move it out of the way"):
        fill(partition_log(RealDisk(), tmp_path / "topic-0", raft_group=1000), 1)
    assert (tmp_path / "topic-0" / SEGMENT).read_bytes() == before


# --- names ----------------------------------------------------------------------------------------


def test_without_topics_there_are_no_directories(tmp_path: Path) -> None:
    assert sort(RealDisk(), tmp_path / "topics") == []


def test_the_longest_name_of_a_topic_with_the_highest_partition_can_be_made_and_deleted(
    tmp_path: Path,
) -> None:
    name = "n" * 249
    check_topic_name(name)
    directory = tmp_path / f"{name}-9999"
    make(RealDisk(), directory)
    assert sort(RealDisk(), tmp_path, {directory.name: 1000}) == [directory.name]
    remove_directory(RealDisk(), directory, identity())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("topic", ["a", "a-1", "1000-deleted", "-deleted", "a.b_c", "...", "-", "1000"])
def test_a_topic_may_have_any_name_that_is_allowed(tmp_path: Path, topic: str) -> None:
    check_topic_name(topic)
    live = {f"{topic}-0": 1000, f"{topic}-1": 1001, f"{topic}-10": 1002}
    for name, raft_group in live.items():
        make(RealDisk(), tmp_path / name, raft_group)
    assert sort(RealDisk(), tmp_path, live) == sorted(live)


def test_no_two_partitions_share_a_directory_and_none_has_the_name_of_a_deletion() -> None:
    topics = ["a", "a-1", "a-1-0", "a-", "-", "1000-deleted", "-deleted", "deleted", "a-1000-deleted"]
    names = [f"{topic}-{number}" for topic in topics for number in (0, 1, 10, 1000)]
    assert len(set(names)) == len(names)
    assert not any(name.endswith("-deleted") for name in names)


def test_a_deleted_topic_with_the_name_of_a_deletion_is_removed(tmp_path: Path) -> None:
    make(RealDisk(), tmp_path / "1001-deleted-0", raft_group=1000)
    make(RealDisk(), tmp_path / "topic-0", raft_group=1001)
    assert sort(RealDisk(), tmp_path, {"topic-0": 1001}) == ["topic-0"]
    assert [path.name for path in tmp_path.iterdir()] == ["topic-0"]


def test_the_name_of_a_deleted_topic_is_free_for_the_next_one(tmp_path: Path) -> None:
    make(RealDisk(), tmp_path / "topic-0", raft_group=1000)
    assert sort(RealDisk(), tmp_path, {"topic-0": 1001}) == []
    make(RealDisk(), tmp_path / "topic-0", raft_group=1001)
    assert sort(RealDisk(), tmp_path, {"topic-0": 1001}) == ["topic-0"]


@pytest.mark.slow
def test_an_identity_is_never_torn_by_writing_it_again() -> None:
    path = Path("/topics/topic-0/identity")
    for seed in range(30):
        for die_at in range(1, 20):
            disk = SimulatedDisk(Random(seed * 100 + die_at))
            make(disk, path.parent)
            disk.restart()
            disk.die_at, disk.die_phase = die_at, ("before", "middle", "after")[seed % 3]
            try:
                write_partition_identity(disk, path, identity())
            except Ended:
                disk.lose_power()
            else:
                break
            disk.restart()
            assert sort(disk, Path("/topics"), {"topic-0": 1000}) == ["topic-0"]
        else:
            raise AssertionError("it was never written")
