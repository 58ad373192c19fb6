"""Marks of partitions that a check has found damaged: the rows of the table in `damage_mark`."""

from pathlib import Path

from pixy.storage import DAMAGE_MARK, RealDisk, mark_directory
from pixy.storage.partition.damage_mark import found_damage


def test_without_a_mark_nothing_was_found(tmp_path: Path) -> None:
    mark_directory(RealDisk(), tmp_path, "")
    assert (found_damage(RealDisk(), tmp_path), [*tmp_path.iterdir()]) == ("", [])


def test_a_mark_has_what_was_found_until_it_is_removed(tmp_path: Path) -> None:
    mark_directory(RealDisk(), tmp_path, "corrupt at byte 7")
    assert found_damage(RealDisk(), tmp_path) == f"{tmp_path} was found damaged: corrupt at byte 7"
    mark_directory(RealDisk(), tmp_path, "")
    assert found_damage(RealDisk(), tmp_path) == ""


def test_a_mark_that_cannot_be_read_is_one(tmp_path: Path) -> None:
    (tmp_path / DAMAGE_MARK).write_bytes(b"x")
    assert "its mark cannot be read" in found_damage(RealDisk(), tmp_path)
    (tmp_path / DAMAGE_MARK).unlink()
    (tmp_path / DAMAGE_MARK).mkdir()
    assert "its mark cannot be read" in found_damage(RealDisk(), tmp_path)
