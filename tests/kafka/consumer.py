"""Records of a topic as read by an ordinary consumer: aiokafka's, directly from the brokers."""

import asyncio

from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.kafka.cluster import KafkaCluster

_PATIENCE_S = 60.0


async def consumed(
    cluster: KafkaCluster, topic: str, partitions: int, isolation: str = "read_committed"
) -> list[bytes]:
    """All values up to the end of each partition, sorted. For a read-committed consumer the end is
    the last stable offset: it does not see records after an open transaction.
    """
    consumer = AIOKafkaConsumer(
        bootstrap_servers=cluster.addresses, isolation_level=isolation, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        read = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(read)
        await consumer.seek_to_beginning(*read)
        found: list[bytes] = []
        async with asyncio.timeout(_PATIENCE_S):
            ends = await consumer.end_offsets(read)
            for partition in read:
                while await consumer.position(partition) < ends[partition]:
                    answer = await consumer.getmany(partition, timeout_ms=100)
                    found += [record.value for records in answer.values() for record in records]
        return sorted(found)
    finally:
        await consumer.stop()
