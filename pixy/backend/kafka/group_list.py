"""Members of consumer groups in any program, as described by the brokers.

The coordinator of a group describes it. DescribeGroups omits groups of KIP-848's protocol, so those
that it lacks are requested by ConsumerGroupDescribe. During a rebalance of the classic protocol no
member has partitions; the newer protocol moves partitions one by one.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pixy.backend.kafka.client import CONTROL, KafkaClient
from pixy.backend.kafka.coordinators import PATIENCE_S, Coordinators
from pixy.backend.kafka.errors import error_for_code
from pixy.backend.kafka.members import PROTOCOL_TYPE, Partitions
from pixy.backend.kafka.transactions import SINK_PREFIX
from pixy.backend.protocol import TopicDescription
from pixy.errors import OwnerUndecided, Unavailable, UnknownGroup
from pixy.kafka_protocol.consumer import decode_assignment, decode_subscription
from pixy.kafka_protocol.group_messages import (
    CONSUMER_GROUP_DESCRIBE,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    OFFSET_DELETE,
)
from pixy.records import TopicPartition

_GROUP_ID_NOT_FOUND = 69
_GROUPS_PER_REQUEST = 100
_NO_MEMBERS_YET = ""
"""The protocol type of a group that has committed offsets and never had a member."""
_UNDECIDED = frozenset({"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"})
"""States of groups under rebalance: two of the classic protocol, two of KIP-848's."""

_OWNER_PATIENCE_S = 2.0
"""Time limit of the coordinator's lookup for an ack, whose client waits."""


class DescribedMember(NamedTuple):
    """One member of a group: its client id, subscribed topics and assigned partitions."""

    client_id: str
    topics: frozenset[str]
    assigned: Partitions


class _DescribedGroup(NamedTuple):
    """The members of a group, and True if a rebalance is in progress."""

    members: Sequence[DescribedMember] = ()
    undecided: bool = False


