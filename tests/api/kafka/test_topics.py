from typing import Any

import pytest

from pixy.kafka_messages.generated.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from pixy.kafka_messages.generated.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from pixy.kafka_messages.generated.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from pixy.kafka_messages.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.api.kafka.support import produce
from tests.fakes.kafka_server import ServedKafka

pytestmark = pytest.mark.slow

CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, CREATE_PARTITIONS = 19, 20, 21, 37


def creatable(
    name: str, partitions: int = -1, replication: int = -1, **configs: str | None
) -> CreatableTopic:
    given = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()]
    return CreatableTopic(name, partitions, replication, [], given)


async def created(
    served: ServedKafka, *topics: CreatableTopic, version: int = 7, **fields: Any
) -> dict[str, int]:
    """Codes by name."""
    answer = await served.client.call(CREATE_TOPICS, version, CreateTopicsRequest([*topics], **fields))
    assert all(bool(each.error_message) == bool(each.error_code) for each in answer.topics)
    return {each.name: each.error_code for each in answer.topics}


async def names_of(served: ServedKafka) -> list[str]:
    return [topic.name for topic in await served.proxy.list_topics()]


@pytest.mark.parametrize("version", range(2, 8))
async def test_a_topic_is_made_with_options(served: ServedKafka, version: int) -> None:
    asked = creatable("t", 3, 1, retention_ms="60000", cleanup_policy="delete")
    answer = await served.client.call(CREATE_TOPICS, version, CreateTopicsRequest([asked]))
    (found,) = answer.topics
    topic = await served.proxy.describe_topic("t")
    assert (found.name, found.error_code, len(topic.partitions)) == ("t", 0, 3)
    assert topic.config == {"retention_ms": "60000"}
    if version >= 5:
        assert (found.num_partitions, found.replication_factor) == (3, 1)
        values = {each.name: (each.value, each.config_source) for each in found.configs}
        assert values["retention.ms"] == ("60000", 1)
        assert values["segment.bytes"][1] == 5
    assert found.topic_id == (topic.topic_id if version >= 7 else bytes(16))


async def test_a_topic_to_be_compacted_is_made_and_shown_so(served: ServedKafka) -> None:
    asked = creatable("t", 1, 1, cleanup_policy="compact", min_compaction_lag_ms="1000")
    answer = await served.client.call(CREATE_TOPICS, 7, CreateTopicsRequest([asked]))
    assert answer.topics[0].error_code == 0
    values = {each.name: (each.value, each.config_source) for each in answer.topics[0].configs}
    assert values["cleanup.policy"] == ("compact", 1)
    assert (await served.proxy.describe_topic("t")).config == {"cleanup_policy": "compact"}


async def test_numbers_that_are_not_given_are_the_clusters(served: ServedKafka) -> None:
    assert await created(served, creatable("t")) == {"t": 0}
    assert len((await served.proxy.describe_topic("t")).partitions) == 4


async def test_each_topic_fails_alone(served: ServedKafka) -> None:
    await served.proxy.create_topic("there", 1, {})
    with_assignment = creatable("placed")
    with_assignment.assignments = [CreatableReplicaAssignment(0, [1])]
    asked = [
        creatable("there"),
        creatable("in valid"),
        creatable("none", 0),
        creatable("negative", -2),
        creatable("replicas", 1, 0),
        creatable("many", 1, 3),
        with_assignment,
        creatable("squeezed", cleanup_policy="squeeze"),
        creatable("unknown", no_such="1"),
        creatable("wrong", retention_ms="x"),
        creatable("null", retention_ms=None),
        creatable("twice"),
        creatable("twice"),
        creatable("fine"),
    ]
    assert await created(served, *asked) == {
        "there": 36,
        "in valid": 17,
        "none": 37,
        "negative": 37,
        "replicas": 38,
        "many": 38,
        "placed": 39,
        "squeezed": 40,
        "unknown": 40,
        "wrong": 40,
        "null": 40,
        "twice": 42,
        "fine": 0,
    }
    assert await names_of(served) == ["fine", "there"]


