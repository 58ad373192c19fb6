"""Topics that come into being when somebody first uses them.

A produce or a consume that names a missing topic waits here until the topic is there, together with everybody else who
names it meanwhile: one task and one creation for each topic.
"""

import asyncio
from collections.abc import Callable

from pixy.backend import Backend
from pixy.errors import PixyError, ShuttingDown, TopicExists, TopicMissing, Unavailable
from pixy.records import check_topic_name

__all__ = ["TopicCreator"]

_WAITING_MAX = 16384


class _Creation:
    __slots__ = ("task", "waiting")

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], None], Callable[[PixyError], None]]] = []
        self.task: asyncio.Task[None] | None = None


class TopicCreator:
    """Creates topics on first use.

    Args:
        backend: the cluster.
        partitions: how many partitions such a topic gets.
        enabled: whether topics are created on first use at all.
        on_fault: called with an exception that is a bug.
    """

    def __init__(
        self, backend: Backend, partitions: int, enabled: bool, on_fault: Callable[[BaseException], None]
    ) -> None:
        self._backend = backend
        self._partitions = partitions
        self._enabled = enabled
        self._on_fault = on_fault
        self._creations: dict[str, _Creation] = {}

    def create(self, name: str, then: Callable[[], None], fail: Callable[[PixyError], None]) -> None:
        """Create a missing topic, then call `then`, or `fail` with the reason.

        Raises:
            InvalidTopic: no topic may have that name.
            TopicMissing: topics are not created on first use.
            Unavailable: too many requests wait for the topic.
        """
        check_topic_name(name)
        if not self._enabled:
            raise TopicMissing(f"topic {name} does not exist, and auto_create_topics is off")
        creation = self._creations.get(name)
        if creation is None:
            creation = self._creations[name] = _Creation()
            creation.task = asyncio.get_running_loop().create_task(
                self._create(name, creation), name=f"create topic {name}"
            )
        elif len(creation.waiting) >= _WAITING_MAX:
            raise Unavailable(f"{_WAITING_MAX} requests wait for the creation of topic {name}")
        creation.waiting.append((then, fail))

    async def stop(self) -> None:
        """End what is under way; who waits is told that the service is shutting down."""
        tasks = [creation.task for creation in self._creations.values() if creation.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _create(self, name: str, creation: _Creation) -> None:
        error: PixyError | None = None
        try:
            await self._backend.create_topic(name, self._partitions)
        except TopicExists:
            pass  # somebody was quicker; it is there
        except PixyError as refused:
            error = refused
        except asyncio.CancelledError:
            error = ShuttingDown()
            raise
        except Exception as bug:
            error = ShuttingDown()
            self._on_fault(bug)
        finally:
            del self._creations[name]
            for then, fail in creation.waiting:
                if error is None:
                    then()
                else:
                    fail(error)
