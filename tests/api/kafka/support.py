"""Requests of clients, and what is in their answers."""

from collections.abc import Sequence
from typing import Any

from pixy.kafka_messages.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from pixy.kafka_messages.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from pixy.kafka_messages.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pixy.records import NewRecord, build_batch, read_records
from tests.fakes.kafka_client import RawKafkaClient

PRODUCE, FETCH, LIST_OFFSETS, METADATA, DESCRIBE_CLUSTER = 0, 1, 2, 3, 60


def batch(*values: bytes, timestamp_ms: int = 1000, codec: int = 0) -> bytes:
    """A batch of one record per value, with timestamps 1 ms apart."""
    records = [NewRecord(None, value, [], timestamp_ms + at) for at, value in enumerate(values)]
    return bytes(build_batch(records, codec))


def produce_request(topic: str, batches: dict[int, bytes | None], acks: int = -1) -> ProduceRequest:
    partitions = [PartitionProduceData(number, records) for number, records in batches.items()]
    return ProduceRequest(None, acks, 5000, [TopicProduceData(topic, partitions)])


async def produce(client: RawKafkaClient, topic: str, partition: int, *values: bytes) -> int:
    """The offset of the first record."""
    answer = await client.call(PRODUCE, 9, produce_request(topic, {partition: batch(*values)}))
    (part,) = answer.responses[0].partition_responses
    assert part.error_code == 0, part.error_message
    return int(part.base_offset)


def fetch_request(
    topic: str,
    offsets: dict[int, int],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_bytes: int = 1 << 20,
    topic_id: bytes = bytes(16),
) -> FetchRequest:
    partitions = [
        FetchPartition(number, fetch_offset=offset, partition_max_bytes=partition_bytes)
        for number, offset in offsets.items()
    ]
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic, topic_id, partitions)],
    )


def values_of(answer: Any) -> dict[int, list[bytes | None]]:
    """Values of the records by partition."""
    return {part.partition_index: _values(part.records) for part in answer.responses[0].partitions}


def _values(records: memoryview) -> list[bytes | None]:
    found: list[bytes | None] = []
    at = 0
    while at < len(records):
        size = 12 + int.from_bytes(records[at + 8 : at + 12], "big")
        found += [record.value for record in read_records(records[at : at + size])]
        at += size
    return found


async def list_offsets(
    client: RawKafkaClient, topic: str, asked: Sequence[tuple[int, int]], version: int = 7
) -> list[tuple[int, int, int]]:
    """Code, timestamp and offset for each partition and timestamp."""
    partitions = [ListOffsetsPartition(number, timestamp=timestamp) for number, timestamp in asked]
    request = ListOffsetsRequest(-1, topics=[ListOffsetsTopic(topic, partitions)])
    answer = await client.call(LIST_OFFSETS, version, request)
    return [(part.error_code, part.timestamp, part.offset) for part in answer.topics[0].partitions]
