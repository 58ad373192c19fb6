"""The migration plan of docs/migrating-from-kafka-pixy.md, step by step, with a file of kafka-pixy
and its commits in Kafka.

kafka-pixy itself does not run here: it needs ZooKeeper, which Kafka 4 removed. A foreign consumer
and producer stand in for it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as KafkaPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.structs import OffsetAndMetadata

from pixy.proto import kafkapixy_pb2 as pb
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import Daemon
from tests.kafka.backends import open_kafka
from tests.kafka.cluster import KafkaCluster

pytestmark = [pytest.mark.process, pytest.mark.no_debug]

SECONDS = 60.0
PARTITIONS = 4
KEYS = {b"A": 0, b"foo": 1, b"bar": 2, b"": 3}
"""kafka-pixy's partitions of these keys, of 4."""

FILE = """\
grpc_addr: 0.0.0.0:19091
tcp_addr: 0.0.0.0:19092
proxies:
  default:
    client_id: kp_host_4711
    kafka:
      seed_peers:
        - {seed}
      version: 0.10.2.1
    net:
      dial_timeout: 30s
      read_timeout: 30s
      write_timeout: 30s
    zoo_keeper:
      seed_peers:
        - localhost:2181
      chroot: "/kafka"
    producer:
      channel_buffer_size: 4096
      max_message_bytes: 1000000
      compression: snappy
      flush_bytes: 1048576
      flush_frequency: 500ms
      retry_backoff: 10s
      retry_max: 6
      required_acks: wait_for_all
      shutdown_timeout: 30s
      partitioner: hash
      timeout: 10s
    consumer:
      disabled: false
      ack_timeout: 5m
      channel_buffer_size: 64
      fetch_max_bytes: 1048576
      fetch_max_wait: 250ms
      long_polling_timeout: 3s
      max_pending_messages: 300
      max_retries: -1
      offsets_commit_interval: 500ms
      rebalance_delay: 250ms
      retry_backoff: 500ms
      subscription_timeout: 15s
"""


def pixy(*arguments: str, daemon: Daemon | None = None) -> str:
    """Output of a command."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIXY_")}
    if daemon is not None:
        environment["PIXY_ADDRESS"] = daemon.address
    done = subprocess.run(
        [sys.executable, "-m", "pixy", *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def leave_traces(kafka: KafkaCluster, topic: str, group: str) -> None:
    """Write the traces of kafka-pixy: 16 messages per key, and a commit with acks above the offset
    in one partition.
    """
    async with open_kafka(kafka) as backend:
        await backend.create_topic(topic, PARTITIONS)
    async with AIOKafkaProducer(bootstrap_servers=kafka.addresses) as producer:
        for key, partition in KEYS.items():
            for number in range(16):
                await producer.send_and_wait(topic, b"%d" % number, key, partition)
    async with AIOKafkaConsumer(
        bootstrap_servers=kafka.addresses, group_id=group, enable_auto_commit=False
    ) as old:
        partitions = {KafkaPartition(topic, partition): (16, "") for partition in KEYS.values()}
        partitions[KafkaPartition(topic, 1)] = 1, "BDCCBD"  # acked: 2-4, 7, 8, 10-12
        old.assign(list(partitions))
        await old.commit({each: OffsetAndMetadata(*commit) for each, commit in partitions.items()})


async def committed(kafka: KafkaCluster, topic: str, group: str) -> list[tuple[int, str]]:
    """Offset and metadata of each partition, as read by other clients."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.addresses)
    await admin.start()
    try:
        found = await admin.list_consumer_group_offsets(group)
    finally:
        await admin.close()
    return [tuple(found[KafkaPartition(topic, partition)]) for partition in range(PARTITIONS)]


async def test_the_migration_plan_works_in_both_directions(
    make_daemon: MakeDaemon, kafka: KafkaCluster, kafka_name: Callable[[str], str], tmp_path: Path
) -> None:
    topic, group = kafka_name("moved"), kafka_name("movers")
    await leave_traces(kafka, topic, group)

    # 1. The file is accepted once it says that everybody is served, with warnings about that and
    # about options without effect.
    text = FILE.format(seed=kafka.addresses[0])
    file = tmp_path / "kafka-pixy.yaml"
    file.write_text(text)
    with pytest.raises(AssertionError, match="can be reached from other machines"):
        pixy("config", "check", str(file))
    file.write_text(f"insecure: true\n{text}")
    warnings = pixy("config", "check", str(file))
    for option in (
        "insecure",
        "zoo_keeper",
        "flush_frequency",
        "kafka.version",
        "write_timeout",
    ):
        assert option in warnings, warnings

    # 2. Beside kafka-pixy, on other ports, all its data is visible.
    config = {
        **yaml.safe_load(text),
        "grpc_addr": "127.0.0.1:0",
        "tcp_addr": "",
        "kafka_addr": "",
        "shutdown_timeout": "1s",
    }
    daemon = make_daemon(config)
    daemon.start()
    assert topic in pixy("topics", "list", daemon=daemon).split()
    entries = json.loads(pixy("offsets", "get", topic, "--group", group, "--json", daemon=daemon))
    shown = [(each["offset"], each["lag"], each["sparse_acks"]) for each in entries]
    assert shown == [(16, 0, ""), (1, 15, "1-4,6-8,9-12"), (16, 0, ""), (16, 0, "")]

    # 3. A key keeps its partition.
    stub = daemon.stub()
    for key, partition in KEYS.items():
        answer = stub.Produce(pb.ProdRq(topic=topic, key_value=key, message=b"16"), timeout=SECONDS)
        assert (answer.partition, answer.offset) == (partition, 16)

    # 4. The group resumes: acked records are not redelivered, all others are delivered.
    got = set()
    for _ in range(7 + len(KEYS)):
        message = stub.ConsumeNAck(pb.ConsNAckRq(topic=topic, group=group, no_ack=True), timeout=SECONDS)
        got.add((message.partition, message.offset))
    assert got == {(1, offset) for offset in (1, 5, 6, 9, 13, 14, 15, 16)} | {(0, 16), (2, 16), (3, 16)}
    for partition, offset in ((1, 5), (1, 9), (1, 13), (0, 16)):
        stub.Ack(pb.AckRq(topic=topic, group=group, partition=partition, offset=offset), timeout=SECONDS)

    # 5. And back: acks through pixy are committed in kafka-pixy's encoding.
    daemon.stop()
    assert await committed(kafka, topic, group) == [(17, ""), (1, "BEBH"), (16, ""), (16, "")]
