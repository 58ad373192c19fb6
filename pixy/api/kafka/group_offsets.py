"""Offsets of consumer groups: OffsetCommit, OffsetFetch and OffsetDelete."""

from collections.abc import Collection, Mapping, Sequence

from pixy.backend import ClassicGroups, GroupCommit, OffsetCommit, TopicPartition
from pixy.classic_groups import GroupCode
from pixy.kafka_messages.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from pixy.kafka_messages.generated.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from pixy.kafka_messages.generated.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from pixy.wire import WireExchange

_NAMES_UNKNOWN_FROM = 9
_GROUP_CODE_FROM, _GROUPS_FROM = 2, 8
"""OffsetFetch: a code for all, and several groups at a time."""
_NO_OFFSET = -1

Found = Mapping[str, list[tuple[int, int, int, str, int]]]
"""Number, offset, leader epoch, metadata and code of partitions, by topic."""


class GroupOffsetsApi:
    """Handlers of offsets.

    Args:
        groups: of the cluster.
    """

    def __init__(self, groups: ClassicGroups) -> None:
        self._groups = groups

    async def commit(self, exchange: WireExchange, request: OffsetCommitRequest) -> OffsetCommitResponse:
        """Commit offsets."""
        commit = GroupCommit(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id_or_member_epoch,
            offsets={
                TopicPartition(topic.name, each.partition_index): (
                    each.committed_offset,
                    each.committed_metadata or "",
                )
                for topic in request.topics
                for each in topic.partitions
            },
            names_unknown=exchange.version >= _NAMES_UNKNOWN_FROM,
        )
        codes = await self._groups.commit(request.group_id, commit)
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    topic.name,
                    [
                        OffsetCommitResponsePartition(
                            each.partition_index, codes[TopicPartition(topic.name, each.partition_index)]
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    async def fetch(self, exchange: WireExchange, request: OffsetFetchRequest) -> OffsetFetchResponse:
        """Find committed offsets."""
        if exchange.version >= _GROUPS_FROM:
            groups = []
            for asked in request.groups:
                named = _named(asked.topics)
                code, found = await self._found(asked.group_id, named)
                topics = [
                    OffsetFetchResponseTopics(name, [OffsetFetchResponsePartitions(*each) for each in of])
                    for name, of in found.items()
                ]
                groups.append(OffsetFetchResponseGroup(asked.group_id, topics, code))
            return OffsetFetchResponse(groups=groups)
        named = _named(request.topics)
        code, found = await self._found(request.group_id, named)
        if code and exchange.version < _GROUP_CODE_FROM:
            found = {
                name: [(number, _NO_OFFSET, -1, "", code) for number in numbers]
                for name, numbers in (named or {}).items()
            }
        topics_of_one = [
            OffsetFetchResponseTopic(name, [OffsetFetchResponsePartition(*each) for each in of])
            for name, of in found.items()
        ]
        return OffsetFetchResponse(topics=topics_of_one, error_code=code)

    async def _found(
        self, group: str, named: Mapping[str, Collection[int]] | None
    ) -> tuple[GroupCode, Found]:
        code, committed = await self._groups.committed(group, named)
        if code is GroupCode.COORDINATOR_NOT_AVAILABLE:
            code = GroupCode.NOT_COORDINATOR  # Java's clients before 3.9 do not know the other one here
        if code:
            return code, {}
        found: dict[str, list[tuple[int, int, int, str, int]]] = {}
        if named is None:
            for (name, number), commit in committed.items():
                found.setdefault(name, []).append(_answer(number, commit))
        else:
            for name, numbers in named.items():
                of = [(number, committed.get(TopicPartition(name, number))) for number in numbers]
                found[name] = [_answer(*each) for each in of]
        return code, found

    async def delete(self, _: WireExchange, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        """Remove committed offsets."""
        asked = {topic.name: [each.partition_index for each in topic.partitions] for topic in request.topics}
        code, codes = await self._groups.delete_offsets(request.group_id, asked)
        if code:
            return OffsetDeleteResponse(error_code=code)
        return OffsetDeleteResponse(
            topics=[
                OffsetDeleteResponseTopic(
                    name,
                    [
                        OffsetDeleteResponsePartition(number, codes[TopicPartition(name, number)])
                        for number in numbers
                    ],
                )
                for name, numbers in asked.items()
            ]
        )


def _named(
    topics: Sequence[OffsetFetchRequestTopic | OffsetFetchRequestTopics] | None,
) -> Mapping[str, Collection[int]] | None:
    """Partitions by topic, None for all."""
    return None if topics is None else {topic.name: topic.partition_indexes for topic in topics}


def _answer(number: int, commit: OffsetCommit | None) -> tuple[int, int, int, str, int]:
    if commit is None:
        return number, _NO_OFFSET, -1, "", GroupCode.NONE
    return number, commit.offset, -1, commit.metadata, GroupCode.NONE
