"""Retention of journal files: the end of an entry's life on a node.

A journal file is retained until every raft group has its records elsewhere: a partition in synced
segments with an applied position, a state group in the older of two checkpoints. A state group that
holds back the oldest of several files is made to write a checkpoint, and the entries of damaged
partitions are relocated.

Order that recovery relies on, of which this module is the owner:

    relocation      entries of damaged partitions that only the oldest file has
    carry-over      hard states and applied positions that only the oldest file has
    durable         all of these: the journal keeps the order of its records
    unlink          of the oldest file

Records for many raft groups are written for some of them in each iteration of the event loop.
"""

import asyncio
from collections.abc import Mapping
from functools import partial

from pixy.cluster.applied_positions import AppliedPositionWriter
from pixy.cluster.checkpoints import Checkpoints
from pixy.cluster.hard_states import HardStates
from pixy.cluster.partition_condition import PartitionCondition
from pixy.cluster.relocation import Relocation
from pixy.cluster.replica import PartitionReplica, Replica, StateReplica
from pixy.proto.state_pb2 import AppliedPosition
from pixy.storage import Journal, JournalFile

__all__ = ["JournalRetention"]

_FILES_BEFORE_CHECKPOINT = 4
_GROUPS_PER_ITERATION = 200
_FULL_DISK_RETRY_S = 5.0


class JournalRetention:
    """Removes journal files that no raft group needs.

    Args:
        journal: the node's journal.
        replicas: every raft group of the node by id; grows with new topics.
        hard_states, positions: write again what only the oldest file has.
        checkpoints: lets state groups do without the oldest file.
        relocation: lets damaged partitions do without it.
    """

    def __init__(
        self,
        journal: Journal,
        replicas: Mapping[int, Replica],
        hard_states: HardStates,
        positions: AppliedPositionWriter,
        checkpoints: Checkpoints,
        relocation: Relocation,
    ) -> None:
        self._journal = journal
        self._replicas = replicas
        self._hard_states = hard_states
        self._positions = positions
        self._checkpoints = checkpoints
        self._relocation = relocation
        # The oldest file is about to be removed: its records are being written again.
        self._removing = False
        self._retry: asyncio.TimerHandle | None = None
        self._stopped = False

    def stop(self) -> None:
        """Remove no further file, and write nothing for it."""
        self._stopped = True
        self._hard_states.stop()
        self._checkpoints.stop()
        self._relocation.stop()
        if self._retry is not None:
            self._retry.cancel()

    def retry_later(self) -> None:
        """After a checkpoint that found no room: the files that it holds back may be all that keeps
        the disk full.
        """
        if self._retry is None and not self._stopped:
            self._retry = asyncio.get_running_loop().call_later(_FULL_DISK_RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self.maybe_remove()

    def maybe_remove(self) -> None:
        """Remove the oldest files that no raft group needs.

        Called when a checkpoint or applied positions have become durable, and when raft groups are
        gone.
        """
        if self._removing or self._stopped:
            return
        files = self._journal.files
        if len(files) < 2:
            return
        oldest = files[0]
        needed_by = [
            replica
            for raft_group, (_, highest, _) in oldest.spans.items()
            if (replica := self._replicas.get(raft_group)) is not None and replica.durable_index < highest
        ]
        if not needed_by:
            self._removing = True
            self._begin_carry_over(oldest)
        elif len(files) > _FILES_BEFORE_CHECKPOINT:
            for replica in needed_by:
                if isinstance(replica, StateReplica):
                    self._checkpoints.write(replica)
            stuck = [
                replica
                for replica in needed_by
                if isinstance(replica, PartitionReplica)
                and replica.condition is PartitionCondition.UNWRITABLE
            ]
            if len(stuck) == len(needed_by) and self._relocation.is_worth(_FILES_BEFORE_CHECKPOINT):
                self._removing = True
                self._relocation.begin(oldest, stuck, partial(self._begin_carry_over, oldest))

    def _begin_carry_over(self, oldest: JournalFile) -> None:
        self._carry_over(oldest, [each for each in self._replicas.values() if _is_in(each, oldest)])

    def _carry_over(self, oldest: JournalFile, replicas: list[Replica]) -> None:
        """Write again the hard states and applied positions that only the oldest file has, then
        unlink it.
        """
        if self._stopped:
            return
        positions: list[AppliedPosition] = []
        for replica in replicas[:_GROUPS_PER_ITERATION]:
            if isinstance(replica, PartitionReplica):
                if replica.deleted:
                    continue
                if replica.position_file == oldest.number:
                    assert replica.position is not None
                    positions.append(replica.position)
            if replica.hard_state_file == oldest.number:
                self._hard_states.write(replica)
        rest = replicas[_GROUPS_PER_ITERATION:]
        if rest:
            self._positions.write(positions)
            asyncio.get_running_loop().call_soon(self._carry_over, oldest, rest)
        else:
            # Also without positions: when this record is durable, so is everything before it.
            self._positions.write(positions, partial(self._unlink, oldest))

    def _unlink(self, oldest: JournalFile) -> None:
        """Remove a file. The durable positions, reported next, lead to the one after it."""
        self._removing = False
        self._journal.forget([oldest])


def _is_in(replica: Replica, file: JournalFile) -> bool:
    """True if a file has the newest hard state or applied position of a raft group."""
    in_position = isinstance(replica, PartitionReplica) and replica.position_file == file.number
    return in_position or replica.hard_state_file == file.number
