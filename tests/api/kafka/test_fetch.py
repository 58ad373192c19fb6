import asyncio

import pytest

from pixy.errors import CorruptData, Unavailable
from pixy.kafka_messages.generated.fetch import FetchRequest, FetchTopic
from tests.api.kafka.support import FETCH, fetch_request, produce, values_of
from tests.fakes.kafka_client import kafka_client
from tests.fakes.kafka_server import ServedKafka
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("version", range(4, 17))
async def test_records_are_read_in_every_version(served: ServedKafka, version: int) -> None:
    topic = await served.proxy.create_topic("t", 2, {})
    await produce(served.client, "t", 0, b"a", b"b")
    await produce(served.client, "t", 1, b"c")
    request = fetch_request("t", {0: 0, 1: 0}, topic_id=topic.topic_id)
    answer = await served.client.call(FETCH, version, request)
    assert values_of(answer) == {0: [b"a", b"b"], 1: [b"c"]}
    first = answer.responses[0].partitions[0]
    assert (first.error_code, first.high_watermark, first.last_stable_offset) == (0, 2, 2)
    assert first.log_start_offset == (0 if version > 4 else -1)


async def test_batches_come_from_files_too(from_files: ServedKafka) -> None:
    client = from_files.client
    await from_files.proxy.create_topic("t", 1, {})
    for number in range(30):
        await produce(client, "t", 0, b"%d" % number)
    found: list[bytes | None] = []
    while len(found) < 23:
        answer = await client.call(FETCH, 11, fetch_request("t", {0: 7 + len(found)}))
        found += values_of(answer)[0]
    assert found == [b"%d" % number for number in range(7, 30)]


async def test_a_fetch_from_inside_a_batch_gets_the_whole_batch(served: ServedKafka) -> None:
    await served.proxy.create_topic("t", 1, {})
    await produce(served.client, "t", 0, b"a", b"b", b"c")
    answer = await served.client.call(FETCH, 11, fetch_request("t", {0: 2}))
    assert values_of(answer)[0] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("offset", [-1, 4, 100])
async def test_an_offset_out_of_range_is_told_with_the_range(served: ServedKafka, offset: int) -> None:
    await served.proxy.create_topic("t", 1, {})
    await produce(served.client, "t", 0, b"a", b"b", b"c")
    await served.proxy.delete_records("t", [(0, 1)])
    answer = await served.client.call(FETCH, 11, fetch_request("t", {0: offset}, max_wait_ms=60_000))
    (part,) = answer.responses[0].partitions
    assert (part.error_code, part.log_start_offset, part.high_watermark) == (1, 1, 3)


async def test_unknown_partitions_and_topics_have_codes(served: ServedKafka) -> None:
    await served.proxy.create_topic("t", 1, {})
    for topic in ("t", "none"):
        answer = await served.client.call(FETCH, 11, fetch_request(topic, {5: 0}, max_wait_ms=60_000))
        assert [part.error_code for part in answer.responses[0].partitions] == [3]
    answer = await served.client.call(
        FETCH, 13, fetch_request("", {0: 0}, topic_id=b"x" * 16, max_wait_ms=60_000)
    )
    assert [part.error_code for part in answer.responses[0].partitions] == [100]


async def test_an_id_is_that_of_one_topic_of_a_name(served: ServedKafka) -> None:
    before = await served.proxy.create_topic("t", 1, {})
    request = fetch_request("", {0: 0}, topic_id=before.topic_id)
    assert (await served.client.call(FETCH, 13, request)).responses[0].partitions[0].error_code == 0
    await served.proxy.delete_topic("t")
    await served.proxy.create_topic("t", 1, {})
    assert (await served.client.call(FETCH, 13, request)).responses[0].partitions[0].error_code == 100


async def test_a_fetch_waits_for_any_of_its_partitions(served: ServedKafka) -> None:
    await served.proxy.create_topic("t", 3, {})
    served.client.send(FETCH, 11, fetch_request("t", {0: 0, 1: 0, 2: 0}, max_wait_ms=60_000))
    await until(lambda: served.server.open_calls == 1)
    await append(served, 1, b"x")
    assert values_of(await served.client.response(FETCH, 11)) == {0: [], 1: [b"x"], 2: []}


async def append(served: ServedKafka, partition: int, *values: bytes) -> None:
    """Append on another connection."""
    async with kafka_client(served.address) as other:
        await produce(other, "t", partition, *values)


