import asyncio

from pixy.consume.tasks import Tasks
from tests.fakes.waiting import settle


async def forever() -> None:
    await asyncio.Event().wait()


async def broken() -> None:
    raise ZeroDivisionError


async def test_an_unhandled_exception_is_reported() -> None:
    faults: list[BaseException] = []
    aborted: list[str] = []
    tasks = Tasks(faults.append)
    tasks.spawn(broken(), "broken", lambda: aborted.append("broken"))
    await settle()
    assert isinstance(faults[0], ZeroDivisionError)
    assert aborted == ["broken"]
    assert len(tasks) == 0


async def test_cancelling_waits_for_the_end_and_is_no_fault() -> None:
    faults: list[BaseException] = []
    aborted: list[str] = []
    tasks = Tasks(faults.append)
    task = tasks.spawn(forever(), "a name", lambda: aborted.append("forever"))
    assert task.get_name() == "a name"
    await tasks.cancel_all()
    assert task.cancelled()
    assert (faults, aborted, len(tasks)) == ([], ["forever"], 0)
