import asyncio

from pixy.aio.tasks import Tasks
from pixy.errors import PixyError, ShuttingDown
from pixy.faults import internal_error
from tests.fakes.waiting import settle


async def forever() -> None:
    await asyncio.Event().wait()


async def broken() -> None:
    raise ZeroDivisionError


async def test_an_unhandled_exception_is_reported() -> None:
    faults: list[BaseException] = []
    aborted: list[PixyError] = []
    tasks = Tasks(faults.append)
    tasks.spawn(broken(), "broken", aborted.append)
    await settle()
    assert isinstance(faults[0], ZeroDivisionError)
    assert [str(error) for error in aborted] == [str(internal_error(faults[0]))]
    assert len(tasks) == 0


async def test_cancelling_waits_for_the_end_and_is_not_a_fault() -> None:
    faults: list[BaseException] = []
    aborted: list[PixyError] = []
    tasks = Tasks(faults.append)
    task = tasks.spawn(forever(), "a name", aborted.append)
    assert task.get_name() == "a name"
    await tasks.cancel_all()
    assert task.cancelled()
    assert (faults, [type(error) for error in aborted], len(tasks)) == ([], [ShuttingDown], 0)


async def test_waiting_for_all_cancels_none() -> None:
    done: list[int] = []

    async def work(number: int) -> None:
        await asyncio.sleep(0)
        done.append(number)

    tasks = Tasks(lambda _: None)
    for number in range(3):
        tasks.spawn(work(number), "works")
    await tasks.wait_all()
    assert (done, len(tasks)) == ([0, 1, 2], 0)
