"""Mirrors from a real Kafka and to it, by one daemon that has both clusters."""

import json
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from pixy.records import NewRecord
from tests.fakes.waiting import until_blocking
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import Daemon
from tests.integration.mirrored import (
    SECONDS,
    Place,
    append,
    mirror_once,
    mirroring,
    offsets_at,
    records_at,
    set_offsets,
)
from tests.integration.pages import blocks_of
from tests.kafka.cluster import KafkaCluster

pytestmark = [pytest.mark.process, pytest.mark.long]

PARTITIONS = 2
NOW_MS = round(time.time() * 1000)


@pytest.fixture
def daemon(make_daemon: MakeDaemon, kafka: KafkaCluster) -> Daemon:
    proxies = {
        "main": {"kind": "embedded"},
        "kafka": {"kind": "kafka", "kafka": {"seed_peers": kafka.addresses}},
    }
    running = make_daemon({"proxies": proxies, "default_cluster": "main", "kafka_addr": "127.0.0.1:0"})
    running.start()
    return running


def places(daemon: Daemon) -> tuple[Place, Place]:
    """The embedded log, and Kafka."""
    return Place(daemon.address, "main"), Place(daemon.address, "kafka")


def make_topic(kafka: KafkaCluster, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.addresses[0]})
    new = NewTopic(
        topic, PARTITIONS, 1, config={name.replace("_", "."): value for name, value in config.items()}
    )
    admin.create_topics([new])[topic].result(60)


def produce(producer: Any, topic: str, *values: str) -> None:
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value.encode(),
            key=b"%d" % number,
            partition=number % PARTITIONS,
            headers=[("a", b"1"), ("a", None)],
            timestamp=NOW_MS + number,
        )
    assert producer.flush(60) == 0


def transact(kafka: KafkaCluster, topic: str, name: str) -> None:
    """Write some transactions, of which one is aborted."""
    options = {"bootstrap.servers": kafka.addresses[0], "transactional.id": name, "compression.type": "zstd"}
    producer = Producer(options)
    producer.init_transactions(60)
    for number in range(4):
        producer.begin_transaction()
        produce(producer, topic, *(f"{name} {number} {each}" for each in range(6)))
        if number == 1:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)


def commit(address: str, topic: str, group: str, offsets: dict[int, int]) -> None:
    """Commit offsets as a consumer of Kafka."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": group})
    with suppress(KafkaException):
        consumer.commit(
            offsets=[TopicPartition(topic, number, offset) for number, offset in offsets.items()],
            asynchronous=False,
        )
    consumer.close()


def rest(address: str, topic: str, group: str, count: int) -> list[bytes]:
    """The messages that a group of Kafka's clients gets now."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes] = []
    until = time.monotonic() + 60
    while len(found) < count and time.monotonic() < until:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.append(message.value() or b"")
    consumer.close()
    return found


def test_from_kafka(daemon: Daemon, kafka: KafkaCluster, kafka_name: Callable[[str], str]) -> None:
    main, at_kafka = places(daemon)
    topic, stamped, group = kafka_name("from"), kafka_name("stamped"), kafka_name("group")
    make_topic(kafka, topic, retention_ms="86400000", max_message_bytes="500000")
    make_topic(kafka, stamped, message_timestamp_type="LogAppendTime")
    idempotent = Producer({"bootstrap.servers": kafka.addresses[0], "enable.idempotence": True})
    produce(idempotent, topic, *(f"plain {number}" for number in range(9)))
    produce(idempotent, stamped, "a", "b", "c")
    transact(kafka, topic, kafka_name("transactions"))
    produce(idempotent, topic, "last")
    options = ("--topics", f"{topic},{stamped}", "--groups", "--name", topic)
    # Offset 6 of partition 0 is behind five plain messages and one of the first transaction.
    commit(kafka.addresses[0], topic, group, {0: 6, 1: 3})
    mirror_once(at_kafka, main, *options)
    for name in (topic, stamped):
        assert records_at(main, name) == records_at(at_kafka, name)
        assert all(records_at(main, name))
    assert sum(map(len, records_at(main, topic))) == 9 + 18 + 1
    assert offsets_at(main, topic, group) == {0: 6, 1: 3}
    left = [each.value or b"" for each in records_at(main, topic)[0][6:]]
    left += [each.value or b"" for each in records_at(main, topic)[1][3:]]
    assert sorted(rest(daemon.addresses["kafka"], topic, group, len(left))) == sorted(left)
    # A transaction more: the offset of a group behind its marker is the end.
    transact(kafka, topic, kafka_name("more"))
    later = kafka_name("later")
    commit(kafka.addresses[0], topic, later, {0: 10_000})
    mirror_once(at_kafka, main, *options)
    found = records_at(main, topic)
    assert found == records_at(at_kafka, topic)
    assert offsets_at(main, topic, later) == {0: len(found[0])}


