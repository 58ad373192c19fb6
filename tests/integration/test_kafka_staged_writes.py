"""A daemon in front of a real Kafka is killed with SIGKILL while sinks stage and publish; every
epoch is published completely and once, in order.

The sinks and the check are those of the embedded cluster's test.

PIXY_CRASH_CYCLES is the number of kills (4), PIXY_CRASH_SEED repeats the random choices of a run;
timing depends on the machine.
"""

import os
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from pixy.proto import pixy_log_pb2 as pb
from pixy.proto.pixy_log_pb2_grpc import LogStub
from pixy.staging import MarkName, mark_name
from tests.fakes.waiting import until
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import Daemon, proxy_config
from tests.integration.test_staged_writes import PARTITIONS, SINKS, Sink, check, run_sinks
from tests.kafka.cluster import KafkaCluster

if TYPE_CHECKING:
    from pixy.proto.pixy_log_pb2_grpc import LogAsyncStub

pytestmark = [pytest.mark.process, pytest.mark.no_debug]

LIFE_SECONDS = (0.2, 1.5)


async def test_every_epoch_is_published_once_however_often_the_daemon_dies(
    make_daemon: MakeDaemon, kafka: KafkaCluster, kafka_name: Callable[[str], str]
) -> None:
    seed = int(os.environ.get("PIXY_CRASH_SEED", random.randrange(1 << 32)))
    cycles = int(os.environ.get("PIXY_CRASH_CYCLES", "4"))
    rng = random.Random(seed)
    topic = kafka_name("staged")
    daemon = make_daemon(
        proxy_config(
            kafka={"seed_peers": kafka.addresses},
            default_partitions=PARTITIONS,
            producer={"max_message_bytes": "3MiB"},
        )
    )
    sinks = [Sink(kafka_name(f"sink{number}"), rng, topic) for number in range(SINKS)]
    daemon.start()
    async with daemon.aio_channel() as channel:
        log: LogAsyncStub = LogStub(channel)
        await log.DescribeTopics(pb.DescribeTopicsRequest(topics=[topic], create_missing=True))

    def published() -> int:
        return sum(sink.counts["published"] for sink in sinks)

    lives = 0
    while lives < cycles or published() < cycles:
        # Longer and longer: on a busy machine a publication takes more than the first ones.
        assert lives < 5 * cycles, "nothing is published"
        await run_sinks(daemon, sinks, rng.uniform(*LIFE_SECONDS) * (1 + lives / cycles))
        daemon.start()
        lives += 1
    await wait_settled(daemon)
    await check(daemon, sinks, f"seed {seed}", topic)


async def wait_settled(daemon: Daemon) -> None:
    """Wait until no transaction of the last process is open: records committed after an open
    transaction are not readable before its end.
    """

    async def settled() -> bool:
        marks = (daemon.folder / "data" / "default" / "kafka" / "publishing").iterdir()
        # A `.part` was being written when the daemon died; it stays until its number is used again.
        return all(mark_name(mark.name) is MarkName.UNFINISHED for mark in marks)

    await until(settled)
