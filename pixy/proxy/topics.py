"""Creation of topics on first use, and the search for topics that this process does not know.

Produce and consume requests for a missing topic wait here for its creation: one task and one
creation for each topic, however many requests wait. The cluster is asked first, because another
process may have created the topic. Requests that need a topic to be there wait for a search alone.
"""

from collections.abc import Callable
from contextlib import suppress
from fnmatch import fnmatchcase

import structlog

from pixy.aio.tasks import Tasks
from pixy.backend import Backend
from pixy.config import ProxyConfig
from pixy.errors import PixyError, ShuttingDown, TopicExists, TopicMissing, Unavailable, UnknownTopic
from pixy.faults import OnFault, internal_error
from pixy.proxy.topic_search import TopicSearch
from pixy.records import check_topic_name

log = structlog.get_logger(__name__)


class _Creation:
    """A topic under creation, with the requests that wait for it."""

    __slots__ = ("client", "size", "waiting")

    def __init__(self, client: str) -> None:
        # Address of the client that has asked first.
        self.client = client
        self.waiting: list[tuple[Callable[[], None], Callable[[PixyError], None]]] = []
        self.size = 0


class TopicCreator:
    """Creates topics on first use.

    Args:
        backend: the cluster.
        config: whether topics are created on first use, their partitions, and the limits of waiting
            requests.
        on_fault: called with an exception that is a bug.
    """

    def __init__(self, backend: Backend, config: ProxyConfig, on_fault: OnFault) -> None:
        self._backend = backend
        self._config = config
        self._on_fault = on_fault
        self._tasks = Tasks(on_fault)
        # Number and size of the requests that wait for the creation of any topic.
        self._waiting = 0
        self._waiting_bytes = 0
        self._creations: dict[str, _Creation] = {}
        self._search = TopicSearch(backend, self._tasks)

    def __len__(self) -> int:
        """Number of topics under creation."""
        return len(self._creations)

    def create(
        self,
        name: str,
        size: int,
        then: Callable[[], None],
        fail: Callable[[PixyError], None],
        client: str = "",
    ) -> None:
        """Create a missing topic, then call `then`, or `fail` with the error.

        The error is `TopicMissing` if topics are not created on first use.

        Args:
            size: bytes that the waiting request holds.
            client: address of the client that asks, empty if unknown.

        Raises:
            InvalidTopic: no topic may have that name.
            Unavailable: too many requests wait for topics.
        """
        check_topic_name(name)
        self._check_room(size)
        creation = self._creations.get(name)
        if creation is None:
            creation = self._creations[name] = _Creation(client)
            self._tasks.spawn(self._create(name, creation), f"create topic {name}")
        creation.waiting.append((then, fail))
        creation.size += size
        self._waiting += 1
        self._waiting_bytes += size

    def find(self, name: str, then: Callable[[], None], fail: Callable[[PixyError], None]) -> None:
        """Ask the cluster for a topic, then call `then`, or `fail` with the error. It is not made.

        Raises:
            Unavailable: too many requests wait for topics.
        """
        self._check_room(0)
        self._search.find(name, then, fail)

    def _check_room(self, size: int) -> None:
        limits = self._config.producer
        waiting = self._waiting + len(self._search)
        if (
            waiting >= limits.waiting_requests
            or self._waiting_bytes + size > limits.buffer_bytes + limits.max_message_bytes
        ):
            raise Unavailable(
                f"{waiting} requests wait for the creation of topics; slow down, or increase "
                "producer.waiting_requests or producer.buffer_bytes"
            ).at_limit("producer.waiting_requests")

    async def stop(self) -> None:
        """Cancel all creations; waiting requests get `ShuttingDown`."""
        creations = list(self._creations.items())
        await self._tasks.cancel_all()
        for name, creation in creations:
            self._end(name, creation, ShuttingDown())

    async def _create(self, name: str, creation: _Creation) -> None:
        try:
            await self._find_or_create(name, creation.client)
        except PixyError as refused:
            self._end(name, creation, refused)
        except Exception as bug:
            self._on_fault(bug)
            self._end(name, creation, internal_error(bug))
        else:
            self._end(name, creation, None)

    async def _find_or_create(self, name: str, client: str) -> None:
        with suppress(UnknownTopic):
            await self._backend.describe_topic(name)
            return
        if not self._config.auto_create_topics:
            raise TopicMissing(f"topic {name} does not exist, and auto_create_topics is off")
        patterns = self._config.auto_create_patterns
        if patterns and not any(fnmatchcase(name, pattern) for pattern in patterns):
            raise TopicMissing(f"topic {name} does not exist, and none of auto_create_patterns matches it")
        try:
            await self._backend.create_topic(name, self._config.default_partitions)
            log.info(
                "a topic was made on its first use",
                topic=name,
                partitions=self._config.default_partitions,
                asked_by=client,
            )
        except TopicExists:  # another process was faster
            await self._backend.describe_topic(name)

    def _end(self, name: str, creation: _Creation, error: PixyError | None) -> None:
        """Answer all waiting requests, each once."""
        self._creations.pop(name, None)
        waiting, creation.waiting = creation.waiting, []
        self._waiting -= len(waiting)
        self._waiting_bytes -= creation.size
        creation.size = 0
        for then, fail in waiting:
            try:
                if error is None:
                    then()
                else:
                    fail(error)
            except Exception as bug:
                self._on_fault(bug)
