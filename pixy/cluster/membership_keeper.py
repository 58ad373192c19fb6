"""Members of the state groups: where one is led, its configuration follows the registered nodes.

`membership` decides each step, one configuration change at a time; this module proposes it.
"""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from pixy.cluster.driver import Driver
from pixy.cluster.membership import CatchUp, next_change
from pixy.cluster.nodes import NodeInfo
from pixy.cluster.replica import StateReplica

__all__ = ["MembershipKeeper"]

log = structlog.get_logger(__name__)

_LOOK_S = 0.2


class MembershipKeeper:
    """Keeps the configuration of the state groups that one node leads.

    Args:
        driver: of the groups.
        replicas: the state groups.
        nodes: the registered nodes, by id.
    """

    def __init__(
        self,
        driver: Driver,
        replicas: Callable[[], list[StateReplica]],
        nodes: Callable[[], Mapping[int, NodeInfo]],
    ) -> None:
        self._driver = driver
        self._replicas = replicas
        self._nodes = nodes
        self._loop = asyncio.get_running_loop()
        self._next_look = 0.0
        self._catch_ups: dict[int, CatchUp] = {}

    def tick(self) -> None:
        """Propose the next changes."""
        now = self._loop.time()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        for replica in self._replicas():
            self._look(replica)
