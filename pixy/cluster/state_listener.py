"""Reactions of a node to what its state groups have applied.

    applied                                  then
    ---------------------------------------  -------------------------------------------------------
    a topic is new, or has changed, also by  partitions and observer are told
    moves
    a topic is deleted                       the same; proposals to it end, and offsets in it are to
                                             be forgotten
    a node is new, has another address, or   connections are opened or closed
    has left
    a publication                            it is rolled forward
    stages are published, or gone            their files may go
    offsets in deleted topics are forgotten  they are removed, some at a time
    consumer groups have changed             coordinator and observer are told, as of topics
    the checkpoint of a leader               the differences between metadata and what the
                                             partitions were told

Entries that a start applies again have no effect: `nodes_are_current` and `begin` look at the
result.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import structlog

from pixy.aio.steps import LaterSteps
from pixy.cluster.consumer_groups import GroupCoordinator
from pixy.cluster.log import NodeLog, NodeObserver, StateReplica
from pixy.cluster.peering import NodePeers, ProposalForwarder
from pixy.cluster.publications import StagingRouter
from pixy.cluster.replicas import CommandProposals, Partitions, StateGroups
from pixy.cluster.state import (
    DeletedTopic,
    Forgotten,
    GroupsChanged,
    GroupsState,
    LeftNode,
    MovesChanged,
    Topic,
)
from pixy.errors import UnknownPartition
from pixy.raft import Entry

log = structlog.get_logger(__name__)

_NAMED_MAX = 10
"""Names in a line of the log."""


class StateListener:
    """Reactions of one node.

    Args:
        state_groups: the state machines.
        node_log: the node's log.
        partitions: told of topics.
        proposals: proposes commands.
        observer: told of topics and nodes.
        peers, remote: the other nodes, and proposals to them; None without peers.
    """

    _staging: StagingRouter
    _group_coordinator: GroupCoordinator

    def __init__(
        self,
        state_groups: StateGroups,
        node_log: NodeLog,
        partitions: Partitions,
        proposals: CommandProposals,
        observer: Callable[[], NodeObserver],
        peers: NodePeers | None,
        remote: ProposalForwarder | None,
    ) -> None:
        self._state_groups = state_groups
        self._metadata = state_groups.metadata
        self._log = node_log
        self._partitions = partitions
        self._proposals = proposals
        self._observer = observer
        self._peers = peers
        self._remote = remote
        self._loop = asyncio.get_running_loop()
        # Those of all state groups, which forget a topic at the same time.
        self._sweeping = LaterSteps()
        # The nodes that the peers were told of.
        self._nodes = self._metadata.nodes
        # True once a start has heard of all changes: nobody is dialled who has left since.
        self._nodes_are_current = False
        self._begun = False

    def begin(self, staging: StagingRouter, group_coordinator: GroupCoordinator) -> None:
        """React from here on, and to what the state groups have: they are restored."""
        self._staging, self._group_coordinator = staging, group_coordinator
        self._begun = True
        self._look_at_topics()

    # --- applied ----------------------------------------------------------------------------------

    def apply(self, replica: StateReplica, entry: Entry) -> Any:
        """Apply an entry of a state group, and act on its result."""
        result = replica.apply(entry)
        if replica.machine is self._metadata and self._metadata.nodes is not self._nodes:
            self._nodes_changed()
        if not self._begun:
            return result
        if isinstance(result, Topic):
            self._topic_changed(result)
        elif isinstance(result, DeletedTopic):
            self._topic_deleted(result.topic)
        elif isinstance(result, (LeftNode, MovesChanged)):
            for topic in result.topics:
                self._topic_changed(topic)
        elif replica.machine is self._state_groups.sinks:
            self._staging.applied(result)
        elif isinstance(result, Forgotten):
            self._sweeping.run(result.state.sweep())
        elif isinstance(result, GroupsChanged):
            self._group_coordinator.changed(result.groups)
            self._loop.call_soon(self._observer().groups_changed, result.groups)
        self._log.checkpoints.applied(replica)
        return result

    def restored(self, replica: StateReplica) -> None:
        """The state of a state group was replaced by that of a leader's checkpoint."""
        if not self._begun:
            return
        if replica is self._state_groups.metadata_replica:
            self._look_at_topics()
            self._nodes_changed()
        elif isinstance(replica.machine, GroupsState):
            self._loop.call_soon(self._observer().groups_replaced)
        elif replica is self._state_groups.sinks_replica:
            self._staging.restored()
        self._sweeping.run(self._state_groups.sweeps())

    # --- nodes ------------------------------------------------------------------------------------

    def nodes_are_current(self) -> None:
        """A start has applied everything that was committed to metadata."""
        self._nodes_are_current = True
        self._nodes_changed()

    def _nodes_changed(self) -> None:
        if not self._nodes_are_current:
            return
        self._nodes = self._metadata.nodes
        if self._peers is not None:
            self._peers.nodes_changed()
            self._warn_of_missing_replicas()
            self._loop.call_soon(self.nodes_seen)
        own = self._nodes.get(self._log.driver.node_id)
        if own is not None and own.removed:
            self._loop.call_soon(self._observer().readiness_changed)

    def nodes_seen(self) -> None:
        """A node is new in the cluster, can be reached again, or cannot be reached any more."""
        if self._begun:
            self._observer().nodes_changed()

    def _warn_of_missing_replicas(self) -> None:
        missing = self._metadata.under_replicated()
        if missing and self._begun and self._state_groups.metadata_replica.group.leads:
            log.warning(
                "topics have fewer replicas than they should: made when there were fewer nodes, or nodes have left since",
                count=len(missing),
                topics=", ".join(missing[:_NAMED_MAX]),
            )

    # --- topics -----------------------------------------------------------------------------------

    def _look_at_topics(self) -> None:
        """Act on the differences between metadata and what the partitions were told of it."""
        known, topics = self._partitions.topics, self._metadata.topics
        for name, topic in known.items():
            if name not in topics or topics[name].topic_id != topic.topic_id:
                self._topic_deleted(topic)
        for name, topic in topics.items():
            if known.get(name) is not topic:
                self._topic_changed(topic)

    def _topic_changed(self, topic: Topic) -> None:
        self._partitions.put_topic(topic)
        self._group_coordinator.topic_changed(topic.name)
        self._loop.call_soon(self._observer().topic_changed, topic.name)

    def _topic_deleted(self, topic: Topic) -> None:
        self._partitions.drop_topic(topic, self._log.retention.maybe_remove)
        self._staging.topic_deleted(topic.topic_id)
        if self._remote is not None:
            self._remote.removed(topic.raft_groups, UnknownPartition(f"topic {topic.name} was deleted"))
        self._group_coordinator.topic_changed(topic.name)
        self._loop.call_soon(self._observer().topic_deleted, topic.name)
        self._state_groups.topic_deleted(topic.topic_id)
        self.forget_offsets()

    # --- offsets in deleted topics ----------------------------------------------------------------

    def forget_offsets(self) -> None:
        """Forget offsets in deleted topics; without room on the disk, at the next `clean_up`."""
        if self._log.stalled is None:
            self._state_groups.forget_offsets(self._proposals.propose)

    def clean_up(self) -> None:
        """Do what was missed: the offsets in topics that were deleted under another leader, which
        is gone, or without room on the disk.

        Offsets may be here before the topic in which they are committed: what is unknown was
        deleted only if metadata, made current afterwards, does not know it either.
        """
        unknown = self._state_groups.deleted_topic_ids()
        if unknown and self._peers is not None:
            group = self._state_groups.metadata_replica.group
            self._log.driver.reads.begin(group, partial(self._forget_unless_live, unknown))
        self.forget_offsets()

    def _forget_unless_live(self, topic_ids: Sequence[bytes]) -> None:
        live = {topic.topic_id for topic in self._metadata.topics.values()}
        for topic_id in topic_ids:
            if topic_id not in live:
                self._state_groups.topic_deleted(topic_id)
        self.forget_offsets()
