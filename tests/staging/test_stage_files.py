"""Files of stages: order of pieces, failed writes, order of the syncs of a seal, removal."""

import errno
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from pixy.records import read_records
from pixy.staging import stage_directory, staged_part
from pixy.staging.stage_files import STAGE_FILE, StageFiles, recover_stages, remove_stages
from pixy.storage import run_steps, unlink_directories
from tests.fakes.disk import RecordingDisk, full
from tests.sim.disk import Ended, SimulatedDisk
from tests.staging.stages import batches_of, piece_of, seal_stage
from tests.storage.logs import CLUSTER_ID


def values(disk: RecordingDisk, directory: Path, number: int, partition: int = 0) -> list[bytes | None]:
    (stage,) = [each for each in recover_stages(disk, directory, CLUSTER_ID).stages if each.number == number]
    (part,) = [each for each in stage.record.parts if each.partition == partition]
    found = staged_part(directory, number, part)
    found.check(disk)
    return [
        record.value for batches in found.batches(disk) for batch in batches for record in read_records(batch)
    ]


def test_pieces_are_read_in_the_order_of_their_numbers_however_they_came(tmp_path: Path) -> None:
    disk = RecordingDisk()
    files = StageFiles(disk, tmp_path, 1)
    for number in (2, 0, 1):
        run_steps(files.write(number, [piece_of(b"a%d" % number, b"b%d" % number)]))
    run_steps(files.write(3, [piece_of(b"other", partition=1)]))
    record = run_steps(files.seal(CLUSTER_ID, "sink", "stage", [1, 2, 3, 4]))
    assert [(part.partition, part.records) for part in record.parts] == [(0, 6), (1, 1)]
    assert values(disk, tmp_path, 1) == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]
    assert values(disk, tmp_path, 1, partition=1) == [b"other"]
    assert len(disk.did("rename", ".batches")) == 1


def test_a_write_that_fails_takes_nothing_of_its_piece(tmp_path: Path) -> None:
    disk = RecordingDisk()
    files = StageFiles(disk, tmp_path, 1)
    run_steps(files.write(0, [piece_of(b"0"), piece_of(b"x", partition=1)]))
    disk.fail("write", "-1.batches", errno.ENOSPC)
    with pytest.raises(OSError, match=r"No space"):
        run_steps(
            files.write(1, [piece_of(b"a much longer value that is not taken"), piece_of(b"y", partition=1)])
        )
    disk.heal()
    run_steps(files.write(1, [piece_of(b"1")]))
    run_steps(files.seal(CLUSTER_ID, "sink", "stage", [0, 1]))
    assert values(disk, tmp_path, 1) == [b"0", b"1"]
    assert values(disk, tmp_path, 1, partition=1) == [b"x"]


def test_a_seal_is_durable_from_the_inside_out(tmp_path: Path) -> None:
    disk = RecordingDisk()
    seal_stage(disk, tmp_path, 1, piece_of(b"0"), piece_of(b"1", partition=1))
    name = f"{1:020d}"
    made = [
        (call.what, call.name) for call in disk.calls if call.what in ("sync", "sync_directory", "rename")
    ]
    assert [what for what, _ in made] == [
        "sync",
        "sync",
        "sync_directory",
        "sync",
        "rename",
        "sync_directory",
    ]
    assert [called for _, called in made[2:]] == [name, "stage.part", "stage", name]


def test_no_file_stays_open_between_two_pieces(tmp_path: Path) -> None:
    files = StageFiles(RecordingDisk(), tmp_path, 1)
    before = len(list(Path("/proc/self/fd").iterdir()))
    run_steps(files.write(0, [piece_of(b"%d" % number, partition=number) for number in range(20)]))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_removal_loses_the_name_durably_before_anything_else(tmp_path: Path) -> None:
    disk = RecordingDisk()
    for number in (1, 2, 3):
        seal_stage(disk, tmp_path, number, piece_of(b"0"))
    disk.calls.clear()
    run_steps(remove_stages(disk, tmp_path, [1, 3, 4]))
    assert [call.what for call in disk.calls][:3] == ["rename", "rename", "sync_directory"]
    assert {call.what for call in disk.calls[3:]} == {"unlink", "remove_directory"}
    assert [stage.number for stage in recover_stages(disk, tmp_path, CLUSTER_ID).stages] == [2]


