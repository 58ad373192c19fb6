"""What an ordinary Kafka consumer finds in a topic: aiokafka's, straight from the brokers."""

from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.kafka.cluster import KafkaCluster

__all__ = ["consumed"]

_QUIET_MS = 1000
"""After so long without a record there are no more: a consumer is not told of the end."""


async def consumed(
    cluster: KafkaCluster, topic: str, partitions: int, isolation: str = "read_committed"
) -> list[bytes]:
    """Every value, sorted. What lies behind a transaction that is open is not there for those who read what is committed."""
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
