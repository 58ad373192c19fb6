"""Durable writes by io_uring: results, refusals, the end of a ring. Where the system has none, the
tests of the ring itself have nothing to test.
"""

import asyncio
import ctypes
import errno
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from pixy.storage.disk import io_uring
from pixy.storage.disk.direct_writes import DIRECT_BYTES_MIN
from pixy.storage.disk.io_uring import IoUring, open_io_uring

PIPE_BYTES = 4096
PATIENCE_S = 60.0


@pytest.fixture
async def ring() -> "IoUring | None":
    return open_io_uring()


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    found = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield found
    os.close(found)


def begin(ring: IoUring, fd: int, *buffers: bytes, position: int = 0) -> asyncio.Future[int]:
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    assert ring.write(fd, buffers, position, ended.set_result)
    return ended


def full_pipe() -> tuple[int, int]:
    """Both ends of a pipe to which a write hangs until something is read."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, bytes(PIPE_BYTES))
    except BlockingIOError:
        os.set_blocking(writer, True)
    return reader, writer


def never(_: int) -> None:
    raise AssertionError("called")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_buffers_are_written_back_to_back_at_their_position(ring: IoUring | None, fd: int) -> None:
    if ring is None:
        return
    for number in range(20):
        assert await begin(ring, fd, b"%04d" % number, b"", b"|", position=5 * number) == 5
    ring.close(PATIENCE_S)
    assert os.pread(fd, 1000, 0) == b"".join(b"%04d|" % number for number in range(20))


async def test_a_write_that_is_too_large_is_refused(ring: IoUring | None, fd: int) -> None:
    if ring is None:
        return
    largest = os.urandom(DIRECT_BYTES_MIN - 1)
    assert not ring.write(fd, [largest, b"x"], 0, never)
    assert await begin(ring, fd, largest) == len(largest)
    ring.close(PATIENCE_S)
    assert os.pread(fd, DIRECT_BYTES_MIN, 0) == largest


async def test_a_completion_that_close_has_taken_is_not_looked_for_again(
    ring: IoUring | None, fd: int
) -> None:
    if ring is None:
        return
    written: list[int] = []
    assert ring.write(fd, [b"x"], 0, written.append)
    select.select([ring._event], [], [])
    # As the loop does when it finds the event.
    ring._loop.call_soon(ring._woken)
    ring.close(PATIENCE_S)
    await asyncio.sleep(0)
    assert written == [1]


async def test_a_failed_write_tells_its_errno_and_the_next_one_works(
    ring: IoUring | None, fd: int, tmp_path: Path
) -> None:
    if ring is None:
        return
    read_only = os.open(tmp_path / "file", os.O_RDONLY)
    assert await begin(ring, read_only, b"x") == -errno.EBADF
    os.close(read_only)
    assert await begin(ring, fd, b"y") == 1
    ring.close(PATIENCE_S)


async def test_the_event_loop_goes_on_while_a_write_hangs(ring: IoUring | None) -> None:
    if ring is None:
        return
    reader, writer = full_pipe()
    ended = begin(ring, writer, b"late")
    for _ in range(10):
        await asyncio.sleep(0)
    assert not ended.done()
    os.set_blocking(reader, False)
    while not ended.done():
        os.read(reader, PIPE_BYTES)
        await asyncio.wait([ended], timeout=0.01)
    assert ended.result() == 4
    ring.close(PATIENCE_S)
    os.close(reader)
    os.close(writer)


async def test_closing_waits_for_the_write_and_calls_back(ring: IoUring | None, fd: int) -> None:
    if ring is None:
        return
    ended = begin(ring, fd, b"written")
    ring.close(PATIENCE_S)
    assert ended.result() == 7
    assert os.pread(fd, 100, 0) == b"written"


async def test_closing_does_not_wait_for_ever(ring: IoUring | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if ring is None:
        return
    monkeypatch.setattr(io_uring, "_unfinished", [])
    reader, writer = full_pipe()
    ended = begin(ring, writer, b"never")
    ring.close(0.0)
    assert io_uring._unfinished == [ring], "the kernel may still use its memory"
    os.close(reader)
    ring.close(PATIENCE_S)
    assert ended.result() == -errno.EPIPE
    os.close(writer)


async def test_a_wake_up_without_a_completion_ends_no_write(ring: IoUring | None) -> None:
    if ring is None:
        return
    reader, writer = full_pipe()
    ended = begin(ring, writer, b"late")
    os.eventfd_write(ring._event, 1)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not ended.done()
    os.close(reader)
    assert await ended == -errno.EPIPE
    ring.close(PATIENCE_S)
    os.close(writer)


async def test_a_ring_releases_its_descriptors() -> None:
    before = descriptors()
    ring = open_io_uring()
    if ring is not None:
        assert descriptors() > before
        ring.close(PATIENCE_S)
    assert descriptors() == before


async def test_without_permission_there_is_no_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        ctypes.set_errno(errno.EPERM)
        return -1

    monkeypatch.setattr(io_uring, "_call", refused)
    assert open_io_uring() is None


async def test_a_kernel_that_does_not_know_the_flags_gets_no_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    before = descriptors()
    monkeypatch.setattr(io_uring, "_SETUP_SINGLE_ISSUER", 1 << 31)
    assert open_io_uring() is None
    assert descriptors() == before


async def test_other_systems_have_no_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_uring, "_call", None)
    assert open_io_uring() is None


async def test_a_write_that_the_kernel_does_not_take_is_not_written_by_the_next_one(
    ring: IoUring | None, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ring is None:
        return
    monkeypatch.setattr(io_uring, "_call", lambda *_: -1)
    assert not ring.write(fd, [b"refused"], 0, never)
    monkeypatch.undo()
    assert await begin(ring, fd, b"taken", position=100) == 5
    ring.close(PATIENCE_S)
    assert os.pread(fd, 1000, 0) == bytes(100) + b"taken"
