"""Direct writes: the same bytes as any other write, or no write at all."""

import errno
import mmap
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from pixy.storage import RealDisk
from pixy.storage.disk.direct_writes import DIRECT_BYTES_MIN, DirectWrites
from tests.storage.pages import cached_pages, forget_pages

_BLOCK = 4096
_LARGEST = 4 << 20


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    """An open file of a few megabytes on a file system with direct writes."""
    path = tmp_path / "file"
    path.write_bytes(b"." * (6 << 20))
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    try:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_DIRECT))
        except (AttributeError, OSError):
            pytest.skip(
                "the file system of the temporary directory has no direct writes: say another one with --basetemp"
            )
        yield fd
    finally:
        os.close(fd)


@pytest.mark.slow
@pytest.mark.parametrize("position", [0, 1, _BLOCK - 1, _BLOCK, 3 * _BLOCK + 17])
@pytest.mark.parametrize("size", [DIRECT_BYTES_MIN, DIRECT_BYTES_MIN + 1, 2 * _LARGEST // 3, _LARGEST])
def test_buffers_are_written_at_their_position_and_the_rest_of_the_file_is_unchanged(
    fd: int, position: int, size: int
) -> None:
    random = Random(position * size)
    content = random.randbytes(size)
    cuts = sorted({0, size, *(random.randrange(size) for _ in range(20))})
    buffers = [memoryview(content)[begin:end] for begin, end in pairwise(cuts)]
    writes = DirectWrites(fd)
    assert writes.write([b"", *buffers, bytearray()], position, size)
    writes.close()
    assert os.pread(fd, 7 << 20, 0) == b"." * position + content + b"." * ((6 << 20) - position - size)


def test_whole_blocks_bypass_the_page_cache(fd: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    forget_pages(path)
    assert not any(cached_pages(path))
    writes = DirectWrites(fd)
    assert writes.write([bytes(_LARGEST)], 1, _LARGEST)
    writes.close()
    first, *whole, last = cached_pages(path)[: _LARGEST // mmap.PAGESIZE + 1]
    # The partial blocks at both ends; readahead may have cached some more around them.
    assert first
    assert last
    assert sum(whole) < len(whole) // 2


@pytest.mark.slow
def test_a_write_sees_what_was_written_through_the_page_cache_before_and_the_other_way_round(fd: int) -> None:
    writes = DirectWrites(fd)
    expected = bytearray(b"." * (6 << 20))
    random = Random(5)
    for _ in range(30):
        size = random.randrange(1, 500_000)
        position = random.randrange(len(expected) - size)
        content = random.randbytes(size)
        if random.random() < 0.5:
            assert writes.write([content], position, size)
        else:
            os.pwrite(fd, content, position)
        expected[position : position + size] = content
        assert os.pread(fd, size + 10, position) == expected[position : position + size + 10]
    writes.close()
    assert os.pread(fd, 7 << 20, 0) == expected


def test_writes_larger_than_the_buffer_are_declined(fd: int) -> None:
    assert not DirectWrites(fd).write([bytes(5 << 20)], 0, 5 << 20)
    assert os.pread(fd, 7 << 20, 0) == b"." * (6 << 20)


def test_without_memory_for_the_buffer_writes_are_declined(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(fileno: int, length: int, flags: int) -> mmap.mmap:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", no_memory)
    writes = DirectWrites(fd)
    assert not writes.write([bytes(_LARGEST)], 0, _LARGEST)
    writes.close()
    assert os.pread(fd, 7 << 20, 0) == b"." * (6 << 20)


def test_a_file_system_without_direct_writes_is_tried_once(
    fd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(path: str, flags: int) -> int:
        asked.append(path)
        raise OSError(errno.EINVAL, "no")

    monkeypatch.setattr(os, "open", refuse)
    writes = DirectWrites(fd)
    assert not writes.write([bytes(_LARGEST)], 0, _LARGEST)
    assert not writes.write([bytes(_LARGEST)], 0, _LARGEST)
    assert len(asked) == 1
    writes.close()


@pytest.mark.parametrize("refused_at", [0, 1])
def test_a_device_with_another_alignment_gets_ordinary_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused_at: int
) -> None:
    real, sizes = os.pwrite, []

    def misaligned(fd: int, data: memoryview, position: int) -> int:
        sizes.append(len(data))
        if len(sizes) == 1 + refused_at:
            raise OSError(errno.EINVAL, "alignment")
        # A short write of the device.
        return real(fd, data[:8192], position)

    content = Random(1).randbytes(DIRECT_BYTES_MIN)
    file = RealDisk().open(tmp_path / "file", create=True)
    monkeypatch.setattr(os, "pwrite", misaligned)
    file.write_durably([content], 5)
    file.write_durably([content], 5 + len(content))
    monkeypatch.undo()
    assert len(sizes) == 1 + refused_at
    assert file.read_at(len(content) * 3, 0) == bytes(5) + content + content
    file.close()


def test_any_other_error_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fd: int, data: memoryview, position: int) -> int:
        raise OSError(errno.EIO, "broken")

    file = RealDisk().open(tmp_path / "file", create=True)
    monkeypatch.setattr(os, "pwrite", broken)
    with pytest.raises(OSError, match="broken"):
        file.write_durably([bytes(DIRECT_BYTES_MIN)], 0)
    monkeypatch.undo()
    file.close()


def test_a_durable_write_ends_with_a_sync_and_small_ones_go_the_usual_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    for name in ("pwrite", "pwritev", "fdatasync"):
        real = getattr(os, name)

        def noted(*arguments: object, name: str = name, real: object = real) -> object:
            calls.append(name)
            return real(*arguments)  # type: ignore[operator]

        monkeypatch.setattr(os, name, noted)
    file = RealDisk().open(tmp_path / "file", create=True)
    file.write_durably([bytes(DIRECT_BYTES_MIN - 1)], 0)
    assert "pwrite" not in calls
    calls.clear()
    file.write_durably([bytes(DIRECT_BYTES_MIN)], 100)
    assert set(calls) == {"pwrite", "fdatasync"}
    assert calls[-1] == "fdatasync"
    file.close()


@pytest.mark.parametrize("size", [DIRECT_BYTES_MIN - 1, DIRECT_BYTES_MIN, _LARGEST])
def test_a_direct_write_of_a_file_is_not_synced_and_a_small_one_goes_the_usual_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    path = tmp_path / "file"
    file = RealDisk().open(path, create=True)
    monkeypatch.setattr(os, "fdatasync", None)
    content = Random(size).randbytes(size)
    buffers = [memoryview(content)[at : at + 100_000] for at in range(0, size, 100_000)]
    file.write_direct(buffers, 5)
    file.write_direct([b"", b"behind"], 5 + size)
    # The blocks at both ends are those of other writes, too.
    assert sum(cached_pages(path)) <= 3 or size < DIRECT_BYTES_MIN
    assert file.read_at(2 * size, 0) == bytes(5) + content + b"behind"
    file.close()


def test_buffers_of_any_number_and_size_are_written_directly_in_groups(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = Random(3).randbytes(11 << 20)
    cuts = [0, *range(1, 3000), 1 << 20, 9 << 20, len(content)]  # one is larger than what is direct
    file = RealDisk().open(path, create=True)
    file.write_direct([memoryview(content)[begin:end] for begin, end in pairwise(cuts)], 3)
    assert file.read_at(len(content) + 100, 0) == bytes(3) + content
    file.close()


def test_closing_a_file_closes_both_descriptors(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        file = RealDisk().open(tmp_path / "file", create=True)
        file.write_durably([bytes(DIRECT_BYTES_MIN)], 0)
        file.close()
    assert len(os.listdir("/proc/self/fd")) == before
