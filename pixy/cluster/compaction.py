"""What the journal may forget: the end of an entry's life on a node.

The journal keeps a file until every raft group has what is in it elsewhere: a partition in synced segments with an applied position, a
state group in the older of two checkpoints. What only the oldest file says (hard states, applied positions) is written again before
it goes. A state group that holds back the oldest of several files is made to write a checkpoint.

Order that recovery relies on: an applied position is written after the segments were synced; a file is unlinked after what replaces its
contents is durable.
"""

import errno
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import structlog

from pixy.clock import Clock
from pixy.cluster.replica import LogPosition, PartitionReplica, Replica, StateReplica
from pixy.config import StorageConfig
from pixy.proto.state_pb2 import AppliedPosition, AppliedPositions, HardState
from pixy.storage import CheckpointId, Journal, JournalFile, RecordKind, SyncedLog, Worker

__all__ = ["TERM", "Compaction", "Mark"]

log = structlog.get_logger(__name__)

TERM = 1
"""The term of a single node."""

_FILES_BEFORE_CHECKPOINT = 4


class Mark(NamedTuple):
    """What the log writer gives back once a partition's segments are synced up to `applied`."""

    replica: PartitionReplica
    applied: LogPosition


class Compaction:
    """Writes applied positions, hard states and checkpoints, and lets journal files go.

    Args:
        journal: where records go, and whose files may go.
        replicas: every raft group of the node by id; grows with new topics.
        node_id: this node, the only voter.
        storage: when a checkpoint is due.
        clock: for the time in checkpoints.
        files: the thread that writes checkpoints.
        propose_empty: proposes an empty entry to a state group, and calls back when it is applied.
        on_fault: called with what broke when a checkpoint fails, unless it is for want of room: that is tried again.
    """

    def __init__(
        self,
        journal: Journal,
        replicas: Mapping[int, Replica],
        *,
        node_id: int,
        storage: StorageConfig,
        clock: Clock,
        files: Worker,
        propose_empty: Callable[[StateReplica, Callable[[], None]], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._journal = journal
        self._replicas = replicas
        self._node_id = node_id
        self._storage = storage
        self._clock = clock
        self._files = files
        self._propose_empty = propose_empty
        self._on_fault = on_fault
        # What only the oldest file says is being written again.
        self._collecting = False
        self._stopped = False

    def stop(self) -> None:
        """Let no further file go."""
        self._stopped = True

    def synced(self, synced: list[SyncedLog]) -> None:
        """Segments are on stable storage: say so in the journal."""
        positions = []
        for entry in synced:
            assert isinstance(entry.mark, Mark)
            positions.append(_applied_position(entry.mark.replica, entry.mark.applied, entry))
        self._write_positions(positions, self._collect)

    def _write_positions(self, positions: list[AppliedPosition], then: Callable[[], None]) -> None:
        replicas = [self._replicas[position.raft_group] for position in positions]
        for replica, position in zip(replicas, positions, strict=True):
            assert isinstance(replica, PartitionReplica)
            replica.position = position

        def durable() -> None:
            for replica, position in zip(replicas, positions, strict=True):
                assert isinstance(replica, PartitionReplica)
                replica.durable_index = max(replica.durable_index, position.index)
                replica.position_file = self._journal.files[-1].number
            then()

        payload = AppliedPositions(positions=positions).SerializeToString()
        self._journal.append(RecordKind.APPLIED_POSITIONS, 0, 0, 0, 0, payload, durable)

    def write_hard_state(self, replica: Replica) -> None:
        """Write the hard state of a raft group, and its configuration of one voter, to the journal."""

        def durable() -> None:
            replica.hard_state_file = self._journal.files[-1].number

        state = HardState(term=TERM, vote=self._node_id, commit=replica.applied.index, voters=[self._node_id])
        self._journal.append(
            RecordKind.HARD_STATE, 0, replica.raft_group, 0, TERM, state.SerializeToString(), durable
        )

    def _collect(self) -> None:
        """Let the oldest journal files go that nobody needs."""
        if self._collecting or self._stopped:
            return
        files = self._journal.files
        if len(files) < 2:
            return
        oldest = files[0]
        needed_by = [
            self._replicas[raft_group]
            for raft_group, index in oldest.last_index.items()
            if self._replicas[raft_group].durable_index < index
        ]
        if not needed_by:
            self._collecting = True
            self._carry_over(oldest)
        elif len(files) > _FILES_BEFORE_CHECKPOINT:
            for replica in needed_by:
                if isinstance(replica, StateReplica):
                    self._checkpoint(replica)

    def _carry_over(self, oldest: JournalFile) -> None:
        """Write again what only the oldest file says, then unlink it."""
        positions = []
        for replica in self._replicas.values():
            if replica.hard_state_file == oldest.number:
                self.write_hard_state(replica)
            if isinstance(replica, PartitionReplica) and replica.position_file == oldest.number:
                assert replica.position is not None
                positions.append(replica.position)

        def forget() -> None:
            self._collecting = False
            self._journal.forget([oldest])
            self._collect()

        self._write_positions(positions, forget)

    # --- checkpoints --------------------------------------------------------------------------------------------

    def applied(self, replica: StateReplica) -> None:
        """An entry of a state group was applied: write a checkpoint if one is due."""
        storage = self._storage
        if (
            replica.entries_since >= storage.checkpoint_entries
            or replica.bytes_since >= storage.checkpoint_bytes
        ):
            self._checkpoint(replica)

    def _checkpoint(self, replica: StateReplica) -> None:
        """Write a snapshot of a state group, unless that is under way."""
        if replica.checkpointing:
            return
        replica.checkpointing = True
        if replica.checkpoints and replica.checkpoints[-1].end_offset == replica.applied.index:
            # Two checkpoints must differ, so that the journal can be cut below the older: an empty entry makes the difference.
            self._propose_empty(replica, partial(self._begin_checkpoint, replica))
        else:
            self._begin_checkpoint(replica)

    def _begin_checkpoint(self, replica: StateReplica) -> None:
        id = CheckpointId(replica.applied.term, replica.applied.index)
        replica.entries_since = replica.bytes_since = 0
        records = replica.machine.snapshot()
        self._files.submit(
            partial(replica.store.write, id, records, self._clock.wall_ms()),
            partial(self._checkpointed, replica),
        )

    def _checkpointed(
        self, replica: StateReplica, ids: list[CheckpointId] | None, error: BaseException | None
    ) -> None:
        replica.checkpointing = False
        if error is not None or ids is None:
            log.error("a checkpoint could not be written", state_group=replica.name, error=str(error))
            full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
            if error is not None and not full and not self._stopped:
                # What a failed sync left behind looks durable to the next checkpoint, and is not.
                self._on_fault(error)
            return
        replica.set_checkpoints(ids)
        self._collect()


def _applied_position(replica: PartitionReplica, at: LogPosition, entry: SyncedLog) -> AppliedPosition:
    return AppliedPosition(
        raft_group=replica.raft_group,
        index=at.index,
        term=at.term,
        log_begin_offset=replica.log.begin_offset,
        end_offset=entry.end_offset,
        segment_base_offset=entry.segment.base_offset,
        segment_bytes=entry.segment.size,
    )
