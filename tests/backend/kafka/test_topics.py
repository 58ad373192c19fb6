"""Topics of a real Kafka beyond the conformance tests: Kafka's own options, and topics created by
others.
"""

from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pixy.backend import OffsetCommit, TopicPartition
from pixy.backend.kafka import KafkaBackend
from pixy.backend.kafka.client import KafkaClient
from pixy.backend.kafka.errors import UNKNOWN_TOPIC_OR_PARTITION
from pixy.backend.kafka.topics import Topics
from pixy.errors import InvalidArgument, InvalidTopic, TopicExists, UnknownTopic
from pixy.kafka_protocol.messages import DESCRIBE_CONFIGS
from tests.integration.kafka_tools import run_tool
from tests.kafka.backends import kafka_options, open_kafka
from tests.kafka.cluster import KafkaCluster

pytestmark = pytest.mark.process


@pytest.fixture
async def backend(kafka: KafkaCluster) -> AsyncIterator[KafkaBackend]:
    async with open_kafka(kafka) as opened:
        yield opened


@pytest.fixture
def topic(kafka_name: Callable[[str], str]) -> str:
    return kafka_name("topic")


async def test_every_option_of_kafka_can_be_set(backend: KafkaBackend, topic: str) -> None:
    options = {"cleanup_policy": "compact", "min_insync_replicas": "1", "max_message_bytes": "2000000"}
    assert (await backend.create_topic(topic, 1, options)).config == options
    altered = await backend.alter_topic(topic, config={"cleanup_policy": None, "compression_type": "zstd"})
    assert altered.config == {
        "min_insync_replicas": "1",
        "max_message_bytes": "2000000",
        "compression_type": "zstd",
    }


class LaggingClient(KafkaClient):
    """A client whose first request for options goes to a broker without the topic yet."""

    lags = True

    async def send_any(self, request: Any, **options: Any) -> Any:
        if request.api is DESCRIBE_CONFIGS and self.lags:
            self.lags = False
            return SimpleNamespace(resources=[(UNKNOWN_TOPIC_OR_PARTITION, "", 2, "", [])])
        return await super().send_any(request, **options)


async def test_a_topic_is_created_though_a_broker_does_not_know_it_yet(
    kafka: KafkaCluster, topic: str
) -> None:
    client = LaggingClient(kafka_options(kafka))
    await client.start()
    try:
        assert (await Topics(client).create(topic, 2, {})).name == topic
        assert not client.lags
    finally:
        await client.stop()


async def test_a_topic_is_described_though_a_broker_does_not_know_it(
    kafka: KafkaCluster, backend: KafkaBackend, topic: str
) -> None:
    await backend.create_topic(topic, 1, {"retention_ms": "1000000"})
    client = LaggingClient(kafka_options(kafka))
    await client.start()
    try:
        assert (await Topics(client).describe(topic)).config == {"retention_ms": "1000000"}
        assert not client.lags
    finally:
        await client.stop()


async def test_kafkas_error_about_an_option_is_reported(backend: KafkaBackend, topic: str) -> None:
    await backend.create_topic(topic, 1)
    with pytest.raises(InvalidArgument, match=r"options of topic topic-\d+: .*cleanup\.policy"):
        await backend.alter_topic(topic, config={"cleanup_policy": "shred"})
    with pytest.raises(
        InvalidArgument, match=r"cleanup\.policy is unknown; options have Kafka's names with _ for dots"
    ):
        await backend.alter_topic(topic, config={"cleanup.policy": "compact"})


async def test_a_partially_rejected_change_changes_nothing(backend: KafkaBackend, topic: str) -> None:
    before = await backend.create_topic(topic, 2)
    with pytest.raises(InvalidArgument):
        await backend.alter_topic(topic, partitions=3, config={"cleanup_policy": "shred"})
    with pytest.raises(InvalidArgument):
        await backend.alter_topic(topic, partitions=1, config={"cleanup_policy": "compact"})
    assert await backend.describe_topic(topic) == before


async def test_topics_created_by_others_are_described_with_their_options(
    kafka: KafkaCluster, backend: KafkaBackend, topic: str
) -> None:
    made = ["--create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=12345678"]
    run_tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", kafka.addresses[0], *made)
    described = await backend.describe_topic(topic)
    assert (len(described.partitions), described.config) == (3, {"retention_ms": "12345678"})
    assert described in await backend.list_topics()


async def test_a_topic_created_by_others_is_known_when_its_creation_is_rejected(
    kafka: KafkaCluster, backend: KafkaBackend, topic: str
) -> None:
    async with open_kafka(kafka) as other:
        await other.create_topic(topic, 3)
    assert backend.topic(topic) is None
    with pytest.raises(TopicExists):
        await backend.create_topic(topic, 1)
    known = backend.topic(topic)
    assert known is not None
    assert len(known.partitions) == 3


async def test_kafkas_internal_topics_are_not_listed(backend: KafkaBackend, kafka: KafkaCluster) -> None:
    names = [each.name for each in await backend.list_topics()]
    assert not [name for name in names if name.startswith("__")]


async def test_many_topics_are_listed_with_their_options(
    backend: KafkaBackend, kafka_name: Callable[[str], str]
) -> None:
    names = sorted(kafka_name(f"many-{number:02}") for number in range(45))
    for number, name in enumerate(names):
        await backend.create_topic(name, 1, {"retention_ms": str(number + 1)})
    listed = {each.name: each.config for each in await backend.list_topics()}
    assert [listed[name] for name in names] == [{"retention_ms": str(n + 1)} for n in range(45)]


@pytest.mark.parametrize("force", [False, True])
async def test_topics_of_kafka_itself_are_neither_made_nor_deleted(
    backend: KafkaBackend, topic: str, kafka_name: Callable[[str], str], force: bool
) -> None:
    await backend.create_topic(topic, 1)
    group = kafka_name("group")
    await backend.commit_offsets(group, {TopicPartition(topic, 0): OffsetCommit(5, "")}, set=True)
    for internal in (
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        "__cluster_metadata",
    ):
        with pytest.raises(UnknownTopic, match=internal):
            await backend.delete_topic(internal, force=force)
        with pytest.raises(UnknownTopic, match=internal):
            await backend.alter_topic(internal, config={"retention_ms": "1"})
        with pytest.raises(InvalidTopic, match=f"topic {internal} is internal to Kafka"):
            await backend.create_topic(internal, 1)
    assert (await backend.committed_offsets(group, topic))[0].offset == 5
