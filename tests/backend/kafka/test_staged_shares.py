"""The share of a client address of `staging.max_bytes`, in front of a real Kafka."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pixy.backend.kafka import KafkaBackend
from tests.api.grpc.test_staging import batches_of, publish_of, stage_of
from tests.api.grpc.test_staging_shares import STAGING, VALUE, clients, share_is_kept
from tests.kafka.backends import kafka_options, staging_place
from tests.kafka.cluster import KafkaCluster

pytestmark = pytest.mark.process


async def test_an_address_stages_no_more_than_its_share_until_stages_are_published(
    kafka: KafkaCluster, kafka_name: Callable[[str], str], tmp_path: Path
) -> None:
    topic, sink = kafka_name("shares"), kafka_name("sink")
    backend = KafkaBackend(kafka_options(kafka), staging_place(tmp_path / "kafka", STAGING))
    async with clients(backend, tmp_path) as (first, second):
        await backend.create_topic(topic, 1)
        await share_is_kept(first, second, topic, sink)
        await second.Publish(publish_of(0, "1", "2", "4", sink=sink))
        for number in (9, 10):
            await first.Stage(stage_of(batches_of(VALUE, topic=topic), stage=f"{number}", sink=sink))
