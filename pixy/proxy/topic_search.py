"""The search for topics that this process does not know: another one may have made them."""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

from pixy.aio.steps import in_steps
from pixy.aio.tasks import Tasks
from pixy.backend import Backend
from pixy.errors import PixyError, UnknownTopic

T = TypeVar("T")

_NAMES_AT_ONCE = 500

_Fail = Callable[[PixyError], object]
_Waiting = tuple[Callable[[], object], _Fail]


class TopicSearch:
    """One question at a time to the cluster, for all topics that requests wait for.

    Requests that come while it is under way share the next one: an answer may be older than the
    topic of a request that came later. They are answered in steps.

    Args:
        backend: the cluster.
        tasks: of the questions.
    """

    def __init__(self, backend: Backend, tasks: Tasks) -> None:
        self._backend = backend
        self._tasks = tasks
        # Requests that are not answered.
        self._count = 0
        self._asking = False
        # Requests of the question that is under way, and by topic those that wait for later ones.
        self._asked: deque[tuple[str, _Waiting]] = deque()
        self._later: dict[str, list[_Waiting]] = {}

    def __len__(self) -> int:
        """Number of requests that wait."""
        return self._count

    def find(self, name: str, then: Callable[[], object], fail: _Fail) -> None:
        """Ask the cluster for a topic, then call `then`, or `fail` with the error."""
        self._count += 1
        self._later.setdefault(name, []).append((then, fail))
        if not self._asking:
            self._asking = True
            self._tasks.spawn(self._ask(), "find topics", self._abort)

    async def _ask(self) -> None:
        while self._later:
            names = list(islice(self._later, _NAMES_AT_ONCE))
            self._asked.extend((name, each) for name in names for each in self._later.pop(name))
            error: PixyError | None = None
            found: set[str] = set()
            try:
                found = {topic.name for topic in await self._backend.list_topics(names)}
            except PixyError as failed:
                error = failed
            async for name, waiting in in_steps(_taken(self._asked)):
                missing = None if name in found else UnknownTopic(f"unknown topic {name}")
                self._answer(waiting, error or missing)
        self._asking = False

    def _answer(self, waiting: _Waiting, error: PixyError | None) -> None:
        then, fail = waiting
        self._count -= 1
        try:
            if error is None:
                then()
                return
        except Exception as failed:
            error = self._tasks.expected(failed)
        fail(error)

    def _abort(self, reason: PixyError) -> None:
        """The task has been cancelled, or has failed."""
        self._asking = False
        left = [each for _, each in _taken(self._asked)]
        for requests in self._later.values():
            left += requests
        self._later.clear()
        for waiting in left:
            self._answer(waiting, reason)


def _taken(queue: deque[T]) -> Iterator[T]:
    """The elements of a queue, each of which is taken out of it."""
    while queue:
        yield queue.popleft()
