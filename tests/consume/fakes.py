"""An in-memory cluster and a manual clock for the tests of this directory."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pixy.backend import (
    Batch,
    FetchResult,
    OffsetCommit,
    TopicPartition,
)
from pixy.config import ConsumerConfig
from pixy.consume import Consumers, Offer, PendingRequest, Timers
from pixy.errors import PixyError, TopicMissing
from pixy.records import NewRecord, Record, build_batch, patch_batch, read_header, unpack_records
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

    def __init__(self, backend: FakeBackend, **options: Any) -> None:
        self.backend = backend
        self.clock = FakeClock()
        self.faults: list[BaseException] = []
        # Sizes of the batches unpacked on a thread.
        self.unpacked: list[int] = []
        # Topics deleted while requests waited, and the number of partitions to recreate them with;
        # 0: not at all.
        self.missed: list[str] = []
        self.created_again = 0
        self.options = ConsumerConfig(**options)
        self.consumers = self.restarted()

    def restarted(self) -> Consumers:
        """A restarted process with the cluster's data."""
        self.consumers = Consumers(
            self.backend,
            self.options,
            "me",
            Timers(self.clock, self.clock.call_later),
            on_missing=self._missing,
            on_fault=self.faults.append,
            unpack=self._unpack,
        )
        return self.consumers

    async def _unpack(self, batch: Batch) -> Iterator[Record]:
        """Unpacks in place instead of on a thread."""
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
        return self.backend.log(TopicPartition(topic, partition))

    async def consume(
        self, count: int = 1, group: str = "g", topic: str = "t", *, slow: bool = False, **options: Any
    ) -> Answers:
        """Make requests and collect the answers that need no time to pass."""
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
        return self.backend.groups.commits.get(group, {}).get(TopicPartition(topic, partition))
