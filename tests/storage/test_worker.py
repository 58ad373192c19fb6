"""The worker thread: order, errors, stop."""

import asyncio
import os
import sys
import threading
from functools import partial

import pytest

from pixy.storage import ThreadWorker, run_on


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
