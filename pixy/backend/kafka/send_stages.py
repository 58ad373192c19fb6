"""Sends the files of stages as the batches of a transaction, in order, with a bounded window in
memory.

Files are read a mebibyte at a time. The first batch that fails ends it: the transaction is lost
then, so no other batch is sent any more.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from pixy.aio.byte_semaphore import ByteSemaphore
from pixy.backend.kafka.produce import Producer
from pixy.errors import DeadlineExceeded, PixyError, StorageFault, Unavailable
from pixy.records import TopicPartition, patch_batch
from pixy.storage import Disk, StagedPart, Worker, run_on

__all__ = ["STAGES_WINDOW_BYTES", "StageSender"]

STAGES_WINDOW_BYTES = 8 << 20
"""Bytes of batches in flight, per publication."""

_NO_LEADER_EPOCH = -1


class StageSender:
    """Sends stages once.

    Args:
        producer: the transaction's producer, stopped at the end.
        disk, worker: the files, and the thread that reads them.
        window_bytes: limit of the batches in flight.
    """

    def __init__(self, producer: Producer, disk: Disk, worker: Worker, window_bytes: int) -> None:
        self._producer = producer
        self._disk = disk
        self._worker = worker
        self._semaphore = ByteSemaphore(window_bytes)
        self._failure: PixyError | None = None

    async def send(self, parts: Sequence[tuple[TopicPartition, StagedPart]]) -> None:
        """Write parts, those of a partition in this order, and return when all are written.

        Raises:
            CorruptData, StorageFault: a stage cannot be read.
            Unavailable: Kafka has not answered for a batch.
            PixyError: Kafka has refused a batch.
        """
        try:
            for partition, part in parts:
                await self._send_part(partition, part.batches(self._disk))
            await self._producer.written()
        finally:
            await self._producer.stop()
        if self._failure is not None:
            raise self._failure

    async def _send_part(self, partition: TopicPartition, chunks: Iterator[list[bytearray]]) -> None:
        while (chunk := await self._next(chunks)) is not None:
            for batch in chunk:
                await self._semaphore.acquire(len(batch))
                if self._failure is not None:
                    raise self._failure
                records = patch_batch(batch, 0, _NO_LEADER_EPOCH)
                self._producer.append(partition, batch, records, partial(self._done, len(batch)))

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