def test_a_removal_without_room_for_another_name_loses_the_seal_durably_before_anything_else(
    tmp_path: Path,
) -> None:
    disk = RecordingDisk()
    for number in (1, 2):
        seal_stage(disk, tmp_path, number, piece_of(b"0"))
    run_steps(StageFiles(disk, tmp_path, 3).write(0, [piece_of(b"0")]))
    disk.calls.clear()
    full(disk, "rename", "")
    run_steps(remove_stages(disk, tmp_path, [1, 3]))
    assert [(call.what, call.name) for call in disk.calls][:2] == [
        ("unlink", STAGE_FILE),
        ("sync_directory", stage_directory(tmp_path, 1).name),
    ]
    assert disk.names(tmp_path) == [stage_directory(tmp_path, 2).name]
    assert [stage.number for stage in recover_stages(disk, tmp_path, CLUSTER_ID).stages] == [2]


def removal_crashes(ignored: frozenset[str] = frozenset()) -> None:
    """End a removal on a full disk at each of its operations: the stage is sealed and whole, or no
    stage is there, and it is gone for ever once its removal has ended.
    """
    directory = Path("/staging")
    for seed in range(20):
        for die_at in range(1, 20):
            disk = SimulatedDisk(Random(seed * 100 + die_at))
            seal_stage(disk, directory, 1, piece_of(b"0"), piece_of(b"1", partition=1))
            disk.restart()
            disk.ignored, disk.die_at, disk.full = ignored, die_at, True
            with suppress(Ended):
                run_steps(remove_stages(disk, directory, [1]))
            ended, done = disk.ended, disk.operations < die_at
            disk.lose_power()
            disk.restart()
            disk.full = True
            found = recover_stages(disk, directory, CLUSTER_ID)
            assert [stage.fault for stage in found.stages] == [None] * len(found.stages)
            run_steps(unlink_directories(disk, found.leftovers))
            assert len(disk.names(directory)) == len(found.stages)
            if not ended:
                assert found.stages == []
            if done:
                break
        else:
            raise AssertionError("no removal came to its end")


@pytest.mark.slow
def test_a_removal_without_room_for_another_name_is_never_half_of_a_stage() -> None:
    removal_crashes()


def test_without_the_sync_of_the_lost_seal_it_is() -> None:
    with pytest.raises(AssertionError):
        removal_crashes(frozenset({"staging/stage_files.py:_rename sync_directory"}))


def test_what_cannot_be_removed_keeps_its_number(tmp_path: Path) -> None:
    disk = RecordingDisk()
    seal_stage(disk, tmp_path, 5, piece_of(b"0"))
    disk.fail("unlink", ".batches", errno.EIO)
    run_steps(remove_stages(disk, tmp_path, [5]))
    found = recover_stages(disk, tmp_path, CLUSTER_ID)
    assert found.next_number == 6
    disk.heal()
    run_steps(unlink_directories(disk, found.leftovers))
    assert recover_stages(disk, tmp_path, CLUSTER_ID).next_number == 1


def test_a_stage_without_pieces_can_be_sealed(tmp_path: Path) -> None:
    disk = RecordingDisk()
    run_steps(StageFiles(disk, tmp_path, 1).seal(CLUSTER_ID, "sink", "stage", []))
    (stage,) = recover_stages(disk, tmp_path, CLUSTER_ID).stages
    assert list(stage.record.parts) == []
    assert len(batches_of()) == 0
