from typing import Any

import pytest

from pixy.errors import DeadlineExceeded, Unavailable
from pixy.kafka_messages.generated.metadata import MetadataRequest
from pixy.records import NewRecord, build_batch
from tests.api.kafka.support import (
    FETCH,
    METADATA,
    PRODUCE,
    batch,
    fetch_request,
    produce,
    produce_request,
    values_of,
)
from tests.fakes.kafka_client import RawKafkaClient, kafka_client
from tests.fakes.kafka_server import ServedKafka
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow


async def codes(client: RawKafkaClient, request: Any, version: int = 9) -> dict[int, int]:
    answer = await client.call(PRODUCE, version, request)
    return {part.index: part.error_code for part in answer.responses[0].partition_responses}


async def stored(client: RawKafkaClient, topic: str, partition: int = 0) -> list[bytes | None]:
    return values_of(await client.call(FETCH, 11, fetch_request(topic, {partition: 0})))[partition]


@pytest.mark.parametrize("version", range(3, 13))
async def test_batches_get_the_next_offsets(served: ServedKafka, version: int) -> None:
    await served.proxy.create_topic("t", 2, {})
    for expected in (0, 2, 4):
        request = produce_request("t", {0: batch(b"a", b"b"), 1: batch(b"c", b"d")})
        answer = await served.client.call(PRODUCE, version, request)
        parts = answer.responses[0].partition_responses
        assert [(part.index, part.error_code, part.base_offset) for part in parts] == [
            (0, 0, expected),
            (1, 0, expected),
        ]
    assert await stored(served.client, "t") == [b"a", b"b"] * 3


async def test_one_ack_is_all_of_them(served: ServedKafka) -> None:
    await served.proxy.create_topic("t", 1, {})
    assert await codes(served.client, produce_request("t", {0: batch(b"a")}, acks=1)) == {0: 0}


async def test_without_acks_there_is_no_answer(served: ServedKafka) -> None:
    await served.proxy.create_topic("t", 1, {})
    for _ in range(3):
        served.client.send(PRODUCE, 7, produce_request("t", {0: batch(b"a")}, acks=0))
    assert await produce(served.client, "t", 0, b"b") == 3


async def test_without_acks_a_refusal_ends_the_connection(served: ServedKafka) -> None:
    served.client.send(PRODUCE, 7, produce_request("none", {0: batch(b"a")}, acks=0))
    assert await served.client.ended()


async def test_other_acks_are_refused(served: ServedKafka) -> None:
    await served.proxy.create_topic("t", 1, {})
    assert await codes(served.client, produce_request("t", {0: batch(b"a"), 5: None}, acks=2)) == {
        0: 21,
        5: 21,
    }


async def test_a_request_has_a_number_of_partitions(served: ServedKafka) -> None:
    asked: dict[int, bytes | None] = dict.fromkeys(range(5001))
    assert {*(await codes(served.client, produce_request("none", asked))).values()} == {10}
    del asked[5000]
    assert {*(await codes(served.client, produce_request("none", asked))).values()} == {87}


async def test_a_long_name_has_a_short_text(served: ServedKafka) -> None:
    answer = await served.client.call(PRODUCE, 8, produce_request("x" * 32_767, {0: batch(b"a")}))
    (part,) = answer.responses[0].partition_responses
    assert part.error_code == 3
    assert len(part.error_message) == 1000


async def test_each_partition_fails_alone(served: ServedKafka) -> None:
    await served.proxy.create_topic("t", 3, {})
    broken = bytearray(batch(b"a" * 100))
    broken[-1] ^= 1
    request = produce_request("t", {0: bytes(broken), 1: batch(b"fine"), 7: batch(b"nowhere"), 2: None})
    assert await codes(served.client, request) == {0: 2, 1: 0, 7: 3, 2: 87}
    assert await stored(served.client, "t", 1) == [b"fine"]
    assert await stored(served.client, "t", 0) == []


@pytest.mark.parametrize("size", [1, 100_000])
async def test_a_batch_that_was_changed_on_its_way_is_corrupt_as_with_kafka(
    served: ServedKafka, size: int
) -> None:
    await served.proxy.create_topic("t", 1, {})
    for at in (17, 60, -1):
        changed = bytearray(batch(b"a" * size))
        changed[at] ^= 1
        assert await codes(served.client, produce_request("t", {0: bytes(changed)})) == {0: 2}


