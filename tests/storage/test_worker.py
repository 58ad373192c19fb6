"""The worker thread: order, errors, stop, and writes without it."""

import asyncio
import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from pixy.storage import File, RealDisk, ThreadWorker, run_on
from pixy.storage.disk.disk import Buffer
from pixy.storage.disk.io_uring import open_io_uring
from tests.fakes.disk import RecordingDisk


async def test_work_runs_in_order_on_one_thread_and_calls_back_on_the_loop() -> None:
    worker = ThreadWorker("pixy-test")
    answers: list[tuple[int, str, str]] = []
    all_there = asyncio.Event()

    def where(number: int) -> tuple[int, str]:
        return number, threading.current_thread().name

    def done(result: tuple[int, str], error: BaseException | None) -> None:
        assert error is None
        answers.append((*result, threading.current_thread().name))
        if len(answers) == 20:
            all_there.set()

    for number in range(20):
        worker.submit(partial(where, number), done)
    await all_there.wait()
    worker.stop()
    here = threading.current_thread().name
    assert answers == [(number, "pixy-test", here) for number in range(20)]


async def test_an_error_is_passed_to_the_callback_and_the_next_function_runs() -> None:
    worker = ThreadWorker("pixy-test")
    with pytest.raises(ZeroDivisionError):
        await run_on(worker, lambda: 1 // 0)
    assert await run_on(worker, lambda: 7) == 7
    worker.stop()


async def test_stopping_finishes_what_was_submitted() -> None:
    worker = ThreadWorker("pixy-test")
    ran: list[int] = []
    for number in range(5):
        worker.submit(partial(ran.append, number), lambda _result, _error: None)
    worker.stop()
    assert ran == [0, 1, 2, 3, 4]
    worker.stop()


async def test_cancelling_the_wait_lets_the_work_end_and_drops_its_result() -> None:
    worker = ThreadWorker("pixy-test")
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> int:
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(10)
        raise ValueError

    waiting = asyncio.create_task(run_on(worker, work))
    await begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go_on.set()
    assert await run_on(worker, lambda: "next") == "next"
    worker.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a niceness of their own on Linux")
async def test_a_background_worker_gives_way_to_others() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    seen = []
    for background in (False, True):
        worker = ThreadWorker("pixy-test", background=background)
        seen.append(await run_on(worker, niceness))
        worker.stop()
    assert seen == [niceness(), min(niceness() + 5, 19)]


# --- writes without the thread --------------------------------------------------------------------


def never(_result: object, _error: object) -> None:
    raise AssertionError("called")


class Ring:
    """A ring whose writes have a given result, after a part of the bytes was written; None: they do
    not end.
    """

    def __init__(self, result: int | None, *, takes: bool = True) -> None:
        self._result = result
        self._takes = takes
        self.closed = False

    def write(self, fd: int, buffers: Sequence[Buffer], position: int, done: Callable[[int], None]) -> bool:
        if self._takes and self._result is not None:
            os.pwrite(fd, b"".join(buffers)[: max(self._result, 0)], position)
            asyncio.get_running_loop().call_soon(done, self._result)
        return self._takes

    def close(self, timeout: float) -> None:
        self.closed = True


async def begun(worker: ThreadWorker, file: File) -> BaseException | None:
    """Error of a write of `abcdef` that the worker has begun without its thread."""
    answer: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    assert worker.begin_write(file, [b"abc", b"def"], 10, lambda _, error: answer.set_result(error))
    return await answer


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    found = RealDisk().open(tmp_path / "file", create=True)
    yield found
    found.close()


def use(monkeypatch: pytest.MonkeyPatch, ring: Ring | None) -> None:
    monkeypatch.setattr("pixy.storage.disk.worker.open_io_uring", lambda: ring)


async def test_the_system_writes_without_the_thread_if_it_has_a_ring(file: File) -> None:
    ring = open_io_uring()
    worker = ThreadWorker("pixy-test")
    if ring is None:
        assert not worker.begin_write(file, [b"x"], 0, never)
    else:
        assert await begun(worker, file) is None
        assert file.read_at(100, 0) == bytes(10) + b"abcdef"
        ring.close(0.0)
    worker.stop()


@pytest.mark.parametrize("result", [0, 5, -errno.EAGAIN, -errno.ECANCELED, -errno.EINVAL, -errno.EOPNOTSUPP])
async def test_what_the_system_writes_in_part_or_not_at_all_is_written_by_the_thread(
    monkeypatch: pytest.MonkeyPatch, file: File, result: int
) -> None:
    use(monkeypatch, Ring(result))
    worker = ThreadWorker("pixy-test")
    assert await begun(worker, file) is None
    assert file.read_at(100, 0) == bytes(10) + b"abcdef"
    worker.stop()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EINTR])
async def test_an_error_of_a_write_is_not_retried(
    monkeypatch: pytest.MonkeyPatch, file: File, number: int
) -> None:
    use(monkeypatch, Ring(-number))
    worker = ThreadWorker("pixy-test")
    error = await begun(worker, file)
    assert isinstance(error, OSError)
    assert error.errno == number
    worker.stop()
    assert file.size() == 0


async def test_without_a_ring_the_caller_uses_the_thread(monkeypatch: pytest.MonkeyPatch, file: File) -> None:
    for ring in (None, Ring(0, takes=False)):
        use(monkeypatch, ring)
        worker = ThreadWorker("pixy-test")
        assert not worker.begin_write(file, [b"x"], 0, never)
        worker.stop()
    assert file.size() == 0


async def test_files_of_other_disks_are_written_by_the_thread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, Ring(1))
    worker = ThreadWorker("pixy-test")
    file = RecordingDisk().open(tmp_path / "file", create=True)
    assert not worker.begin_write(file, [b"x"], 0, never)
    worker.stop()


async def test_stopping_closes_the_ring(monkeypatch: pytest.MonkeyPatch, file: File) -> None:
    ring = Ring(6)
    use(monkeypatch, ring)
    worker = ThreadWorker("pixy-test")
    assert await begun(worker, file) is None
    worker.stop()
    assert ring.closed
    worker.stop()


async def test_what_the_file_system_does_not_support_is_tried_once(
    monkeypatch: pytest.MonkeyPatch, file: File
) -> None:
    ring = Ring(-errno.EOPNOTSUPP)
    use(monkeypatch, ring)
    worker = ThreadWorker("pixy-test")
    assert await begun(worker, file) is None
    assert ring.closed
    assert not worker.begin_write(file, [b"x"], 0, never)
    worker.stop()


async def test_a_file_stays_open_while_the_kernel_writes_to_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, Ring(None))
    worker = ThreadWorker("pixy-test")
    for writes in (False, True):
        before = len(os.listdir("/proc/self/fd"))
        file = RealDisk().open(tmp_path / "file", create=True)
        if writes:
            assert worker.begin_write(file, [b"x"], 0, never)
        file.close()
        assert len(os.listdir("/proc/self/fd")) == before + writes
    worker.stop()