async def test_a_creation_can_be_tried(served: ServedKafka) -> None:
    await served.proxy.create_topic("there", 1, {})
    asked = [creatable("new", 5), creatable("there"), creatable("in valid"), creatable("x", no_such="1")]
    found = await created(served, *asked, validate_only=True)
    assert found == {"new": 0, "there": 36, "in valid": 17, "x": 40}
    assert await names_of(served) == ["there"]


@pytest.mark.parametrize("version", range(1, 7))
async def test_topics_are_deleted(served: ServedKafka, version: int) -> None:
    await served.proxy.create_topic("t", 1, {})
    names = ["t", "none"]
    request = DeleteTopicsRequest([DeleteTopicState(name) for name in names], names)
    answer = await served.client.call(DELETE_TOPICS, version, request)
    assert {each.name: each.error_code for each in answer.responses} == {"t": 0, "none": 3}
    assert await names_of(served) == []


async def test_topics_are_deleted_by_id(served: ServedKafka) -> None:
    topic = await served.proxy.create_topic("t", 1, {})
    asked = [DeleteTopicState(None, topic.topic_id), DeleteTopicState(None, b"?" * 16)]
    answer = await served.client.call(DELETE_TOPICS, 6, DeleteTopicsRequest(asked))
    assert [(each.name, each.error_code) for each in answer.responses] == [("t", 0), (None, 100)]
    assert await names_of(served) == []


@pytest.mark.parametrize("version", range(1, 7))
async def test_no_topic_without_a_name_is_deleted(served: ServedKafka, version: int) -> None:
    asked = [DeleteTopicState("", b"?" * 16)]
    answer = await served.client.call(DELETE_TOPICS, version, DeleteTopicsRequest(asked, [""]))
    assert [(each.name, each.error_code) for each in answer.responses] == [("", 17)]


@pytest.mark.parametrize("version", range(4))
async def test_partitions_are_added(served: ServedKafka, version: int) -> None:
    await served.proxy.create_topic("t", 2, {})
    placed = CreatePartitionsTopic("t", 5, [CreatePartitionsAssignment([1])])
    asked = [CreatePartitionsTopic("t", 3, None), CreatePartitionsTopic("none", 3, None), placed]

    async def codes(topics: list[CreatePartitionsTopic], *, validate_only: bool = False) -> list[int]:
        request = CreatePartitionsRequest(topics, validate_only=validate_only)
        answer = await served.client.call(CREATE_PARTITIONS, version, request)
        return [each.error_code for each in answer.results]

    assert await codes(asked, validate_only=True) == [0, 3, 39]
    assert await codes(asked) == [0, 3, 39]
    assert await codes(asked[:1]) == [37]
    assert await codes([CreatePartitionsTopic("t", 1_000_000, None)]) == [37]
    assert len((await served.proxy.describe_topic("t")).partitions) == 3


@pytest.mark.parametrize("version", range(3))
async def test_records_are_removed(served: ServedKafka, version: int) -> None:
    await served.proxy.create_topic("t", 2, {})
    await produce(served.client, "t", 0, b"a", b"b", b"c")
    await produce(served.client, "t", 1, b"a", b"b", b"c")
    asked = [DeleteRecordsPartition(number, offset) for number, offset in ((0, 2), (1, -1), (1, 9), (7, 0))]
    topics = [DeleteRecordsTopic("t", asked), DeleteRecordsTopic("none", asked[:1])]
    answer = await served.client.call(DELETE_RECORDS, version, DeleteRecordsRequest(topics))
    found = [[(each.low_watermark, each.error_code) for each in topic.partitions] for topic in answer.topics]
    assert found == [[(2, 0), (3, 0), (-1, 1), (-1, 3)], [(-1, 3)]]
