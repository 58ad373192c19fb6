"""Nodes for tests: on an in-memory disk, without threads, with small files, and their contents as
plain values.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, ClassVar
from unittest.mock import patch

from pixy.cluster import GroupMember, MemberId, Node, NodeOptions, Topic, member_message
from pixy.config import JournalConfig, StorageConfig
from pixy.errors import PixyError
from pixy.proto.state_pb2 import CommitOffsets, CommittedOffset, GroupsCommand, JoinGroup
from pixy.records import NewRecord, TopicPartition, build_batch, read_records
from pixy.storage import MakeWorker, WriterPace
from tests.fakes.clock import FakeClock
from tests.fakes.disk import RecordingDisk
from tests.fakes.worker import InlineWorker

_LIVES = count()
"""Makes the ids of every process distinct."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Options of a node by which files and buffers become full, with values for small tests."""

    file_bytes: int = 4096
    max_unapplied_bytes: int = 1 << 20
    segment_bytes: int = 2000
    tail_cache_bytes: int = 1 << 20
    checkpoint_entries: int = 10_000
    reserve_bytes: int = 0


class Cluster:
    """One node, and shortcuts for tests.

    Args:
        directory: its data directory.
        sizes: its sizes.
        seed: of its random bytes.
        storage: further options of the section `storage`.
        disk, clock, worker: fakes, if others than usual.

    Attributes:
        pace: pace of the log writers of all nodes made here.
    """

    pace: ClassVar[WriterPace] = WriterPace()

    def __init__(
        self,
        directory: Path,
        sizes: Sizes | None = None,
        *,
        seed: int = 1,
        storage: Mapping[str, Any] | None = None,
        disk: RecordingDisk | None = None,
        clock: FakeClock | None = None,
        worker: MakeWorker = InlineWorker,
    ) -> None:
        self.directory = directory
        self.disk = disk or RecordingDisk()
        self.clock = clock or FakeClock()
        self.faults: list[BaseException] = []
        sizes = sizes or Sizes()
        options = NodeOptions(
            directory,
            JournalConfig(file_bytes=sizes.file_bytes, max_unapplied_bytes=sizes.max_unapplied_bytes),
            StorageConfig(
                segment_bytes=sizes.segment_bytes,
                tail_cache_bytes=sizes.tail_cache_bytes,
                checkpoint_entries=sizes.checkpoint_entries,
                reserve_bytes=sizes.reserve_bytes,
                **(storage or {}),
            ),
            Random(f"{seed} {next(_LIVES)}").randbytes,
            worker,
            writer_pace=self.pace,
        )
        self.node = Node(self.disk, self.clock, options, self.faults.append)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Cluster"]:
        await self.node.start()
        try:
            yield self
        finally:
            await self.node.stop()
            assert self.faults == []

    async def create_topic(self, name: str = "topic", partitions: int = 1) -> Topic:
        return await self.node.commands.create_topic(name, partitions, {})

    def append_nowait(self, value: bytes, topic: str = "topic", partition: int = 0) -> asyncio.Future[int]:
        replica = self.node.partition(TopicPartition(topic, partition))
        assert replica is not None
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        batch = build_batch([NewRecord(None, value, (), self.clock.wall_ms())])

        def done(result: int | PixyError) -> None:
            if isinstance(result, PixyError):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        self.node.propose_batch(replica, batch, done)
        return answer

    async def append(self, *values: bytes, topic: str = "topic", partition: int = 0) -> None:
        for value in values:
            await self.append_nowait(value, topic, partition)

    async def commit(
        self, offset: int, group: str = "group", topic: str = "topic", partition: int = 0
    ) -> None:
        topic_id = self.node.metadata.topics[topic].topic_id
        await self.node.commands.change_group(
            group, commit_command(offset, group, topic, partition, self.clock.wall_ms(), topic_id)
        )

    async def join(self, group: str, *topics: str, member_id: MemberId | None = None) -> MemberId:
        """Have a member join a consumer group, of this process if no other one is given."""
        member_id = member_id or MemberId(self.node.node_id, self.node.incarnation, next(_LIVES))
        message = member_message(member_id, GroupMember("client", topics))
        command = JoinGroup(group=group, member=message, timestamp_ms=self.clock.wall_ms())
        await self.node.commands.change_group(group, GroupsCommand(join_group=command).SerializeToString())
        return member_id

    def committed(self, group: str = "group", topic: str = "topic") -> dict[int, int]:
        known = self.node.metadata.topics.get(topic)
        stored = (
            {} if known is None else self.node.state_groups.offsets_of(group).committed(group, known.topic_id)
        )
        return {partition: commit.offset for partition, commit in stored.items()}

    def values(self, topic: str = "topic", partition: int = 0) -> list[bytes]:
        """All records of a partition, from memory or disk; proves that offsets have no gaps."""
        replica = self.node.partition(TopicPartition(topic, partition))
        assert replica is not None
        values: list[bytes] = []
        while len(values) < replica.log.end_offset:
            chunk = replica.log.read_memory(len(values), 1000) or replica.log.read(len(values), 1000)
            for batch in chunk.batches:
                for record in read_records(batch):
                    assert record.offset == len(values)
                    values.append(record.value or b"")
        return values

    async def sync(self) -> None:
        """Write and sync all segments, and let the journal release files accordingly."""
        await self.node._log.writer.flush()
        await self.settle()

    async def settle(self) -> None:
        """Wait until all work in progress has ended."""
        for _ in range(30):
            await asyncio.sleep(0)
            await self.node._log.journal.drained()

    def journal_files(self) -> list[str]:
        return sorted(path.name for path in (self.directory / "journal").iterdir())

    def checkpoints(self, name: str) -> list[Path]:
        return sorted((self.directory / "state" / name).glob("*.checkpoint"))


def commit_command(
    offset: int, group: str, topic: str, partition: int, timestamp_ms: int = 0, topic_id: bytes = b""
) -> bytes:
    """A commit of an offset; without an id, the topic's name is its id."""
    committed = CommittedOffset(
        topic=topic,
        topic_id=topic_id or topic.encode(),
        partition=partition,
        offset=offset,
        metadata=f"m{offset}",
    )
    command = CommitOffsets(group=group, offsets=[committed], timestamp_ms=timestamp_ms)
    return GroupsCommand(commit_offsets=command).SerializeToString()


def copy_of(directory: Path, name: str) -> Path:
    """A copy of the data directory, as if the process were killed at this moment."""
    return shutil.copytree(directory, directory.with_name(name))


@contextmanager
def prompt_writer() -> Iterator[None]:
    """A log writer pace without batching that syncs as soon as it is idle."""
    with patch.object(Cluster, "pace", replace(Cluster.pace, gather_s=0, sync_after_s=0)):
        yield
