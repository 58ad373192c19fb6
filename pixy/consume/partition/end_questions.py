"""Questions to the cluster for the ends of partitions, which thousands of acks may wait for."""

import asyncio
from functools import partial

from pixy.aio.futures import reject, resolve
from pixy.aio.tasks import Tasks
from pixy.backend import Backend, TopicPartition
from pixy.errors import PixyError

_TOLD_AT_ONCE = 20

_Asked = asyncio.Future[int | None]


class _Question:
    """The questions for one partition.

    Attributes:
        asked: those that wait for the answer to the question that is under way.
        later: those that wait for the next one.
    """

    __slots__ = ("asked", "later")

    def __init__(self) -> None:
        self.asked: list[_Asked] = []
        self.later: list[_Asked] = []


class EndQuestions:
    """One question at a time for each partition answers all that wait for its end.

    Those that come while it is under way share the next one: an answer may be older than the record
    whose ack came later.

    Args:
        backend: the cluster.
        tasks: of the questions.
    """

    __slots__ = ("_backend", "_questions", "_tasks")

    def __init__(self, backend: Backend, tasks: Tasks) -> None:
        self._backend = backend
        self._tasks = tasks
        self._questions: dict[TopicPartition, _Question] = {}

    async def ask(self, topic: str, partition: int) -> int | None:
        """The end of a partition, None if there is no such partition.

        Raises:
            PixyError: as `Backend.offset_ranges`.
        """
        key = TopicPartition(topic, partition)
        question = self._questions.get(key)
        if question is None:
            question = self._questions[key] = _Question()
            abort = partial(self._abort, key, question)
            self._tasks.spawn(self._answer(key, question), f"end of {topic}/{partition}", abort)
        asked: _Asked = asyncio.get_running_loop().create_future()
        question.later.append(asked)
        return await asked

    async def _answer(self, key: TopicPartition, question: _Question) -> None:
        while question.later:
            question.asked, question.later = question.later, []
            error: PixyError | None = None
            end: int | None = None
            try:
                ranges = await self._backend.offset_ranges(key.topic, [key.partition])
                if key.partition in ranges:
                    end = ranges[key.partition].end
            except PixyError as failed:
                error = failed
            for number, asked in enumerate(question.asked, 1):
                if error is None:
                    resolve(asked, end)
                else:
                    reject(asked, error)
                if not number % _TOLD_AT_ONCE:
                    await asyncio.sleep(0)
        del self._questions[key]

    def _abort(self, key: TopicPartition, question: _Question, reason: PixyError) -> None:
        self._questions.pop(key, None)
        for asked in (*question.asked, *question.later):
            reject(asked, reason)
