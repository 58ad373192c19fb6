"""pixy/aio/shared_questions.py: callers share questions, never one that began before they came."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from pixy.aio.shared_questions import SharedQuestions
from pixy.aio.tasks import Tasks
from pixy.errors import PixyError, Unavailable
from tests.fakes.waiting import until


class Asked:
    """A cluster that answers when it is told to, with the length of each key but "none"."""

    def __init__(self) -> None:
        self.faults: list[BaseException] = []
        self.tasks = Tasks(self.faults.append)
        self.idle = 0
        self.questions = SharedQuestions(self._ask, self.tasks, "ask", self._on_idle)
        self.asked: list[list[str]] = []
        self.error: Exception | None = None
        self.go_on = asyncio.Semaphore(0)
        self.answers: list[tuple[str, int | None, PixyError | None]] = []

    async def _ask(self, keys: Sequence[str]) -> Mapping[str, int]:
        self.asked.append(list(keys))
        await self.go_on.acquire()
        if self.error is not None:
            raise self.error
        return {key: len(key) for key in keys if key != "none"}

    def _on_idle(self) -> None:
        self.idle += 1

    def ask(self, *keys: str) -> None:
        for key in keys:
            self.questions.ask(key, partial(self._answered, key))

    def _answered(self, key: str, answer: int | None, error: PixyError | None) -> None:
        self.answers.append((key, answer, error))

    async def answer(self, count: int) -> None:
        """Answer a question, and wait for so many answers in all."""
        self.go_on.release()
        await until(lambda: len(self.answers) == count)


async def test_callers_that_come_while_a_question_is_under_way_share_the_next_one() -> None:
    asked = Asked()
    asked.ask("a", "bb", "a", "none")
    await asyncio.sleep(0)
    asked.ask("a", "ccc", "ccc")
    await asked.answer(4)
    assert asked.answers == [("a", 1, None), ("a", 1, None), ("bb", 2, None), ("none", None, None)]
    await asked.answer(7)
    assert asked.answers[4:] == [("a", 1, None), ("ccc", 3, None), ("ccc", 3, None)]
    assert asked.asked == [["a", "bb", "none"], ["a", "ccc"]]
    await asked.tasks.wait_all()
    assert asked.idle == 1


async def test_thousands_of_keys_and_callers_take_many_steps() -> None:
    asked = Asked()
    asked.ask(*(f"{number}" for number in range(1200)), *["0"] * 1000)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while len(asked.answers) < 2200:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    for _ in range(3):
        asked.go_on.release()
    await counting
    assert list(map(len, asked.asked)) == [500, 500, 200]
    assert turns > 100
    await asked.tasks.wait_all()


async def test_an_error_is_that_of_all_who_share_the_question() -> None:
    asked = Asked()
    asked.error = Unavailable("no leader")
    asked.ask("a", "b")
    await asyncio.sleep(0)
    asked.ask("later")
    await asked.answer(2)
    asked.error = None
    await asked.answer(3)
    told = [(key, answer, str(error or "")) for key, answer, error in asked.answers]
    assert told == [("a", None, "no leader"), ("b", None, "no leader"), ("later", 5, "")]
    await asked.tasks.wait_all()


async def test_the_end_of_the_task_answers_all_who_wait() -> None:
    asked = Asked()
    asked.ask("a")
    await asyncio.sleep(0)
    asked.ask("b")
    await asked.tasks.cancel_all()
    assert [(key, answer) for key, answer, _ in asked.answers] == [("a", None), ("b", None)]
    assert all(isinstance(error, PixyError) for _, _, error in asked.answers)
    assert asked.idle == 1


async def test_a_bug_answers_all_who_wait_and_the_next_question_is_asked() -> None:
    asked = Asked()
    asked.error = ZeroDivisionError()
    asked.ask("a")
    await asked.answer(1)
    assert asked.answers[0][2] is not None
    assert [type(fault) for fault in asked.faults] == [ZeroDivisionError]
    asked.error = None
    asked.ask("b")
    await asked.answer(2)
    assert asked.answers[1] == ("b", 1, None)
    await asked.tasks.wait_all()
