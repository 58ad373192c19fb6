"""Decisions of a start about the directory `staging`: a test for each row of the table in
`docs/storage.md`, with its name.

There are two sealed stages, and something happens to the first.
"""

import shutil
import struct
from pathlib import Path

import pytest

from pixy.errors import CorruptData, DataDirectoryError
from pixy.inspect import Report, Verdict, check_staging
from pixy.records import crc32c
from pixy.staging.stage_files import RecoveredStages, recover_stages, remove_stages
from pixy.storage import Disk, RealDisk, run_steps, unlink_directories
from pixy.storage.disk.identity import write_stage_record
from tests.fakes.disk import RecordingDisk
from tests.staging.stages import TOPIC_ID, piece_of, seal_stage
from tests.storage.logs import CLUSTER_ID

DISK = RealDisk()
FIRST, SECOND = f"{1:020d}", f"{2:020d}"
PART = f"{TOPIC_ID.hex()}-0.batches"


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    for number in (1, 2):
        seal_stage(DISK, tmp_path, number, piece_of(b"a", b"b"), piece_of(b"c", partition=1))
    return tmp_path


def recover(staging: Path, disk: Disk = DISK) -> RecoveredStages:
    return recover_stages(disk, staging, CLUSTER_ID)


def contents(staging: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(staging)): None if path.is_dir() else path.read_bytes()
        for path in staging.rglob("*")
    }


def taken(staging: Path, *numbers: int, disk: Disk = DISK) -> RecoveredStages:
    """These are taken, and nothing is changed."""
    before = contents(staging)
    found = recover(staging, disk)
    assert [stage.number for stage in found.stages] == list(numbers)
    assert contents(staging) == before
    assert found.next_number == max(numbers) + 1
    return found


def whole(staging: Path, *numbers: int) -> None:
    assert [stage.fault for stage in taken(staging, *numbers).stages] == [None] * len(numbers)
    assert verdict(staging) is Verdict.OK


def damaged(staging: Path, reason: str, disk: Disk = DISK) -> None:
    found = taken(staging, 1, 2, disk=disk)
    assert reason in str(found.stages[0].fault)
    assert (found.stages[1].fault, found.nameless) == (None, [])
    assert verdict(staging, disk) is Verdict.DAMAGED


def nameless(staging: Path, reason: str, disk: Disk = DISK) -> None:
    """The first stage is damaged, and which one it is cannot be told."""
    found = taken(staging, 2, disk=disk)
    (fault,) = found.nameless
    assert reason in str(fault)
    assert FIRST in str(fault)
    assert (found.stages[0].fault, found.leftovers) == (None, [])
    assert verdict(staging, disk) is Verdict.DAMAGED


def removed(staging: Path, name: str) -> None:
    """That goes, and nothing else."""
    assert verdict(staging) is Verdict.WARNING
    everything = contents(staging)
    found = recover(staging)
    assert contents(staging) == everything, "the start waits for no removal"
    run_steps(unlink_directories(DISK, found.leftovers))
    assert contents(staging) == {path: data for path, data in everything.items() if not path.startswith(name)}


def refused(staging: Path, error: type[Exception], reason: str) -> None:
    """So is the start, and nothing is changed."""
    before = contents(staging)
    with pytest.raises(error, match=reason):
        recover(staging)
    assert contents(staging) == before
    assert verdict(staging) is Verdict.DAMAGED


def verdict(staging: Path, disk: Disk = DISK) -> Verdict:
    report = Report(staging.parent)
    check_staging(disk, staging, CLUSTER_ID, report)
    return report.verdict


def stage_file(staging: Path) -> Path:
    return staging / FIRST / "stage"


def test_absent(tmp_path: Path) -> None:
    assert recover(tmp_path / "staging") == RecoveredStages([], 1, [], [])


def test_sealed(staging: Path) -> None:
    whole(staging, 1, 2)


def test_longer(staging: Path) -> None:
    with (staging / FIRST / PART).open("ab") as file:
        file.write(b"a segment goes on here")
    whole(staging, 1, 2)


def test_linked(staging: Path) -> None:
    (staging.parent / f"{staging.name}.log").hardlink_to(staging / FIRST / PART)
    whole(staging, 1, 2)


def test_other_files(staging: Path) -> None:
    (staging / FIRST / "stage.part").write_bytes(b"rubbish")
    (staging / FIRST / "rest.ordered").write_bytes(b"")
    whole(staging, 1, 2)


