"""`GET /v1/topics/{topic}/peek`: stored records without a consumer group.

The batches of each partition are read as for Fetch; their records are decoded and written as JSON
on a thread.
"""

import asyncio
from collections.abc import Sequence

from pixy.api.http.v1.records import encode, record_json
from pixy.backend import Batch, TopicPartition
from pixy.errors import UnknownPartition, UnknownTopic
from pixy.proxy import OffsetPosition, OffsetQuery, Proxy, Range, RangeState
from pixy.records import read_records

_READ_BYTES = 1 << 20
_SHOWN_BYTES = 1 << 20
"""Bytes of JSON after which no further record is shown: a byte of a value may be six."""


async def peek(
    proxy: Proxy,
    topic: str,
    partition: int | None,
    offset: int,
    records_max: int,
    peer: str,
    *,
    is_base64: bool,
) -> list[bytes]:
    """Records from an offset on, of one partition or of each, as JSON.

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
    shown = _Shown(records_max, is_base64=is_base64)
    with proxy.log.fetches.holding(1, peer):
        places = [
            TopicPartition(topic, each) for each in (range(count) if partition is None else [partition])
        ]
        positions = (OffsetPosition.EARLIEST, OffsetPosition.LATEST)
        offsets = await proxy.log.list_offsets([OffsetQuery(each, at) for at in positions for each in places])
        for place, begin, end in zip(places, offsets[: len(places)], offsets[len(places) :], strict=True):
            if shown.is_full:
                break
            if begin is not None and end is not None:
                await _peek_in(proxy, place, max(begin, offset if offset >= 0 else end + offset), end, shown)
    return shown.records


class _Shown:
    """Records that are shown, bounded in number and in bytes.

    Attributes:
        records: as JSON.
    """

    def __init__(self, records_max: int, *, is_base64: bool) -> None:
        self._records_max = records_max
        self._is_base64 = is_base64
        self._bytes = 0
        self.records: list[bytes] = []

    @property
    def is_full(self) -> bool:
        """True if there are as many as may be."""
        return len(self.records) >= self._records_max or self._bytes >= _SHOWN_BYTES

    def add(self, batches: Sequence[Batch], partition: int, first: int, end: int) -> None:
        """Add the records of batches from `first` on, before `end`. Runs on a thread."""
        for batch in batches:
            for record in read_records(batch, first_offset=first):
                if self.is_full or record.offset >= end:
                    return
                if record.offset >= first:
                    line = encode(record_json(record, partition, is_base64=self._is_base64))
                    self._bytes += len(line)
                    self.records.append(line)


async def _peek_in(proxy: Proxy, place: TopicPartition, first: int, end: int, shown: _Shown) -> None:
    if first >= end:
        return
    for reader in await proxy.log.readers([Range(place, first, end)], max_bytes=_READ_BYTES, max_wait=0):
        state = RangeState.MORE
        while state is RangeState.MORE and not shown.is_full:
            await reader.wait()
            fetched = await reader.read()
            state = fetched.state
            await asyncio.to_thread(shown.add, fetched.batches, place.partition, first, end)