class GroupList:
    """Queries brokers for the members of groups.

    Args:
        client: the cluster's brokers.
        coordinators: finds the coordinator of a group.
    """

    def __init__(self, client: KafkaClient, coordinators: Coordinators) -> None:
        self._client = client
        self._coordinators = coordinators

    async def members(self, group: str, timeout_s: float = PATIENCE_S) -> Sequence[DescribedMember]:
        """The members of one group; none if there is no such group.

        Raises:
            Unavailable: its coordinator did not answer for `timeout_s` seconds.
        """
        return (await self._describe(group, timeout_s)).members

    async def owner(self, group: str, partition: TopicPartition) -> str | None:
        """Client id of the member that owns a partition, None if there is none.

        Raises:
            OwnerUndecided: there is none, and the group is being rebalanced.
        """
        return (await self.owners(group, [partition])).get(partition)

    async def owners(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, str]:
        """Client ids of the members that own partitions, of those that have an owner.

        Raises:
            OwnerUndecided: none has, and the group is being rebalanced.
        """
        described = await self._describe(group, _OWNER_PATIENCE_S)
        wanted = {partition.topic for partition in partitions}
        owners = {
            TopicPartition(topic, number): member.client_id
            for member in described.members
            for topic in wanted & member.assigned.keys()
            for number in member.assigned[topic]
        }
        found = {partition: owners[partition] for partition in partitions if partition in owners}
        if not found and described.undecided:
            raise OwnerUndecided(f"the consumer group {group} is being rebalanced; try again")
        return found

    async def _describe(self, group: str, timeout_s: float) -> _DescribedGroup:
        what = f"describe the consumer group {group}"
        request = DESCRIBE_GROUPS([group], False, {})
        answer = await self._coordinators.ask(group, request, what, _first_code, timeout_s)
        (found,) = answer.groups
        if found[0] not in (0, _GROUP_ID_NOT_FOUND):
            raise error_for_code(found[0], what)
        if found[5]:
            return _DescribedGroup([_classic_member(each) for each in found[5]], found[2] in _UNDECIDED)
        return (await self._newer_groups(await self._coordinators.find(group), [group])).get(
            group, _DescribedGroup()
        )

    async def names(self) -> Collection[str]:
        """See `Backend.list_groups`; the groups that hold the epochs of sinks are left out.

        Raises:
            Unavailable: a broker cannot be reached. A list without its groups would look complete.
        """
        nodes = list(self._client.metadata.brokers)
        return {
            name
            for groups in await asyncio.gather(*(self._names_at(node_id) for node_id in nodes))
            for name, kind in groups
            if kind in (PROTOCOL_TYPE, _NO_MEMBERS_YET) and not name.startswith(SINK_PREFIX)
        }

    async def _names_at(self, node_id: int) -> list[tuple[str, str]]:
        """The groups coordinated by a broker, each with the type of its protocol."""
        what = f"list the groups of broker {node_id}"
        answer = await self._coordinators.ask_broker(node_id, LIST_GROUPS([], {}), what)
        if answer.error_code:
            raise error_for_code(answer.error_code, what)
        return [(name, kind) for name, kind, *_ in answer.groups]

    async def delete(self, group: str, topic: str, partitions: Sequence[int]) -> None:
        """See `Backend.delete_group`, with the partitions of the topic.

        Raises:
            Unavailable: the coordinator did not answer.
        """
        if group.startswith(SINK_PREFIX):
            raise UnknownGroup(f"unknown consumer group {group}")
        if topic:
            what = f"delete the offsets of the consumer group {group} in {topic}"
            answer = await self._coordinators.ask(group, OFFSET_DELETE(group, [(topic, partitions)]), what)
            codes = [answer.error_code, *(code for _, found in answer.topics for _, code in found)]
        else:
            what = f"delete the consumer group {group}"
            answer = await self._coordinators.ask(group, DELETE_GROUPS([group]), what, _result_code)
            codes = [code for _, code in answer.results]
        for code in filter(None, codes):
            raise error_for_code(code, what)

    async def consumers(self, topic: str) -> Mapping[str, Mapping[str, Sequence[int]]]:
        """See `Backend.list_consumers`.

        Raises:
            Unavailable: a broker cannot be reached. A list without its groups would look complete.
        """
        nodes = list(self._client.metadata.brokers)
        found: dict[str, Mapping[str, Sequence[int]]] = {}
        for groups in await asyncio.gather(*(self._groups_at(node_id) for node_id in nodes)):
            for group, members in groups.items():
                clients = _clients(members, topic, self._client.metadata.topics.get(topic))
                if clients:
                    found[group] = clients
        return found

    async def _groups_at(self, node_id: int) -> Mapping[str, Sequence[DescribedMember]]:
        """The consumer groups coordinated by a broker, with their members."""
        names = [name for name, kind in await self._names_at(node_id) if kind == PROTOCOL_TYPE]
        found: dict[str, Sequence[DescribedMember]] = {}
        for at in range(0, len(names), _GROUPS_PER_REQUEST):
            some = names[at : at + _GROUPS_PER_REQUEST]
            described = await self._client.send(node_id, DESCRIBE_GROUPS(some, False, {}))
            for _, name, _, _, _, members, *_ in described.groups:
                found[name] = [_classic_member(each) for each in members]
            empty = [name for name in some if not found.get(name)]
            newer = await self._newer_groups(node_id, empty)
            found.update({name: group.members for name, group in newer.items()})
        return found

    async def _newer_groups(self, node_id: int, groups: Sequence[str]) -> Mapping[str, _DescribedGroup]:
        """Groups of KIP-848's protocol; classic ones are left out, and all if the broker lacks the
        protocol.
        """
        if not groups:
            return {}
        try:
            answer = await self._client.send(node_id, CONSUMER_GROUP_DESCRIBE(groups, False, {}), CONTROL)
        except Unavailable as error:
            if "versions" in str(error):
                return {}
            raise
        return {
            name: _DescribedGroup([_newer_member(each) for each in members], state in _UNDECIDED)
            for code, _, name, state, _, _, _, members, *_ in answer.groups
            if not code
        }


def _clients(
    members: Iterable[DescribedMember], topic: str, description: TopicDescription | None
) -> dict[str, list[int]]:
    """Client id -> partitions of a topic, ascending, of all members with that client id; none of a
    deleted topic.
    """
    count = 0 if description is None else len(description.partitions)
    found: dict[str, list[int]] = {}
    for member in members:
        if topic in member.topics or topic in member.assigned:
            assigned = (number for number in member.assigned.get(topic, ()) if number < count)
            found.setdefault(member.client_id, []).extend(assigned)
    return {client_id: sorted(partitions) for client_id, partitions in found.items()}


def _classic_member(described: Any) -> DescribedMember:
    _, _, client_id, _, metadata, assignment, *_ = described
    return DescribedMember(client_id, decode_subscription(metadata), decode_assignment(assignment))


def _newer_member(described: Any) -> DescribedMember:
    _, _, _, _, client_id, _, topics, _, assignment, *_ = described
    assigned = {topic: tuple(sorted(numbers)) for _, topic, numbers, _ in assignment[0]}
    return DescribedMember(client_id, frozenset(topics or ()), assigned)


def _result_code(answer: Any) -> int:
    code: int = answer.results[0][1]
    return code


def _first_code(answer: Any) -> int:
    code: int = answer.groups[0][0]
    return code
