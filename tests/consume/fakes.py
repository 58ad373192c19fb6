"""A cluster in memory and a clock that is moved by hand, for the tests of this folder."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from pixy.backend import (
    Assignment,
    Batch,
    FetchResult,
    OffsetCommit,
    OffsetRange,
    PartitionDescription,
    Published,
    Revocation,
    StagedBatches,
    StageSeal,
    TopicDescription,
    TopicPartition,
)
from pixy.config import ConsumerConfig
from pixy.consume import Cancellable, Consumers, Offer
from pixy.errors import OffsetOutOfRange, PixyError, TopicMissing, UnknownPartition, UnknownTopic
from pixy.records import NewRecord, Record, build_batch, patch_batch, read_header, unpack_records
from tests.fakes.clock import FakeClock
from tests.fakes.waiting import settle


def make_batch(base: int, values: Sequence[bytes], key: bytes | None = None) -> bytes:
    """A record batch with consecutive offsets."""
    batch = build_batch([NewRecord(key, value, (), 1_700_000_000_000) for value in values])
    patch_batch(batch, base, 0)
    return bytes(batch)


def fed(
    batches: Sequence[bytes], next_offset: int | None = None, high_watermark: int | None = None
) -> FetchResult:
    """What a fetch answers."""
    end = next_offset if next_offset is not None else read_header(batches[-1]).next_offset
    return FetchResult(batches, end, 0, high_watermark if high_watermark is not None else end)


@dataclass
class FakeLog:
    """One partition."""

    begin: int = 0
    end: int = 0
    batches: list[bytes] = field(default_factory=list)
    deleted: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def append(self, *values: bytes) -> int:
        base = self.end
        self.batches.append(make_batch(base, values))
        self.end += len(values)
        self.changed.set()
        return base

    def move_begin(self, begin: int) -> None:
        """What retention does."""
        self.begin = begin
        self.batches = [batch for batch in self.batches if read_header(batch).next_offset > begin]

    def gap(self, offsets: int) -> None:
        """Offsets without a record."""
        self.end += offsets
        self.changed.set()


class FakeMembership:
    def __init__(
        self,
        backend: "FakeBackend",
        group: str,
        on_assignment: Assignment,
        on_revocation: Revocation | None,
    ) -> None:
        self.backend = backend
        self.group = group
        self.topics: list[str] = []
        self.on_assignment = on_assignment
        self.on_revocation = on_revocation

    async def subscribe(self, topics: Sequence[str]) -> None:
        await self.backend.step("subscribe")
        self.topics = list(topics)
        self.backend.events.append(("subscribe", self.group, *topics))
        self.backend.assign(self.group)

    async def leave(self) -> None:
        await self.backend.step("leave")
        self.backend.events.append(("leave", self.group))
        del self.backend.members[self.group]


class FakeBackend:
    """Topics in memory. Any call can be made to fail (`failures`) or to hang (`gates`), by name."""

    def __init__(self, **topics: int) -> None:
        self.logs: dict[str, list[FakeLog]] = {}
        self.topic_ids: dict[str, bytes] = {}
        self._ids = count(1)
        self.commits: dict[str, dict[TopicPartition, OffsetCommit]] = {}
        self.members: dict[str, FakeMembership] = {}
        self.events: list[tuple[str, ...]] = []
        self.commit_calls: list[dict[TopicPartition, OffsetCommit]] = []
        self.withheld: set[TopicPartition] = set()
        # Who has partitions that this process has not.
        self.owners: dict[TopicPartition, str] = {}
        # Partitions that are assigned, and not told of otherwise.
        self.unready: set[TopicPartition] = set()
        self.failures: dict[str, PixyError] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.fetches = 0
        self.fetched: list[tuple[TopicPartition, int, int]] = []
        self.progress = asyncio.Event()
        for name, partitions in topics.items():
            self.create(name, partitions)

    def create(self, name: str, partitions: int) -> None:
        """Create a topic, and say so by the assignment callbacks."""
        self.logs[name] = [FakeLog() for _ in range(partitions)]
        self.topic_ids[name] = next(self._ids).to_bytes(16, "big")
        self.assign_all()

    def grow(self, name: str, partitions: int) -> None:
        self.logs[name] += [FakeLog() for _ in range(partitions - len(self.logs[name]))]
        self.assign_all()

    def delete(self, name: str, *, silently: bool = False) -> None:
        """Delete a topic. `silently`: the assignment callbacks are late."""
        for log in self.logs.pop(name):
            log.deleted = True
            log.changed.set()
        for commits in self.commits.values():
            for key in [key for key in commits if key.topic == name]:
                del commits[key]
        if not silently:
            self.assign_all()

    def assign_all(self) -> None:
        for group in list(self.members):
            self.assign(group)

    async def step(self, name: str) -> None:
        self.progress.set()
        if name in self.gates:
            await self.gates[name].wait()
        if name in self.failures:
            raise self.failures[name]

    def assign(self, group: str) -> None:
        """Give a member what is not withheld; topics of which it has nothing are not named, as with Kafka."""
        member = self.members[group]
        assigned = {
            topic: [p for p in range(len(self.logs[topic])) if TopicPartition(topic, p) not in self.withheld]
            for topic in member.topics
            if topic in self.logs
        }
        member.on_assignment({topic: partitions for topic, partitions in assigned.items() if partitions})

    async def rebalance(self, group: str, seconds: float = 10.0) -> None:
        """Assign again, with the step before it in which the member settles what it has."""
        on_revocation = self.members[group].on_revocation
        assert on_revocation is not None
        await on_revocation(seconds)
        self.assign(group)

    def topic(self, name: str) -> TopicDescription | None:
        if name not in self.logs:
            return None
        partitions = tuple(PartitionDescription(p, 1, (1,), (1,)) for p in range(len(self.logs[name])))
        return TopicDescription(name, self.topic_ids[name], 1, {}, partitions)

    async def fetch(
        self, partition: TopicPartition, offset: int, *, max_bytes: int, max_wait: float | None = None
    ) -> FetchResult:
        self.fetches += 1
        self.fetched.append((partition, offset, max_bytes))
        await self.step("fetch")
        log = self._log(partition)
        while True:
            if log.deleted:
                raise UnknownPartition(f"{partition} was deleted")
            if not log.begin <= offset <= log.end:
                raise OffsetOutOfRange(f"{offset} is not in {log.begin}..{log.end}", log.begin, log.end)
            if offset < log.end or max_wait == 0:
                break
            log.changed.clear()
            await log.changed.wait()
        batches: list[bytes] = []
        size = 0
        for batch in log.batches:
            if read_header(batch).next_offset <= offset:
                continue
            if batches and size + len(batch) > max_bytes:
                return FetchResult(batches, read_header(batches[-1]).next_offset, log.begin, log.end)
            batches.append(batch)
            size += len(batch)
        return FetchResult(batches, log.end, log.begin, log.end)

    async def offset_ranges(self, topic: str) -> Mapping[int, OffsetRange]:
        await self.step("offset_ranges")
        if topic not in self.logs:
            raise UnknownTopic(f"unknown topic {topic}")
        return {
            p: OffsetRange(log.begin, log.end)
            for p, log in enumerate(self.logs[topic])
            if TopicPartition(topic, p) not in self.unready
        }

    async def join_consumer_group(
        self,
        group: str,
        client_id: str,
        topics: Sequence[str],
        on_assignment: Assignment,
        on_revocation: Revocation | None = None,
    ) -> FakeMembership:
        await self.step("join")
        self.events.append(("join", group, *topics))
        member = self.members[group] = FakeMembership(self, group, on_assignment, on_revocation)
        member.topics = list(topics)
        self.assign(group)
        return member

    async def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetCommit]) -> None:
        self.commit_calls.append(dict(offsets))
        await self.step("commit")
        for key in offsets:
            self._log(key)
        self.commits.setdefault(group, {}).update(offsets)
        self.events.append(("commit", group))

    async def committed_offsets(self, group: str, topic: str) -> Mapping[int, OffsetCommit]:
        await self.step("committed")
        return {
            key.partition: commit for key, commit in self.commits.get(group, {}).items() if key.topic == topic
        }

    async def partition_owner(self, group: str, partition: TopicPartition) -> str | None:
        await self.step("owner")
        return self.owners.get(partition)

    def _log(self, partition: TopicPartition) -> FakeLog:
        logs = self.logs.get(partition.topic, [])
        if partition.partition >= len(logs):
            raise UnknownPartition(f"unknown partition {partition.partition} of topic {partition.topic}")
        return logs[partition.partition]

    # --- not of interest here ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError

    async def describe_topic(self, name: str) -> TopicDescription:
        raise NotImplementedError

    async def list_topics(self) -> Sequence[TopicDescription]:
        raise NotImplementedError

    async def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None
    ) -> TopicDescription:
        raise NotImplementedError

    async def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        config: Mapping[str, str | None] | None = None,
    ) -> TopicDescription:
        raise NotImplementedError

    async def delete_topic(self, name: str, *, force: bool = False) -> None:
        raise NotImplementedError

    async def stage(
        self,
        sink_id: str,
        stage_id: str,
        piece: int,
        batches: Sequence[StagedBatches],
        seal: StageSeal | None = None,
    ) -> int:
        raise NotImplementedError

    async def publish(
        self,
        sink_id: str,
        epoch: int,
        query_id: str,
        stage_ids: Sequence[str],
        *,
        reset: bool = False,
        replaces: str = "",
    ) -> Published:
        raise NotImplementedError

    async def discard(self, sink_id: str, stage_ids: Sequence[str]) -> None:
        raise NotImplementedError

    def append(
        self,
        partition: TopicPartition,
        batch: bytearray,
        records: int,
        done: Callable[[int, PixyError | None], None],
        age_s: float = 0.0,
    ) -> None:
        raise NotImplementedError

    async def offset_for_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> int | None:
        raise NotImplementedError

    async def list_consumers(self, topic: str) -> Mapping[str, Mapping[str, Sequence[int]]]:
        raise NotImplementedError

    async def consumer_group_exists(self, group: str) -> bool:
        raise NotImplementedError


class Answers:
    """Collects what consume requests are answered. Offers are delivered at once, except those that are acked by that, and all if `slow`."""

    def __init__(self, *, slow: bool = False) -> None:
        self.slow = slow
        self.offers: list[Offer] = []
        self.errors: list[PixyError] = []
        self.waiting: list[Cancellable] = []

    def __call__(self, offer: Offer | None, error: PixyError | None) -> None:
        if offer is not None:
            assert error is None
            self.offers.append(offer)
            if not self.slow and not offer.auto_ack:
                offer.delivered()
        else:
            assert error is not None
            self.errors.append(error)

    @property
    def values(self) -> list[bytes | None]:
        return [offer.record.value for offer in self.offers]

    @property
    def offsets(self) -> list[int]:
        return [offer.record.offset for offer in self.offers]


class World:
    """All consumer groups of one proxy, on a fake cluster and a fake clock."""

    def __init__(self, backend: FakeBackend, **options: Any) -> None:
        self.backend = backend
        self.clock = FakeClock()
        self.faults: list[BaseException] = []
        # The sizes of the batches that were unpacked on a thread.
        self.unpacked: list[int] = []
        # The topics that were deleted while somebody waited; with how many partitions they are created again, 0: not at all.
        self.missed: list[str] = []
        self.created_again = 0
        self.options = ConsumerConfig(**options)
        self.consumers = self.restarted()

    def restarted(self) -> Consumers:
        """A process that starts with what the cluster has."""
        self.consumers = Consumers(
            self.backend,
            self.options,
            "me",
            self.clock,
            on_missing=self._missing,
            on_fault=self.faults.append,
            call_later=self.clock.call_later,
            unpack=self._unpack,
        )
        return self.consumers

    async def _unpack(self, batch: Batch) -> Iterator[Record]:
        """In place, instead of on a thread."""
        self.unpacked.append(len(batch))
        await self.backend.step("unpack")
        return unpack_records(batch)

    def _missing(self, topic: str, fail: Callable[[PixyError], None]) -> None:
        self.missed.append(topic)
        if self.created_again:
            asyncio.get_running_loop().call_soon(self.backend.create, topic, self.created_again)
        else:
            fail(TopicMissing(f"topic {topic} does not exist"))

    def log(self, partition: int = 0, topic: str = "t") -> FakeLog:
        return self.backend.logs[topic][partition]

    async def consume(
        self, count: int = 1, group: str = "g", topic: str = "t", *, slow: bool = False, **options: Any
    ) -> Answers:
        """Make requests and let the answers come that come without time passing."""
        answers = Answers(slow=slow)
        for _ in range(count):
            waits = self.consumers.consume(group, topic, answers, **options)
            if waits is not None:
                answers.waiting.append(waits)
            options.pop("ack", None)
        await settle()
        return answers

    async def ack(
        self,
        partition: int,
        offset: int,
        group: str = "g",
        topic: str = "t",
        *,
        only_if_offered: bool = False,
    ) -> list[PixyError | None]:
        outcome: list[PixyError | None] = []
        self.consumers.ack(group, topic, partition, offset, outcome.append, only_if_offered=only_if_offered)
        await settle()
        return outcome

    async def pass_time(self, seconds: float) -> None:
        await settle()
        self.clock.advance(seconds)
        await settle()

    def committed(self, partition: int = 0, group: str = "g", topic: str = "t") -> OffsetCommit | None:
        return self.backend.commits.get(group, {}).get(TopicPartition(topic, partition))
