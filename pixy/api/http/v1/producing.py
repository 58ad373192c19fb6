"""`POST /v1/topics/{topic}/records`: each record is answered, and each succeeds or fails alone.

A record without partition and timestamp is produced as any message. The others are appended in
batches, one for each partition, in the order of the request.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from pixy.aio.futures import resolve
from pixy.aio.steps import in_steps
from pixy.api.http.v1.problems import problem_of
from pixy.api.http.v1.records import GivenRecord, read_record
from pixy.backend import TopicPartition
from pixy.clock import Clock
from pixy.errors import MessageTooLarge, PixyError, TopicMissing, UnknownPartition
from pixy.proxy import PartitionBatches, Proxy
from pixy.records import NewRecord, Partitioner, build_batch
from pixy.web import Exchange, HttpError

__all__ = ["produce_all"]

Result = tuple[int, int] | Exception
"""Partition and offset of a record, -1 and -1 while it has none, or why it was not taken."""


class ProducedRecord:
    """A record whose answer is waited for. It is the caller of its message.

    Attributes:
        peer: address of the client.
        result: None until there is one.
    """

    __slots__ = ("_all_done", "peer", "result")

    def __init__(self, peer: str, all_done: "_AllDone") -> None:
        self.peer = peer
        self.result: Result | None = None
        self._all_done = all_done

    def done(self, result: Result) -> None:
        """Take the result."""
        if self.result is None:
            self.result = result
            self._all_done.count_one()


class _AllDone:
    """Resolves a future when as many results are there as are expected."""

    __slots__ = ("_left", "future")

    def __init__(self, expected: int) -> None:
        self._left = expected
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def count_one(self) -> None:
        """One more is there."""
        self._left -= 1
        if not self._left:
            resolve(self.future, None)


async def produce_all(
    proxy: Proxy,
    topic: str,
    given: Sequence[Any],
    exchange: Exchange,
    *,
    sync: bool,
    clock: Clock,
    partitioner: Partitioner,
) -> list[dict[str, Any]]:
    """Produce records; returns the answer to each."""
    done = _AllDone(len(given))
    records = [ProducedRecord(exchange.peer, done) for _ in given]
    placed: list[tuple[ProducedRecord, GivenRecord]] = []
    async for record, value in in_steps(list(zip(records, given, strict=True))):
        try:
            message = read_record(value)
            if message.partition is not None or message.timestamp_ms is not None:
                placed.append((record, message))
                continue
            proxy.produce(topic, message.key, message.value, message.headers, _produced, record, sync)
        except (PixyError, HttpError) as error:
            record.done(error)
    if placed:
        await _append(proxy, topic, placed, clock, partitioner, exchange.peer)
    await done.future
    return [_answer(record.result) for record in records]


def _produced(
    records: Sequence[ProducedRecord], partition: int, offset: int, error: PixyError | None
) -> None:
    for record in records:
        record.done((partition, offset) if error is None else error)
        offset += offset >= 0


async def _append(
    proxy: Proxy,
    topic: str,
    placed: Sequence[tuple[ProducedRecord, GivenRecord]],
    clock: Clock,
    partitioner: Partitioner,
    peer: str,
) -> None:
    """Append records that name their partition or timestamp."""
    try:
        found = await proxy.log.describe_topics([topic], create_missing=True)
    except PixyError as error:
        for record, _ in placed:
            record.done(error)
        return
    by_partition: dict[int, list[tuple[ProducedRecord, GivenRecord]]] = {}
    for record, message in placed:
        if not found:
            record.done(TopicMissing(f"topic {topic} does not exist"))
            continue
        count = len(found[0].partitions)
        number = partitioner(message.key, count) if message.partition is None else message.partition
        if number >= count:
            record.done(UnknownPartition(f"topic {topic} has {count} partitions, none is {number}"))
        elif len(message.value or b"") + len(message.key or b"") > proxy.log.message_bytes_max:
            record.done(MessageTooLarge(f"the message is larger than {proxy.log.message_bytes_max} bytes"))
        else:
            by_partition.setdefault(number, []).append((record, message))
    for number, entries in by_partition.items():
        await _append_to(proxy, TopicPartition(topic, number), entries, clock.wall_ms(), peer)


async def _append_to(
    proxy: Proxy,
    partition: TopicPartition,
    entries: Sequence[tuple[ProducedRecord, GivenRecord]],
    now_ms: int,
    peer: str,
) -> None:
    """Append records to one partition, in batches that are not too large."""
    largest, at = proxy.log.message_bytes_max, 0
    while at < len(entries):
        end, size = at, 0
        while end < len(entries) and (end == at or size < largest // 2):
            _, message = entries[end]
            size += len(message.value or b"") + len(message.key or b"")
            end += 1
        some, at = entries[at:end], end
        batch = build_batch(
            [
                NewRecord(
                    each.key,
                    each.value,
                    each.headers,
                    now_ms if each.timestamp_ms is None else each.timestamp_ms,
                )
                for _, each in some
            ]
        )
        try:
            (appended,) = await proxy.log.append([PartitionBatches(partition, bytes(batch))], [], peer)
            error: Exception | None = appended.error
            base_offset = appended.base_offset
        except PixyError as refused:
            error, base_offset = refused, -1
        for offset, (record, _) in enumerate(some, base_offset):
            record.done((partition.partition, offset) if error is None else error)


def _answer(result: Result | None) -> dict[str, Any]:
    assert result is not None
    if isinstance(result, Exception):
        return {"error": problem_of(result)}
    partition, offset = result
    return {"partition": partition, "offset": offset} if offset >= 0 else {}
