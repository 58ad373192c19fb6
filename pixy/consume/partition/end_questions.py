"""Questions to the cluster for the ends of partitions, which thousands of acks may wait for."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from pixy.aio.futures import reject, resolve
from pixy.aio.shared_questions import SharedQuestions
from pixy.aio.tasks import Tasks
from pixy.backend import Backend, TopicPartition
from pixy.errors import PixyError


class EndQuestions:
    """One question at a time for each partition answers all that wait for its end.

    Args:
        backend: the cluster.
        tasks: of the questions.
    """

    __slots__ = ("_backend", "_questions", "_tasks")

    def __init__(self, backend: Backend, tasks: Tasks) -> None:
        self._backend = backend
        self._tasks = tasks
        self._questions: dict[TopicPartition, SharedQuestions[int, int]] = {}

    async def ask(self, topic: str, partition: int) -> int | None:
        """The end of a partition, None if there is no such partition.

        Raises:
            PixyError: as `Backend.offset_ranges`.
        """
        key = TopicPartition(topic, partition)
        questions = self._questions.get(key)
        if questions is None:
            questions = self._questions[key] = SharedQuestions(
                partial(self._ask, topic),
                self._tasks,
                f"end of {topic}/{partition}",
                partial(self._questions.pop, key, None),
            )
        end: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        questions.ask(partition, partial(_answered, end))
        return await end

    async def _ask(self, topic: str, partitions: Sequence[int]) -> Mapping[int, int]:
        ranges = await self._backend.offset_ranges(topic, partitions)
        return {partition: ranges[partition].end for partition in ranges}


def _answered(waiting: "asyncio.Future[int | None]", end: int | None, error: PixyError | None) -> None:
    if error is None:
        resolve(waiting, end)
    else:
        reject(waiting, error)
