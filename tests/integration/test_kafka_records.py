"""Records on a real Kafka: kcat and Kafka's own tools read those of pixy's RPCs, and pixy's RPCs
read theirs.
"""

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from pixy.proto import kafkapixy_pb2 as pb
from tests.conftest import require
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import Daemon
from tests.integration.kafka_tools import run_tool
from tests.kafka.cluster import KafkaCluster

pytestmark = pytest.mark.process

SECONDS = 60.0
RECORDS: list[tuple[bytes | None, bytes | None, dict[str, bytes]]] = [
    (None, b"no key", {}),
    (b"key", None, {}),
    (b"key", None, {"trace": b"abc"}),
    (b"", b"empty key", {}),
    (b"key", b"", {}),
    (b"key", "schlüssel".encode(), {"trace": b"abc", "span": b"1"}),
    *((b"key %d" % number, b"value %d " % number + b"x" * number * 20, {}) for number in range(40)),
]


@pytest.fixture
def kcat() -> str:
    return require("kcat", "apt-get install kcat")


@pytest.fixture
def topic(kafka_name: Callable[[str], str]) -> str:
    return kafka_name("records")


@pytest.fixture
def daemon(make_daemon: MakeDaemon, kafka: KafkaCluster) -> Daemon:
    """A running daemon in front of the cluster; topics that it creates have one partition."""
    proxy = {
        "kind": "kafka",
        "kafka": {"seed_peers": kafka.addresses},
        "default_partitions": 1,
        "consumer": {"initial_offset": "oldest"},
    }
    running = make_daemon({"proxies": {"default": proxy}})
    running.start()
    return running


def run(command: list[str], text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def consume(daemon: Daemon, topic: str, count: int) -> list[Any]:
    """Consume `count` messages, in order of offset."""
    stub = daemon.stub()
    found = [
        stub.ConsumeNAck(pb.ConsNAckRq(topic=topic, group=topic, auto_ack=True), timeout=SECONDS)
        for _ in range(count)
    ]
    return sorted(found, key=lambda message: message.offset)


def test_kcat_reads_records_produced_by_rpc(
    daemon: Daemon, kafka: KafkaCluster, topic: str, kcat: str
) -> None:
    stub = daemon.stub()
    for at, (key, value, headers) in enumerate(RECORDS):
        named = [pb.RecordHeader(key=name, value=content) for name, content in headers.items()]
        request = pb.ProdRq(topic=topic, key_value=key or b"", message=value or b"", headers=named)
        request.key_undefined, request.value_undefined = key is None, value is None
        answer = stub.Produce(request, timeout=SECONDS)
        assert (answer.partition, answer.offset) == (0, at)
    read = run(
        [kcat, "-C", "-q", "-b", kafka.addresses[0], "-t", topic, "-p", "0", "-o", "beginning", "-e", "-J"]
    )
    found = [json.loads(line) for line in read.splitlines()]
    assert [each["offset"] for each in found] == list(range(len(RECORDS)))
    for each, (key, value, headers) in zip(found, RECORDS, strict=True):
        assert each["key"] == (None if key is None else key.decode())
        assert each["payload"] == (None if value is None else value.decode())
        pairs = iter(each.get("headers", []))
        assert dict(zip(pairs, pairs, strict=True)) == {name: text.decode() for name, text in headers.items()}
    by_rpc = consume(daemon, topic, len(RECORDS))
    assert [None if each.value_undefined else each.message for each in by_rpc] == [
        each[1] for each in RECORDS
    ]


def test_records_produced_by_kcat_are_consumed_by_rpc(
    daemon: Daemon, kafka: KafkaCluster, topic: str, kcat: str
) -> None:
    lines = "".join(f"key {number}:value {number}\n" for number in range(50))
    produce = [kcat, "-P", "-b", kafka.addresses[0], "-t", topic, "-p", "0", "-K:", "-H", "trace=abc"]
    run([*produce, "-z", "lz4"], lines)
    found = consume(daemon, topic, 50)
    assert [(each.offset, each.key_value, each.message) for each in found] == [
        (number, b"key %d" % number, b"value %d" % number) for number in range(50)
    ]
    assert {(header.key, header.value) for each in found for header in each.headers} == {("trace", b"abc")}


def read_by_kafka(kafka: KafkaCluster, topic: str, count: int) -> list[bytes]:
    """`count` messages as read by Kafka's own consumer."""
    read = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *["--bootstrap-server", kafka.addresses[0], "--topic", topic],
        *["--from-beginning", "--max-messages", str(count), "--timeout-ms", "20000"],
    )
    return [line.encode() for line in read.splitlines()]


def test_records_of_kafkas_producer_performance_are_consumed_by_rpc(
    daemon: Daemon, kafka: KafkaCluster, topic: str
) -> None:
    daemon.stub().Produce(pb.ProdRq(topic=topic, message=b"ours"), timeout=SECONDS)
    bootstrap = f"bootstrap.servers={kafka.addresses[0]}"
    sizes = ["--num-records", "300", "--record-size", "100", "--throughput", "-1"]
    run_tool(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, *sizes, "--producer-props", bootstrap
    )
    found = consume(daemon, topic, 301)
    assert [each.offset for each in found] == list(range(301))
    assert found[0].message == b"ours"
    assert {len(each.message) for each in found[1:]} == {100}
    assert [each.message for each in found] == read_by_kafka(kafka, topic, 301)


def test_kafkas_console_consumer_reads_records_produced_by_rpc(
    daemon: Daemon, kafka: KafkaCluster, topic: str
) -> None:
    stub = daemon.stub()
    for number in range(20):
        stub.Produce(pb.ProdRq(topic=topic, message=b"value %d" % number), timeout=SECONDS)
    assert read_by_kafka(kafka, topic, 20) == [b"value %d" % number for number in range(20)]
