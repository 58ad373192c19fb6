"""Decisions of a start about the file `lock`: one test for each row of the table in
`docs/storage.md`, with its name.
"""

from pathlib import Path

import pytest

from pixy.cluster.log.recovery import recover_node
from pixy.errors import DataDirectoryError
from pixy.storage import RealDisk

DISK = RealDisk()


def start(directory: Path) -> None:
    """A start acquires the lock exclusively, and it is free afterwards."""
    recovered = recover_node(DISK, directory, bytes)
    assert DISK.lock(directory / "lock") is None
    recovered.lock.close()


def test_absent(tmp_path: Path) -> None:
    start(tmp_path / "data")
    assert (tmp_path / "data" / "lock").read_bytes() == b""


def test_left(tmp_path: Path) -> None:
    for _ in range(2):
        start(tmp_path)


def test_in_use(tmp_path: Path) -> None:
    lock = DISK.lock(tmp_path / "lock")
    assert lock is not None
    with pytest.raises(DataDirectoryError, match=f"data directory {tmp_path} is in use by another process"):
        start(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    lock.close()
    start(tmp_path)


def test_other_content(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"1234")
    start(tmp_path)
    assert (tmp_path / "lock").read_bytes() == b"1234"


def test_a_directory(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(DataDirectoryError, match=r"cannot be used: .*lock: Is a directory"):
        start(tmp_path)
