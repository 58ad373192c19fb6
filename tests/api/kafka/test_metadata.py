from typing import Any

import pytest

from pixy.kafka_messages.generated.describe_cluster import DescribeClusterRequest
from pixy.kafka_messages.generated.metadata import MetadataRequest, MetadataRequestTopic
from tests.api.kafka.support import DESCRIBE_CLUSTER, METADATA
from tests.fakes.kafka_server import ServedKafka

pytestmark = pytest.mark.slow


def asked(*names: str) -> list[MetadataRequestTopic]:
    return [MetadataRequestTopic(name=name) for name in names]


def summary(answer: Any) -> dict[str, tuple[int, int]]:
    """Code and number of partitions by name."""
    return {topic.name: (topic.error_code, len(topic.partitions)) for topic in answer.topics}


@pytest.mark.parametrize("version", range(14))
async def test_brokers_and_leaders_in_every_version(served: ServedKafka, version: int) -> None:
    topic = await served.proxy.create_topic("t", 2, {})
    answer = await served.client.call(METADATA, version, MetadataRequest(asked("t")))
    host, _, port = served.address.rpartition(":")
    assert [(each.node_id, each.host, each.port) for each in answer.brokers] == [(1, host, int(port))]
    (found,) = answer.topics
    assert (found.error_code, found.name) == (0, "t")
    assert found.topic_id == (topic.topic_id if version >= 10 else bytes(16))
    assert [(each.partition_index, each.leader_id) for each in found.partitions] == [(0, 1), (1, 1)]
    assert [(each.replica_nodes, each.isr_nodes) for each in found.partitions] == [([1], [1])] * 2
    assert (answer.controller_id, bool(answer.cluster_id)) == ((1 if version else -1), version >= 2)


async def test_all_topics_or_none(served: ServedKafka) -> None:
    await served.proxy.create_topic("a", 1, {})
    await served.proxy.create_topic("b", 3, {})
    every = {"a": (0, 1), "b": (0, 3)}
    assert summary(await served.client.call(METADATA, 0, MetadataRequest([]))) == every
    assert summary(await served.client.call(METADATA, 1, MetadataRequest(None))) == every
    assert summary(await served.client.call(METADATA, 1, MetadataRequest([]))) == {}


async def test_missing_topics_are_made_if_the_client_wants_it(served: ServedKafka) -> None:
    wanted = MetadataRequest(asked("new", "in valid"), allow_auto_topic_creation=False)
    assert summary(await served.client.call(METADATA, 4, wanted)) == {"new": (3, 0), "in valid": (3, 0)}
    wanted.allow_auto_topic_creation = True
    answer = await served.client.call(METADATA, 4, wanted)
    assert summary(answer) == {"new": (0, 4), "in valid": (17, 0)}


async def test_topics_by_id(served: ServedKafka) -> None:
    topic = await served.proxy.create_topic("t", 1, {})
    wanted = [MetadataRequestTopic(topic.topic_id, None), MetadataRequestTopic(b"?" * 16, None)]
    answer = await served.client.call(METADATA, 12, MetadataRequest(wanted))
    assert [(each.name, each.error_code) for each in answer.topics] == [("t", 0), (None, 100)]
    assert answer.topics[1].topic_id == b"?" * 16


@pytest.mark.parametrize("version", range(14))
async def test_a_topic_without_a_name_is_invalid(served: ServedKafka, version: int) -> None:
    wanted = [MetadataRequestTopic(name=None if version >= 10 else "")]
    if 10 <= version < 12:
        wanted.append(MetadataRequestTopic(b"?" * 16, None))
    answer = await served.client.call(METADATA, version, MetadataRequest(wanted))
    assert [(each.name, each.error_code) for each in answer.topics] == [("", 17)] * len(wanted)


@pytest.mark.parametrize("version", range(3))
async def test_a_cluster_is_described(served: ServedKafka, version: int) -> None:
    answer = await served.client.call(DESCRIBE_CLUSTER, version, DescribeClusterRequest())
    assert (answer.error_code, answer.controller_id, len(answer.brokers)) == (0, 1, 1)
    assert answer.brokers[0].port == int(served.address.rpartition(":")[2])
    if version:
        refused = await served.client.call(DESCRIBE_CLUSTER, version, DescribeClusterRequest(endpoint_type=2))
        assert refused.error_code == 115
