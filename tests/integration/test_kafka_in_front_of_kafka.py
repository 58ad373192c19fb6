"""The Kafka API of a daemon in front of a real Kafka: kcat and librdkafka see one broker, pixy."""

import subprocess
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as ConfluentTopic

from tests.conftest import require
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import Daemon
from tests.kafka.cluster import KafkaCluster

pytestmark = pytest.mark.process

LINES = [f"message {number}" for number in range(500)]


@pytest.fixture
def daemon(make_daemon: MakeDaemon, kafka: KafkaCluster) -> Daemon:
    proxy = {"kind": "kafka", "kafka": {"seed_peers": kafka.addresses}, "default_partitions": 2}
    running = make_daemon({"kafka_addr": "127.0.0.1:0", "proxies": {"default": proxy}})
    running.start()
    return running


def kcat(address: str, *args: str, given: str = "") -> str:
    program = require("kcat", "apt-get install kcat")
    done = subprocess.run(
        [program, "-b", address, *args], input=given, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kcat_produces_and_consumes(
    daemon: Daemon, kafka: KafkaCluster, kafka_name: Callable[[str], str]
) -> None:
    topic, address = kafka_name("clients"), daemon.addresses["kafka"]
    given = "".join(f"{line}\n" for line in LINES)
    kcat(address, "-P", "-t", topic, "-p", "1", "-z", "lz4", given=given)
    read = ("-C", "-q", "-t", topic, "-p", "1", "-o", "beginning", "-e")
    assert kcat(address, *read).splitlines() == LINES
    assert kcat(kafka.addresses[0], *read).splitlines() == LINES
    assert kcat(address, "-Q", "-t", f"{topic}:1:-1") == f"{topic} [1] offset 500\n"
    listed = kcat(address, "-L", "-t", topic)
    assert f"broker 1 at {address} (controller)" in listed
    assert "partition 1, leader 1, replicas: 1, isrs: 1" in listed


def test_topics_are_made_in_the_cluster(
    daemon: Daemon, kafka: KafkaCluster, kafka_name: Callable[[str], str]
) -> None:
    topic = kafka_name("made")
    admin = AdminClient({"bootstrap.servers": daemon.addresses["kafka"]})
    made = [ConfluentTopic(topic, 3, 1)]
    admin.create_topics(made)[topic].result(60)
    assert f'topic "{topic}" with 3 partitions' in kcat(kafka.addresses[0], "-L", "-t", topic)
    again = admin.create_topics(made)[topic]
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        again.result(60)


def test_idempotent_producers_are_refused(daemon: Daemon, kafka_name: Callable[[str], str]) -> None:
    options = {"bootstrap.servers": daemon.addresses["kafka"], "enable.idempotence": True}
    producer = Producer(options)
    producer.produce(kafka_name("refused"), b"a")
    with pytest.raises(KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
        producer.flush(60)
