"""A partition of the in-memory cluster: record batches, gaps and simulated incidents."""

import asyncio

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from pixy.backend import Batch, FetchResult, TopicPartition
from pixy.errors import CorruptData, OffsetOutOfRange, PixyError, UnknownPartition
from pixy.records import (
    NewRecord,
    build_batch,
    check_batch,
    crc32c,
    patch_batch,
    read_header,
    read_records,
)

_TIMESTAMP_MS = 1_700_000_000_000
_LEADER_EPOCH = 3
"""Not the default of a built batch, so that an unpatched batch is noticed."""


class FakeLog:
    """One partition: batches in offset order, possibly with gaps."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.batches: list[Batch] = []
        self.begin = 0
        # Log end offset. Invariant: >= the next offset of the last batch.
        self.end = 0
        self.waiters: set[asyncio.Future[None]] = set()
        # Error for every append and fetch: the topic was deleted, or the partition is damaged.
        self.refusal: PixyError | None = None

    def append(self, *values: bytes) -> int:
        """Store records with these values as one batch; returns the first offset."""
        return self.append_batch(build_batch([NewRecord(None, value, (), _TIMESTAMP_MS) for value in values]))

    def append_batch(self, batch: bytearray) -> int:
        """Patch and store a batch; returns its first offset."""
        base_offset = self.end
        patch_batch(batch, base_offset, _LEADER_EPOCH)
        self.batches.append(batch)
        self.end = read_header(batch).next_offset
        self.wake()
        return base_offset

    def refuse(self, error: PixyError) -> None:
        """Answer everything with an error from here on, including pending fetches."""
        self.refusal = error
        self.wake()

    def delete(self) -> None:
        """The topic was deleted."""
        topic, number = self.partition
        self.refuse(UnknownPartition(f"unknown partition {number} of topic {topic}: the topic was deleted"))

    def wake(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def check(self, offset: int) -> None:
        """Raise the error for a fetch from `offset`, if it cannot be served."""
        if self.refusal is not None:
            raise self.refusal
        if not self.begin <= offset <= self.end:
            raise OffsetOutOfRange(
                f"offset {offset} of {self.partition.topic}-{self.partition.partition} is out of range: "
                f"{self.begin} to {self.end} are served",
                self.begin,
                self.end,
            )

    async def wait(self) -> None:
        """Return after the next change."""
        waiter = asyncio.get_running_loop().create_future()
        self.waiters.add(waiter)
        try:
            await waiter
        finally:
            self.waiters.discard(waiter)

    def read(self, offset: int, max_bytes: int) -> FetchResult:
        self.check(offset)
        found: list[Batch] = []
        size = 0
        # Without any batch left, everything up to the end is a gap, which is skipped at once.
        next_offset = self.end
        for batch in self.batches:
            if read_header(batch).next_offset <= offset:
                continue
            if found and size + len(batch) > max_bytes:
                break
            try:
                check_batch(batch)
            except CorruptData:
                if found:
                    break
                raise
            found.append(memoryview(batch).toreadonly())
            size += len(batch)
            next_offset = read_header(batch).next_offset
        return FetchResult(found, next_offset, self.begin, self.end)

    def find_timestamp(self, timestamp_ms: int) -> int | None:
        for batch in self.batches:
            for record in read_records(batch):
                if record.offset >= self.begin and record.timestamp >= timestamp_ms:
                    return record.offset
        return None

    # --- incidents -------------------------------------------------------------------------------

    def add_gap(self, offsets: int) -> None:
        self.end += offsets
        self.wake()

    def compact(self, offsets: set[int]) -> None:
        kept = [_without(batch, offsets) for batch in self.batches]
        self.batches = [batch for batch in kept if batch is not None]

    def move_begin(self, begin: int) -> None:
        assert self.begin <= begin <= self.end, f"{begin} is not in {self.begin} .. {self.end}"
        self.begin = begin
        self.batches = [batch for batch in self.batches if read_header(batch).next_offset > begin]
        self.wake()

    def corrupt(self, offset: int) -> None:
        for batch in self.batches:
            if read_header(batch).base_offset <= offset < read_header(batch).next_offset:
                assert isinstance(batch, bytearray)
                batch[-1] ^= 0xFF
                return
        raise AssertionError(f"no batch holds offset {offset}")


def _without(batch: Batch, removed: set[int]) -> Batch | None:
    """The batch without the records at these offsets, None if no record is left."""
    header = read_header(batch)
    records = list(read_records(batch))
    kept = [record for record in records if record.offset not in removed]
    if len(kept) == len(records):
        return batch
    if not kept:
        return None
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 2**31 - 1)
    for record in kept:
        delta = record.offset - header.base_offset
        builder.append(delta, record.timestamp, record.key, record.value, list(record.headers))
    compacted: bytearray = builder.build()
    # Compaction keeps the last offset of a batch.
    compacted[23:27] = header.last_offset_delta.to_bytes(4, "big")
    compacted[17:21] = crc32c(memoryview(compacted)[21:]).to_bytes(4, "big")
    patch_batch(compacted, header.base_offset, header.leader_epoch)
    return compacted