async def test_a_fetch_waits_for_its_bytes(served: ServedKafka) -> None:
    await served.proxy.create_topic("t", 2, {})
    request = fetch_request("t", {0: 0, 1: 0}, max_wait_ms=60_000, min_bytes=1000)
    served.client.send(FETCH, 11, request)
    for number in range(4):
        await until(lambda: served.server.open_calls == 1)
        await append(served, number % 2, b"x" * 250)
    found = values_of(await served.client.response(FETCH, 11))
    assert sum(map(len, found.values())) >= 3


async def test_a_fetch_ends_after_its_time(served: ServedKafka) -> None:
    await served.proxy.create_topic("t", 1, {})
    begun = asyncio.get_running_loop().time()
    answer = await served.client.call(FETCH, 11, fetch_request("t", {0: 0}, max_wait_ms=50))
    assert values_of(answer) == {0: []}
    assert asyncio.get_running_loop().time() - begun >= 0.05


async def test_a_cluster_without_records_in_memory_is_waited_for_as_well(fake: ServedKafka) -> None:
    fake.backend.create("t", 2)
    found = values_of(await fake.client.call(FETCH, 11, fetch_request("t", {0: 0, 1: 0}, max_wait_ms=50)))
    assert found == {0: [], 1: []}
    fake.client.send(FETCH, 11, fetch_request("t", {0: 0, 1: 0}, max_wait_ms=60_000))
    await until(lambda: fake.server.open_calls == 1)
    await append(fake, 1, b"x")
    assert values_of(await fake.client.response(FETCH, 11)) == {0: [], 1: [b"x"]}


async def test_nothing_is_waited_for_without_bytes_to_wait_for(served: ServedKafka) -> None:
    await served.proxy.create_topic("t", 1, {})
    request = fetch_request("t", {0: 0}, max_wait_ms=60_000, min_bytes=0)
    assert values_of(await served.client.call(FETCH, 11, request)) == {0: []}
    nothing = FetchRequest(max_wait_ms=60_000, min_bytes=1)
    assert (await served.client.call(FETCH, 11, nothing)).responses == []


async def test_limits_of_bytes_cut_between_batches(served: ServedKafka) -> None:
    await served.proxy.create_topic("t", 2, {})
    for partition in (0, 1):
        for _ in range(10):
            await produce(served.client, "t", partition, b"x" * 1000)
    few = await served.client.call(FETCH, 11, fetch_request("t", {0: 0, 1: 0}, max_bytes=3500))
    assert {number: len(found) for number, found in values_of(few).items()} == {0: 3, 1: 0}
    each = await served.client.call(FETCH, 11, fetch_request("t", {0: 0, 1: 0}, partition_bytes=2500))
    assert {number: len(found) for number, found in values_of(each).items()} == {0: 2, 1: 2}
    one = await served.client.call(FETCH, 11, fetch_request("t", {0: 0, 1: 0}, max_bytes=1))
    assert {number: len(found) for number, found in values_of(one).items()} == {0: 1, 1: 0}


async def test_fetches_of_a_connection_are_answered_in_order(served: ServedKafka) -> None:
    await served.proxy.create_topic("t", 2, {})
    await produce(served.client, "t", 1, b"there")
    served.client.send(FETCH, 11, fetch_request("t", {0: 0}, max_wait_ms=60_000))
    served.client.send(FETCH, 11, fetch_request("t", {1: 0}, max_wait_ms=60_000))
    await until(lambda: served.server.open_calls == 2)
    await append(served, 0, b"late")
    assert values_of(await served.client.response(FETCH, 11)) == {0: [b"late"]}
    assert values_of(await served.client.response(FETCH, 11)) == {1: [b"there"]}


async def test_there_are_no_sessions(served: ServedKafka) -> None:
    answer = await served.client.call(FETCH, 11, FetchRequest(session_id=7, topics=[FetchTopic("t")]))
    assert (answer.error_code, answer.responses) == (70, [])
    assert (await served.client.call(FETCH, 11, FetchRequest())).session_id == 0


async def test_errors_of_the_cluster_have_codes(fake: ServedKafka) -> None:
    fake.backend.create("t", 1)
    for error, code in ((Unavailable("no leader"), 6), (CorruptData("damaged"), 56)):
        fake.backend.fail_fetches(error)
        answer = await fake.client.call(FETCH, 11, fetch_request("t", {0: 0}, max_wait_ms=60_000))
        assert answer.responses[0].partitions[0].error_code == code


async def test_a_topic_that_is_deleted_ends_the_wait(served: ServedKafka) -> None:
    await served.proxy.create_topic("t", 1, {})
    served.client.send(FETCH, 11, fetch_request("t", {0: 0}, max_wait_ms=60_000))
    await until(lambda: served.server.open_calls == 1)
    await served.proxy.delete_topic("t")
    answer = await served.client.response(FETCH, 11)
    assert answer.responses[0].partitions[0].error_code == 3
