"""Consumers over HTTP in front of Kafka, while a lagging broker does not know of their topic."""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pixy.config import Config, ConsumerConfig, ProxyConfig
from tests.fakes.http_server import ServedHttp, serve_http
from tests.kafka.backends import make_kafka
from tests.kafka.cluster import KafkaCluster
from tests.kafka.lagging import LaggingBroker

pytestmark = pytest.mark.process

CONFIG = Config(
    tcp_addr="127.0.0.1:0",
    proxies={
        "first": ProxyConfig(
            kind="kafka",
            consumer=replace(
                ConsumerConfig(),
                long_polling_timeout=60.0,
                initial_offset="oldest",
                offsets_commit_interval=3600.0,
            ),
        )
    },
)
JSON = "Content-Type: application/json"


class Client:
    """A client of a topic. A broker lacks the topic before each of its requests."""

    def __init__(self, served: ServedHttp, lagging: LaggingBroker, topic: str, group: str) -> None:
        self.served = served
        self.lagging = lagging
        self.topic = topic
        self.group = group

    async def call(self, method: str, target: str, body: Any = None) -> Any:
        await self.lagging.lack(self.served.backend, self.topic)
        data = None if body is None else json.dumps(body).encode()
        answer = await self.served.client.call(method, target.format(self.topic, self.group), data, JSON)
        assert answer.status == 200, answer.text
        return json.loads(answer.body)

    async def produce(self, *values: str) -> None:
        records = [{"value": value} for value in values]
        await self.call("POST", "/v1/topics/{}/records", records)

    async def message(self, query: str) -> int:
        found = await self.call("GET", f"/topics/{{}}/messages?group={{}}{query}")
        return int(found["offset"])

    async def records(self, query: str) -> list[int]:
        found = await self.call("GET", f"/v1/topics/{{}}/records?group={{}}{query}")
        return [each["offset"] for each in found["records"]]


@pytest.fixture
async def client(
    kafka: KafkaCluster, kafka_name: Callable[[str], str], tmp_path: Path
) -> AsyncIterator[Client]:
    lagging, topic, group = LaggingBroker(), kafka_name("http"), kafka_name("group")
    backend = make_kafka(kafka, tmp_path, lagging.dial, rebalance_delay_s=0.0)
    async with serve_http(backend, CONFIG) as served:
        await backend.wait_ready()
        await backend.create_topic(topic, 1)
        yield Client(served, lagging, topic, group)


async def test_each_message_is_delivered_once_however_it_is_acked(client: Client) -> None:
    await client.produce(*"0123456789")
    assert await client.message("") == 0
    assert await client.message("&noAck") == 1
    assert await client.message("&ackPartition=0&ackOffset=1") == 2
    await client.call("POST", "/topics/{}/acks?group={}&partition=0&offset=2")
    assert await client.records("&wait_ms=60000&max_records=2") == [3, 4]
    acks = [{"partition": 0, "offset": offset} for offset in (3, 4)]
    assert (await client.call("POST", "/v1/topics/{}/acks?group={}", acks))["acked"] == 2
    assert await client.records("&ack=auto&wait_ms=60000&max_records=2") == [5, 6]
    assert await client.records("&ack=auto&wait_ms=60000") == [7, 8, 9]
    assert await client.records("&wait_ms=10") == []