def test_to_kafka(daemon: Daemon, kafka: KafkaCluster, kafka_name: Callable[[str], str]) -> None:
    main, at_kafka = places(daemon)
    topic, group = kafka_name("to"), kafka_name("group")
    make = AdminClient({"bootstrap.servers": daemon.addresses["kafka"]})
    make.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
    produce(
        Producer({"bootstrap.servers": daemon.addresses["kafka"], "enable.idempotence": True}),
        topic,
        *(f"one {number}" for number in range(9)),
    )
    options = ("--topics", topic, "--groups", "--name", topic)
    mirror_once(main, at_kafka, *options)
    for number in range(PARTITIONS):
        append(main, topic, number, [NewRecord(None, b"two %d" % at, [], NOW_MS) for at in range(5)])
    set_offsets(main, topic, group, {0: 7, 1: 9})
    mirror_once(main, at_kafka, *options)
    expected = records_at(main, topic)
    assert records_at(at_kafka, topic) == expected
    assert [len(records) for records in expected] == [10, 9]
    # A transaction's marker is between the two rounds, and another one behind the second.
    assert offsets_at(at_kafka, topic, group) == {0: 8, 1: 10}
    got = rest(kafka.addresses[0], topic, group, 3)
    assert got == [record.value for record in expected[0][7:]]


def has_more(place: Place, topic: str, count: int) -> bool:
    return sum(map(len, records_at(place, topic))) > count


def test_a_mirror_to_kafka_is_killed_again_and_again(
    daemon: Daemon, kafka: KafkaCluster, kafka_name: Callable[[str], str], tmp_path: Path
) -> None:
    main, at_kafka = places(daemon)
    topic, back = kafka_name("killed"), Random(5)
    make = AdminClient({"bootstrap.servers": daemon.addresses["kafka"]})
    make.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
    options = ("--topics", topic, "--name", topic)
    log = tmp_path / "mirror.log"
    for life in range(6):
        copied = sum(map(len, records_at(at_kafka, topic)))
        with mirroring(main, at_kafka, log, *options):
            for number in range(100):
                append(
                    main, topic, number % PARTITIONS, [NewRecord(None, b"%d %d" % (life, number), [], NOW_MS)]
                )
            until_blocking(partial(has_more, at_kafka, topic, copied), log.read_text)
            time.sleep(back.uniform(0, 0.3))
    mirror_once(main, at_kafka, *options)
    assert records_at(at_kafka, topic) == records_at(main, topic)
    events = [json.loads(line)["event"] for line in log.read_text().splitlines() if line.startswith("{")]
    assert set(events) <= {"created", "progress", "outage", "resumed"}


RECIPE = [block for block in blocks_of("docs/operations.md") if "--from-cluster" in block.text]


def command_of_page(step: int, daemon: Daemon, topic: str) -> list[str]:
    """A command of the recipe, with the address and the topic of a test."""
    (command,) = RECIPE[step].commands()
    changed = command.line.replace("localhost", daemon.address).replace("orders", topic)
    return [sys.executable, "-m", *shlex.split(changed), "--name", topic, "--json"]


