"""A disk that changes nothing."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from pixy.inspect import ReadOnlyDisk
from pixy.storage import RealDisk


@pytest.mark.parametrize(
    "change",
    [
        lambda disk, path: disk.open(path, create=True),
        lambda disk, path: disk.make_directory(path),
        lambda disk, path: disk.rename(path, path),
        lambda disk, path: disk.unlink(path),
        lambda disk, path: disk.remove_directory(path),
        lambda disk, path: disk.sync_directory(path),
    ],
)
def test_every_change_is_refused(tmp_path: Path, change: Callable[[ReadOnlyDisk, Path], object]) -> None:
    path = tmp_path / "file"
    with pytest.raises(OSError, match="Read-only file system") as raised:
        change(ReadOnlyDisk(), path)
    assert (raised.value.errno, list(tmp_path.iterdir())) == (errno.EROFS, [])


def test_what_is_opened_can_be_read_and_not_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    path.chmod(0o400)
    file = ReadOnlyDisk().open(path)
    assert file.read_at(file.size(), 0) == b"content"
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write_at([b"x"], 0)
    file.close()


def test_readers_share_the_lock_and_a_writer_has_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with pytest.raises(FileNotFoundError):
        ReadOnlyDisk().lock(path)
    writer = RealDisk().lock(path)
    assert writer is not None
    assert ReadOnlyDisk().lock(path) is None
    writer.close()
    first, second = ReadOnlyDisk().lock(path), ReadOnlyDisk().lock(path)
    assert first is not None
    assert second is not None
    assert RealDisk().lock(path) is None
    first.close()
    second.close()
