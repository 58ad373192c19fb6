"""The real file system: vectored writes, reads at the end, locks, and directories."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from pixy.storage import RealDisk

DISK = RealDisk()


def test_buffers_are_written_back_to_back_however_many_there_are(tmp_path: Path) -> None:
    file = DISK.open(tmp_path / "file", create=True)
    buffers = [b"%d," % number for number in range(3000)]
    file.write_at(buffers, 5)
    assert file.read_at(1 << 20, 0) == bytes(5) + b"".join(buffers)
    file.close()


@pytest.mark.parametrize("durably", [False, True])
def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durably: bool) -> None:
    real = os.pwritev

    def short(fd: int, buffers: Sequence[bytes], position: int, *flags: int) -> int:
        return real(fd, [b"".join(buffers)[:3]], position, *flags)

    monkeypatch.setattr(os, "pwritev", short)
    file = DISK.open(tmp_path / "file", create=True)
    (file.write_durably if durably else file.write_at)([b"ab", b"cdef", b"g"], 0)
    assert file.read_at(100, 0) == b"abcdefg"
    file.close()


def test_a_durable_write_of_many_buffers_writes_all(tmp_path: Path) -> None:
    file = DISK.open(tmp_path / "file", create=True)
    file.write_durably([b"x"] * 2500, 10)
    assert file.read_at(5000, 0) == bytes(10) + b"x" * 2500
    file.close()


def test_reading_returns_less_only_at_the_end(tmp_path: Path) -> None:
    file = DISK.open(tmp_path / "file", create=True)
    file.write_at([b"abc"], 0)
    assert (file.read_at(2, 0), file.read_at(5, 1), file.read_at(5, 3)) == (b"ab", b"bc", b"")
    file.close()


def test_allocated_space_reads_as_zeros_and_keeps_what_is_there(tmp_path: Path) -> None:
    file = DISK.open(tmp_path / "file", create=True)
    file.write_at([b"abc"], 0)
    file.allocate(6)
    assert (file.size(), file.read_at(6, 0)) == (6, b"abc\0\0\0")
    file.truncate(2)
    assert file.size() == 2
    file.sync()
    file.close()


def test_a_missing_file_is_made_only_on_request(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DISK.open(tmp_path / "file")


def test_names_are_sorted_and_a_missing_directory_has_none(tmp_path: Path) -> None:
    for name in ("b", "a"):
        DISK.open(tmp_path / name, create=True).close()
    assert DISK.names(tmp_path) == ["a", "b"]
    assert DISK.names(tmp_path / "missing") == []


def test_a_directory_is_made_with_its_parents_and_every_entry_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(DISK, "sync_directory", synced.append, raising=False)
    DISK.make_directory(tmp_path / "a" / "b")
    DISK.make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert synced == [tmp_path, tmp_path / "a"]


def test_a_file_below_a_file_cannot_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        DISK.make_directory(tmp_path / "file" / "below")


def test_a_lock_is_held_until_its_file_is_closed(tmp_path: Path) -> None:
    lock = DISK.lock(tmp_path / "lock")
    assert lock is not None
    assert DISK.lock(tmp_path / "lock") is None
    lock.close()
    again = DISK.lock(tmp_path / "lock")
    assert again is not None
    again.close()


def test_rename_replaces_and_unlink_removes(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "new").write_bytes(b"new")
    DISK.rename(tmp_path / "old", tmp_path / "new")
    DISK.sync_directory(tmp_path)
    assert (tmp_path / "new").read_bytes() == b"old"
    DISK.unlink(tmp_path / "new")
    assert DISK.names(tmp_path) == []


def test_a_file_system_that_does_not_know_durable_writes_gets_a_write_and_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pwritev(fd: int, buffers: Sequence[bytes], position: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return real(fd, buffers, position)

    real = os.pwritev
    synced: list[int] = []
    monkeypatch.setattr(os, "pwritev", pwritev)
    monkeypatch.setattr(os, "fdatasync", synced.append)
    file = RealDisk().open(tmp_path / "file", create=True)
    file.write_durably([b"ab", b"c"], 0)
    assert file.read_at(10, 0) == b"abc"
    assert len(synced) == 1
    file.close()


def test_a_durable_write_that_fails_is_not_tried_in_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pwritev(fd: int, buffers: Sequence[bytes], position: int, flags: int = 0) -> int:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "pwritev", pwritev)
    file = RealDisk().open(tmp_path / "file", create=True)
    with pytest.raises(OSError, match="broken"):
        file.write_durably([b"ab"], 0)
    assert file.size() == 0
    file.close()
