"""Committed offsets of consumer groups: commits to and reads from their coordinators.

A commit of a group in which this process is a member carries member id and generation: the
coordinator refuses it once the group is in a newer generation. It does not check the owners of
partitions, so this module does, against the assignment of that generation; a partition without an
owner may be committed by any member. Without a member here the commit is that of a group without
members, which the coordinator refuses if there are any.

    response                            result
    committed                           committed
    unknown member, other generation    OwnedElsewhere with the name of the owner if there is one,
                                        else Unavailable
    rebalance in progress               Unavailable
    metadata too large for the broker   committed without it, logged; records acked above the offset
                                        will be delivered again
    unknown partition                   Unavailable: the coordinator lags behind, or the metadata,
                                        which were checked before; the other partitions may be
                                        committed then

Kafka drops the committed offsets of a deleted topic, but not a commit that arrives later, with
which the next topic of that name would begin. So commits and deletions of a topic by this process
exclude each other.

Offsets are read as stable (KIP-447: `require_stable`): a program that consumes and produces in
transactions may share the group, and its partitions come here when it dies.

A commit without a response is repeated, which is harmless, because the commits of a group are
sequential.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import structlog

from pixy.backend.kafka.client import COMMITS, KafkaClient
from pixy.backend.kafka.coordinators import Coordinators
from pixy.backend.kafka.errors import UNKNOWN_TOPIC_OR_PARTITION, UNSTABLE_OFFSET_COMMIT, error_for_code
from pixy.backend.kafka.group_list import GroupList
from pixy.backend.kafka.groups import Generation, Groups
from pixy.backend.protocol import VisitPosition
from pixy.errors import OwnedElsewhere, OwnerUndecided, PixyError, Unavailable, UnknownPartition
from pixy.kafka_protocol.group_messages import OFFSET_COMMIT, OFFSET_FETCH
from pixy.records import OffsetCommit, TopicPartition

_log = structlog.get_logger(__name__)

_METADATA_TOO_LARGE = 12
_NOT_OURS = frozenset({22, 25, 113})
"""ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH"""
_REBALANCE_IN_PROGRESS = 27

_NO_MEMBER = Generation(-1, "")
_NO_EPOCH = -1


class GroupOffsets:
    """Committed offsets of all groups.

    Args:
        client: the cluster's metadata.
        coordinators: the coordinators.
        groups: the memberships of this process.
        group_list: members in any process.
    """

    def __init__(
        self, client: KafkaClient, coordinators: Coordinators, groups: Groups, group_list: GroupList
    ) -> None:
        self._client = client
        self._coordinators = coordinators
        self._groups = groups
        self._group_list = group_list
        # Commits in progress by topic, and topics under deletion. `_settled` is set when either
        # shrinks.
        self._under_way: Counter[str] = Counter()
        self._deleting: set[str] = set()
        self._settled = asyncio.Event()

    async def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetCommit]) -> None:
        """See `Backend.commit_offsets`."""
        if not offsets:
            return
        topics = {partition.topic for partition in offsets}
        await self._wait_until(lambda: self._deleting.isdisjoint(topics))
        self._check_partitions(offsets)
        self._under_way.update(topics)
        try:
            await self._commit_all(group, offsets)
        finally:
            self._under_way.subtract(topics)
            self._settled.set()

    @asynccontextmanager
    async def deleting(self, topic: str) -> AsyncIterator[None]:
        """Context of a topic's deletion, without commits of it."""
        await self._wait_until(lambda: topic not in self._deleting)
        self._deleting.add(topic)
        try:
            await self._wait_until(lambda: not self._under_way[topic])
            yield
        finally:
            self._deleting.discard(topic)
            self._under_way += Counter()  # drops zeros
            self._settled.set()

    async def _wait_until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._settled.clear()
            await self._settled.wait()

    async def _commit_all(self, group: str, offsets: Mapping[TopicPartition, OffsetCommit]) -> None:
        generation = await self._generation(group, offsets)
        codes = await self._commit(group, generation, offsets)
        too_large = [partition for partition, code in codes.items() if code == _METADATA_TOO_LARGE]
        if too_large:
            _log.warning(
                "the broker's offset.metadata.max.bytes is too small for the acks above an offset; they are left out",
                group=group,
                partitions=[f"{topic}/{number}" for topic, number in too_large],
            )
            bare = {partition: OffsetCommit(offsets[partition].offset) for partition in too_large}
            codes = await self._commit(group, generation, bare)
        for partition, code in codes.items():
            if code == UNKNOWN_TOPIC_OR_PARTITION:
                self._client.request_refresh([partition.topic])
                raise Unavailable(
                    f"the coordinator of {group} does not know of topic {partition.topic}; try again"
                )
            if code:
                raise await self._refusal(group, generation, partition, code)

    async def visit_positions(self, visit: VisitPosition) -> None:
        """See `Backend.visit_positions`."""
        for group in sorted(await self._group_list.names()):
            what = f"read the offsets that {group} has committed"
            request = OFFSET_FETCH(group, None, False, {})
            answer = await self._coordinators.ask(group, request, what, _fetch_code)
            if answer.error_code:
                raise error_for_code(answer.error_code, what)
            for topic, partitions, _ in answer.topics:
                offsets = {
                    number: offset for number, offset, _, _, code, _ in partitions if not code and offset >= 0
                }
                if offsets and topic in self._client.metadata.topics:
                    visit(group, topic, offsets)

    async def committed(self, group: str, topic: str) -> Mapping[int, OffsetCommit]:
        """See `Backend.committed_offsets`."""
        known = self._client.metadata.topics.get(topic)
        if known is None:
            return {}
        numbers = [each.partition for each in known.partitions]
        what = f"read the offsets of {topic} that {group} has committed"
        request = OFFSET_FETCH(group, [(topic, numbers, {})], True, {})
        unsettled = frozenset({UNSTABLE_OFFSET_COMMIT})
        answer = await self._coordinators.ask(group, request, what, _fetch_code, later=unsettled)
        if answer.error_code:
            raise error_for_code(answer.error_code, what)
        found = {}
        for _, partitions, _ in answer.topics:
            for number, offset, _, metadata, code, _ in partitions:
                if code not in (0, UNKNOWN_TOPIC_OR_PARTITION):
                    raise error_for_code(code, what)
                if offset >= 0 and not code:
                    found[number] = OffsetCommit(offset, metadata or "")
        return found

    def _check_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        topics = self._client.metadata.topics
        for topic, number in partitions:
            count = len(topics[topic].partitions) if topic in topics else 0
            if not 0 <= number < count:
                raise UnknownPartition(f"unknown partition {number} of topic {topic}, which has {count}")

    async def _generation(self, group: str, partitions: Iterable[TopicPartition]) -> Generation:
        """The member and generation of a commit.

        Raises:
            OwnedElsewhere: another process owns a partition.
            OwnerUndecided: this process is joining the group.
        """
        member = self._groups.member(group, next(iter(partitions)))
        if member is None:
            return _NO_MEMBER
        generation = member.generation
        if generation is None:
            raise OwnerUndecided(f"the consumer group {group} is being joined; try again")
        if foreign := [each for each in partitions if not member.owns(each)]:
            with suppress(OwnerUndecided):  # before a rebalance any member may commit the partitions it had
                for partition, owner in (await self._group_list.owners(group, foreign)).items():
                    raise _owned(group, partition, owner)
        return generation

    async def _commit(
        self, group: str, generation: Generation, offsets: Mapping[TopicPartition, OffsetCommit]
    ) -> dict[TopicPartition, int]:
        """The error code of each partition."""
        by_topic: dict[str, list[tuple[int, int, int, str]]] = {}
        for (topic, number), (offset, metadata) in offsets.items():
            by_topic.setdefault(topic, []).append((number, offset, _NO_EPOCH, metadata))
        request = OFFSET_COMMIT(group, *generation, None, list(by_topic.items()))
        answer = await self._coordinators.ask(
            group, request, f"commit offsets of {group}", _any_code, purpose=COMMITS
        )
        return {
            TopicPartition(topic, number): code
            for topic, partitions in answer.topics
            for number, code in partitions
        }

    async def _refusal(
        self, group: str, generation: Generation, partition: TopicPartition, code: int
    ) -> PixyError:
        what = f"commit {partition.topic}/{partition.partition} of {group}"
        if code == _REBALANCE_IN_PROGRESS:
            return OwnerUndecided(f"{what}: the consumer group is being rebalanced; try again")
        if code not in _NOT_OURS:
            return error_for_code(code, what)
        again = Unavailable(f"{what}: the consumer group has changed; try again")
        ours = self._groups.member(group, partition)
        if ours is not None and ours.owns(partition):
            return again
        members = await self._group_list.members(group)
        for member in members:
            if partition.partition in member.assigned.get(partition.topic, ()):
                return _owned(group, partition, member.client_id)
        if generation == _NO_MEMBER and members:
            names = ", ".join(sorted({member.client_id for member in members}))
            return OwnedElsewhere(f"offsets of {group} cannot be set here: it is consumed by {names}")
        return again


def _owned(group: str, partition: TopicPartition, owner: str) -> OwnedElsewhere:
    topic, number = partition
    return OwnedElsewhere(
        f"offsets of {group} in {topic}/{number} cannot be set here: it is consumed by {owner}"
    )


def _any_code(answer: Any) -> int:
    """The code of the first partition: the coordinator reports its errors for every partition."""
    code: int = answer.topics[0][1][0][1]
    return code


def _fetch_code(answer: Any) -> int:
    """The code of the group, or UNSTABLE_OFFSET_COMMIT if a transaction is about to change one of
    the offsets.
    """
    codes = [code for _, partitions, _ in answer.topics for _, _, _, _, code, _ in partitions]
    unsettled = UNSTABLE_OFFSET_COMMIT if UNSTABLE_OFFSET_COMMIT in codes else 0
    return answer.error_code or unsettled
