"""Departures of replicas: a partition has moved to other nodes, and this one gives its replica up.

Metadata says so when a move has ended. The raft group has decided without this node before: so
nobody counts on what this replica has confirmed. But metadata here may be behind, and the partition
be on its way back: then its group may count on what the replica confirms next. So a departure is in
this order:

    muted        the replica takes no messages, and confirms nothing
    sure         a linearizable read of metadata, begun after that, says that it has moved away; if
                 not, the replica goes on as if nothing had been
    gone         a record of the journal voids what it has, but for term and vote (REPLICA_GONE)
    cleared      its files are removed

A crash leaves a replica that the next start opens and that departs again, or one that is gone,
whose files the next start removes. A replica that comes back begins without members, and gets a
snapshot; what it has confirmed in its former life, it is not asked for.

Proposals of this node go on at the nodes that have the partition.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from pixy.aio.futures import resolve
from pixy.aio.tasks import Tasks
from pixy.cluster.log import NodeLog, PartitionReplica
from pixy.cluster.peering.proposal_forwarder import ProposalForwarder
from pixy.cluster.peering.replica_calls import RemotePartition
from pixy.cluster.replicas import Partitions
from pixy.errors import PixyError
from pixy.faults import OnFault

log = structlog.get_logger(__name__)

_CONFIRM_S = 5.0
_PAUSE_S = 0.5


class ReplicaDepartures:
    """Departures of replicas of one node.

    Args:
        node_log: the log of this node.
        partitions: its partitions.
        remote: proposals to other nodes.
        confirm_metadata: returns once metadata has here what was committed before; takes a timeout
            in seconds.
        moves: True if replicas go by moves alone. Otherwise a node that is removed loses its
            replicas in metadata while it is a voter yet.
        on_fault: called with an unexpected exception.
    """

    def __init__(
        self,
        node_log: NodeLog,
        partitions: Partitions,
        remote: ProposalForwarder,
        confirm_metadata: Callable[[float], Awaitable[None]],
        moves: Callable[[], bool],
        on_fault: OnFault,
    ) -> None:
        self._log = node_log
        self._partitions = partitions
        self._remote = remote
        self._confirm_metadata = confirm_metadata
        self._moves = moves
        self._tasks = Tasks(on_fault)
        self._stopped = False

    async def stop(self) -> None:
        """End all departures; the next start goes on with them."""
        self._stopped = True
        await self._tasks.cancel_all()

    def look(self) -> None:
        """Begin the departures that are due; called at each tick."""
        while self._partitions.departing and not self._stopped:
            _, replica = self._partitions.departing.popitem()
            if not replica.is_departing and self._has_moved_away(replica):
                self._tasks.spawn(self._depart(replica), f"departure of {replica.partition}")

    async def _depart(self, replica: PartitionReplica) -> None:
        group, driver = replica.group, self._log.driver
        if group is None:
            return
        replica.is_departing = True
        driver.mute(group)
        replica.wake()  # whoever waits for its records finds them elsewhere
        self._pass_on_proposals(replica)
        try:
            while not await self._is_sure():
                pass
            while self._log.is_installing(group) and group.removed is None:
                await replica.wait(None)
            if group.removed is None and self._has_moved_away(replica):
                await self._give_up(replica)
            elif group.removed is None:
                driver.unmute(group)
        finally:
            replica.is_departing = False

    def _has_moved_away(self, replica: PartitionReplica) -> bool:
        """True if a move has ended, and its raft group has decided that this node goes."""
        if not self._partitions.is_unplaced(replica):
            return False
        return self._partitions.has_moved(replica) or self._moves()

    async def _is_sure(self) -> bool:
        """True if metadata is current; False after a pause."""
        try:
            await self._confirm_metadata(_CONFIRM_S)
        except PixyError:
            await asyncio.sleep(_PAUSE_S)
            return False
        return True

    async def _give_up(self, replica: PartitionReplica) -> None:
        self._pass_on_proposals(replica)
        gone = asyncio.get_running_loop().create_future()
        self._partitions.leave(replica, lambda: resolve(gone, None))
        await gone
        await self._log.writer.flush()
        await self._partitions.on_departed(replica)
        if replica.deleted:
            return
        cleared = asyncio.get_running_loop().create_future()
        self._partitions.clear(replica, lambda: resolve(cleared, None))
        await cleared
        topic, partition = replica.partition
        log.info("a replica has gone to other nodes", topic=topic, partition=partition)
        self._log.retention.maybe_remove()

    def _pass_on_proposals(self, replica: PartitionReplica) -> None:
        """Have other nodes bring through what this one has proposed."""
        group = replica.group
        assert group is not None
        proposals, group.proposals = group.proposals, None
        others = tuple(each for each in replica.nodes if each != self._log.driver.node_id)
        if proposals is not None:
            self._remote.go_on_with(RemotePartition(replica.partition, replica.raft_group, others), proposals)
