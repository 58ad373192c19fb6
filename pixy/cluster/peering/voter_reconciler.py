"""Members of the raft groups that a node leads: configurations follow the nodes of the cluster.

`voter_changes` decides each step, one configuration change at a time; this module proposes it.
State groups have a replica on every node; the members of a partition are its replicas. A node that
is removed leaves metadata last.
"""

import asyncio
from collections.abc import Callable

import structlog

from pixy.cluster.log import PartitionReplica
from pixy.cluster.peering.departures import Departures
from pixy.cluster.peering.ticker import TICK_S
from pixy.cluster.peering.voter_changes import (
    HandOver,
    VoterChanges,
    WantedMembers,
    leader_view,
    partition_members,
    state_group_members,
)
from pixy.cluster.replicas import StateGroups, group_name
from pixy.cluster.state import METADATA_GROUP
from pixy.multiraft import Driver, RaftGroup
from pixy.raft import ConfState

log = structlog.get_logger(__name__)

_LOOK_S = 0.2
_PATIENCE_S = 10 * TICK_S


class VoterReconciler:
    """Keeps the configurations of one node's raft groups.

    Args:
        driver: of the groups.
        groups: the state groups, `metadata` with the nodes among them.
        departures: tells whether the other nodes need one that leaves.
        is_reachable: true of a node that can be reached.
    """

    def __init__(
        self,
        driver: Driver,
        groups: StateGroups,
        departures: Departures,
        is_reachable: Callable[[int], bool],
    ) -> None:
        self._driver = driver
        self._groups = groups
        self._departures = departures
        self._is_reachable = is_reachable
        self._loop = asyncio.get_running_loop()
        self._next_look = 0.0
        # The registered nodes by which the groups were looked at last.
        self._registered: list[int] = []
        # Of the groups whose members are not yet those that they should be.
        self._changing: dict[RaftGroup, VoterChanges] = {}

    def tick(self) -> None:
        """Propose the next changes."""
        now = self._loop.time()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        registered = self._groups.metadata.registered
        if registered != self._registered:
            self._registered = registered
            for group in self._driver.groups.values():
                group.met = None
        for group in list(self._driver.groups.values()):
            if not group.leads:
                if self._changing:
                    self._changing.pop(group, None)
            elif group.met is None or not _is_still_met(group):
                self._look_at(group, registered, now)
        for group in [each for each in self._changing if each.removed is not None]:
            del self._changing[group]

    def _look_at(self, group: RaftGroup, registered: list[int], now: float) -> None:
        """Propose the next change of a group that this node leads, if it needs one."""
        if group.has_peers:
            self._tell(group)
        configuration, wanted = group.storage.conf_state, self._wanted(group, registered)
        if wanted is not None and not _is_met(wanted, configuration):
            group.met = None
            self._step(group, wanted, now)
            return
        self._changing.pop(group, None)
        if isinstance(group.application, PartitionReplica):
            group.met = configuration, group.application.replicas

    def _wanted(self, group: RaftGroup, registered: list[int]) -> WantedMembers | None:
        if isinstance(group.application, PartitionReplica):
            # Replicas do not come yet: a copy of the partition would have to be there first.
            present = group.storage.conf_state.members.intersection(group.application.replicas)
            return partition_members(present, registered)
        if group.raft_group == METADATA_GROUP and self._is_needed_last():
            return None
        metadata, present = self._groups.metadata, group.storage.conf_state.members
        starting = [each for each in metadata.waiting if each in present or self._is_reachable(each)]
        return state_group_members(group.raft_group, metadata.started, starting)

    def _is_needed_last(self) -> bool:
        """True while a node that leaves may be a member of another group, here or elsewhere: it
        leaves metadata last. A start needs metadata, and the other groups may have no majority
        without the node. A node that leaves itself is told nothing of groups that it has left, and
        hands over.
        """
        leaving = {node.node_id for node in self._groups.leaving()}
        if not leaving or self._driver.node_id in leaving:
            return False
        return not self._departures.all_let_go(leaving)

    def _tell(self, group: RaftGroup) -> None:
        """Log a change of the members."""
        before, group.told = group.told, group.storage.conf_state
        members = group.told
        if before is not None and before != members and not members.voters_outgoing:
            log.info(
                "a raft group has other members",
                raft_group=group_name(group),
                voters=",".join(map(str, members.voters)),
                learners=",".join(map(str, members.learners)),
            )

    def _step(self, group: RaftGroup, wanted: WantedMembers, now: float) -> None:
        assert group.node is not None
        membership = self._changing.setdefault(group, VoterChanges(_PATIENCE_S))
        view = leader_view(group.node.raft)
        step = None if view is None else membership.next_change(wanted, view, now)
        if isinstance(step, HandOver):
            self._driver.transfer(group, step.node_id)
        elif step is not None:
            self._driver.change_configuration(group, step)


def _is_still_met(group: RaftGroup) -> bool:
    """True if neither configuration nor replicas of a partition have changed since the former was
    found to be as it should, by the registered nodes.
    """
    replica, met = group.application, group.met
    return (
        met is not None
        and isinstance(replica, PartitionReplica)
        and met[0] is group.storage.conf_state
        and met[1] is replica.replicas
    )


def _is_met(wanted: WantedMembers, configuration: ConfState) -> bool:
    """True if a configuration is the wanted one."""
    return (
        configuration.voters == wanted.voters
        and configuration.learners == wanted.learners
        and not configuration.voters_outgoing
    )
