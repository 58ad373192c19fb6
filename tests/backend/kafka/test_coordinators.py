"""pixy/backend/kafka/coordinators.py: a moved coordinator is found."""

from collections.abc import Callable

import pytest

from pixy.backend import OffsetCommit, TopicPartition
from pixy.errors import Unavailable
from pixy.kafka_protocol.group_messages import HEARTBEAT
from tests.backend.kafka.member import create_topic, open_process
from tests.kafka.cluster import KafkaCluster

pytestmark = pytest.mark.process


async def test_a_broker_that_is_not_the_coordinator_is_not_asked_again(
    kafka_three: KafkaCluster, kafka_name: Callable[[str], str]
) -> None:
    topic, group = kafka_name("t"), kafka_name("g")
    async with open_process(kafka_three) as process:
        await create_topic(process, topic, 1)
        await process.offsets.commit(group, {TopicPartition(topic, 0): OffsetCommit(1)})
        coordinator = await process.coordinators.find(group)
        process.coordinators._nodes[group] = coordinator % 3 + 1
        with pytest.raises(Unavailable, match="error 16, NotCoordinatorForGroupError"):
            await process.coordinators.ask_once(group, HEARTBEAT(group, 1, "me", None), "stay")
        assert await process.coordinators.find(group) == coordinator
        process.coordinators._nodes[group] = coordinator % 3 + 1
        await process.offsets.commit(group, {TopicPartition(topic, 0): OffsetCommit(2)})
        assert await process.offsets.committed(group, topic) == {0: (2, "")}
