"""Shared parts of the tests of the producer's buffer: accumulators on an in-memory cluster,
records, answers.
"""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

from pixy.backend import TopicPartition
from pixy.config import ProducerConfig
from pixy.errors import PixyError
from pixy.faults import OnFault
from pixy.proxy.accumulator import Accumulators
from pixy.records import make_partitioner, read_records
from tests.fakes.backend import FakeBackend
from tests.fakes.clock import FakeClock

TOPIC = "letters"


class Answers:
    """Collects the calls of `done` in order, one entry per answered caller."""

    def __init__(self) -> None:
        self.all: list[tuple[int, int, PixyError | None]] = []
        self._arrived = asyncio.Event()

    def __call__(self, waiters: Sequence[Any], partition: int, offset: int, error: PixyError | None) -> None:
        step = 1 if offset >= 0 else 0
        self.all += [(partition, offset + step * at, error) for at in range(len(waiters))]
        self._arrived.set()

    async def wait(self, count: int) -> None:
        while len(self.all) < count:
            self._arrived.clear()
            await self._arrived.wait()


def _raise(error: BaseException) -> None:
    raise AssertionError("a bug") from error


async def make(
    options: ProducerConfig | None = None,
    partitions: int = 1,
    clock: FakeClock | None = None,
    on_fault: OnFault = _raise,
) -> tuple[Accumulators, FakeBackend, Answers]:
    backend = FakeBackend()
    await backend.start()
    await backend.create_topic(TOPIC, partitions)
    options = options or ProducerConfig()
    partitioner = make_partitioner(options.partitioner, Random(1))
    return Accumulators(backend, options, partitioner, clock or FakeClock(), on_fault), backend, Answers()


def append(
    accumulators: Accumulators,
    value: bytes,
    answers: Answers,
    *,
    key: bytes | None = b"k",
    sync: bool = True,
    topic: str = TOPIC,
) -> object:
    description = accumulators._backend.topic(topic)
    assert description is not None
    return accumulators.append(description, key, value, (), len(value) + len(key or b""), answers, None, sync)


async def batches(backend: FakeBackend, partition: int = 0) -> list[list[bytes | None]]:
    fetched = await backend.fetch(TopicPartition(TOPIC, partition), 0, max_bytes=1 << 30, max_wait=0)
    return [[record.value for record in read_records(batch)] for batch in fetched.batches]


def flat(batched: list[list[bytes | None]]) -> list[bytes | None]:
    return [value for batch in batched for value in batch]
