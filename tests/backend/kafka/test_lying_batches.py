"""Intact batches of a real Kafka whose records lie about their offsets, as a consumer group gets
them: docs/log.md, "Batches that cannot be decoded".

Brokers look at the number of records alone: a header that lies about it is refused.
"""

from collections.abc import Callable, Sequence

import pytest

from pixy.backend.kafka.client import KafkaClient
from pixy.kafka_protocol.messages import PRODUCE
from tests.fakes.batches import raw_batch, raw_record
from tests.kafka.backends import kafka_options
from tests.kafka.cluster import KafkaCluster
from tests.kafka.pixies import open_pixy

pytestmark = [pytest.mark.process, pytest.mark.slow]

GROUP = "g"


async def produce_raw(cluster: KafkaCluster, topic: str, batch: bytes) -> None:
    """Have a broker append a batch as it is."""
    client = KafkaClient(kafka_options(cluster))
    await client.start()
    try:
        request = PRODUCE(None, -1, 30_000, [(topic, [(0, batch)])])
        answer = await client.send(cluster.brokers[0].node_id, request)
    finally:
        await client.stop()
    ((_, (partition,)),) = answer.topics
    assert partition[1] == 0, partition


@pytest.mark.parametrize(
    "deltas",
    [(0, 0, 0), (2, 1, 0), (0, 5, 7), (-1, 1 << 31, 0)],
    ids=["equal", "descending", "behind the batch", "impossible"],
)
async def test_records_with_impossible_offsets_get_those_of_their_places(
    kafka: KafkaCluster, kafka_name: Callable[[str], str], deltas: Sequence[int]
) -> None:
    topic = kafka_name("lying")
    lying = raw_batch([raw_record(delta, b"lying %d" % at) for at, delta in enumerate(deltas)])
    values = [b"before", *(b"lying %d" % at for at in range(len(deltas))), b"after"]
    async with open_pixy(kafka, options={"initial_offset": "oldest"}, default_partitions=1) as pixy:
        await pixy.produce(topic, b"before")
        await produce_raw(kafka, topic, lying)
        assert await pixy.produce(topic, b"after") == [(0, len(values) - 1)]
        found = []
        for _ in values:
            offer = await pixy.consume_some(GROUP, topic)
            found.append((offer.record.offset, offer.record.value))
            await pixy.ack_offer(GROUP, offer)
        assert found == list(enumerate(values))
        assert await pixy.consume(GROUP, topic) is None
        await pixy.wait_committed(GROUP, topic, {0: (len(values), "")})
