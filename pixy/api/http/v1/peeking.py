"""`GET /v1/topics/{topic}/peek`: stored records without a consumer group.

The batches of each partition are read as for Fetch, and decoded on a thread.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from pixy.api.http.v1.records import record_json
from pixy.backend import Batch, TopicPartition
from pixy.errors import UnknownPartition, UnknownTopic
from pixy.proxy import OffsetPosition, OffsetQuery, Proxy, Range, RangeState
from pixy.records import read_records

__all__ = ["peek"]

_READ_BYTES = 1 << 20


async def peek(
    proxy: Proxy,
    topic: str,
    partition: int | None,
    offset: int,
    records_max: int,
    peer: str,
    *,
    is_base64: bool,
) -> list[dict[str, Any]]:
    """Records from an offset on, of one partition or of each.

    Args:
        offset: below 0, that many before the end.
        records_max: of all partitions together.

    Raises:
        UnknownTopic, UnknownPartition, CorruptData, Unavailable.
    """
    found = await proxy.log.describe_topics([topic], create_missing=False)
    if not found:
        raise UnknownTopic(f"topic {topic} does not exist")
    count = len(found[0].partitions)
    if partition is not None and partition >= count:
        raise UnknownPartition(f"topic {topic} has {count} partitions, none is {partition}")
    shown: list[dict[str, Any]] = []
    with proxy.log.fetches.holding(1, peer):
        for number in range(count) if partition is None else [partition]:
            if len(shown) < records_max:
                place = TopicPartition(topic, number)
                shown += await _peek_in(proxy, place, offset, records_max - len(shown), is_base64)
    return shown


async def _peek_in(
    proxy: Proxy, place: TopicPartition, offset: int, most: int, is_base64: bool
) -> list[dict[str, Any]]:
    queries = [OffsetQuery(place, OffsetPosition.EARLIEST), OffsetQuery(place, OffsetPosition.LATEST)]
    begin, end = await proxy.log.list_offsets(queries)
    if begin is None or end is None:
        raise UnknownPartition(f"topic {place.topic} has no partition {place.partition}")
    first = max(begin, offset if offset >= 0 else end + offset)
    shown: list[dict[str, Any]] = []
    if first >= end:
        return shown
    readers = await proxy.log.readers([Range(place, first, end)], max_bytes=_READ_BYTES, max_wait=0)
    for reader in readers:
        state = RangeState.MORE
        while state is RangeState.MORE and len(shown) < most:
            await reader.wait()
            fetched = await reader.read()
            state, left = fetched.state, most - len(shown)
            shown += await asyncio.to_thread(
                _decode, fetched.batches, place.partition, first, end, left, is_base64
            )
    return shown


def _decode(
    batches: Sequence[Batch], partition: int, first: int, end: int, most: int, is_base64: bool
) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = []
    for batch in batches:
        for record in read_records(batch, first_offset=first):
            if len(shown) >= most or record.offset >= end:
                return shown
            if record.offset >= first:
                shown.append(record_json(record, partition, is_base64=is_base64))
    return shown
