"""Leases of this node's members of consumer groups: how long they may hand out records.

A member is confirmed by a linearizable read of the state group of its consumer group: if it had
been put out before, this node knows by then. One read is enough for all members of a state group. A
lease counts from the moment at which the read begins; it ends before the coordinator gives the
partitions of a silent node to others (`cluster/consumer_groups/group_sessions`).

A node that is heard, but does not apply entries, because its disk is slow or full, would keep its
partitions without a lease. So its members give them up, and join again once a read succeeds.

A node that never has peers needs none: nobody else can own a partition.
"""

import asyncio
from collections.abc import Callable
from math import inf

from pixy.aio.tasks import Tasks
from pixy.backend.protocol import Lease
from pixy.cluster import LEASE_S, Node, StateReplica
from pixy.errors import PixyError

_RENEW_S = 0.8
"""Interval of confirmations."""
_BEHIND_S = 3.0
"""Members give up after that much time with failing confirmations because this node is behind."""


class GroupLeases:
    """Leases of one node.

    Args:
        node: this node.
        tasks: runs the confirmations.
        on_behind: called when the members of a state group have to give up, and again while this
            node is behind.
    """

    def __init__(self, node: Node, tasks: Tasks, on_behind: Callable[[StateReplica], None]) -> None:
        self._node = node
        self._tasks = tasks
        self._on_behind = on_behind
        # State groups that this node is behind of, with the first failed confirmation of each.
        self._behind_since: dict[StateReplica, float] = {}
        # By state group, with the number of its members here.
        self._leases: dict[StateReplica, Lease] = {}
        self._members: dict[StateReplica, int] = {}
        self._renewing: set[StateReplica] = set()
        self._timer: asyncio.TimerHandle | None = None

    def of(self, group: str) -> Lease:
        """The lease of the members of a consumer group; one object for all of its state group."""
        if self._node.peers is None:
            return Lease(inf)
        return self._leases.setdefault(self._node.state_groups.group_of(group), Lease(-inf))

    def hold(self, group: str) -> None:
        """A consumer group has a member here, or one more: keep its lease."""
        replica = self._node.state_groups.group_of(group)
        self._members[replica] = self._members.get(replica, 0) + 1
        if self._timer is None and self._node.peers is not None:
            self._renew()

    def drop(self, group: str) -> None:
        """It has one less."""
        replica = self._node.state_groups.group_of(group)
        self._members[replica] -= 1
        if not self._members[replica]:
            del self._members[replica]
            self._behind_since.pop(replica, None)

    def confirmed(self, group: str, began: float) -> None:
        """A member is known to be one, by a question to its state group that began then."""
        if self._node.peers is not None:
            lease = self.of(group)
            lease.until = max(lease.until, began + LEASE_S)

    def stop(self) -> None:
        """Renew nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _renew(self) -> None:
        self._timer = None
        if self._members:
            self._timer = asyncio.get_running_loop().call_later(_RENEW_S, self._renew)
        for replica in [each for each in self._members if each not in self._renewing]:
            self._renewing.add(replica)
            self._tasks.spawn(self._confirm(replica), f"confirm members of {replica.name}")

    async def _confirm(self, replica: StateReplica) -> None:
        began = self._node.monotonic()
        try:
            await self._node.confirm([replica], LEASE_S)
            confirmed = True
        except PixyError:
            confirmed = False
        finally:
            self._renewing.discard(replica)
        if self._node.disk_stalls or (not confirmed and self._node.is_behind(replica)):
            self._fall_behind(replica)
            return
        self._behind_since.pop(replica, None)
        if confirmed:
            lease = self._leases[replica]
            lease.until = max(lease.until, began + LEASE_S)

    def _fall_behind(self, replica: StateReplica) -> None:
        """Have the members of a state group give up if this lasts too long."""
        now = self._node.monotonic()
        if replica in self._members and now - self._behind_since.setdefault(replica, now) >= _BEHIND_S:
            del self._behind_since[replica]
            self._on_behind(replica)
