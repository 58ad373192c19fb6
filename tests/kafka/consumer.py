"""Records of a topic as read by an ordinary consumer: aiokafka's, directly from the brokers."""

from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.kafka.cluster import KafkaCluster

_QUIET_MS = 1000
"""Timeout after the last record: a consumer gets no notification of the end."""


async def consumed(
    cluster: KafkaCluster, topic: str, partitions: int, isolation: str = "read_committed"
) -> list[bytes]:
    """All values, sorted. Read-committed consumers do not see records after an open transaction."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=cluster.addresses, isolation_level=isolation, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        read = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(read)
        await consumer.seek_to_beginning(*read)
        found: list[bytes] = []
        while answer := await consumer.getmany(timeout_ms=_QUIET_MS):
            found += [record.value for records in answer.values() for record in records]
        return sorted(found)
    finally:
        await consumer.stop()
