"""Background reads of the real disk: small during durable writes, whole otherwise."""

import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from pixy.storage import RealDisk
from pixy.storage.disk import disk as disk_module
from tests.storage.pages import forget_pages


def put(disk: RealDisk, path: Path, content: bytes) -> Path:
    file = disk.open(path, create=True)
    file.write_at([content], 0)
    file.close()
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of reads from files, none of which is cached."""
    sizes: list[int] = []
    real = os.pread

    def pread(fd: int, size: int, position: int) -> bytes:
        sizes.append(size)
        return real(fd, size, position)

    def preadv(fd: int, buffers: Sequence[bytearray], position: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        raise BlockingIOError(errno.EAGAIN, "not in memory")

    monkeypatch.setattr(os, "pread", pread)
    monkeypatch.setattr(os, "preadv", preadv)
    return sizes


def test_background_reads_are_small_during_durable_writes(tmp_path: Path, reads: list[int]) -> None:
    disk = RealDisk()
    content = os.urandom(300_000)
    path = put(disk, tmp_path / "file", content)
    disk.open(tmp_path / "journal", create=True).write_durably([b"entry"], 0)
    file = disk.open(path, background=True)
    assert file.read_at(300_000, 0) == content
    assert reads == [131_072, 131_072, 37_856]
    reads.clear()
    assert disk.open(path).read_at(300_000, 0) == content
    assert reads == [300_000], "who waits for these bytes has not said that others come first"


def test_background_reads_are_whole_without_durable_writes(
    tmp_path: Path, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    disk = RealDisk()
    path = put(disk, tmp_path / "file", bytes(300_000))
    disk.open(path, background=True).read_at(300_000, 0)
    disk.open(tmp_path / "journal", create=True).write_durably([b"entry"], 0)
    now += 0.2
    disk.open(path, background=True).read_at(300_000, 0)
    assert reads == [300_000, 300_000]


@pytest.mark.slow
def test_each_piece_waits_for_a_durable_write_for_a_bounded_time(
    tmp_path: Path, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk()
    path = put(disk, tmp_path / "file", bytes(300_000))
    journal = disk.open(tmp_path / "journal", create=True)
    journal.write_durably([b"entry"], 0)
    took_s = 0.0

    def pwritev(fd: int, buffers: Sequence[bytes], position: int, flags: int = 0) -> int:
        nonlocal took_s
        started = time.monotonic()
        disk.open(path, background=True).read_at(300_000, 0)
        took_s = time.monotonic() - started
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "pwritev", pwritev)
    monkeypatch.setattr(disk_module, "_YIELD_S_MAX", 0.05)
    with pytest.raises(OSError, match="broken"):
        journal.write_durably([b"entry"], 0)
    assert took_s >= 3 * 0.05
    monkeypatch.setattr(disk_module, "_YIELD_S_MAX", 3600.0)
    disk.open(path, background=True).read_at(300_000, 0)
    assert reads == [131_072, 131_072, 37_856] * 2, (
        "whoever waited for the one that failed would wait for ever"
    )


def test_cached_data_is_read_in_the_background_by_one_call(
    tmp_path: Path, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk()
    path = put(disk, tmp_path / "file", bytes(300_000))
    disk.open(tmp_path / "journal", create=True).write_durably([b"entry"], 0)
    monkeypatch.setattr(os, "preadv", lambda *_: 1)
    disk.open(path, background=True).read_at(300_000, 0)
    assert reads == [300_000]


def test_background_reads_have_no_readahead_during_durable_writes(tmp_path: Path) -> None:
    disk = RealDisk()
    path = put(disk, tmp_path / "file", os.urandom(4 << 20))
    file = disk.open(path)
    file.sync()
    before = disk.device_bytes_read()
    forget_pages(path)
    file.read_at(200_000, 0)
    read_ahead = disk.device_bytes_read() - before
    if not read_ahead and os.environ.get("PIXY_REQUIRE_ALL") != "1":
        pytest.skip("the temporary directory is in memory: set TMPDIR to a folder on a disk")
    forget_pages(path)
    disk.open(tmp_path / "journal", create=True).write_durably([b"entry"], 0)
    background = disk.open(path, background=True)
    before = disk.device_bytes_read()
    background.read_at(200_000, 0)
    background.read_at(200_000, 200_000)
    assert 400_000 <= disk.device_bytes_read() - before < 500_000