def test_unsealed(staging: Path) -> None:
    stage_file(staging).unlink()
    removed(staging, FIRST)


def test_half_made(staging: Path) -> None:
    shutil.rmtree(staging / FIRST)
    (staging / FIRST).mkdir()
    removed(staging, FIRST)


def test_half_sealed(staging: Path) -> None:
    stage_file(staging).rename(staging / FIRST / "stage.part")
    removed(staging, FIRST)


def test_half_removed(staging: Path) -> None:
    (staging / FIRST).rename(staging / f"{FIRST}-deleted")
    (staging / f"{FIRST}-deleted" / PART).unlink()
    removed(staging, FIRST)


def test_missing_file(staging: Path) -> None:
    (staging / FIRST / PART).unlink()
    damaged(staging, "missing")


def test_short_file(staging: Path) -> None:
    path = staging / FIRST / PART
    path.write_bytes(path.read_bytes()[:-1])
    damaged(staging, "were sealed")


def test_damaged_batch(staging: Path) -> None:
    path = staging / FIRST / PART
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    assert [stage.fault for stage in taken(staging, 1, 2).stages] == [None, None]
    assert verdict(staging) is Verdict.DAMAGED


def test_lost_file(staging: Path) -> None:
    disk = RecordingDisk()
    disk.lost.add(staging / FIRST / PART)
    damaged(staging, "cannot be read", disk)


@pytest.mark.parametrize("size", [0, 10, 25])
def test_short(staging: Path, size: int) -> None:
    stage_file(staging).write_bytes(stage_file(staging).read_bytes()[:size])
    nameless(staging, "stage")


def test_torn(staging: Path) -> None:
    stage_file(staging).write_bytes(stage_file(staging).read_bytes()[:-3] + bytes(3))
    nameless(staging, "damaged")


def test_bad_checksum(staging: Path) -> None:
    data = bytearray(stage_file(staging).read_bytes())
    data[-1] ^= 1
    stage_file(staging).write_bytes(data)
    nameless(staging, "damaged")


def test_zero_tail(staging: Path) -> None:
    stage_file(staging).write_bytes(stage_file(staging).read_bytes() + bytes(100))
    nameless(staging, "damaged")


@pytest.mark.parametrize("where", ["lost", "unreadable"])
def test_bad_sector(staging: Path, where: str) -> None:
    disk = RecordingDisk()
    getattr(disk, where).add(stage_file(staging))
    nameless(staging, "cannot be read", disk)


def test_unlisted(staging: Path) -> None:
    disk = RecordingDisk()
    disk.unreadable.add(staging / FIRST)
    nameless(staging, "cannot be read", disk)


def test_unlisted_and_half_removed(staging: Path) -> None:
    left = staging / f"{FIRST}-deleted"
    (staging / FIRST).rename(left)
    disk = RecordingDisk()
    disk.unreadable.add(left)
    assert (recover(staging, disk).leftovers, verdict(staging, disk)) == ([left], Verdict.WARNING)
    run_steps(unlink_directories(disk, [left]))
    assert left.exists()


def test_newer_version(staging: Path) -> None:
    data = bytearray(stage_file(staging).read_bytes())
    struct.pack_into("<I", data, 8, 2)
    struct.pack_into("<I", data, 12, crc32c(data[16:], crc32c(data[:12])))
    stage_file(staging).write_bytes(data)
    refused(staging, DataDirectoryError, "version 2")


def test_foreign_cluster(staging: Path) -> None:
    stage_file(staging).unlink()
    record = seal_stage(DISK, staging, 3, piece_of(b"x"))
    shutil.rmtree(staging / f"{3:020d}")
    record.cluster_id = bytes(16)
    write_stage_record(DISK, stage_file(staging), record)
    refused(staging, DataDirectoryError, "cluster")


def test_put_back(staging: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    backup = shutil.copytree(staging, tmp_path_factory.mktemp("backup") / "staging")
    run_steps(remove_stages(DISK, staging, [1]))
    shutil.copytree(backup / FIRST, staging / FIRST)
    whole(staging, 1, 2)


def test_twice(staging: Path) -> None:
    shutil.copytree(staging / FIRST, staging / f"{7:020d}")
    refused(staging, CorruptData, "stage-1")


def test_stray_file(staging: Path) -> None:
    (staging / "notes").write_bytes(b"")
    refused(staging, DataDirectoryError, "not a directory")


def test_stray_directory(staging: Path) -> None:
    (staging / "notes").mkdir()
    refused(staging, DataDirectoryError, "not a stage")
