"""Consumer groups of Java's clients and Kafka's own tools at a real daemon."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer

from pixy.proto import kafkapixy_pb2 as pb
from tests.fakes.waiting import until_blocking
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import Daemon, proxy_config
from tests.integration.kafka_tools import run_tool

pytestmark = [pytest.mark.process, pytest.mark.slow]

TOPIC, GROUP, PARTITIONS, MESSAGES = "orders", "workers", 4, 400


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> Iterator[Daemon]:
    proxy = proxy_config(storage={"group_initial_rebalance_delay": "0.1s"})
    with make_daemon({"kafka_addr": "127.0.0.1:0", **proxy}) as daemon:
        producer = Producer({"bootstrap.servers": daemon.addresses["kafka"]})
        for number in range(MESSAGES):
            producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS)
        assert producer.flush(60) == 0
        yield daemon


def groups(daemon: Daemon, *args: str) -> str:
    """Output of kafka-consumer-groups."""
    command = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    return run_tool(command, "--bootstrap-server", daemon.addresses["kafka"], *args)


def described(daemon: Daemon) -> dict[int, tuple[str, str, str]]:
    """Offset, end and lag by partition, as Kafka's tool shows them."""
    found = {}
    for line in groups(daemon, "--describe", "--group", GROUP).splitlines():
        words = line.split()
        if words[:2] == [GROUP, TOPIC]:
            found[int(words[2])] = (words[3], words[4], words[5])
    return found


def committed(daemon: Daemon) -> dict[int, int]:
    answer = daemon.stub().GetOffsets(pb.GetOffsetsRq(topic=TOPIC, group=GROUP), timeout=10)
    return {each.partition: each.offset for each in answer.offsets}


def test_javas_console_consumer_and_the_tool_for_groups(daemon: Daemon) -> None:
    read = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", daemon.addresses["kafka"], "--topic", TOPIC, "--group", GROUP),
        *("--from-beginning", "--max-messages", str(MESSAGES), "--timeout-ms", "60000"),
    )
    assert sorted(map(int, read.split())) == [*range(MESSAGES)]
    share = MESSAGES // PARTITIONS
    assert committed(daemon) == dict.fromkeys(range(PARTITIONS), share)
    assert described(daemon) == dict.fromkeys(range(PARTITIONS), (str(share), str(share), "0"))
    assert GROUP in groups(daemon, "--list").split()
    assert "Empty" in groups(daemon, "--describe", "--group", GROUP, "--state")

    reset = ("--reset-offsets", "--group", GROUP, "--topic", f"{TOPIC}:0,1", "--to-offset", "7", "--execute")
    groups(daemon, *reset)
    assert committed(daemon) == {0: 7, 1: 7, 2: share, 3: share}
    groups(daemon, "--delete-offsets", "--group", GROUP, "--topic", f"{TOPIC}:0")
    assert committed(daemon)[0] == -1
    groups(daemon, "--delete", "--group", GROUP)
    assert GROUP not in groups(daemon, "--list").split()


def test_kafkas_tool_describes_members_and_resets_no_group_that_has_some(daemon: Daemon) -> None:
    consumer = Consumer({"bootstrap.servers": daemon.addresses["kafka"], "group.id": GROUP})
    consumer.subscribe([TOPIC])
    try:
        until_blocking(lambda: consumer.poll(0.05) or consumer.assignment())
        members = groups(daemon, "--describe", "--group", GROUP, "--members", "--verbose")
        assert "rdkafka" in members
        assert "0,1,2,3" in members.replace(f"{TOPIC}:", "")
        assert "Stable" in groups(daemon, "--describe", "--group", GROUP, "--state")
        reset = ("--reset-offsets", "--group", GROUP, "--topic", TOPIC, "--to-earliest", "--execute")
        groups(daemon, *reset)
        assert committed(daemon) == dict.fromkeys(range(PARTITIONS), -1), "it is refused"
    finally:
        consumer.close()
