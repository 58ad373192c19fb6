import asyncio

from pixy.consume.tasks import Tasks
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


async def test_cancelling_waits_for_the_end_and_is_no_fault() -> None:
    faults: list[BaseException] = []
    aborted: list[PixyError] = []
    tasks = Tasks(faults.append)
    task = tasks.spawn(forever(), "a name", aborted.append)
    assert task.get_name() == "a name"
    await tasks.cancel_all()
    assert task.cancelled()
    assert (faults, [type(error) for error in aborted], len(tasks)) == ([], [ShuttingDown], 0)
