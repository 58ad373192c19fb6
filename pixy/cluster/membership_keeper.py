"""Members of the state groups: where one is led, its configuration follows the registered nodes.

`membership` decides each step, one configuration change at a time; this module proposes it.
"""

import asyncio
import structlog

from pixy.cluster.driver import Driver
from pixy.cluster.state_groups import StateGroups

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
