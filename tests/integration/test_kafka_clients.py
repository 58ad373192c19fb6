"""Kafka's clients at a real daemon: kcat, librdkafka by confluent-kafka, aiokafka."""

import asyncio
import subprocess
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry
from confluent_kafka.admin import ConfigResource as ConfluentResource
from confluent_kafka.admin import NewPartitions as ConfluentPartitions
from confluent_kafka.admin import NewTopic as ConfluentTopic

from pixy.proto import kafkapixy_pb2 as pb
from tests.conftest import require
from tests.fakes.certificates import make_certificate
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import Daemon, proxy_config

pytestmark = [pytest.mark.process, pytest.mark.slow]

LINES = [f"message {number}" for number in range(1000)]


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> Iterator[Daemon]:
    with make_daemon(
        {"kafka_addr": "127.0.0.1:0", **proxy_config(consumer={"initial_offset": "oldest"})}
    ) as daemon:
        yield daemon


class Kcat:
    """kcat at a daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._program = require("kcat", "apt-get install kcat")
        self._address = daemon.addresses["kafka"]

    def __call__(self, *args: str, given: str = "") -> str:
        """Standard output of a command that succeeds."""
        done = subprocess.run(
            [self._program, "-b", self._address, *args],
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def produce(self, topic: str, lines: list[str], *args: str) -> None:
        self("-P", "-t", topic, *args, given="".join(f"{line}\n" for line in lines))

    def consume(self, topic: str, *args: str) -> list[str]:
        """All messages of a topic, in the order of their partitions."""
        return self("-C", "-q", "-t", topic, "-o", "beginning", "-e", *args).splitlines()


@pytest.fixture
def kcat(daemon: Daemon) -> Kcat:
    return Kcat(daemon)


# --- kcat -----------------------------------------------------------------------------------------


def test_kcat_lists_brokers_and_topics(kcat: Kcat, daemon: Daemon) -> None:
    kcat.produce("orders", ["a"])
    listed = kcat("-L")
    assert f"broker 1 at {daemon.addresses['kafka']} (controller)" in listed
    assert 'topic "orders" with 4 partitions' in listed
    assert "partition 3, leader 1, replicas: 1, isrs: 1" in listed


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_kcat_produces_and_consumes_with_every_codec(kcat: Kcat, codec: str) -> None:
    kcat.produce("orders", LINES, "-z", codec, "-p", "1")
    assert kcat.consume("orders", "-p", "1") == LINES


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_kcat_produces_with_any_acks(kcat: Kcat, acks: str) -> None:
    kcat.produce("orders", LINES, "-X", f"acks={acks}", "-p", "0")
    if acks == "0":  # it has not waited for anything
        deadline = time.monotonic() + 60
        while kcat("-Q", "-t", "orders:0:-1") != "orders [0] offset 1000\n" and time.monotonic() < deadline:
            pass
    assert kcat.consume("orders", "-p", "0") == LINES


def test_kcat_produces_idempotently(kcat: Kcat) -> None:
    kcat.produce("orders", LINES, "-X", "enable.idempotence=true", "-X", "batch.num.messages=10", "-p", "2")
    assert kcat.consume("orders", "-p", "2") == LINES


def test_kcat_keeps_keys_headers_and_nulls(kcat: Kcat) -> None:
    kcat.produce("orders", ["k:v", "k:"], "-K:", "-Z", "-H", "name=value", "-p", "0")
    kept = kcat.consume("orders", "-p", "0", "-f", "%k %S %h %o\n")
    assert kept == ["k 1 name=value 0", "k -1 name=value 1"]


def test_kcat_asks_for_offsets_by_time(kcat: Kcat) -> None:
    before = int(time.time() * 1000)
    kcat.produce("orders", ["a"], "-p", "0")
    assert kcat("-Q", "-t", f"orders:0:{before}") == "orders [0] offset 0\n"
    assert kcat("-Q", "-t", f"orders:0:{before + 3_600_000}") == "orders [0] offset -1\n"
    assert kcat("-Q", "-t", "orders:0:-1") == "orders [0] offset 1\n"


def test_messages_of_kcat_are_consumed_over_grpc(kcat: Kcat, daemon: Daemon) -> None:
    kcat.produce("orders", LINES[:10], "-p", "0")
    request = pb.ConsNAckRq(topic="orders", group="workers", auto_ack=True)
    stub = daemon.stub()
    assert [stub.ConsumeNAck(request, timeout=60).message.decode() for _ in range(10)] == LINES[:10]


# --- librdkafka -----------------------------------------------------------------------------------


def test_librdkafka_produces_and_reads_assigned_partitions(daemon: Daemon) -> None:
    options = {"bootstrap.servers": daemon.addresses["kafka"]}
    reported: list[tuple[int, int]] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        reported.append((message.partition(), message.offset()))

    producer = Producer({**options, "compression.type": "lz4", "enable.idempotence": True})
    for number, line in enumerate(LINES):
        producer.produce("orders", line.encode(), partition=number % 4, on_delivery=delivered)
    assert producer.flush(60) == 0
    assert sorted(reported) == [(number, offset) for number in range(4) for offset in range(250)]

    consumer = Consumer({**options, "group.id": "unused", "enable.auto.commit": False})
    try:
        consumer.assign([ConfluentPartition("orders", number, OFFSET_BEGINNING) for number in range(4)])
        found: list[str] = []
        deadline = time.monotonic() + 60
        while len(found) < len(LINES) and time.monotonic() < deadline:
            found += [message.value().decode() for message in consumer.consume(500, 1.0)]
        assert sorted(found) == sorted(LINES)
        assert consumer.get_watermark_offsets(ConfluentPartition("orders", 2)) == (0, 250)
    finally:
        consumer.close()


def test_librdkafka_describes_the_cluster(daemon: Daemon) -> None:
    admin = AdminClient({"bootstrap.servers": daemon.addresses["kafka"]})
    described = admin.describe_cluster().result(60)
    assert [(node.id, f"{node.host}:{node.port}") for node in described.nodes] == [
        (1, daemon.addresses["kafka"])
    ]


def test_librdkafka_administers_topics(daemon: Daemon) -> None:
    admin = AdminClient({"bootstrap.servers": daemon.addresses["kafka"]})

    def done(futures: dict[Any, Any]) -> list[Any]:
        return [future.result(60) for future in futures.values()]

    done(admin.create_topics([ConfluentTopic("orders", 2, 1, config={"retention.ms": "60000"})]))
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        done(admin.create_topics([ConfluentTopic("orders", 2, 1)]))
    done(admin.create_partitions([ConfluentPartitions("orders", 3)]))
    assert len(admin.list_topics("orders", 60).topics["orders"].partitions) == 3
    resource = ConfluentResource(ConfluentResource.Type.TOPIC, "orders")
    (options,) = done(admin.describe_configs([resource]))
    assert options["retention.ms"].value == "60000"
    changed = ConfigEntry("retention.ms", "70000", incremental_operation=AlterConfigOpType.SET)
    altered = ConfluentResource(ConfluentResource.Type.TOPIC, "orders", incremental_configs=[changed])
    done(admin.incremental_alter_configs([altered]))
    (options,) = done(admin.describe_configs([resource]))
    assert options["retention.ms"].value == "70000"
    producer = Producer({"bootstrap.servers": daemon.addresses["kafka"]})
    for _ in range(10):
        producer.produce("orders", b"x", partition=0)
    assert producer.flush(60) == 0
    (removed,) = done(admin.delete_records([ConfluentPartition("orders", 0, 7)]))
    assert removed.low_watermark == 7
    done(admin.delete_topics(["orders"]))
    assert admin.list_topics(timeout=60).topics == {}


# --- aiokafka -------------------------------------------------------------------------------------


@asynccontextmanager
async def started(client: Any) -> Any:
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


@pytest.mark.parametrize(("codec", "idempotent"), [(None, False), ("gzip", True), ("zstd", True)])
async def test_aiokafka_produces_and_reads_assigned_partitions(
    daemon: Daemon, codec: str | None, idempotent: bool
) -> None:
    address = daemon.addresses["kafka"]
    options = {"compression_type": codec, "enable_idempotence": idempotent}
    async with started(AIOKafkaProducer(bootstrap_servers=address, **options)) as producer:
        sent = [await producer.send("orders", line.encode(), partition=0) for line in LINES]
        results = await asyncio.gather(*sent)
    assert [result.offset for result in results] == [*range(len(LINES))]
    async with started(AIOKafkaConsumer(bootstrap_servers=address, enable_auto_commit=False)) as consumer:
        partition = TopicPartition("orders", 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        found = [(await asyncio.wait_for(consumer.getone(), 60)).value.decode() for _ in LINES]
        assert found == LINES
        assert await consumer.end_offsets([partition]) == {partition: len(LINES)}


async def test_aiokafka_administers_topics(daemon: Daemon) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=daemon.addresses["kafka"])
    await admin.start()
    try:
        await admin.create_topics([NewTopic("orders", 2, 1, topic_configs={"retention.ms": "60000"})])
        await admin.create_partitions({"orders": NewPartitions(3)})
        (described,) = await admin.describe_topics(["orders"])
        assert [each["partition"] for each in described["partitions"]] == [0, 1, 2]
        (configs,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, "orders")])
        assert "60000" in str(configs)
        await admin.delete_topics(["orders"])
        assert await admin.list_topics() == []
    finally:
        await admin.close()


def test_kcat_over_tls(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    make_certificate(tmp_path, "one")
    tls = {"certificate_path": str(tmp_path / "one.pem"), "key_path": str(tmp_path / "one.key")}
    with make_daemon({"kafka_addr": "127.0.0.1:0", "tls": tls}) as daemon:
        kcat = Kcat(daemon)
        options = (
            "security.protocol=ssl",
            f"ssl.ca.location={tmp_path / 'one.pem'}",
            "ssl.endpoint.identification.algorithm=none",  # it is for localhost
        )
        secure = [word for option in options for word in ("-X", option)]
        kcat.produce("orders", LINES, "-p", "0", *secure)
        assert kcat.consume("orders", "-p", "0", *secure) == LINES
