"""An outage of all brokers for half a minute: the daemon's answers, memory and health meanwhile,
and its data afterwards.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from pixy.backend import TopicPartition
from pixy.proto import kafkapixy_pb2 as pb
from tests.backend.kafka.test_failover import read
from tests.fakes.waiting import until
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import Daemon
from tests.kafka.backends import open_kafka, start_again
from tests.kafka.cluster import KafkaCluster

if TYPE_CHECKING:
    from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyAsyncStub

pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.no_debug]

OUTAGE_S = 30.0
PATIENCE_S = 60.0
PARTITIONS = 2
HASTY_TIMEOUT_S, PATIENT_TIMEOUT_S = 3.0, 180.0
"""`producer.timeout` of a cluster entry that times out during the outage, and of one that does not.
"""
KEPT_S = 180
"""Asynchronous messages are kept for longer than the outage: brokers start slowly on a busy
machine.
"""
CALLER_TIMEOUT_S = 1.0
LATE_S = 12.0
"""Allowed lateness of an answer, which includes sending the wave on a busy machine: far less than
the outage.
"""

WAVE_CALLS, WAVE_BYTES = 600, 100_000
BUFFERED_BYTES = 2 << 20
HELD_BYTES_MAX = 2 * (4 * BUFFERED_BYTES) + (16 << 20)
"""Memory that two clusters may hold: the buffer, requests queued for space in it, and twice the
buffer in flight to the brokers; connections and allocator come on top.
"""

NOT_TAKEN = "takes no messages at present"
"""The reason once the partitions have been silent for two seconds."""

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def kafka_proxy(cluster: KafkaCluster, timeout_s: float) -> dict[str, Any]:
    return {
        "kafka": {"seed_peers": cluster.addresses},
        "default_partitions": PARTITIONS,
        "producer": {
            "timeout": f"{timeout_s:g}s",
            "retry_max": KEPT_S // 10,
            "partitioner": "random",
            "max_message_bytes": WAVE_BYTES,
            "buffer_bytes": BUFFERED_BYTES,
            "channel_buffer_size": 200,
            "waiting_requests": 100,
        },
        "consumer": {
            "long_polling_timeout": "1s",
            "session_timeout": "3s",
            "rebalance_timeout": "2s",
            "offsets_commit_interval": "50ms",
        },
    }


class Clients:
    """Clients of a topic, and the answers that they got."""

    def __init__(self, stub: "KafkaPixyAsyncStub", topic: str) -> None:
        self._stub = stub
        self._topic = topic
        self._numbers = iter(range(1_000_000))
        # Values answered as written, by partition and offset.
        self.written: dict[tuple[int, int], bytes] = {}
        # Status, details and duration of failed produces.
        self.refused: list[tuple[grpc.StatusCode, str, float]] = []
        # Values received by the consumer.
        self.consumed: Counter[bytes] = Counter()
        self.consumer_errors: set[grpc.StatusCode] = set()

    async def produce(
        self, cluster: str, size: int = 0, timeout: float | None = None, *, async_mode: bool = False
    ) -> bytes:
        """Produce a unique message and return it; records the answer."""
        message = b"%d." % next(self._numbers)
        request = pb.ProdRq(
            cluster=cluster,
            topic=self._topic,
            key_undefined=True,
            message=message.ljust(size, b"."),
            async_mode=async_mode,
        )
        began = time.monotonic()
        try:
            answer = await self._stub.Produce(request, timeout=timeout or PATIENT_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            self.refused.append((error.code(), error.details() or "", time.monotonic() - began))
        else:
            if not async_mode and cluster != "local":
                self.written[answer.partition, answer.offset] = request.message
        return request.message

    async def produce_some(self, cluster: str, count: int, **options: Any) -> list[bytes]:
        return list(await asyncio.gather(*(self.produce(cluster, **options) for _ in range(count))))

    async def consume(self, group: str) -> None:
        """Consume messages without end, and ack each with the request for the next one, whatever
        happens.
        """
        ack: dict[str, Any] = {"no_ack": True}
        while True:
            request = pb.ConsNAckRq(cluster="hasty", topic=self._topic, group=group, **ack)
            try:
                answer = await self._stub.ConsumeNAck(request, timeout=PATIENCE_S)
            except grpc.aio.AioRpcError as error:
                self.consumer_errors.add(error.code())
                ack = {"no_ack": True}
                continue
            self.consumed[answer.message] += 1
            ack = {"ack_partition": answer.partition, "ack_offset": answer.offset}

    async def lag(self, group: str) -> int:
        request = pb.GetOffsetsRq(cluster="hasty", topic=self._topic, group=group)
        answer = await self._stub.GetOffsets(request, timeout=PATIENCE_S)
        return sum(each.end - max(each.offset, 0) for each in answer.offsets)


class HealthWatch:
    """Watches a daemon's health from the start."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        stub: Any = HealthStub(channel)  # the published types have synchronous channels only
        self._call = stub.Watch(health_pb2.HealthCheckRequest())
        self.said: list[int] = []

    async def wait(self, status: int) -> None:
        """Wait until it changes to this status."""
        async with asyncio.timeout(PATIENCE_S):
            self.said.append((await self._call.read()).status)
        assert self.said[-1] == status, self.said


