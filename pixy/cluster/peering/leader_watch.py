"""Changes of the leaders of a node's raft groups, and their consequences.

a leader changes               the observer is told of the topics, gathered for a moment: an
                               election of a thousand groups is one change of each topic
a partition has none for long  fetches that wait for its records end with UNAVAILABLE
`metadata` has none for long   the node is not ready (`readiness`)
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice

import structlog

from pixy.cluster.log import NodeObserver, PartitionReplica
from pixy.cluster.peering.readiness import Readiness
from pixy.cluster.replicas import group_name
from pixy.multiraft import RaftGroup
from pixy.raft import NONE, StateType

log = structlog.get_logger(__name__)

_NAMED_MAX = 10
_GATHER_S = 0.05
LEADERLESS_S = 3.0
"""Seconds without a leader after which fetches of a partition wait no longer."""


class LeaderWatch:
    """Leaders of one node's raft groups.

    Args:
        observer: told of changes.
    """

    def __init__(self, observer: Callable[[], NodeObserver]) -> None:
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._readiness = Readiness()
        # Topics whose leaders have changed since the observer was told.
        self._changed: dict[str, None] = {}
        # Groups that this node leads since then.
        self._led: dict[RaftGroup, None] = {}
        # Partitions without a leader, with the loop time since which; the oldest first.
        self._since: dict[PartitionReplica, float] = {}

    @property
    def reason(self) -> str:
        """See `Readiness`."""
        return self._readiness.reason

    def leader_changed(self, group: RaftGroup) -> None:
        """A group has another leader, or none."""
        replica = group.application
        if not self._changed and not self._led:
            self._loop.call_later(_GATHER_S, self._tell)
        if group.has_peers and group.node is not None and group.node.raft.state is StateType.LEADER:
            self._led[group] = None
        if isinstance(replica, PartitionReplica):
            self.note(replica)
            self._changed[replica.partition.topic] = None

    def note(self, replica: PartitionReplica) -> None:
        """Note whether a partition has a leader, as far as this node knows."""
        if replica.group is not None and replica.group.leader != NONE:
            self._since.pop(replica, None)
        else:
            self._since.setdefault(replica, self._loop.time())

    def is_leaderless(self, replica: PartitionReplica) -> bool:
        """True if a partition has had no leader for long."""
        since = self._since.get(replica)
        return since is not None and self._loop.time() - since >= LEADERLESS_S

    def look(self, metadata: RaftGroup, unreachable: Callable[[], Sequence[int]]) -> None:
        """Look at what has lasted too long, at each tick.

        Args:
            unreachable: tells the nodes that cannot be reached.
        """
        now = self._loop.time()
        has_leader = metadata.leader != NONE
        nodes = () if has_leader else unreachable()
        if self._readiness.look(now, has_leader=has_leader, unreachable=nodes):
            self._observer().readiness_changed()
        for replica, since in list(self._since.items()) if self._since else ():
            if now - since < LEADERLESS_S:
                break
            if replica.deleted:
                del self._since[replica]
            replica.wake()

    def _tell(self) -> None:
        changed, self._changed = self._changed, {}
        led, self._led = self._led, {}
        if led:
            names = [f"{group_name(group)} in term {group.term}" for group in islice(led, _NAMED_MAX)]
            log.info("this node leads raft groups", count=len(led), names=", ".join(names))
        if changed:
            self._observer().leaders_changed(changed.keys())
