"""Workload of a life, with each answer checked against the model."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from pixy.backend import EmbeddedBackend
from pixy.cluster import Node
from pixy.errors import OffsetOutOfRange, PixyError, ShuttingDown, StorageFault, Unavailable, UnknownPartition
from pixy.records import NewRecord, OffsetCommit, TopicPartition, build_batch
from tests.sim.model_offsets import PartitionId
from tests.sim.model_partition import PartitionModel, Sent
from tests.sim.model_topics import Change
from tests.sim.reading import GROUPS, read_batches
from tests.sim.world import World

T = TypeVar("T")

_NAMES = ("a", "a-1", "b", "b-deleted")
_CONFIG: dict[str, tuple[str | None, ...]] = {
    "retention_bytes": ("0", "3000", "20000", "-1", None),
    "retention_ms": ("1", "3000", "60000", "-1", None),
    "segment_bytes": ("65536", "200000", None),
    "segment_ms": ("60000", "90000", None),
}


class Workload:
    """Makes random requests.

    Args:
        world: the world of the node.
        faults: faults reported by the node; no answer may follow one.

    Attributes:
        tasks: all tasks started here.
    """

    def __init__(
        self, world: World, node: Node, backend: EmbeddedBackend, faults: list[BaseException]
    ) -> None:
        self._rng = world.rng
        self._disk = world.disk
        self._model = world.model
        self._clock = world.clock
        self._counts = world.counts
        self._node = node
        self._backend = backend
        self._faults = faults
        self.tasks: set[asyncio.Task[Any]] = set()

    def partitions(self) -> list[TopicPartition]:
        """All current partitions."""
        topics = self._model.see(self._node.metadata)
        return [
            TopicPartition(name, number)
            for name, topic in topics.items()
            for number in range(len(topic.partitions))
        ]

    def check_tasks(self) -> None:
        """Raise the exceptions of finished tasks."""
        for task in [task for task in self.tasks if task.done()]:
            self.tasks.discard(task)
            if not task.cancelled():
                task.result()

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start a request without waiting for the answer."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)
        return task

    @property
    def read_failed(self) -> bool:
        """True after a failed read of the disk."""
        return self._disk.reads >= self._disk.fail_read_at > 0

    def _partition(self, partition: TopicPartition) -> tuple[PartitionId, PartitionModel]:
        topic = self._model.see(self._node.metadata)[partition.topic]
        return PartitionId(topic.topic_id, partition.partition), topic.partitions[partition.partition]

    def _is_deleted(self, partition: PartitionId) -> bool:
        self._model.see(self._node.metadata)
        return self._model.topics.by_id(partition.topic_id).deleted

    # --- records ----------------------------------------------------------------------------------

    def append(
        self, partition: TopicPartition, *, sizes: tuple[int, ...] = (0, 40, 300, 300, 1500, 9000)
    ) -> None:
        """Append a batch of records with values of a random size."""
        id, of = self._partition(partition)
        batch = [self._record(sizes) for _ in range(self._rng.choice((1, 1, 2, 5)))]
        data = build_batch([NewRecord(key, value, (), timestamp_ms) for key, value, timestamp_ms in batch])
        number, expected = of.send(batch, len(data), self._clock.true_ms())
        answered = calling = False

        def done(offset: int, error: BaseException | None) -> None:
            nonlocal answered
            assert not answered, "one append is answered twice"
            answered = True
            if error is None:
                assert not self._faults, "an answer after a fault"
                assert not self._is_deleted(id), f"{partition} was deleted, and is written to"
                assert offset == expected, f"{partition}: appended at {offset}, expected {expected}"
                of.acknowledge(number)
                self._counts["batches"] += 1
            elif isinstance(error, Unavailable):
                assert calling, f"refused after it was accepted: {error!r}"
                of.take_back()
            else:
                assert isinstance(error, UnknownPartition), repr(error)
                assert self._is_deleted(id), f"{partition} is there, and unknown"
                of.answer(number)
                self._counts["appends to deleted topics"] += 1

        calling = True
        self._backend.append(partition, data, len(batch), done)
        calling = False

    def _record(self, sizes: tuple[int, ...]) -> Sent:
        rng = self._rng
        wall_ms = self._clock.wall_ms()
        timestamp_ms = wall_ms
        if rng.random() < 0.05:
            timestamp_ms = rng.choice((wall_ms - 100_000, wall_ms + 100_000, wall_ms + 10**9))
        key = rng.choice((None, b"key"))
        value = None if rng.random() < 0.02 else rng.randbytes(8) + bytes(rng.choice(sizes))
        return Sent(key, value, timestamp_ms)

    async def read_slowly(self, partition: TopicPartition) -> None:
        """Read from a random offset with pauses, while the log is truncated and written and its
        topic perhaps deleted.
        """
        rng = self._rng
        if partition not in self.partitions():
            return
        id, of = self._partition(partition)
        at = rng.randint(of.begin, of.end)
        for _ in range(rng.randint(1, 8)):
            if self._is_deleted(id):
                return
            try:
                at = await self._read_some(partition, id, of, at)
            except OffsetOutOfRange as error:
                if error.begin <= at <= error.end:
                    raise AssertionError(f"offset {at} is refused") from error
                at = error.begin
                self._counts["readers cut off"] += 1
            except UnknownPartition:
                assert self._is_deleted(id), f"{partition} is there, and unknown"
                self._counts["readers of deleted topics"] += 1
                return
            except ShuttingDown:
                return
            except StorageFault:
                assert self.read_failed, "a read has failed without a reason"
                self._counts["failed reads"] += 1
            await asyncio.sleep(rng.choice((0, 0.001, 0.03, 6)))

    async def _read_some(
        self, partition: TopicPartition, id: PartitionId, of: PartitionModel, at: int
    ) -> int:
        rng = self._rng
        promised = of.promised
        result = await self._backend.fetch(
            partition, at, max_bytes=rng.choice((1, 700, 20_000)), max_wait=rng.choice((0, 0, 1, 30))
        )
        self._model.see(self._node.metadata)
        self._model.show_begin(id, result.log_begin_offset)
        of.promised = max(of.promised, result.next_offset)
        records = read_batches(result.batches, at)
        assert result.next_offset == at + len(records)
        assert records or at >= promised, f"nothing at offset {at} of {partition}, {promised} are promised"
        of.check_some(at, records)
        await asyncio.sleep(rng.choice((0, 0.03, 6)))
        assert read_batches(result.batches, at) == records, "what was read has changed"
        return result.next_offset

    # --- consumer groups --------------------------------------------------------------------------

    def commit(self, partition: TopicPartition) -> None:
        """Commit an offset."""
        self.begin(self.commit_now(partition))

    async def commit_now(self, partition: TopicPartition) -> bool:
        """Commit an offset; False if temporarily rejected."""
        group = self._rng.choice(GROUPS)
        if partition not in self.partitions():
            return True
        id, _ = self._partition(partition)
        commit = OffsetCommit(self._rng.randrange(1000), f"{self._rng.getrandbits(32):x}")
        sent_ms = self._clock.true_ms()
        self._model.offsets.send(group, id, commit)
        try:
            await self._backend.commit_offsets(group, {partition: commit})
        except Unavailable:
            self._model.offsets.take_back(group, id, commit)
            return False
        self._model.offsets.acknowledge(group, id, commit, sent_ms)
        self._counts["commits"] += 1
        return True

    def join(self) -> None:
        """Join a consumer group until the end of this life."""
        self.begin(self._join(self._rng.choice(GROUPS)))

    async def _join(self, group: str) -> None:
        offsets = self._model.offsets
        offsets.touch(group)
        try:
            await self._backend.join_consumer_group(group, "client", list(_NAMES), lambda _: None)
        except PixyError:
            offsets.touch(group)
        else:
            offsets.set_members(group, True)

    # --- topics -----------------------------------------------------------------------------------

    def create_topic(self, name: str | None = None) -> None:
        """Create a topic, which may exist."""
        config = self._config() if self._rng.random() < 0.3 else {}
        set_config = {option: value for option, value in config.items() if value is not None}
        self.begin(
            self._change(
                Change("create", name or self._rng.choice(_NAMES), self._rng.randint(1, 3), set_config)
            )
        )

    def alter_topic(self, name: str) -> None:
        """Alter a topic, or try."""
        partitions = self._rng.choice((0, 0, 1, 3, 4))
        self.begin(self._change(Change("alter", name, partitions, self._config())))

    async def alter_now(self, name: str, config: Mapping[str, str | None]) -> bool:
        """Alter options of a topic; False if temporarily rejected."""
        return await self._change(Change("alter", name, 0, config))

    def delete_topic(self, name: str) -> None:
        """Delete a topic; sometimes recreate it at once."""
        self.begin(self.delete_now(name))
        if self._rng.random() < 0.4:
            self.create_topic(name)
            for _ in range(self._rng.randrange(3)):
                self.begin(self._append_if_there(TopicPartition(name, 0)))

    async def delete_now(self, name: str) -> bool:
        """Delete a topic; False if temporarily rejected."""
        return await self._change(Change("delete", name))

    async def _append_if_there(self, partition: TopicPartition) -> None:
        await asyncio.sleep(self._rng.choice((0, 0.0005, 0.01)))
        if partition in self.partitions():
            self.append(partition)
            await self.commit_now(partition)

    def _config(self) -> dict[str, str | None]:
        options = self._rng.sample(sorted(_CONFIG), self._rng.choice((0, 1, 1, 2)))
        return {option: self._rng.choice(_CONFIG[option]) for option in options}

    async def _change(self, change: Change) -> bool:
        if change.what != "create" and self._model.topics.is_creating(change.name):
            return False  # it may be about the topic that had the name before
        self._model.topics.send(change)
        try:
            await self._ask(change)
        except Unavailable:
            self._model.topics.take_back(change)
            return False
        except PixyError as error:
            self._model.topics.answer(change, error)
        else:
            self._model.topics.answer(change, None)
            self._counts[f"topics: {change.what}"] += 1
        return True

    async def _ask(self, change: Change) -> None:
        backend = self._backend
        if change.what == "create":
            config = {option: value for option, value in change.config.items() if value is not None}
            await backend.create_topic(change.name, change.partitions, config)
        elif change.what == "alter":
            await backend.alter_topic(change.name, partitions=change.partitions or None, config=change.config)
        else:
            await backend.delete_topic(change.name, force=True)