@pytest.fixture
def daemon(make_daemon: MakeDaemon, kafka_three: KafkaCluster) -> Daemon:
    """A daemon with two entries for the same brokers, of which only one times out during the
    outage.
    """
    timeouts = {"hasty": HASTY_TIMEOUT_S, "patient": PATIENT_TIMEOUT_S}
    proxies = {name: kafka_proxy(kafka_three, timeout_s) for name, timeout_s in timeouts.items()}
    return make_daemon({"proxies": {**proxies, "local": {"kind": "embedded"}}})


async def refuse_waves(clients: Clients, daemon: Daemon, until: float) -> int:
    """Repeatedly produce many times the capacity of the buffers: all of it is rejected in time,
    with the reason.

    Returns:
        peak memory of the daemon, in bytes.
    """
    most = 0
    while time.monotonic() < until:
        clients.refused.clear()
        wave = asyncio.gather(
            clients.produce_some("hasty", 20, size=1000, timeout=CALLER_TIMEOUT_S),
            clients.produce_some("hasty", WAVE_CALLS, size=WAVE_BYTES),
        )
        while not wave.done():
            most = max(most, daemon.rss_bytes())
            await asyncio.wait([wave], timeout=0.1)

        assert len(clients.refused) == 20 + WAVE_CALLS
        for refusal in clients.refused:
            check_refusal(*refusal)
        details = "; ".join(each for _, each, _ in clients.refused).lower()
        for reason in ("could not be written within", "deadline"):
            assert reason in details
        assert "the producer's buffer is full" in details or NOT_TAKEN in details
    return most


def check_refusal(code: grpc.StatusCode, details: str, seconds: float) -> None:
    if NOT_TAKEN in details or "buffer is full" in details or "buffer has been full" in details:
        assert code is grpc.StatusCode.UNAVAILABLE
    elif "within" in details:
        assert code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED), details
        assert f"within {HASTY_TIMEOUT_S:g} s: " in details
    else:
        # The caller's deadline.
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED, details
        assert "deadline" in details.lower()
    assert seconds < HASTY_TIMEOUT_S + LATE_S, f"{details}: after {seconds:.1f} s"


async def read_topic(cluster: KafkaCluster, topic: str) -> dict[tuple[int, int], bytes]:
    """Records on the brokers: partition and offset -> value."""
    async with open_kafka(cluster) as backend:
        return {
            (number, offset): value or b""
            for number in range(PARTITIONS)
            for offset, value in (await read(backend, TopicPartition(topic, number))).items()
        }


async def test_half_a_minute_without_any_broker_loses_nothing(
    daemon: Daemon, kafka_three: KafkaCluster, kafka_name: Callable[[str], str]
) -> None:
    topic, group = kafka_name("outage"), kafka_name("readers")
    daemon.start()
    async with daemon.aio_channel() as channel, daemon.aio_channel() as other:
        clients, health = Clients(daemon.aio_stub(channel), topic), HealthWatch(other)
        await health.wait(SERVING)
        for cluster in ("hasty", "patient"):  # each has the topic's metadata from here on
            await clients.produce(cluster)
        await clients.produce_some("hasty", 100)
        consuming = asyncio.create_task(clients.consume(group))

        async def all_acked() -> bool:
            # The ack of the last message is sent with a request that returns when its long poll
            # ends.
            return await clients.lag(group) == 0

        await until(all_acked)
        memory = daemon.rss_bytes()

        kafka_three.kill()
        began = time.monotonic()
        kept = asyncio.create_task(clients.produce_some("patient", 50))
        accepted = [
            message
            for cluster in ("hasty", "patient")
            for message in await clients.produce_some(cluster, 50, async_mode=True)
        ]
        await health.wait(NOT_SERVING)
        most = await refuse_waves(clients, daemon, until=began + OUTAGE_S)
        assert most - memory < HELD_BYTES_MAX, f"{(most - memory) >> 20} MiB more than before"
        assert not kept.done()
        await clients.produce("local")

        await start_again(kafka_three)
        await health.wait(SERVING)
        clients.refused.clear()
        await kept
        # The leaders of both partitions are there.
        await until(lambda: clients.consumed.keys() >= set(accepted))
        await clients.produce_some("hasty", 100)
        assert clients.refused == []
        await until(all_acked)
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)
    daemon.stop()
    for said in ("not ready: a Kafka cluster cannot be reached", "a Kafka cluster can be reached again"):
        assert daemon.log().count(said) == 2, "once for each of the clusters"
    assert daemon.log().count("cannot join a consumer group") <= 2
    log = await read_topic(kafka_three, topic)
    assert clients.written.items() <= log.items()
    assert len(clients.written) == 2 + 100 + 50 + 100
    assert sorted(log.values()) == sorted([*clients.written.values(), *accepted]), "each is there, and once"
    # Records acked and committed before the outage are not redelivered, and all records are
    # delivered.
    assert clients.consumed.keys() == set(log.values())
    assert max(clients.consumed.values()) == 1
    assert clients.consumer_errors <= {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE}
