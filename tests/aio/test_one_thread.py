"""pixy/aio/one_thread.py: one piece of work at a time, in order, and each to its end."""

import asyncio
import threading

import pytest

from pixy.aio.one_thread import OneThread

PATIENCE_S = 60.0


async def test_results_and_exceptions_are_those_of_the_function() -> None:
    thread = OneThread()
    assert await thread.run(lambda: threading.current_thread() is threading.main_thread()) is False
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 // 0)
    assert thread.is_idle


async def test_a_cancelled_call_keeps_the_thread_until_its_work_has_ended() -> None:
    thread, begun, go_on = OneThread(), threading.Event(), threading.Event()
    ended: list[int] = []

    def slow() -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        ended.append(1)
        raise ValueError("which nobody waits for")

    first = asyncio.create_task(thread.run(slow))
    second = asyncio.create_task(thread.run(lambda: ended.append(2)))
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert not thread.is_idle
        go_on.set()
        await second
    assert ended == [1, 2]
