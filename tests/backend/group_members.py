"""Members of a consumer group at the nodes of a cluster, as the layer above has them."""

import asyncio
from collections.abc import Collection, Mapping, Sequence

from pixy.backend import ConsumerMembership, OffsetCommit, TopicPartition
from pixy.cluster.state.group_members import Membership
from tests.cluster.node_clusters import ClusterNode

GROUP = "group"


class GroupNode:
    """A node with a member of the group, and what it was told.

    Args:
        node: the node.
        topics: subscribed topics.
        drain_s: time that a revocation takes; None: until it is cancelled.

    Attributes:
        told: its assignments, without topics without partitions.
        revoked: the revocations that have begun.
        ended: number of those that have ended by themselves.
        sets: partitions whose offsets were set elsewhere.
    """

    def __init__(
        self, node: ClusterNode, *topics: str, group: str = GROUP, drain_s: float | None = 0.0
    ) -> None:
        self.node = node
        self.topics = topics or ("topic",)
        self.group = group
        self.drain_s = drain_s
        self.told: list[dict[str, list[int]]] = []
        self.revoked: list[dict[str, list[int]]] = []
        self.ended = 0
        self.sets: list[dict[str, list[int]]] = []
        self.membership: ConsumerMembership

    def _assigned(self, assignment: Mapping[str, Sequence[int]]) -> None:
        self.told.append(_plain(assignment))

    async def _revoke(self, _: float, partitions: Mapping[str, Collection[int]] | None) -> None:
        assert partitions is not None
        self.revoked.append(_plain(partitions))
        if self.drain_s is None:
            await asyncio.get_running_loop().create_future()
        else:
            await asyncio.sleep(self.drain_s)
        self.ended += 1

    def _set(self, partitions: Mapping[str, Collection[int]]) -> None:
        self.sets.append(_plain(partitions))

    async def join(self) -> "GroupNode":
        self.membership = await self.node.backend.join_consumer_group(
            self.group, f"client-{self.node.number}", self.topics, self._assigned, self._revoke, self._set
        )
        return self

    @property
    def owned(self) -> list[int]:
        """Partitions of `topic` that it owns as it was told."""
        return self.told[-1].get("topic", []) if self.told else []

    def may_consume(self) -> bool:
        """True while its lease lasts."""
        return self.node.clock.monotonic() < self.membership.lease.until


def _plain(partitions: Mapping[str, Collection[int]]) -> dict[str, list[int]]:
    return {topic: sorted(numbers) for topic, numbers in partitions.items() if numbers}


def owners(*members: GroupNode) -> dict[int, list[int]]:
    """Numbers of the nodes that own each partition of `topic`, as they were told."""
    found: dict[int, list[int]] = {}
    for member in members:
        for partition in member.owned:
            found.setdefault(partition, []).append(member.node.number)
    return dict(sorted(found.items()))


def membership_at(node: ClusterNode, group: str = GROUP) -> Membership:
    """The applied membership of a group at a node."""
    return node.node.state_groups.offsets_of(group).membership(group)


async def commit(node: ClusterNode, offset: int, partition: int = 0, *, set: bool = False) -> None:
    where = TopicPartition("topic", partition)
    await node.backend.commit_offsets(GROUP, {where: OffsetCommit(offset, "")}, set=set)


async def committed(node: ClusterNode, partition: int = 0) -> int | None:
    found = (await node.backend.committed_offsets(GROUP, "topic")).get(partition)
    return None if found is None else found.offset
