"""One message at a time, and many connections that wait for one."""

import asyncio
import statistics
from contextlib import AsyncExitStack
from time import perf_counter

from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

from bench.kafka_door.sides import Side
from pixy.kafka_messages.generated.api_versions import ApiVersionsRequest
from pixy.kafka_messages.generated.metadata import MetadataRequest, MetadataRequestTopic
from tests.api.kafka.support import FETCH, METADATA, PRODUCE, batch, fetch_request, produce_request
from tests.fakes.kafka_client import RawKafkaClient, kafka_client

_SECONDS_MAX = 30.0
_API_VERSIONS = 18
_OPENED_AT_ONCE = 50
_WARM_UP = 100


def latency_ms(side: Side, topic: str, count: int) -> float:
    """Median time from the producer to the consumer of librdkafka, one message at a time. The
    consumer waits for it in a Fetch.
    """
    address = {"bootstrap.servers": side.address}
    producer = Producer({**address, "linger.ms": 0})
    consumer = Consumer({**address, "group.id": "unused", "enable.auto.commit": False})
    times: list[float] = []
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
        _wait_reading(producer, consumer, topic)
        for number in range(_WARM_UP + count):
            begun = perf_counter()
            producer.produce(topic, bytes(100), partition=0)
            producer.poll(0)
            message = consumer.poll(_SECONDS_MAX)
            if message is None or message.error() is not None:
                raise RuntimeError(f"message {number} of {side.name} did not come")
            times.append(perf_counter() - begun)
        producer.flush(_SECONDS_MAX)
    finally:
        consumer.close()
    return 1000 * statistics.median(times[_WARM_UP:])


def _wait_reading(producer: Producer, consumer: Consumer, topic: str) -> None:
    """Return when the consumer reads at the end, and nothing is on its way to it."""
    until = perf_counter() + _SECONDS_MAX
    while perf_counter() < until:
        producer.produce(topic, b"", partition=0)
        producer.flush(_SECONDS_MAX)
        if consumer.poll(1.0) is not None:
            while consumer.poll(1.0) is not None:
                pass
            return
    raise RuntimeError("nothing is read")


def waiting_rss_bytes(side: Side, topic: str, connections: int) -> int:
    """Resident memory with so many connections, each of which has asked for versions and metadata,
    has written a batch, and waits in a Fetch.
    """
    return asyncio.run(_waiting_rss_bytes(side, topic, connections))


async def _waiting_rss_bytes(side: Side, topic: str, connections: int) -> int:
    opened = asyncio.Semaphore(_OPENED_AT_ONCE)
    versions = ApiVersionsRequest("bench", "1")

    async def open_one(stack: AsyncExitStack) -> RawKafkaClient:
        async with opened:
            client = await stack.enter_async_context(kafka_client(side.address))
            await client.call(_API_VERSIONS, 3, versions)
            await client.call(METADATA, 9, MetadataRequest([MetadataRequestTopic(name=topic)]))
            written = await client.call(PRODUCE, 9, produce_request(topic, {0: batch(bytes(100))}))
            if code := written.responses[0].partition_responses[0].error_code:
                raise RuntimeError(f"a batch of {side.name} was refused with code {code}")
            return client

    async with AsyncExitStack() as stack:
        clients = await asyncio.gather(*(open_one(stack) for _ in range(connections)))
        wait_ms = round(1000 * _SECONDS_MAX)
        request = fetch_request(topic, {0: connections}, max_wait_ms=wait_ms)
        for client in clients:
            client.send(FETCH, 12, request)
            await client.writer.drain()
        # What comes later is answered once they were read.
        last = await stack.enter_async_context(kafka_client(side.address))
        await last.call(_API_VERSIONS, 3, versions)
        return side.rss_bytes()
