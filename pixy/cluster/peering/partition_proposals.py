"""Proposals to partitions, wherever their replicas are: through the replica of this node, or to the
leader elsewhere while there is none here that applies entries.
"""

import asyncio
from functools import partial
from typing import Any

from pixy.aio.futures import resolve
from pixy.cluster.log import PartitionReplica
from pixy.cluster.peering.proposal_forwarder import ProposalForwarder
from pixy.cluster.peering.replica_calls import RemotePartition
from pixy.cluster.replicas import Partitions
from pixy.errors import CorruptData, PixyError, Unavailable, UnknownPartition
from pixy.multiraft import Driver
from pixy.storage import EntryType


class PartitionProposals:
    """Proposals of one node.

    Args:
        driver: of its raft groups.
        partitions: its partitions.
        remote: to leaders elsewhere; None without peers.
    """

    def __init__(self, driver: Driver, partitions: Partitions, remote: ProposalForwarder | None) -> None:
        self._driver = driver
        self._partitions = partitions
        self._remote = remote
        self._loop = asyncio.get_running_loop()

    async def propose(
        self, replica: PartitionReplica, kind: EntryType, payload: bytes, timeout_s: float
    ) -> Any:
        """Propose an entry; returns the result of applying it.

        Args:
            timeout_s: seconds until the answer is `DeadlineExceeded` in any case.

        Raises:
            UnknownPartition: the topic was deleted.
            PixyError: the result; or no leader has taken the entry in time.
        """
        result: asyncio.Future[Any] = self._loop.create_future()
        self._begin(replica, kind, payload, result, self._loop.time() + timeout_s)
        outcome = await result
        if isinstance(outcome, PixyError):
            raise outcome
        return outcome

    def _begin(
        self,
        replica: PartitionReplica,
        kind: EntryType,
        payload: bytes,
        result: "asyncio.Future[Any]",
        deadline: float,
    ) -> None:
        done = partial(resolve, result)
        if replica.deleted:
            raise UnknownPartition(f"topic {replica.partition.topic} was deleted")
        others = tuple(each for each in replica.nodes if each != self._driver.node_id)
        if replica.fault is not None and not others:
            raise CorruptData(str(replica.fault))
        if self._partitions.has_replica(replica) and not replica.needs_copy:
            group = self._partitions.group_of(replica)
            if group.application is not None:
                self._driver.propose(group, kind, payload, done, deadline)
                return
        if self._remote is not None and others:
            target = RemotePartition(replica.partition, replica.raft_group, others)
            self._remote.propose(target, kind, bytearray(payload), done, deadline)
        else:
            raise Unavailable(f"no replica of {replica.partition} can take an entry")
