"""Kafka clients at the nodes of a cluster: members of a group of the classic protocol."""

import asyncio

from pixy.backend import GroupCommit, TopicPartition
from pixy.backend.embedded.classic_groups import NodeClassicGroups
from pixy.classic_groups import (
    GroupCode,
    GroupJoin,
    GroupPhase,
    GroupSync,
    Joined,
    MemberProtocol,
    Synced,
)
from pixy.kafka_protocol.consumer import decode_assignment, encode_assignment, encode_subscription
from tests.backend.group_members import GROUP
from tests.cluster.node_clusters import ClusterNode, NodeCluster
from tests.fakes.waiting import until

SESSION_MS = 10_000
RETRIABLE = {
    GroupCode.COORDINATOR_LOAD_IN_PROGRESS,
    GroupCode.COORDINATOR_NOT_AVAILABLE,
    GroupCode.NOT_COORDINATOR,
}
PARTITION = TopicPartition("topic", 0)


def coordinator(cluster: NodeCluster, group: str = GROUP) -> ClusterNode | None:
    """The node that coordinates a group, as it says itself."""
    for node in cluster.nodes.values():
        if node.backend.classic_groups.coordinator_of(group) == node.id:
            return node
    return None


def groups(cluster: NodeCluster, group: str = GROUP) -> NodeClassicGroups:
    node = coordinator(cluster, group)
    assert node is not None
    return node.backend.classic_groups


def is_preparing(cluster: NodeCluster) -> bool:
    """True if the coordinator of the group, as it says itself, gathers joins."""
    node = coordinator(cluster)
    group = None if node is None else node.node.classic_groups.known(GROUP)
    return group is not None and group.phase is GroupPhase.PREPARING


class KafkaClient:
    """A member that looks for the coordinator, joins and syncs; the leader deals the three
    partitions of `topic` out.
    """

    def __init__(self, cluster: NodeCluster, name: str = "client", *, group: str = GROUP) -> None:
        self.cluster = cluster
        self.name = name
        self.group = group
        self.member_id = ""
        self.generation = -1
        self.assigned: dict[str, tuple[int, ...]] = {}

    def node(self) -> ClusterNode:
        """Its coordinator."""
        node = coordinator(self.cluster, self.group)
        assert node is not None
        return node

    async def join(self) -> Joined:
        while True:
            node = coordinator(self.cluster, self.group)
            if node is not None:
                answer = await node.backend.classic_groups.join(self.group, self._join())
                self.member_id = answer.member_id or self.member_id
                if answer.code is GroupCode.UNKNOWN_MEMBER_ID:
                    self.member_id = ""  # known to the last coordinator alone
                elif answer.code not in {*RETRIABLE, GroupCode.MEMBER_ID_REQUIRED}:
                    self.generation = answer.generation
                    return answer
            await asyncio.sleep(0.05)

    def _join(self) -> GroupJoin:
        return GroupJoin(
            self.member_id,
            None,
            self.name,
            "127.0.0.1",
            "consumer",
            [MemberProtocol("range", encode_subscription(["topic"]))],
            SESSION_MS,
            60_000,
        )

    async def sync(self, joined: Joined) -> Synced:
        plan = [
            (each.member_id, encode_assignment({"topic": list(range(at, 3, len(joined.members)))}))
            for at, each in enumerate(joined.members)
        ]
        while True:
            node = coordinator(self.cluster, self.group)
            if node is not None:
                answer = await node.backend.classic_groups.sync(
                    self.group, GroupSync(self.member_id, None, self.generation, plan)
                )
                if answer.code not in RETRIABLE:
                    self.assigned = decode_assignment(answer.assignment)
                    return answer
            await asyncio.sleep(0.05)

    async def start_with(self, other: "KafkaClient") -> "KafkaClient":
        """Begin when another member is there already."""
        mine = asyncio.create_task(self.join())
        await until(lambda: is_preparing(self.cluster))
        theirs, joined = await asyncio.gather(other.join(), mine)
        await asyncio.gather(other.sync(theirs), self.sync(joined))
        return self

    async def start(self) -> "KafkaClient":
        synced = await self.sync(await self.join())
        assert synced.code is GroupCode.NONE
        return self

    async def heartbeat(self) -> GroupCode:
        while True:
            node = coordinator(self.cluster, self.group)
            if node is not None:
                code = await node.backend.classic_groups.heartbeat(
                    self.group, self.member_id, None, self.generation
                )
                if code not in RETRIABLE:
                    return code
            await asyncio.sleep(0.05)

    async def commit(self, offset: int, metadata: str = "") -> GroupCode:
        commit = GroupCommit(self.member_id, None, self.generation, {PARTITION: (offset, metadata)})
        return (await groups(self.cluster, self.group).commit(self.group, commit))[PARTITION]
