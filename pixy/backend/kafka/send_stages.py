"""Sends the files of stages as the batches of a transaction, in order, with a bounded window in
memory.

Files are read a mebibyte at a time. Each batch of a partition is a request that waits for the one
before, and the transaction is open meanwhile: nobody reads on in its partitions. So small batches
of a partition are merged (`merge_batches`), those of several stages too, if the brokers tell how
large a batch the topic takes.

The first batch that fails ends it: the transaction is lost then, so no other batch is sent any
more.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial

from pixy.aio.byte_semaphore import ByteSemaphore
from pixy.backend.kafka.merge_batches import merge_batches
from pixy.backend.kafka.produce import Producer
from pixy.backend.protocol import BATCH_MEMORY_BYTES
from pixy.errors import DeadlineExceeded, PixyError, StorageFault, Unavailable
from pixy.records import TopicPartition, patch_batch
from pixy.storage import Disk, StagedPart, Worker, run_on

STAGES_WINDOW_BYTES = 8 << 20
"""Bytes of batches in flight, per publication."""

_NO_LEADER_EPOCH = -1
_SMALL_BYTES = 16 << 10
_MERGED_BYTES = 256 << 10
_UNMERGED_BYTES = 4 << 20
"""Bytes of small batches that wait for others to be merged with, per publication."""


class _SmallBatches:
    """Consecutive small batches of a partition."""

    __slots__ = ("batches", "size")

    def __init__(self) -> None:
        self.batches: list[bytearray] = []
        self.size = 0


class StageSender:
    """Sends stages once.

    Args:
        producer: the transaction's producer, stopped at the end.
        disk, worker: the files, and the thread that reads them and merges batches.
        window_bytes: limit of the batches in flight.
        ask_batch_bytes: the size of the largest batch of topics, as far as it can be known.
    """

    def __init__(
        self,
        producer: Producer,
        disk: Disk,
        worker: Worker,
        window_bytes: int,
        ask_batch_bytes: Callable[[Sequence[str]], Awaitable[Mapping[str, int]]],
    ) -> None:
        self._producer = producer
        self._disk = disk
        self._worker = worker
        self._semaphore = ByteSemaphore(window_bytes)
        self._ask_batch_bytes = ask_batch_bytes
        self._topics: Sequence[str] = ()
        # By topic; None: not asked for yet.
        self._batch_bytes: Mapping[str, int] | None = None
        self._small: dict[TopicPartition, _SmallBatches] = {}
        self._small_bytes = 0
        self._failure: PixyError | None = None

    async def send(self, parts: Sequence[tuple[TopicPartition, StagedPart]]) -> None:
        """Write parts, those of a partition in this order, and return when all are written.

        Raises:
            CorruptData, StorageFault: a stage cannot be read.
            Unavailable: Kafka has not answered for a batch.
            PixyError: Kafka has refused a batch.
        """
        self._topics = sorted({partition.topic for partition, _ in parts})
        try:
            for partition, part in parts:
                await self._send_part(partition, part.batches(self._disk))
            await self._send_all_small()
            await self._producer.written()
        finally:
            await self._producer.stop()
        if self._failure is not None:
            raise self._failure

    async def _send_part(self, partition: TopicPartition, chunks: Iterator[list[bytearray]]) -> None:
        while (chunk := await self._next(chunks)) is not None:
            for batch in chunk:
                if len(batch) < _SMALL_BYTES:
                    await self._keep_small(partition, batch)
                    continue
                if partition in self._small:
                    await self._send_small(partition)
                await self._send_batch(partition, batch)

    async def _keep_small(self, partition: TopicPartition, batch: bytearray) -> None:
        small = self._small.setdefault(partition, _SmallBatches())
        small.batches.append(batch)
        small.size += len(batch)
        self._small_bytes += len(batch)
        if small.size >= _MERGED_BYTES:
            await self._send_small(partition)
        elif self._small_bytes >= _UNMERGED_BYTES:
            await self._send_all_small()

    async def _send_all_small(self) -> None:
        for partition in list(self._small):
            await self._send_small(partition)

    async def _send_small(self, partition: TopicPartition) -> None:
        small = self._small.pop(partition)
        self._small_bytes -= small.size
        batches = small.batches
        if len(batches) > 1:
            if self._batch_bytes is None:
                self._batch_bytes = await self._ask_batch_bytes(self._topics)
            limit = min(_MERGED_BYTES, self._batch_bytes.get(partition.topic, 0))
            if limit:
                batches = await run_on(self._worker, partial(merge_batches, batches, limit))
        for batch in batches:
            await self._send_batch(partition, batch)

    async def _send_batch(self, partition: TopicPartition, batch: bytearray) -> None:
        size = len(batch) + BATCH_MEMORY_BYTES
        await self._semaphore.acquire(size)
        if self._failure is not None:
            raise self._failure
        records = patch_batch(batch, 0, _NO_LEADER_EPOCH)
        self._producer.append(partition, batch, records, partial(self._done, size))

    async def _next(self, chunks: Iterator[list[bytearray]]) -> list[bytearray] | None:
        try:
            return await run_on(self._worker, partial(next, chunks, None))
        except OSError as error:
            raise StorageFault(f"a stage cannot be read: {error}") from error

    def _done(self, size: int, _: int, error: PixyError | None) -> None:
        self._semaphore.release(size)
        if isinstance(error, DeadlineExceeded):
            # An unwritten batch does no harm: the transaction is not committed.
            error = Unavailable(f"nothing was published: {error}")
        if error is not None and self._failure is None:
            self._failure = error
            self._producer.give_up()
