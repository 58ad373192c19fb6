"""In-memory clusters of one node and of several, and a manual clock, for these tests."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from pixy.backend import (
    Batch,
    FetchResult,
    OffsetCommit,
    TopicPartition,
)
from pixy.config import ConsumerConfig
from pixy.consume import Client, ConsumeRequest, Consumers, Offer, PendingRequest, Timers
from pixy.errors import PixyError, TopicMissing
from pixy.records import NewRecord, UnpackedRecords, build_batch, patch_batch, read_header, unpack_records
from tests.fakes.backend import FakeBackend
from tests.fakes.clock import FakeClock
from tests.fakes.partition_log import FakeLog
from tests.fakes.waiting import settle


def make_batch(base: int, values: Sequence[bytes], key: bytes | None = None) -> bytes:
    """A record batch with consecutive offsets."""
    batch = build_batch([NewRecord(key, value, (), 1_700_000_000_000) for value in values])
    patch_batch(batch, base, 0)
    return bytes(batch)


def fed(
    batches: Sequence[bytes], next_offset: int | None = None, high_watermark: int | None = None
) -> FetchResult:
    """A fetch result."""
    end = next_offset if next_offset is not None else read_header(batches[-1]).next_offset
    return FetchResult(batches, end, 0, high_watermark if high_watermark is not None else end)


class Answers:
    """Collects the answers of consume requests. Offers are delivered at once, except with auto ack,
    and none if `slow`.
    """

    def __init__(self, *, slow: bool = False) -> None:
        self.slow = slow
        self.offers: list[Offer] = []
        self.errors: list[PixyError] = []
        self.waiting: list[PendingRequest] = []

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

    def __init__(
        self,
        backend: FakeBackend,
        *,
        name: str = "me",
        clock: FakeClock | None = None,
        client_share_percent: int = 100,
        **options: Any,
    ) -> None:
        self.backend = backend
        self.name = name
        self.clock = FakeClock() if clock is None else clock
        self.faults: list[BaseException] = []
        # Sizes of the batches unpacked on a thread.
        self.unpacked: list[int] = []
        # Topics deleted while requests waited, and the number of partitions to recreate them with;
        # 0: not at all.
        self.missed: list[str] = []
        self.created_again = 0
        self.options = ConsumerConfig(**options)
        self.client_share_percent = client_share_percent
        self.consumers = self.restarted()

    def restarted(self) -> Consumers:
        """A restarted process with the cluster's data."""
        self.consumers = Consumers(
            self.backend,
            self.options,
            self.name,
            Timers(self.clock, self.clock.call_later),
            on_missing=self._missing,
            on_fault=self.faults.append,
            unpack=self._unpack,
            client_share_percent=self.client_share_percent,
        )
        return self.consumers

    async def kill(self) -> Consumers:
        """End the process at once, and start it again."""
        await self.consumers._environment.tasks.cancel_all()
        self.clock.drop_timers()
        self.backend.groups.end(1)
        return self.restarted()

    async def _unpack(self, batch: Batch, first_offset: int, unpacked_bytes_max: int) -> UnpackedRecords:
        """Unpacks in place instead of on a thread."""
        self.unpacked.append(len(batch))
        await self.backend.step("unpack")
        return unpack_records(batch, unpacked_bytes_max, first_offset=first_offset)

    def _missing(self, topic: str, fail: Callable[[PixyError], None]) -> None:
        self.missed.append(topic)
        if self.created_again:
            asyncio.get_running_loop().call_soon(self.backend.create, topic, self.created_again)
        else:
            fail(TopicMissing(f"topic {topic} does not exist"))

    def log(self, partition: int = 0, topic: str = "t") -> FakeLog:
        return self.backend.log(TopicPartition(topic, partition))

    async def consume(
        self,
        count: int = 1,
        group: str = "g",
        topic: str = "t",
        *,
        slow: bool = False,
        deadline: float | None = None,
        client: Client | None = None,
        **options: Any,
    ) -> Answers:
        """Make requests and collect the answers that need no time to pass."""
        answers = Answers(slow=slow)
        for _ in range(count):
            request = ConsumeRequest(group, topic, **options)
            waits = self.consumers.consume(request, answers, deadline, client)
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
        client: Client | None = None,
    ) -> list[PixyError | None]:
        outcome: list[PixyError | None] = []
        self.consumers.ack(
            group, topic, partition, offset, outcome.append, only_if_offered=only_if_offered, client=client
        )
        await settle()
        return outcome

    async def pass_time(self, seconds: float) -> None:
        await settle()
        self.clock.advance(seconds)
        await settle()

    def handed_out_before(self, end: int, partition: int = 0, group: str = "g", topic: str = "t") -> None:
        """Have an earlier process hand out all records below `end`, and commit no ack."""
        key, state = TopicPartition(topic, partition), self.backend.groups.of(group)
        state.commits[key] = OffsetCommit(0)
        state.handed_out[key] = end

    def committed(self, partition: int = 0, group: str = "g", topic: str = "t") -> OffsetCommit | None:
        return self.backend.groups.commits.get(group, {}).get(TopicPartition(topic, partition))


class Nodes:
    """Consumer groups of several nodes, which share records, groups and a clock.

    Args:
        count: number of nodes, from 1 on.
        partitions: of the topic `t`.
        options: of the section `consumer`.
    """

    def __init__(self, count: int, partitions: int, **options: Any) -> None:
        self.clock = FakeClock()
        first = FakeBackend(topics={"t": partitions})
        backends = [first, *(FakeBackend(node_id=number, beside=first) for number in range(2, count + 1))]
        self.groups, self.links = first.groups, first.links
        self.links.timers = Timers(self.clock, self.clock.call_later)
        self.worlds = {
            number: World(backend, name=f"node-{number}", clock=self.clock, **options)
            for number, backend in enumerate(backends, 1)
        }

    def __getitem__(self, number: int) -> World:
        return self.worlds[number]

    def log(self, partition: int = 0) -> FakeLog:
        return self[1].log(partition)

    async def pass_time(self, seconds: float) -> None:
        """Let time pass in steps that are shorter than the shortest pause of the code."""
        await settle()
        end = self.clock.monotonic() + seconds
        while (left := end - self.clock.monotonic()) > 0:
            self.clock.advance(min(left, 0.01 if seconds < 10 else 0.1))
            await settle(10)
        await settle()

    async def join(self, *numbers: int) -> None:
        """Have nodes consume in group `g`, one after the other, until each owns its share."""
        for number in numbers:
            (waiter,) = (await self[number].consume()).waiting
            waiter.cancel()
            await self.pass_time(0.1)

    def owner(self, partition: int) -> int:
        """The node that owns a partition in group `g`."""
        member = self.groups.owning_member("g", TopicPartition("t", partition))
        assert member is not None
        return member.node_id

    def owned(self, number: int) -> list[int]:
        """Partitions that a node owns in group `g`."""
        member = self.groups.member("g", number)
        return sorted(each.partition for each in member.partitions) if member is not None else []

    def kill(self, number: int) -> None:
        """Lose a node: nobody hears of it any more, and it hears of nobody."""
        self.links.cut(number)
