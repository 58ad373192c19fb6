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
from pixy.errors import InvalidArgument, MessageTooLarge, PixyError, TopicMissing, UnknownPartition
from pixy.proxy import PartitionBatches, Proxy, batch_bytes
from pixy.records import HEADER_BYTES, NewRecord, Partitioner, build_batch
from pixy.web import Exchange, HttpError

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
        await _append(proxy, topic, placed, partitioner, exchange.peer)
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
    partitioner: Partitioner,
    peer: str,
) -> None:
    """Append records that name their partition or timestamp."""
    try:
        found = await proxy.log.describe_topics([topic], create_missing=True, client=peer)
    except PixyError as error:
        for record, _ in placed:
            record.done(error)
        return
    by_partition: dict[int, list[tuple[ProducedRecord, NewRecord]]] = {}
    now_ms = proxy.log.now_ms()
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
            timestamp_ms = now_ms if message.timestamp_ms is None else message.timestamp_ms
            new = NewRecord(message.key, message.value, message.headers, timestamp_ms)
            by_partition.setdefault(number, []).append((record, new))
    for number, entries in by_partition.items():
        await _append_to(proxy, TopicPartition(topic, number), entries, peer)


async def _append_to(
    proxy: Proxy,
    partition: TopicPartition,
    entries: Sequence[tuple[ProducedRecord, NewRecord]],
    peer: str,
) -> None:
    """Append records to one partition, in batches that are not too large."""
    largest, at = proxy.log.message_bytes_max, 0
    while at < len(entries):
        end, size = at, HEADER_BYTES
        while (end < len(entries) and (size := size + batch_bytes(entries[end][1])) <= largest) or end == at:
            end += 1
        some, at = entries[at:end], end
        base_offset, error = await _append_batch(proxy, partition, [each for _, each in some], peer)
        if isinstance(error, InvalidArgument) and len(some) > 1:
            # Perhaps for one of them alone.
            for one in some:
                await _append_to(proxy, partition, [one], peer)
            continue
        for offset, (record, _) in enumerate(some, base_offset):
            record.done((partition.partition, offset) if error is None else error)


async def _append_batch(
    proxy: Proxy, partition: TopicPartition, records: Sequence[NewRecord], peer: str
) -> tuple[int, Exception | None]:
    """Append records as one batch; returns the offset of the first, or why none was taken."""
    batch = build_batch(records)
    try:
        (appended,) = await proxy.log.append([PartitionBatches(partition, bytes(batch))], [], peer)
    except PixyError as refused:
        return -1, refused
    return appended.base_offset, appended.error


def _answer(result: Result | None) -> dict[str, Any]:
    assert result is not None
    if isinstance(result, Exception):
        return {"error": problem_of(result)}
    partition, offset = result
    return {"partition": partition, "offset": offset} if offset >= 0 else {}
