from typing import Any

import pytest

from pixy.backend import LocalLogs
from pixy.cluster import DiskSpace
from pixy.errors import Unavailable
from pixy.kafka_messages.generated.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from pixy.records import TopicPartition
from tests.api.kafka.support import batch, produce
from tests.fakes.kafka_server import ServedKafka
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

DESCRIBE_LOG_DIRS = 35


async def described(served: ServedKafka, *topics: DescribableLogDirTopic, version: int = 4) -> Any:
    """The one directory, with all topics if none is named."""
    request = DescribeLogDirsRequest([*topics] or None)
    answer = await served.client.call(DESCRIBE_LOG_DIRS, version, request)
    assert answer.error_code == 0
    (found,) = answer.results
    assert found.error_code == 0
    return found


def sizes(found: Any) -> dict[tuple[str, int], int]:
    assert not any(
        part.offset_lag or part.is_future_key for topic in found.topics for part in topic.partitions
    )
    return {
        (topic.name, part.partition_index): part.partition_size
        for topic in found.topics
        for part in topic.partitions
    }


@pytest.mark.parametrize("version", range(1, 5))
async def test_the_directory_its_disk_and_the_sizes_of_replicas(
    from_files: ServedKafka, version: int
) -> None:
    served = from_files
    served.backend._node.disk = lambda: DiskSpace(1000, 300)
    await served.proxy.create_topic("a", 1, {})
    await served.proxy.create_topic("b", 2, {})
    records = (b"one", b"two")
    for _ in range(2):
        await produce(served.client, "b", 1, *records)
    written = {("a", 0): 0, ("b", 0): 0, ("b", 1): 2 * len(batch(*records))}

    log = served.backend._node.partitions.find_made(TopicPartition("b", 1)).log
    await until(lambda: log.segments_bytes == written["b", 1])
    found = await described(served, version=version)
    assert sizes(found) == written
    assert found.log_dir == str(served.backend._node.directory)
    assert (found.total_bytes, found.usable_bytes) == ((1000, 300) if version == 4 else (-1, -1))


async def test_some_partitions_those_that_are_not_there_left_out(served: ServedKafka) -> None:
    await served.proxy.create_topic("a", 3, {})
    await served.proxy.create_topic("b", 1, {})
    some = [DescribableLogDirTopic("a", [0, 2, 9]), DescribableLogDirTopic("none", [0])]
    found = await described(served, *some)
    assert sizes(found) == {("a", 0): 0, ("a", 2): 0}
    assert (found.total_bytes, found.usable_bytes) == (-1, -1), "the disk is not known"


async def test_a_node_that_knows_no_topics_yet_has_none(
    served: ServedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> LocalLogs:
        raise Unavailable("waits for others")

    monkeypatch.setattr(served.backend, "local_logs", fail)
    answer = await served.client.call(DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(None))
    assert (answer.error_code, answer.results) == (7, [])
