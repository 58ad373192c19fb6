"""The search for topics that this process does not know: another one may have made them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from pixy.aio.shared_questions import SharedQuestions
from pixy.aio.tasks import Tasks
from pixy.backend import Backend
from pixy.errors import PixyError, UnknownTopic

_Fail = Callable[[PixyError], object]


class TopicSearch:
    """Questions to the cluster for the topics that requests wait for.

    Args:
        backend: the cluster.
        tasks: of the questions.
    """

    def __init__(self, backend: Backend, tasks: Tasks) -> None:
        self._backend = backend
        self._tasks = tasks
        # Requests that are not answered.
        self._count = 0
        self._questions = SharedQuestions(self._ask, tasks, "find topics")

    def __len__(self) -> int:
        """Number of requests that wait."""
        return self._count

    def find(self, name: str, then: Callable[[], object], fail: _Fail) -> None:
        """Ask the cluster for a topic, then call `then`, or `fail` with the error."""
        self._count += 1
        self._questions.ask(name, partial(self._answer, name, then, fail))

    async def _ask(self, names: Sequence[str]) -> Mapping[str, bool]:
        return {topic.name: True for topic in await self._backend.list_topics(names)}

    def _answer(
        self, name: str, then: Callable[[], object], fail: _Fail, found: bool | None, error: PixyError | None
    ) -> None:
        self._count -= 1
        if error is None and not found:
            error = UnknownTopic(f"unknown topic {name}")
        try:
            if error is None:
                then()
                return
        except Exception as failed:
            error = self._tasks.expected(failed)
        fail(error)
