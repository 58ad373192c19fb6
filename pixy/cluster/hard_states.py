"""Hard states of a node's raft groups in the journal: term, vote, commit index, and configuration
of one voter.

Written when a raft group is made, and again before the journal file with the newest one is removed.
"""

import asyncio
from collections.abc import Iterator
from itertools import islice

from pixy.cluster.replica import Replica
from pixy.proto.state_pb2 import HardState
from pixy.storage import Journal, RecordKind

__all__ = ["TERM", "HardStates"]

TERM = 1
"""The term of a single node."""

_GROUPS_PER_ITERATION = 200


class HardStates:
    """Writes hard states to the journal.

    Args:
        journal: the node's journal.
        node_id: this node, the only voter.
    """

    def __init__(self, journal: Journal, node_id: int) -> None:
        self._journal = journal
        self._node_id = node_id
        self._stopped = False

    def stop(self) -> None:
        """Write no further one of `write_all`."""
        self._stopped = True

    def write_all(self, replicas: Iterator[Replica]) -> None:
        """Write those of many raft groups, some in each iteration of the event loop.

        A replica is taken from the iterator when it is its turn: making it may be the larger part
        of the work.
        """
        if self._stopped:
            return
        written = 0
        for replica in islice(replicas, _GROUPS_PER_ITERATION):
            self.write(replica)
            written += 1
        if written == _GROUPS_PER_ITERATION:
            asyncio.get_running_loop().call_soon(self.write_all, replicas)

    def write(self, replica: Replica) -> None:
        """Write that of one raft group."""

        def durable() -> None:
            replica.hard_state_file = self._journal.files[-1].number

        state = HardState(term=TERM, vote=self._node_id, commit=replica.applied.index, voters=[self._node_id])
        payload = state.SerializeToString()
        self._journal.append(
            [(RecordKind.HARD_STATE, 0, replica.raft_group, 0, TERM, 0, None, payload)], durable
        )
