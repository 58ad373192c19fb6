import pytest

from tests.api.kafka.support import PRODUCE, batch, list_offsets, produce, produce_request
from tests.fakes.kafka_server import ServedKafka

pytestmark = pytest.mark.slow

LATEST, EARLIEST, NEWEST, EARLIEST_LOCAL, TIERED = -1, -2, -3, -4, -5


@pytest.mark.parametrize("version", range(1, 9))
async def test_the_ends_of_a_partition(served: ServedKafka, version: int) -> None:
    await served.proxy.create_topic("t", 1, {})
    await produce(served.client, "t", 0, b"a", b"b", b"c")
    await served.proxy.delete_records("t", [(0, 1)])
    asked = [(0, EARLIEST), (0, LATEST), (7, LATEST)]
    found = await list_offsets(served.client, "t", asked, version)
    assert found == [(0, -1, 1), (0, -1, 3), (3, -1, -1)]
    assert await list_offsets(served.client, "none", asked[:1], version) == [(3, -1, -1)]


async def test_records_by_time(served: ServedKafka) -> None:
    await served.proxy.create_topic("t", 1, {})
    for first_ms in (1000, 5000, 3000):
        sent = produce_request("t", {0: batch(b"a", b"b", timestamp_ms=first_ms)})
        await served.client.call(PRODUCE, 9, sent)
    asked = [(0, 0), (0, 1001), (0, 1002), (0, 5001), (0, 5002), (7, 0)]
    found = await list_offsets(served.client, "t", asked)
    assert found == [(0, 1000, 0), (0, 1001, 1), (0, 5000, 2), (0, 5001, 3), (0, -1, -1), (3, -1, -1)]


async def test_the_record_with_the_largest_timestamp(served: ServedKafka) -> None:
    await served.proxy.create_topic("t", 2, {})
    assert await list_offsets(served.client, "t", [(0, NEWEST)]) == [(0, -1, -1)]
    for first_ms in (1000, 9000, 5000, 7000, 2000):
        sent = produce_request("t", {0: batch(b"a", b"b", timestamp_ms=first_ms)})
        await served.client.call(PRODUCE, 9, sent)
    found = await list_offsets(served.client, "t", [(0, NEWEST), (1, NEWEST), (2, NEWEST)])
    assert found == [(0, 9001, 3), (0, -1, -1), (3, -1, -1)]


async def test_special_timestamps_of_other_storages(served: ServedKafka) -> None:
    await served.proxy.create_topic("t", 1, {})
    await produce(served.client, "t", 0, b"a")
    found = await list_offsets(served.client, "t", [(0, EARLIEST_LOCAL), (0, TIERED)], version=8)
    assert found == [(0, -1, 0), (0, -1, -1)]
