"""Descriptions of topics, by what this node knows.

A description is the same object until something of it changes: callers compare it by identity for
every record. Changes of the topic itself are seen at once, those of leaders and of nodes a moment
after (`NodeObserver`).

    partition              leader                        in sync
    ---------------------  ----------------------------  -----------------------------------------
    led here               this node                     of these, the ones that follow closely
    with a replica here    as this node knows            of these, as other nodes have told
    without one here       as another node has told,     of these, as other nodes have told
                           and can be reached
    damaged, only replica  none                          none

"These" are the replicas on nodes that can be reached, without damage, that wait for no copy.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from pixy.backend.embedded.remote_leaders import OutOfSync
from pixy.backend.protocol import PartitionDescription, TopicDescription
from pixy.cluster import PARTITIONS_MAX, Node, PartitionReplica, Topic
from pixy.multiraft import replicas_in_sync

_DESCRIBED_PER_ITERATION = 1000
_NO_LEADER = -1
_NOBODY: frozenset[int] = frozenset()


class _Described(NamedTuple):
    """A description, with the state of the topic that it describes; None: something else of it has
    changed.
    """

    topic: Topic | None
    description: TopicDescription


class TopicDescriptions:
    """Descriptions of the topics of one node.

    Args:
        node: the node, started when it is first asked for a topic.
        check_served: raises Unavailable until the node serves.

    Attributes:
        on_unknown_leader: called with a topic whose partitions elsewhere have unknown leaders.
    """

    def __init__(self, node: Node, check_served: Callable[[], None]) -> None:
        self._node = node
        self._metadata = node.metadata
        self._check_served = check_served
        self.on_unknown_leader: Callable[[Topic], None] = lambda _: None
        # By name.
        self._described: dict[str, _Described] = {}
        # What other nodes have told, by name of the topic.
        self._out_of_sync: dict[str, OutOfSync] = {}
        # Descriptions of undamaged partitions of a node alone by number, shared by all topics.
        self._whole: list[PartitionDescription] = []

    def find(self, name: str) -> TopicDescription | None:
        """The description of a topic, None if this node knows no such topic.

        Raises:
            Unavailable: the node does not serve yet.
        """
        topic = self._metadata.topics.get(name)
        if topic is not None:
            described = self._described.get(name)
            if described is not None and described.topic is topic:
                return described.description
        self._check_served()
        return None if topic is None else self._put(topic, [*self._partitions(topic)])

    async def describe(self, topic: Topic) -> TopicDescription:
        """The description of a topic as of now, made in pieces: there may be 10 000 partitions."""
        partitions: list[PartitionDescription] = []
        for described in self._partitions(topic):
            partitions.append(described)
            if not len(partitions) % _DESCRIBED_PER_ITERATION:
                await asyncio.sleep(0)
        return self._put(topic, partitions)

    def changed(self, name: str) -> None:
        """Something of a topic has changed."""
        described = self._described.get(name)
        if described is not None:
            self._described[name] = described._replace(topic=None)

    def told(self, topic: Topic, out_of_sync: OutOfSync) -> None:
        """Other nodes have told of the leaders and replicas of a topic."""
        if self._metadata.topics.get(topic.name) is not topic:
            return
        own = {group: out_of_sync[group] for group in topic.raft_groups if group in out_of_sync}
        if own:
            self._out_of_sync[topic.name] = own
        else:
            self._out_of_sync.pop(topic.name, None)
        self.changed(topic.name)

    def deleted(self, name: str) -> None:
        """A topic was deleted."""
        self._described.pop(name, None)
        self._out_of_sync.pop(name, None)

    def all_changed(self) -> None:
        """The nodes have changed."""
        for name in self._described:
            self.changed(name)

    async def prepare(self, partitions: int) -> None:
        """Make what descriptions with so many partitions share, a part per turn of the loop."""
        count = min(partitions, PARTITIONS_MAX)
        while len(self._whole) + _DESCRIBED_PER_ITERATION < count:
            self._make_whole(len(self._whole) + _DESCRIBED_PER_ITERATION)
            await asyncio.sleep(0)
        self._make_whole(count)

    def _make_whole(self, count: int) -> None:
        here = self._node.node_id
        for number in range(len(self._whole), count):
            self._whole.append(PartitionDescription(number, here, (here,), (here,)))

    def _put(self, topic: Topic, partitions: list[PartitionDescription]) -> TopicDescription:
        """Make the description, or keep that of before if nothing has changed."""
        here = self._node.node_id
        led_here = [each.partition for each in partitions if each.leader == here]
        description = TopicDescription(
            topic.name,
            topic.topic_id,
            topic.version,
            topic.config,
            tuple(partitions),
            topic.version,
            tuple(led_here) if 0 < len(led_here) < len(partitions) else (),
        )
        before = self._described.get(topic.name)
        if before is not None and before.description == description:
            description = before.description
        if self._node.metadata.topics.get(topic.name) is topic:
            self._described[topic.name] = _Described(topic, description)
        if any(each.leader < 0 and here not in each.replicas for each in partitions):
            self.on_unknown_leader(topic)
        return description

    def _partitions(self, topic: Topic) -> Iterator[PartitionDescription]:
        count, here = len(topic.raft_groups), self._node.node_id
        self._make_whole(count)
        made = self._node.partitions.made(topic.name)
        told = self._out_of_sync.get(topic.name, {})
        for number in range(count):
            replicas = topic.replicas[number] if number < len(topic.replicas) else (here,)
            replica = made[number] if number < len(made) else None
            if number in topic.moves or replicas != (here,) or _has_peers(replica):
                yield self._replicated(topic, number, replicas, replica, told)
            elif replica is not None and replica.fault is not None:
                yield PartitionDescription(number, _NO_LEADER, replicas, ())
            else:
                yield self._whole[number]

    def _replicated(
        self,
        topic: Topic,
        number: int,
        replicas: tuple[int, ...],
        replica: PartitionReplica | None,
        told: Mapping[int, frozenset[int]],
    ) -> PartitionDescription:
        node, raft_group = self._node, topic.raft_groups[number]
        assert node.peers is not None
        group = None if replica is None else replica.group
        is_up = node.peers.members.is_up
        if node.node_id in replicas:
            leader = 0 if group is None else group.leader
        else:
            leader = 0 if node.calls is None else node.calls.leaders.get(raft_group, 0)
            leader = leader if is_up(leader) else 0
        in_sync = {each for each in replicas if node.peers.members.is_reachable(each)}
        in_sync -= told.get(raft_group, _NOBODY)
        if leader == node.node_id and group is not None:
            in_sync &= replicas_in_sync(group)
        if replica is not None and not replica.is_well:
            in_sync.discard(node.node_id)
        isr = tuple([each for each in replicas if each in in_sync])
        move = topic.moves.get(number)
        return PartitionDescription(
            number, leader or _NO_LEADER, replicas, isr, () if move is None else move.target
        )


def _has_peers(replica: PartitionReplica | None) -> bool:
    """True while nodes that have left are members of the raft group yet."""
    return replica is not None and replica.group is not None and replica.group.has_peers
