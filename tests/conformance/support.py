"""Shared parts of the conformance tests: batches, awaitable appends, awaitable assignments."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from pixy.backend import Backend, FetchResult, TopicPartition
from pixy.errors import PixyError
from pixy.records import NewRecord, Record, build_batch, read_records

PATIENCE = 60.0
"""Timeout of waits for required events, in seconds."""


def make_batch(*values: bytes, timestamp_ms: int = 1000) -> bytearray:
    """A batch of one record per value, with timestamps 1 ms apart."""
    return build_batch([NewRecord(b"key", value, [], timestamp_ms + at) for at, value in enumerate(values)])


def append_nowait(
    backend: Backend, partition: TopicPartition, *values: bytes, timestamp_ms: int = 1000
) -> asyncio.Future[int]:
    """Append one batch; the result is its first offset. A second answer fails the test through the
    event loop.
    """
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def done(offset: int, error: PixyError | None) -> None:
        if error is None:
            answer.set_result(offset)
        else:
            assert offset == -1
            answer.set_exception(error)

    backend.append(partition, make_batch(*values, timestamp_ms=timestamp_ms), len(values), done)
    return answer


async def append(
    backend: Backend, partition: TopicPartition, *values: bytes, timestamp_ms: int = 1000
) -> int:
    """Append one batch and wait until it is durable."""
    async with asyncio.timeout(PATIENCE):
        return await append_nowait(backend, partition, *values, timestamp_ms=timestamp_ms)


async def error_of(call: Awaitable[Any]) -> PixyError | None:
    """The error of a call."""
    try:
        async with asyncio.timeout(PATIENCE):
            await call
    except PixyError as error:
        return error
    return None


async def fetch_now(
    backend: Backend, partition: TopicPartition, offset: int, max_bytes: int = 1 << 20
) -> FetchResult:
    """Fetch existing records without waiting."""
    async with asyncio.timeout(PATIENCE):
        return await backend.fetch(partition, offset, max_bytes=max_bytes, max_wait=0)


def _records(result: FetchResult) -> list[Record]:
    return [record for batch in result.batches for record in read_records(batch)]


def values(result: FetchResult) -> list[bytes | None]:
    return [record.value for record in _records(result)]


def offsets(result: FetchResult) -> list[int]:
    return [record.offset for record in _records(result)]


class Assignments:
    """An assignment callback that records assignments and can be awaited."""

    def __init__(self) -> None:
        self.calls: list[dict[str, list[int]]] = []
        self._changed = asyncio.Event()

    def __call__(self, assigned: Mapping[str, Sequence[int]]) -> None:
        self.calls.append({topic: list(partitions) for topic, partitions in assigned.items()})
        self._changed.set()

    @property
    def last(self) -> dict[str, list[int]] | None:
        """The newest assignment, without topics without partitions."""
        if not self.calls:
            return None
        return {topic: partitions for topic, partitions in self.calls[-1].items() if partitions}

    async def wait(self, expected: Mapping[str, Sequence[int]]) -> None:
        """Return when the newest assignment is `expected`."""
        await self.wait_until(lambda last: last == expected)

    async def wait_until(self, holds: Callable[[dict[str, list[int]]], bool]) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while self.last is None or not holds(self.last):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"assignments so far: {self.calls}") from None
