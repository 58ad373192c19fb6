"""How often a short request is tried again: with growing pauses, for a few seconds."""

import asyncio
from collections.abc import Collection

from pixy.backend.kafka.client import KafkaClient
from pixy.errors import PixyError, Unavailable, UnknownPartition

__all__ = ["Attempts"]

_PATIENCE_S = 5.0
_PAUSE_MIN_S = 0.02
_PAUSE_MAX_S = 0.5


class Attempts:
    """The attempts of one request. Not for those that change something twice when they are sent twice."""

    def __init__(self, client: KafkaClient, patience_s: float = _PATIENCE_S) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + patience_s
        self._pause_s = _PAUSE_MIN_S

    async def again(self, failure: PixyError | None, topics: Collection[str] = ()) -> None:
        """Return when it is time for another attempt, with what is known of the topics asked for anew.

        Raises:
            PixyError: the failure of the last attempt, because there were enough.
            UnknownPartition: one of the topics is gone.
        """
        if self._loop.time() + self._pause_s > self._until:
            raise failure or Unavailable("Kafka has not answered in time")
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)
        if topics:
            try:
                await self._client.refresh(topics)
            except Unavailable:
                return
            for topic in topics:
                if topic not in self._client.metadata.topics:
                    raise UnknownPartition(f"topic {topic} was deleted") from failure
