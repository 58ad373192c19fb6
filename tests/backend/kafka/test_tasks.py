"""Tasks that belong to somebody."""

import asyncio

from pixy.backend.kafka.tasks import OwnedTasks


async def sleep_for_ever() -> None:
    await asyncio.Event().wait()


async def fail() -> None:
    raise ZeroDivisionError


async def test_a_bug_is_told_and_a_cancelled_task_is_none() -> None:
    bugs: list[BaseException] = []
    tasks = OwnedTasks(bugs.append)
    tasks.spawn(fail(), "fails")
    tasks.spawn(sleep_for_ever(), "sleeps")
    await asyncio.sleep(0)
    await tasks.end(cancel=True)
    await asyncio.sleep(0)
    assert [type(bug) for bug in bugs] == [ZeroDivisionError]


async def test_what_is_not_cancelled_is_waited_for() -> None:
    done: list[int] = []

    async def work(number: int) -> None:
        await asyncio.sleep(0)
        done.append(number)

    tasks = OwnedTasks(lambda _: None)
    for number in range(3):
        tasks.spawn(work(number), "works")
    await tasks.end(cancel=False)
    assert done == [0, 1, 2]
