"""Partitions of one consumer group whose offsets another node has set: they start over."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from pixy.aio.futures import SmallEvent
from pixy.backend import Backend, TopicPartition
from pixy.errors import PixyError
from pixy.proto.consumer_calls_pb2 import ConsumerCall, Reset

_CONFIRM_S = 2.0
"""Patience with owners that confirm a reset."""


class Resets:
    """Resets of one consumer group.

    Args:
        group: its name.
        backend: the cluster.
    """

    __slots__ = (
        "_backend",
        "_changed",
        "_group",
        "_present",
    )

    def __init__(self, group: str, backend: Backend) -> None:
        self._group = group
        self._backend = backend
        self._present: dict[TopicPartition, None] = {}
        self._changed = SmallEvent()

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._present

    def begin(self, partition: TopicPartition) -> None:
        """The offsets of a partition that is assigned here were set."""
        self._present[partition] = None

    def end(self, partition: TopicPartition) -> None:
        """A partition is live."""
        self._present.pop(partition, None)
        self._changed.set()

    def retain(self, is_here: Callable[[TopicPartition], bool]) -> None:
        """Forget partitions that are not here any more."""
        self._present = {each: None for each in self._present if is_here(each)}
        self._changed.set()

    async def wait(self, topic: str, partitions: Iterable[int]) -> None:
        """Return once this process knows all offsets set before, and has reset these partitions if
        they are here.
        """
        await self._backend.committed_offsets(self._group, topic)
        keys = [TopicPartition(topic, number) for number in partitions]
        while not self._present.keys().isdisjoint(keys):
            self._changed.clear()
            await self._changed.wait()

    async def ask_others(self, partitions: Collection[TopicPartition]) -> None:
        """Have other owners confirm that they have reset partitions whose offsets were set here.

        One that does not answer in time cannot commit what it did before, so its silence is no
        error.
        """
        topics = sorted({topic for topic, _ in partitions})
        calls = [
            self._ask(node_id, topic, sorted(number for name, number in partitions if name == topic))
            for topic in topics
            for node_id in self._backend.other_owners(self._group, topic)
        ]
        await asyncio.gather(*calls)

    async def _ask(self, node_id: int, topic: str, partitions: Collection[int]) -> None:
        reset = Reset(group=self._group, topic=topic, partitions=partitions)
        with suppress(PixyError):
            await self._backend.ask_node(node_id, ConsumerCall(reset=reset).SerializeToString(), _CONFIRM_S)
