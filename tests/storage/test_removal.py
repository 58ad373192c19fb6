"""Background removal of retired files: size of steps, number of syncs, failures and crashes."""

import errno
from pathlib import Path
from random import Random

import pytest

from pixy.storage import RealDisk
from pixy.storage.disk.removal import FILES_PER_STEP, Removal, remove_directories, remove_files
from pixy.storage.disk.upkeep import Steps, Upkeep
from tests.fakes.disk import Call, RecordingDisk
from tests.fakes.worker import StepWorker
from tests.sim.disk import Ended, SimulatedDisk
from tests.storage.logs import exhaust


def directories(topics: Path, count: int, files: int) -> list[Path]:
    """Directories of deleted partitions."""
    made = [topics / f"{1000 + number}-deleted" for number in range(count)]
    for path in made:
        path.mkdir()
        for number in range(files):
            (path / f"{number}").touch()
    return made


def steps_of(disk: RecordingDisk, steps: Steps) -> list[list[Call]]:
    """The disk operations of each step."""
    done = []
    ended = False
    while not ended:
        disk.calls.clear()
        ended = next(steps, "end") == "end"
        done.append(list(disk.calls))
    return done


@pytest.mark.slow
@pytest.mark.parametrize(("count", "files"), [(200, 2), (1, 400), (3, 130)])
def test_each_step_unlinks_few_files_after_one_common_sync(tmp_path: Path, count: int, files: int) -> None:
    disk = RecordingDisk()
    made = directories(tmp_path, count, files)
    steps = steps_of(disk, remove_directories(disk, tmp_path, made))
    assert list(tmp_path.iterdir()) == []
    unlinked = [sum(call.what == "unlink" for call in step) for step in steps]
    assert max(unlinked) <= FILES_PER_STEP
    assert sum(unlinked) == count * files
    calls = [call for step in steps for call in step]
    assert [call.what for call in calls].count("sync_directory") == 1
    assert calls[0] == Call("sync_directory", tmp_path.name)


@pytest.mark.slow
def test_directories_retired_during_a_removal_share_the_next_sync(tmp_path: Path) -> None:
    disk, worker = RecordingDisk(), StepWorker()
    faults: list[BaseException] = []
    removal = Removal(disk, tmp_path, Upkeep(worker, faults.append))
    made = directories(tmp_path, 300, 2)
    for at in range(0, 300, 10):
        removal.remove_directories(made[at : at + 10])
    while len(worker):
        worker.step()
    assert list(tmp_path.iterdir()) == []
    assert len(disk.did("sync_directory")) == 2
    assert faults == []


def test_files_are_removed_in_steps_and_missing_ones_are_skipped(tmp_path: Path) -> None:
    disk = RecordingDisk()
    files = [tmp_path / f"{number}.log.deleted" for number in range(120)]
    for path in files[::2]:
        path.touch()
    steps = steps_of(disk, remove_files(disk, files))
    assert list(tmp_path.iterdir()) == []
    assert max(len(step) for step in steps) <= FILES_PER_STEP


@pytest.mark.parametrize(("what", "ending"), [("unlink", "1"), ("remove_directory", "1000-deleted")])
def test_a_failed_removal_is_logged_and_does_not_stop_the_others(
    tmp_path: Path, what: str, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = RecordingDisk()
    made = directories(tmp_path, 1, 2)
    (tmp_path / "1001-deleted").mkdir()
    disk.fail(what, ending, errno.EIO)
    exhaust(remove_directories(disk, tmp_path, [*made, tmp_path / "1001-deleted"]))
    assert [path.name for path in tmp_path.iterdir()] == ["1000-deleted"]
    assert "cannot remove a directory that is needed no more" in capsys.readouterr().out


def test_a_failed_sync_of_the_names_is_a_fault_and_removes_nothing(tmp_path: Path) -> None:
    disk, worker = RecordingDisk(), StepWorker()
    faults: list[BaseException] = []
    removal = Removal(disk, tmp_path, Upkeep(worker, faults.append))
    made = directories(tmp_path, 2, 2)
    disk.fail("sync_directory", "", errno.EIO)
    removal.remove_directories(made)
    while len(worker):
        worker.step()
    assert [type(fault) for fault in faults] == [OSError]
    assert all(sorted(path.name for path in each.iterdir()) == ["0", "1"] for each in made)


def test_no_file_is_removed_before_the_rename_of_its_directory_is_durable() -> None:
    topics = Path("/topics")
    for seed in range(100):
        disk = SimulatedDisk(Random(seed))
        disk.make_directory(topics / "topic-0")
        for name in ("identity", "0.log", "1.log"):
            disk.open(topics / "topic-0" / name, create=True).close()
        disk.sync_directory(topics / "topic-0")
        disk.restart()
        disk.die_at = seed % 6 + 1
        try:
            disk.rename(topics / "topic-0", topics / "1000-deleted")
            exhaust(remove_directories(disk, topics, [topics / "1000-deleted"]))
        except Ended:
            pass
        disk.lose_power()
        disk.restart()
        assert len(disk.names(topics / "topic-0")) in (0, 3)


@pytest.mark.slow
def test_a_directory_with_thousands_of_files_is_removed_by_the_real_disk(tmp_path: Path) -> None:
    exhaust(remove_directories(RealDisk(), tmp_path, directories(tmp_path, 2, 300)))
    assert list(tmp_path.iterdir()) == []
