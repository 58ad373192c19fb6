"""The daemon is killed with SIGKILL while sinks stage and publish; every epoch is published
completely and once, in order.

Each sink acts as a streaming job: it stages the records of an epoch, publishes them, and retries
unanswered calls, with its existing stages if they are still there, else with new ones. Segments and
journal files are small, and large parts become segments.

PIXY_CRASH_CYCLES is the number of kills (8), PIXY_CRASH_SEED repeats the random choices of a run;
timing depends on the machine.
"""

import asyncio
import os
import random
from collections import Counter
from typing import TYPE_CHECKING

import grpc
import pytest

from pixy.proto import pixy_log_pb2 as pb
from pixy.proto.pixy_log_pb2_grpc import LogStub
from pixy.records import crc32c
from tests.fakes.batches import batch_of, values_in
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import Daemon, proxy_config

if TYPE_CHECKING:
    from pixy.proto.pixy_log_pb2_grpc import LogAsyncStub

pytestmark = [pytest.mark.process, pytest.mark.no_debug]

PARTITIONS = 3
SINKS = 3
CALL_SECONDS_MAX = 60.0
LIFE_SECONDS = (0.05, 1.0)
CONFIG = {
    "journal": {"file_bytes": "1MiB", "max_unapplied_bytes": "1MiB"},
    "storage": {"segment_bytes": "1MiB", "checkpoint_entries": 50},
    "default_partitions": PARTITIONS,
    "producer": {"max_message_bytes": "3MiB"},
}


class Sink:
    """One sink, over all lives of the daemon.

    Attributes:
        published: the values of each partition, in order, of all answered epochs.
        epoch: the epoch being published.
    """

    def __init__(self, name: str, rng: random.Random, topic: str = "t") -> None:
        self.name = name
        self.topic = topic
        self.rng = rng
        self.epoch = 0
        self.stages = 0
        self.published: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.counts: Counter[str] = Counter()
        self._stage_ids: list[str] = []

    async def run(self, log: "LogAsyncStub") -> None:
        """Publish epochs until the daemon is gone."""
        while True:
            values = self._values()
            if not self._stage_ids:
                await self._stage(log, values)
            request = pb.PublishRequest(
                sink_id=self.name, epoch=self.epoch, query_id="query", stage_ids=self._stage_ids
            )
            try:
                answer = await log.Publish(request, timeout=CALL_SECONDS_MAX)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                    raise
                # The process that had them was killed before they were sealed.
                self.counts["stages lost"] += 1
                self._stage_ids = []
                continue
            self.counts["published" if answer.published else "published before"] += 1
            assert answer.last_epoch == self.epoch
            for partition, each in enumerate(values):
                self.published[partition] += each
            self.epoch += 1
            self._stage_ids = []

    def _values(self) -> list[list[bytes]]:
        """The records of this epoch, by partition; the same on each call."""
        rng = random.Random(f"{self.name} {self.epoch}")
        size = 2_500_000 if rng.random() < 0.1 else rng.choice((10, 1000, 100_000))
        return [
            [b"%s/%d/%d " % (self.name.encode(), self.epoch, number) + bytes(size) for number in range(4)]
            for _ in range(PARTITIONS)
        ]

    async def _stage(self, log: "LogAsyncStub", values: list[list[bytes]]) -> None:
        """Stage the records in two halves, a piece per record; some pieces are sent twice."""
        ids = []
        for half in (slice(0, 2), slice(2, 4)):
            self.stages += 1
            stage_id = f"{self.stages}"
            crcs: list[int] = []
            for partition, of_partition in enumerate(values):
                for value in of_partition[half]:
                    batches = batch_of(value)
                    request = pb.StageRequest(
                        sink_id=self.name,
                        stage_id=stage_id,
                        piece=len(crcs),
                        partitions=[
                            pb.PartitionBatches(topic=self.topic, partition=partition, batches=batches)
                        ],
                    )
                    for _ in range(self.rng.choice((1, 1, 1, 2))):
                        await log.Stage(request, timeout=CALL_SECONDS_MAX)
                    crcs.append(crc32c(batches))
            seal = pb.Seal(pieces=len(crcs), crc=crc32c(b"".join(crc.to_bytes(4, "big") for crc in crcs)))
            ids.append(stage_id)
            if half.start:
                # The last one may be sealed with its answer lost.
                self._stage_ids = ids
            await log.Stage(
                pb.StageRequest(sink_id=self.name, stage_id=stage_id, seal=seal), timeout=CALL_SECONDS_MAX
            )


async def run_sinks(daemon: Daemon, sinks: list[Sink], seconds: float) -> None:
    """Run the sinks, and kill the daemon."""
    async with daemon.aio_channel() as channel:
        log: LogAsyncStub = LogStub(channel)
        running = [asyncio.create_task(sink.run(log)) for sink in sinks]
        await asyncio.wait(running, timeout=seconds)
        daemon.kill()
        for task in running:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await task
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, caught.value


async def read_partition(daemon: Daemon, partition: int, topic: str) -> list[bytes]:
    """All values of a partition."""
    async with daemon.aio_channel() as channel:
        log: LogAsyncStub = LogStub(channel)
        range_ = pb.FetchRange(topic=topic, partition=partition, from_offset=0, to_offset=-1)
        answers = log.Fetch(pb.FetchRequest(ranges=[range_]), timeout=60)
        return [
            value or b"" for answer in [each async for each in answers] for value in values_in(answer.batches)
        ]


async def test_every_epoch_is_published_once_however_often_the_daemon_dies(make_daemon: MakeDaemon) -> None:
    seed = int(os.environ.get("PIXY_CRASH_SEED", random.randrange(1 << 32)))
    cycles = int(os.environ.get("PIXY_CRASH_CYCLES", "8"))
    rng = random.Random(seed)
    daemon = make_daemon(proxy_config(**CONFIG))
    sinks = [Sink(f"sink{number}", rng) for number in range(SINKS)]
    daemon.start()
    async with daemon.aio_channel() as channel:
        log: LogAsyncStub = LogStub(channel)
        await log.DescribeTopics(pb.DescribeTopicsRequest(topics=["t"], create_missing=True))
    for _ in range(cycles):
        await run_sinks(daemon, sinks, rng.uniform(*LIFE_SECONDS))
        daemon.start()
    await check(daemon, sinks, f"seed {seed}")
    assert sum(sink.counts["published"] for sink in sinks) >= cycles
    daemon.stop()
    daemon.start()
    await check(daemon, sinks, f"seed {seed}, after a clean stop")


async def check(daemon: Daemon, sinks: list[Sink], where: str, topic: str = "t") -> None:
    """Check that every published value exists once, in the order of each sink; of unanswered epochs
    all or nothing.
    """
    found = [await read_partition(daemon, partition, topic) for partition in range(PARTITIONS)]
    for sink in sinks:
        mine = [[value for value in each if value.startswith(sink.name.encode() + b"/")] for each in found]
        under_way = [len(each) - len(sink.published[partition]) for partition, each in enumerate(mine)]
        for partition, values in enumerate(mine):
            expected = sink.published[partition]
            if any(under_way):
                # The last epoch was unanswered, but published.
                expected = expected + sink._values()[partition]
            sizes = list(map(len, values)), list(map(len, expected))
            assert sizes[0] == sizes[1], f"{where}: {sink.name}"
            assert [value[:40] for value in values] == [value[:40] for value in expected], (
                f"{where}: {sink.name}"
            )