class Clients:
    """Producers and a consumer group of Kafka's clients, at one address after the other."""

    def __init__(self, topic: str, group: str) -> None:
        self._topic, self._group = topic, group
        self.sent: list[bytes] = []
        self.got: list[bytes] = []

    def produce(self, address: str, ended: threading.Event, *, idempotent: bool) -> None:
        """Produce, some messages a millisecond, until told to end."""
        producer = Producer({"bootstrap.servers": address, "enable.idempotence": idempotent})
        while not ended.wait(0.001):
            value = b"message %d" % len(self.sent)
            producer.produce(self._topic, value, partition=len(self.sent) % PARTITIONS)
            self.sent.append(value)
            producer.poll(0)
        assert producer.flush(60) == 0

    def consume(self, address: str, count: int) -> None:
        """Consume so many messages, each with a commit."""
        consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": self._group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([self._topic])
        until = time.monotonic() + SECONDS
        got = 0
        while got < count:
            assert time.monotonic() < until, f"{got} of {count} messages came"
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                self.got.append(message.value() or b"")
                consumer.commit(message, asynchronous=False)
                got += 1
        consumer.close()

    def consume_rest(self, address: str) -> None:
        """Consume as many messages as are left."""
        self.consume(address, len(self.sent) - len(self.got))


def test_the_recipe_of_a_migration_to_pixy_and_back(
    daemon: Daemon, kafka: KafkaCluster, kafka_name: Callable[[str], str]
) -> None:
    assert len(RECIPE) == 3
    main, at_kafka = places(daemon)
    topic = kafka_name("orders")
    clients = Clients(topic, kafka_name("billing"))
    broker, pixy = kafka.addresses[0], daemon.addresses["kafka"]
    make_topic(kafka, topic)
    # Step 1: the mirror runs while clients use Kafka.
    ended = threading.Event()
    producing = threading.Thread(target=clients.produce, args=(broker, ended), kwargs={"idempotent": True})
    producing.start()
    mirror = subprocess.Popen(command_of_page(0, daemon, topic), stdout=subprocess.PIPE, text=True)
    try:
        clients.consume(broker, 300)
        until_blocking(lambda: sum(map(len, records_at(main, topic))) > 600)
        ended.set()
        producing.join()
        transact(kafka, topic, kafka_name("transactions"))
        mirror.send_signal(signal.SIGINT)
        output, _ = mirror.communicate(timeout=SECONDS)
    finally:
        mirror.kill()
    assert mirror.returncode == 130, output
    # The transactions are not of these clients.
    others = [each.value for part in records_at(at_kafka, topic) for each in part]
    clients.sent += [value for value in others if value and value.startswith(b"transactions")]
    # Step 2: the rest, without clients.
    subprocess.run(command_of_page(1, daemon, topic), check=True, timeout=SECONDS)
    assert records_at(main, topic) == records_at(at_kafka, topic)
    # Step 3: clients use pixy.
    clients.consume(pixy, 200)
    producer_ended = threading.Timer(1, ended.set)
    ended.clear()
    producer_ended.start()
    clients.produce(pixy, ended, idempotent=True)
    clients.consume(pixy, 100)
    # Step 4: and go back.
    subprocess.run(command_of_page(2, daemon, topic), check=True, timeout=SECONDS)
    assert records_at(at_kafka, topic) == records_at(main, topic)
    assert sum(map(len, records_at(at_kafka, topic))) == len(clients.sent)
    clients.consume(broker, 50)
    ended.clear()
    producer_ended = threading.Timer(0.5, ended.set)
    producer_ended.start()
    clients.produce(broker, ended, idempotent=True)
    clients.consume_rest(broker)
    assert sorted(clients.got) == sorted(clients.sent)
    found = [each.value for part in records_at(at_kafka, topic) for each in part]
    assert sorted(value or b"" for value in found) == sorted(clients.sent)
