"""Common behaviour of the real, the recording and the simulated disk; then short writes, flags and
syncs of the real one."""

import errno
import os
import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pytest
from structlog.testing import capture_logs

from pixy.storage import Disk, RealDisk
from tests.fakes.disk import RecordingDisk
from tests.fakes.waiting import until_blocking
from tests.sim.disk import SimulatedDisk
from tests.storage.pages import forget_pages

DISK = RealDisk()


@pytest.fixture(params=["real", "recording", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    """Each kind of disk, with the directory `tmp_path`."""
    if request.param == "simulated":
        simulated = SimulatedDisk(Random(1))
        simulated.make_directory(tmp_path)
        return simulated
    return RecordingDisk() if request.param == "recording" else DISK


def write(disk: Disk, path: Path, content: bytes = b"") -> Path:
    file = disk.open(path, create=True)
    file.write_at([content], 0)
    file.close()
    return path


def read(disk: Disk, path: Path) -> bytes:
    file = disk.open(path)
    try:
        return file.read_at(file.size() + 1, 0)
    finally:
        file.close()


@contextmanager
def refused(*numbers: int) -> Iterator[None]:
    """Expect an `OSError` with one of these errors, which names a file."""
    with pytest.raises(OSError, match="/") as raised:
        yield
    assert raised.value.errno in numbers


# --- every disk: files ----------------------------------------------------------------------------


@pytest.mark.parametrize("durably", [False, True])
def test_buffers_are_written_back_to_back_however_many_there_are(
    disk: Disk, tmp_path: Path, durably: bool
) -> None:
    file = disk.open(tmp_path / "file", create=True)
    buffers = [b"%d," % number for number in range(3000)]
    (file.write_durably if durably else file.write_at)(buffers, 5)
    assert file.read_at(1 << 20, 0) == bytes(5) + b"".join(buffers)
    file.close()


@pytest.mark.parametrize("durably", [False, True])
@pytest.mark.parametrize("nothing", [[], [b""], [b""] * 2000])
def test_writing_nothing_makes_no_file_longer(
    disk: Disk, tmp_path: Path, nothing: list[bytes], durably: bool
) -> None:
    file = disk.open(tmp_path / "file", create=True)
    file.write_at([b"abc"], 0)
    for position in (1, 3, 50):
        (file.write_durably if durably else file.write_at)(nothing, position)
        assert file.read_at(100, 0) == b"abc"
    file.close()


def test_reading_returns_less_only_at_the_end(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "file", create=True)
    file.write_at([b"abc"], 0)
    assert (file.read_at(2, 0), file.read_at(5, 1), file.read_at(5, 3)) == (b"ab", b"bc", b"")
    assert (file.read_at(0, 0), file.read_at(3, 0), file.read_at(5, 100)) == (b"", b"abc", b"")
    file.close()


def test_allocated_space_reads_as_zeros_and_keeps_what_is_there(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "file", create=True)
    file.write_at([b"abc"], 0)
    file.allocate(6)
    assert (file.size(), file.read_at(6, 0)) == (6, b"abc\0\0\0")
    file.allocate(4)
    assert file.size() == 6
    file.truncate(2)
    assert file.size() == 2
    file.allocate(3)
    assert file.read_at(3, 0) == b"ab\0"
    file.sync()
    file.close()


def test_a_missing_file_is_made_only_on_request(disk: Disk, tmp_path: Path) -> None:
    with refused(errno.ENOENT):
        disk.open(tmp_path / "file")
    disk.open(tmp_path / "file", create=True).close()
    disk.open(tmp_path / "file").close()


def test_a_file_that_is_open_outlives_its_name(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(write(disk, tmp_path / "file", b"abc"))
    disk.unlink(tmp_path / "file")
    write(disk, tmp_path / "file", b"other")
    assert file.read_at(10, 0) == b"abc"
    file.close()


def test_a_lock_is_held_until_its_file_is_closed(disk: Disk, tmp_path: Path) -> None:
    lock = disk.lock(tmp_path / "lock")
    assert lock is not None
    assert disk.lock(tmp_path / "lock") is None
    lock.close()
    again = disk.lock(tmp_path / "lock")
    assert again is not None
    again.close()


@pytest.mark.parametrize("writing", [False, True])
def test_reading_in_the_background_gives_the_same(disk: Disk, tmp_path: Path, writing: bool) -> None:
    content = os.urandom(300_000)
    path = write(disk, tmp_path / "file", content)
    if writing:
        journal = disk.open(tmp_path / "journal", create=True)
        journal.write_durably([b"entry"], 0)
        journal.close()
    file = disk.open(path, background=True)
    for size, position in (
        (300_000, 0),
        (300_001, 0),
        (200_000, 50_000),
        (200_000, 200_000),
        (0, 5),
        (1, 300_000),
    ):
        assert file.read_at(size, position) == content[position : position + size]
    file.close()


# --- every disk: names ----------------------------------------------------------------------------


def test_names_are_sorted_and_a_missing_directory_has_none(disk: Disk, tmp_path: Path) -> None:
    for name in ("b", "a"):
        write(disk, tmp_path / name)
    disk.make_directory(tmp_path / "c" / "d")
    assert disk.names(tmp_path) == ["a", "b", "c"]
    assert disk.names(tmp_path / "missing") == []


def test_a_directory_is_made_with_its_parents_and_may_be_there(disk: Disk, tmp_path: Path) -> None:
    for _ in range(2):
        disk.make_directory(tmp_path / "a" / "b")
        assert disk.names(tmp_path / "a") == ["b"]
        write(disk, tmp_path / "a" / "b" / "file")
    assert disk.names(tmp_path / "a" / "b") == ["file"]


def test_rename_replaces_a_file_and_unlink_removes_it(disk: Disk, tmp_path: Path) -> None:
    old, new = write(disk, tmp_path / "old", b"old"), write(disk, tmp_path / "new", b"new")
    disk.rename(old, new)
    disk.rename(new, new)
    disk.sync_directory(tmp_path)
    assert (disk.names(tmp_path), read(disk, new)) == (["new"], b"old")
    disk.unlink(new)
    assert disk.names(tmp_path) == []


def test_a_linked_file_has_one_content_under_all_of_its_names(disk: Disk, tmp_path: Path) -> None:
    old, new = write(disk, tmp_path / "old", b"old"), tmp_path / "inner" / "new"
    disk.make_directory(tmp_path / "inner")
    disk.link(old, new)
    file = disk.open(old)
    file.write_at([b"N"], 0)
    file.close()
    assert read(disk, new) == b"Nld"
    with pytest.raises(FileExistsError):
        disk.link(old, new)
    disk.unlink(old)
    assert read(disk, new) == b"Nld"
    with pytest.raises(FileNotFoundError):
        disk.link(old, tmp_path / "other")


def test_a_directory_is_renamed_with_all_that_is_in_it(disk: Disk, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    disk.make_directory(old / "inner")
    file = disk.open(write(disk, old / "inner" / "file", b"abc"))
    disk.rename(old, new)
    file.write_at([b"d"], 3)
    file.close()
    assert disk.names(tmp_path) == ["new"]
    assert read(disk, new / "inner" / "file") == b"abcd"
    disk.make_directory(old)
    assert (disk.names(old), disk.names(new)) == ([], ["inner"])


def test_only_an_empty_directory_can_be_removed(disk: Disk, tmp_path: Path) -> None:
    directory = tmp_path / "directory"
    disk.make_directory(directory)
    write(disk, directory / "file")
    with refused(errno.ENOTEMPTY):
        disk.remove_directory(directory)
    disk.unlink(directory / "file")
    disk.remove_directory(directory)
    disk.sync_directory(tmp_path)
    assert disk.names(tmp_path) == []
    with refused(errno.ENOENT):
        disk.remove_directory(directory)


def test_missing_paths_are_refused(disk: Disk, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    acts: list[Callable[[], object]] = [
        lambda: disk.open(missing),
        lambda: disk.open(missing / "file", create=True),
        lambda: disk.lock(missing / "file"),
        lambda: disk.unlink(missing),
        lambda: disk.unlink(missing / "file"),
        lambda: disk.rename(missing, tmp_path / "new"),
        lambda: disk.remove_directory(missing),
    ]
    for act in acts:
        with refused(errno.ENOENT):
            act()


def test_a_file_is_not_a_directory(disk: Disk, tmp_path: Path) -> None:
    file = write(disk, tmp_path / "file")
    disk.make_directory(tmp_path / "directory")
    acts: list[Callable[[], object]] = [
        lambda: disk.names(file),
        lambda: disk.names(file / "below"),
        lambda: disk.open(file / "below"),
        lambda: disk.open(file / "below", create=True),
        lambda: disk.unlink(file / "below"),
        lambda: disk.remove_directory(file),
        lambda: disk.remove_directory(file / "below"),
        lambda: disk.rename(tmp_path / "directory", file),
    ]
    for act in acts:
        with refused(errno.ENOTDIR):
            act()
    assert disk.names(tmp_path) == ["directory", "file"]


@pytest.mark.parametrize("below", [".", "below", "below/further"])
def test_no_directory_is_made_in_the_place_of_a_file_or_below_it(
    disk: Disk, tmp_path: Path, below: str
) -> None:
    file = write(disk, tmp_path / "file")
    with pytest.raises(NotADirectoryError) as raised:
        disk.make_directory(file / below)
    assert raised.value.filename == str(file)
    assert disk.names(tmp_path) == ["file"]


def test_a_directory_is_not_a_file(disk: Disk, tmp_path: Path) -> None:
    directory = tmp_path / "directory"
    disk.make_directory(directory)
    file = write(disk, tmp_path / "file")
    with refused(errno.EISDIR):
        disk.open(directory)
    with refused(errno.EISDIR):
        disk.open(directory, create=True)
    with refused(errno.EISDIR):
        disk.rename(file, directory)
    with refused(errno.EISDIR, errno.EPERM):  # which POSIX asks for
        disk.unlink(directory)
    assert disk.names(tmp_path) == ["directory", "file"]


def test_a_directory_does_not_replace_another_one(disk: Disk, tmp_path: Path) -> None:
    for name in ("old", "new"):
        disk.make_directory(tmp_path / name)
        write(disk, tmp_path / name / "file")
    with refused(errno.ENOTEMPTY):
        disk.rename(tmp_path / "old", tmp_path / "new")
    assert disk.names(tmp_path) == ["new", "old"]


def test_names_move_within_one_directory(disk: Disk, tmp_path: Path) -> None:
    disk.make_directory(tmp_path / "directory")
    file = write(disk, tmp_path / "file")
    with pytest.raises(AssertionError, match="one directory"):
        disk.rename(file, tmp_path / "directory" / "file")


# --- the real disk --------------------------------------------------------------------------------


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


@pytest.mark.parametrize("durably", [False, True])
def test_the_rest_of_a_short_write_is_written_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durably: bool
) -> None:
    real = os.pwritev

    def short(fd: int, buffers: Sequence[bytes], position: int, *flags: int) -> int:
        return real(fd, [b"".join(buffers)[:-7]], position, *flags)

    monkeypatch.setattr(os, "pwritev", short)
    buffers = [b"%d," % number for number in range(3000)]
    file = DISK.open(tmp_path / "file", create=True)
    (file.write_durably if durably else file.write_at)(buffers, 5)
    assert file.read_at(1 << 20, 0) == bytes(5) + b"".join(buffers)
    file.close()


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Limit the files of this process to `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("durably", [False, True])
def test_a_write_to_a_full_disk_fails_and_leaves_a_part(tmp_path: Path, durably: bool) -> None:
    file = DISK.open(tmp_path / "file", create=True)
    with room_for(5), pytest.raises(OSError, match="too large"):
        (file.write_durably if durably else file.write_at)([b"abc", b"def"], 1)
    assert file.read_at(100, 0) == b"\0abcd"
    (file.write_durably if durably else file.write_at)([b"abc", b"def"], 1)
    assert file.read_at(100, 0) == b"\0abcdef"
    file.close()


def test_a_directory_is_made_with_its_parents_and_every_entry_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(DISK, "sync_directory", synced.append, raising=False)
    DISK.make_directory(tmp_path / "a" / "b")
    DISK.make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert synced == [tmp_path, tmp_path / "a"]


def test_a_failed_sync_of_a_new_directory_is_not_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(_: Path) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(DISK, "sync_directory", no_room, raising=False)
    with pytest.raises(OSError, match=r"cannot be synced: .*no room") as caught:
        DISK.make_directory(tmp_path / "new")
    assert caught.value.errno == errno.EIO


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


def test_a_large_write_is_several_calls_and_a_large_buffer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pwritev(fd: int, buffers: Sequence[bytes], position: int, flags: int = 0) -> int:
        calls.append((position, sum(map(len, buffers))))
        return real(fd, buffers, position, flags)

    real = os.pwritev
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "pwritev", pwritev)
    file = RealDisk().open(tmp_path / "file", create=True)
    large, half = bytes(3 << 20), bytes(1 << 19)
    file.write_at([half, half, half, large, b"x"], 0)
    assert calls == [(0, 1 << 20), (1 << 20, 1 << 19), (3 << 19, 3 << 20), (9 << 19, 1)]
    assert file.size() == (9 << 19) + 1
    file.close()


def test_a_durable_write_is_one_call_however_many_buffers_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process ends a call at a page, but the first one of two calls ends anywhere."""
    calls: list[int] = []

    def pwritev(fd: int, buffers: Sequence[bytes], position: int, flags: int = 0) -> int:
        calls.append(sum(map(len, buffers)))
        return real(fd, buffers, position, flags)

    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", pwritev)
    file = RealDisk().open(tmp_path / "file", create=True)
    file.write_durably([b"abc"] * 3000, 64)
    assert calls == [9000]
    file.close()


def test_begin_sync_never_fails(tmp_path: Path) -> None:
    file = RealDisk().open(tmp_path / "file", create=True)
    file.begin_sync()
    file.write_at([b"abc"], 0)
    file.begin_sync()
    file.sync()
    assert file.read_at(10, 0) == b"abc"
    file.close()
    file.begin_sync()


def test_a_failed_durable_write_is_not_retried_in_another_way(
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


def test_bytes_read_from_the_device_are_counted_by_thread(tmp_path: Path) -> None:
    disk = RealDisk()
    file = disk.open(tmp_path / "file", create=True)
    file.write_at([bytes(1 << 20)], 0)
    before = disk.device_bytes_read()
    file.read_at(1 << 20, 0)
    assert disk.device_bytes_read() == before, "it was in memory"
    file.sync()
    forget_pages(tmp_path / "file")
    kernel_before = kernel_bytes_read()
    file.read_at(1 << 20, 0)
    expected = kernel_bytes_read() - kernel_before
    file.close()
    if not expected and os.environ.get("PIXY_REQUIRE_ALL") != "1":
        pytest.skip("the temporary directory is in memory: set TMPDIR to a folder on a disk")
    assert disk.device_bytes_read() - before == expected >= 1 << 20


def kernel_bytes_read() -> int:
    """The kernel's count of the bytes that devices have read for this thread."""
    books = Path("/proc/thread-self/io")
    lines = books.read_text().splitlines() if books.exists() else []
    return sum(int(line.split(": ")[1]) for line in lines if line.startswith("read_bytes"))


@pytest.mark.parametrize(("take", "free"), [("open", 0), ("sync_directory", 0), ("names", 0), ("names", 1)])
def test_what_takes_descriptors_waits_while_there_are_none(tmp_path: Path, take: str, free: int) -> None:
    """A list of names takes two."""
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: DISK.open(tmp_path / "file", create=True).close(),
        "names": lambda: DISK.names(tmp_path),
        "sync_directory": lambda: DISK.sync_directory(tmp_path),
    }
    failed: list[BaseException] = []

    def call() -> None:
        try:
            calls[take]()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=call)
    with capture_logs() as logs:
        with no_descriptors(but=free):
            thread.start()
            until_blocking(lambda: logs or not thread.is_alive())
        thread.join()
    assert [each["event"] for each in logs] == ["waiting for a file descriptor"]
    assert failed == []


@contextmanager
def no_descriptors(but: int) -> Iterator[None]:
    """This process has so many more file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 2, hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(but):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in taken:
            os.close(each)
