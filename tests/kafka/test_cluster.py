"""The brokers of the other tests: they start, know each other, and restart with their data."""

import pytest

from tests.integration.kafka_tools import run_tool
from tests.kafka.cluster import KafkaCluster

pytestmark = pytest.mark.process


def test_one_broker_answers(kafka: KafkaCluster) -> None:
    assert kafka.broker(1).known_brokers() == 1


def test_three_brokers_know_each_other_and_detect_a_dead_one(kafka_three: KafkaCluster) -> None:
    assert [each.known_brokers() for each in kafka_three.brokers] == [3, 3, 3]
    kafka_three.broker(2).kill()
    kafka_three.wait_ready()
    assert [each.known_brokers() for each in kafka_three.brokers] == [2, 0, 2]
    kafka_three.start_again(2)
    assert [each.known_brokers() for each in kafka_three.brokers] == [3, 3, 3]


def test_a_restarted_broker_has_its_topics(kafka_three: KafkaCluster) -> None:
    servers = ["--bootstrap-server", ",".join(kafka_three.addresses)]
    run_tool("org.apache.kafka.tools.TopicCommand", *servers, "--create", "--topic", "stays")
    for broker in kafka_three.brokers:
        broker.kill()
    kafka_three.start_again()
    assert "stays" in run_tool("org.apache.kafka.tools.TopicCommand", *servers, "--list").split()
