"""Offsets of consumer groups, in every version."""

from typing import Any

import pytest

from pixy.kafka_messages.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pixy.kafka_messages.generated.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from pixy.kafka_messages.generated.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tests.api.kafka.group_support import (
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    grouped,
    stable,
)
from tests.fakes.kafka_server import ServedKafka

pytestmark = pytest.mark.slow

__all__ = ["grouped"]


def commit_request(
    offsets: dict[int, int], member_id: str = "", generation: int = -1, metadata: str | None = "OK"
) -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequestPartition(number, offset, committed_metadata=metadata)
        for number, offset in offsets.items()
    ]
    return OffsetCommitRequest("g", generation, member_id, topics=[OffsetCommitRequestTopic("t", partitions)])


def codes(answer: Any) -> dict[int, int]:
    return {each.partition_index: each.error_code for each in answer.topics[0].partitions}


async def fetched(served: ServedKafka, version: int, *numbers: int) -> dict[int, tuple[int, str | None]]:
    """Offset and metadata by partition; of all without a number."""
    one = [OffsetFetchRequestTopic("t", list(numbers))] if numbers else None
    many = [OffsetFetchRequestTopics("t", list(numbers))] if numbers else None
    request = OffsetFetchRequest("g", one, [OffsetFetchRequestGroup("g", topics=many)])
    answer = await served.client.call(OFFSET_FETCH, version, request)
    if version >= 8:
        (answer,) = answer.groups
    assert answer.error_code == 0
    return {
        each.partition_index: (each.committed_offset, each.metadata)
        for topic in answer.topics
        for each in topic.partitions
    }


@pytest.mark.parametrize("version", range(2, 10))
async def test_offsets_are_committed_in_every_version(grouped: ServedKafka, version: int) -> None:
    assert codes(await grouped.client.call(OFFSET_COMMIT, version, commit_request({0: 3, 1: 4}))) == {
        0: 0,
        1: 0,
    }
    assert await fetched(grouped, 5, 0, 1) == {0: (3, "OK"), 1: (4, "OK")}
    assert codes(
        await grouped.client.call(OFFSET_COMMIT, version, commit_request({1: 5, 2: 6}, metadata=None))
    ) == {
        1: 0,
        2: 3,
    }
    assert await fetched(grouped, 5, 0, 1) == {0: (3, "OK"), 1: (5, "")}
    wrong = await grouped.client.call(OFFSET_COMMIT, version, commit_request({0: 9}, "who", 1))
    assert codes(wrong) == {0: 69 if version >= 9 else 22}


@pytest.mark.parametrize("version", range(1, 10))
async def test_offsets_are_found_in_every_version(grouped: ServedKafka, version: int) -> None:
    await grouped.client.call(OFFSET_COMMIT, 7, commit_request({1: 4}))
    assert await fetched(grouped, version, 0, 1, 7) == {0: (-1, ""), 1: (4, "OK"), 7: (-1, "")}
    if version >= 2:
        assert await fetched(grouped, version) == {1: (4, "OK")}


async def test_members_commit_in_their_generation(grouped: ServedKafka) -> None:
    member_id = (await stable(grouped.client)).member_id
    for generation, wanted in ((1, 0), (2, 22)):
        request = commit_request({0: generation}, member_id, generation)
        assert codes(await grouped.client.call(OFFSET_COMMIT, 7, request)) == {0: wanted}
    assert codes(await grouped.client.call(OFFSET_COMMIT, 7, commit_request({0: 5}))) == {0: 25}
    assert await fetched(grouped, 7, 0) == {0: (1, "OK")}


async def test_errors_of_a_fetch(grouped: ServedKafka) -> None:
    topics = [OffsetFetchRequestTopic("t", [0])]
    for version in (1, 5):
        answer = await grouped.client.call(OFFSET_FETCH, version, OffsetFetchRequest("", topics))
        if version == 1:
            answer = answer.topics[0].partitions[0]
        assert answer.error_code == 24


async def test_pixys_own_offsets_are_the_same_and_foreign_metadata_is_no_acks(grouped: ServedKafka) -> None:
    await grouped.client.call(OFFSET_COMMIT, 7, commit_request({0: 0}, metadata="Done"))
    found = await grouped.proxy.get_offsets("g", "t")
    assert [(each.offset, each.metadata, each.sparse_acks) for each in found if each.partition == 0] == [
        (0, "Done", "")
    ]


async def test_offsets_are_removed(grouped: ServedKafka) -> None:
    await grouped.client.call(OFFSET_COMMIT, 7, commit_request({0: 3, 1: 4}))
    partitions = [OffsetDeleteRequestPartition(number) for number in (0, 9)]
    topics = [OffsetDeleteRequestTopic("t", partitions)]
    answer = await grouped.client.call(OFFSET_DELETE, 0, OffsetDeleteRequest("g", topics))
    assert (answer.error_code, codes(answer)) == (0, {0: 0, 9: 3})
    assert await fetched(grouped, 7) == {1: (4, "OK")}
    answer = await grouped.client.call(OFFSET_DELETE, 0, OffsetDeleteRequest("h", topics))
    assert answer.error_code == 69
    member_id = (await stable(grouped.client)).member_id
    await grouped.client.call(OFFSET_COMMIT, 7, commit_request({0: 5}, member_id, 1))
    answer = await grouped.client.call(OFFSET_DELETE, 0, OffsetDeleteRequest("g", topics))
    assert codes(answer) == {0: 86, 9: 3}


async def test_a_group_without_a_name_has_no_offsets(grouped: ServedKafka) -> None:
    for version in range(2, 10):
        request = commit_request({0: 3})
        request.group_id = ""
        assert codes(await grouped.client.call(OFFSET_COMMIT, version, request)) == {0: 24}
    for version in range(2, 10):
        nameless = OffsetFetchRequest("", None, [OffsetFetchRequestGroup("")])
        answer = await grouped.client.call(OFFSET_FETCH, version, nameless)
        assert (answer.groups[0] if version >= 8 else answer).error_code == 24
    nothing = OffsetDeleteRequest("", [OffsetDeleteRequestTopic("t", [OffsetDeleteRequestPartition(0)])])
    assert (await grouped.client.call(OFFSET_DELETE, 0, nothing)).error_code == 24