async def test_two_batches_of_a_partition_are_refused(served: ServedKafka) -> None:
    await served.proxy.create_topic("t", 1, {})
    assert await codes(served.client, produce_request("t", {0: batch(b"a") + batch(b"b")})) == {0: 87}


async def test_a_batch_that_is_too_large_is_refused(served: ServedKafka) -> None:
    await served.proxy.create_topic("t", 1, {})
    answer = await served.client.call(PRODUCE, 9, produce_request("t", {0: batch(bytes(1_100_000))}))
    (part,) = answer.responses[0].partition_responses
    assert part.error_code == 10
    assert "producer.max_message_bytes" in part.error_message


async def test_zstd_needs_version_7(served: ServedKafka) -> None:
    await served.proxy.create_topic("t", 1, {})
    request = produce_request("t", {0: batch(b"a" * 100, codec=4)})
    assert await codes(served.client, request, version=6) == {0: 76}
    assert await codes(served.client, request, version=7) == {0: 0}


@pytest.mark.parametrize("codec", range(5))
async def test_every_codec_is_stored_as_it_came(served: ServedKafka, codec: int) -> None:
    await served.proxy.create_topic("t", 1, {})
    sent = batch(*[b"x" * 50] * 20, codec=codec)
    assert await codes(served.client, produce_request("t", {0: sent})) == {0: 0}
    answer = await served.client.call(FETCH, 11, fetch_request("t", {0: 0}))
    found = bytes(answer.responses[0].partitions[0].records)
    assert found[16:] == sent[16:]


async def test_batches_of_a_connection_stay_in_order(served: ServedKafka) -> None:
    """A batch whose check takes turns is followed by one whose check is short."""
    await served.proxy.create_topic("t", 1, {})
    for number in range(20):
        long = [NewRecord(None, b"%d" % number, [], 1000 + at % 7) for at in range(6000)]
        served.client.send(PRODUCE, 9, produce_request("t", {0: bytes(build_batch(long))}))
        served.client.send(PRODUCE, 9, produce_request("t", {0: batch(b"short")}))
    offsets = []
    for _ in range(40):
        answer = await served.client.response(PRODUCE, 9)
        offsets.append(answer.responses[0].partition_responses[0].base_offset)
    expected = [at for number in range(20) for at in (number * 6001, number * 6001 + 6000)]
    assert offsets == expected


async def test_errors_that_pass_make_clients_try_again(fake: ServedKafka) -> None:
    fake.backend.create("t", 1)
    request = produce_request("t", {0: batch(b"a")})
    fake.backend.fail_appends(Unavailable("no leader"))
    assert await codes(fake.client, request) == {0: 6}
    fake.backend.fail_appends(DeadlineExceeded("not in time"))
    assert await codes(fake.client, request) == {0: 7}
    assert await codes(fake.client, request) == {0: 0}


async def test_a_draining_server_sends_clients_elsewhere(served: ServedKafka) -> None:
    await served.proxy.create_topic("t", 1, {})
    served.proxy.begin_drain()
    assert await codes(served.client, produce_request("t", {0: batch(b"a")})) == {0: 6}


async def test_requests_of_a_connection_overlap(fake: ServedKafka) -> None:
    fake.backend.create("t", 1)
    fake.backend.hold_appends()
    for _ in range(5):
        fake.client.send(PRODUCE, 9, produce_request("t", {0: batch(b"a")}))
    await until(lambda: fake.backend.held_appends == 5)
    fake.backend.release_appends()
    for expected in range(5):
        answer = await fake.client.response(PRODUCE, 9)
        assert answer.responses[0].partition_responses[0].base_offset == expected


async def test_a_client_that_leaves_does_not_take_its_batches_with_it(fake: ServedKafka) -> None:
    fake.backend.create("t", 1)
    fake.backend.hold_appends()
    async with kafka_client(fake.address) as leaving:
        leaving.send(PRODUCE, 9, produce_request("t", {0: batch(b"a")}))
        await until(lambda: fake.backend.held_appends == 1)
    fake.backend.release_appends()
    await until(lambda: fake.server.open_calls == 0)
    assert await produce(fake.client, "t", 0, b"b") == 1


async def test_a_topic_is_not_made_by_produce(served: ServedKafka) -> None:
    assert await codes(served.client, produce_request("new", {0: batch(b"a")})) == {0: 3}
    answer = await served.client.call(METADATA, 12, MetadataRequest(None))
    assert answer.topics == []
