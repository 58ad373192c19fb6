import struct
from typing import Any

import pytest

from pixy.errors import FailedPrecondition, Unavailable
from pixy.kafka_messages.generated.init_producer_id import InitProducerIdRequest
from pixy.records import crc32c
from tests.api.kafka.support import PRODUCE, batch, produce_request
from tests.fakes.kafka_client import RawKafkaClient
from tests.fakes.kafka_server import ServedKafka

pytestmark = pytest.mark.slow

INIT_PRODUCER_ID = 22


def of_producer(records: bytes, producer: int, sequence: int, epoch: int = 0) -> bytes:
    """A batch of a producer."""
    found = bytearray(records)
    struct.pack_into(">qhi", found, 43, producer, epoch, sequence)
    struct.pack_into(">I", found, 17, crc32c(memoryview(found)[21:]))
    return bytes(found)


async def new_id(client: RawKafkaClient, version: int = 4, **fields: Any) -> tuple[int, int, int]:
    answer = await client.call(INIT_PRODUCER_ID, version, InitProducerIdRequest(**fields))
    return answer.error_code, answer.producer_id, answer.producer_epoch


async def produced(client: RawKafkaClient, *batches: bytes) -> list[tuple[int, int]]:
    """Code and offset of batches that are sent one after the other, without waiting."""
    for each in batches:
        client.send(PRODUCE, 9, produce_request("t", {0: each}))
    answers = [await client.response(PRODUCE, 9) for _ in batches]
    parts = [answer.responses[0].partition_responses[0] for answer in answers]
    return [(part.error_code, part.base_offset) for part in parts]


@pytest.mark.parametrize("version", range(6))
async def test_every_producer_gets_an_id_of_its_own(served: ServedKafka, version: int) -> None:
    ids = [await new_id(served.client, version) for _ in range(3)]
    assert [(code, epoch) for code, _, epoch in ids] == [(0, 0)] * 3
    assert len({producer for _, producer, _ in ids}) == 3


async def test_repeats_get_the_offset_of_the_first(served: ServedKafka) -> None:
    await served.proxy.create_topic("t", 1, {})
    _, producer, _ = await new_id(served.client)
    first, second = (of_producer(batch(b"a", b"b"), producer, sequence) for sequence in (0, 2))
    assert await produced(served.client, first, second, first, second) == [(0, 0), (0, 2), (0, 0), (0, 2)]
    gap = of_producer(batch(b"c"), producer, 9)
    assert await produced(served.client, gap) == [(45, -1)]
    newer, older = of_producer(batch(b"c"), producer, 0, 1), of_producer(batch(b"c"), producer, 4, 0)
    assert await produced(served.client, newer, older) == [(0, 4), (47, -1)]


async def test_transactions_are_refused_for_good(served: ServedKafka) -> None:
    assert await new_id(served.client, transactional_id="t") == (53, -1, -1)
    assert await new_id(served.client, transactional_id="") == (42, -1, -1)


async def test_an_id_and_an_epoch_come_together(served: ServedKafka) -> None:
    assert await new_id(served.client, producer_id=5, producer_epoch=-1) == (42, -1, -1)
    assert (await new_id(served.client, producer_id=5, producer_epoch=3))[0] == 0


async def test_a_cluster_that_gives_none_in_time_is_asked_again(fake: ServedKafka) -> None:
    for error, code in ((Unavailable("no leader"), 14), (FailedPrecondition("an older node"), 31)):

        async def fails(error: Exception = error) -> int:
            raise error

        fake.proxy.log.new_producer_id = fails
        assert await new_id(fake.client) == (code, -1, -1)
