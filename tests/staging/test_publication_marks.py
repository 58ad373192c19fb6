"""Marks of publications: reads, leftovers of crashes, and refused files."""

from pathlib import Path
from random import Random

import pytest

from pixy.errors import CorruptData, DataDirectoryError
from pixy.proto.state_pb2 import PublishStages
from pixy.staging import read_marks, remove_mark, write_mark
from pixy.storage import RealDisk
from tests.sim.disk import SimulatedDisk

MARK = PublishStages(sink_id="sink", epoch=7, query_id="query", stage_ids=["a", "b"])
NAME = f"{3:020d}"


def test_a_mark_is_read_until_it_is_removed(tmp_path: Path) -> None:
    disk, directory = RealDisk(), tmp_path / "publishing"
    assert read_marks(disk, directory) == {}
    write_mark(disk, directory, 3, MARK)
    assert read_marks(disk, directory) == {3: MARK}
    remove_mark(disk, directory, 3)
    assert read_marks(disk, directory) == {}


def test_an_unfinished_mark_is_ignored(tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(b"half")
    assert read_marks(RealDisk(), tmp_path) == {}
    write_mark(RealDisk(), tmp_path, 3, MARK)
    assert read_marks(RealDisk(), tmp_path) == {3: MARK}


@pytest.mark.parametrize("size", [0, 19, 30])
def test_a_mark_that_is_cut_off_is_refused(tmp_path: Path, size: int) -> None:
    write_mark(RealDisk(), tmp_path, 3, MARK)
    (tmp_path / NAME).write_bytes((tmp_path / NAME).read_bytes()[:size])
    with pytest.raises(CorruptData, match=NAME):
        read_marks(RealDisk(), tmp_path)


def test_a_mark_with_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    write_mark(RealDisk(), tmp_path, 3, MARK)
    whole = (tmp_path / NAME).read_bytes()
    for at in range(len(whole)):
        (tmp_path / NAME).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises((CorruptData, DataDirectoryError), match=NAME):
            read_marks(RealDisk(), tmp_path)


def test_a_stray_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(DataDirectoryError, match=r"notes"):
        read_marks(RealDisk(), tmp_path)


def _survive(*ignored: str) -> bool:
    """True if a mark survives every loss of power although some call sites do not sync."""
    for seed in range(50):
        disk, directory = SimulatedDisk(Random(seed)), Path("/publishing")
        disk.ignored = frozenset(ignored)
        write_mark(disk, directory, 3, MARK)
        disk.lose_power()
        disk.restart()
        try:
            if read_marks(disk, directory) != {3: MARK}:
                return False
        except (CorruptData, DataDirectoryError):
            return False
    return True


def test_a_mark_that_is_written_survives_a_loss_of_power() -> None:
    assert _survive()


@pytest.mark.parametrize(
    "site",
    [
        "staging/publication_marks.py:write_mark make_directory",
        "storage/disk/identity.py:_write sync",
        "storage/disk/identity.py:_write sync_directory",
    ],
)
def test_without_any_of_its_syncs_a_mark_is_lost(site: str) -> None:
    assert not _survive(site)
