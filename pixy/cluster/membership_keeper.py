"""Members of the state groups: where one is led, its configuration follows the registered nodes.

`membership` decides each step, one configuration change at a time; this module proposes it.
"""

import asyncio
import structlog

from pixy.cluster.driver import Driver
from pixy.cluster.state_groups import StateGroups
from pixy.raft import ConfChangeSingle, ConfChangeType, ConfChangeV2

__all__ = ["MembershipKeeper"]

log = structlog.get_logger(__name__)

_LOOK_S = 0.2


class MembershipKeeper:
    """Keeps the configuration of the state groups that one node leads.

    Args:
        driver: of the groups.
        groups: the state groups, `metadata` with the nodes among them.
    """

    def __init__(self, driver: Driver, groups: StateGroups) -> None:
        self._driver = driver
        self._groups = groups
        self._loop = asyncio.get_running_loop()
        self._next_look = 0.0

    def tick(self) -> None:
        """Propose the next changes."""
        now = self._loop.time()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        nodes = [node.node_id for node in self._groups.metadata.nodes.values() if not node.removed]
        for replica in self._groups.replicas():
            group = replica.group
            if not group.leads or group.node is None:
                continue
            raft = group.node.raft
            conf = group.storage.conf_state
            if conf.voters_outgoing or raft.pending_conf_index > group.applied_index:
                continue
            count = len(nodes) if len(nodes) < 3 else 3
            wanted = sorted(nodes)[:count]
            missing = [n for n in nodes if n not in conf.members]
            if missing:
                self._driver.change_configuration(
                    group, ConfChangeV2((ConfChangeSingle(ConfChangeType.ADD_LEARNER_NODE, missing[0]),))
                )
                continue
            promote = [n for n in wanted if n in conf.learners]
            if promote and all(raft.tracker.progress[n].match >= raft.log.committed for n in promote):
                self._driver.change_configuration(
                    group, ConfChangeV2(tuple(ConfChangeSingle(ConfChangeType.ADD_NODE, n) for n in promote))
                )
