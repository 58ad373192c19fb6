"""Retention of journal files: the end of an entry's life on a node.

A journal file is retained until every raft group has its records elsewhere: a partition in synced
segments with an applied position, a state group in the older of two checkpoints. Hard states and
applied positions that only the oldest file has are written again before it is removed. A state
group that holds back the oldest of several files is made to write a checkpoint. A damaged partition
cannot apply its entries: they are relocated, written again at the end of the journal, once the
journal is large in comparison.

Order that recovery relies on: an applied position is written after the segments were synced; a file
is unlinked after the replacement of its contents is durable; a segment is unlinked after an applied
position that begins behind it is durable.

Records for many raft groups are written for some of them in each turn of the event loop.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import NamedTuple

import structlog

from pixy.clock import Clock
from pixy.cluster.replica import PartitionReplica, Replica, StateReplica
from pixy.config import StorageConfig
from pixy.log_position import LogPosition
from pixy.proto.state_pb2 import AppliedPosition, AppliedPositions, HardState
from pixy.storage import (
    CheckpointId,
    Journal,
    JournalFile,
    JournalRecord,
    RecordKind,
    SyncedLog,
    Worker,
    is_disk_full,
)

__all__ = ["TERM", "Compaction", "Mark"]

log = structlog.get_logger(__name__)

TERM = 1
"""The term of a single node."""

_FILES_BEFORE_CHECKPOINT = 4
_GROUPS_PER_TURN = 200
_FULL_DISK_RETRY_S = 5.0


class Mark(NamedTuple):
    """Progress of a partition, returned by the log writer once its segments are synced up to
    `applied`; `publication` is the last one in them.
    """

    replica: PartitionReplica
    applied: LogPosition
    publication: int


class Compaction:
    """Writes applied positions, hard states and checkpoints, and removes journal files.

    Args:
        journal: the node's journal.
        replicas: every raft group of the node by id; grows with new topics.
        node_id: this node, the only voter.
        file_bytes: size of a journal file.
        storage: thresholds of checkpoints.
        clock: time of checkpoints.
        files: the thread that writes checkpoints.
        propose_empty: proposes an empty entry to a state group, and calls back when it is applied.
        read_journal: reads from a journal file the entries of raft groups above an index; blocks.
        drop_segments: removes the segments of a partition below an offset.
        on_full: called when the disk is full.
        on_fault: called with the error of a failed checkpoint; not for a full disk, after which it
            is tried again.

    Attributes:
        on_positions: called when applied positions have become durable.
    """

    def __init__(
        self,
        journal: Journal,
        replicas: Mapping[int, Replica],
        *,
        node_id: int,
        file_bytes: int,
        storage: StorageConfig,
        clock: Clock,
        files: Worker,
        propose_empty: Callable[[StateReplica, Callable[[], None]], None],
        read_journal: Callable[[int, Mapping[int, int]], list[JournalRecord]],
        drop_segments: Callable[[PartitionReplica, int], None],
        on_full: Callable[[], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._journal = journal
        self._replicas = replicas
        self._node_id = node_id
        self._file_bytes = file_bytes
        self._storage = storage
        self._clock = clock
        self._files = files
        self._propose_empty = propose_empty
        self._read_journal = read_journal
        self._drop_segments = drop_segments
        self._on_full = on_full
        self._on_fault = on_fault
        # Records that only the oldest file has are being written again.
        self._collecting = False
        self._retry: asyncio.TimerHandle | None = None
        self._stopped = False
        self.on_positions: Callable[[], None] = _nothing

    def stop(self) -> None:
        """Remove no further file."""
        self._stopped = True
        if self._retry is not None:
            self._retry.cancel()

    def synced(self, synced: list[SyncedLog]) -> None:
        """Record in the journal that segments are on stable storage."""
        positions = []
        for entry in synced:
            assert isinstance(entry.mark, Mark)
            if not entry.mark.replica.deleted:
                positions.append(_applied_position(entry.mark, entry))
        if positions:
            self._write_positions(positions, self._collect)

    def _write_positions(self, positions: list[AppliedPosition], then: Callable[[], None]) -> None:
        written: list[tuple[PartitionReplica, AppliedPosition]] = []
        for position in positions:
            replica = self._replicas[position.raft_group]
            assert isinstance(replica, PartitionReplica)
            replica.position = position
            written.append((replica, position))

        def durable() -> None:
            for replica, position in written:
                self._position_durable(replica, position)
            then()
            self.on_positions()

        payload = AppliedPositions(positions=positions).SerializeToString()
        self._journal.append(RecordKind.APPLIED_POSITIONS, 0, 0, 0, 0, payload, durable)

    def _position_durable(self, replica: PartitionReplica, position: AppliedPosition) -> None:
        replica.durable_index = max(replica.durable_index, position.index)
        replica.durable_publication = max(replica.durable_publication, position.publication)
        replica.position_file = self._journal.files[-1].number
        if replica.log.has_segments_below(position.log_begin_offset):
            self._drop_segments(replica, position.log_begin_offset)

    def write_hard_states(self, replicas: Iterator[Replica]) -> None:
        """Write the hard states of raft groups, and their configuration of one voter, to the journal.

        What makes the replicas may take its time: a turn of the loop asks for some of them only.
        """
        if self._stopped:
            return
        written = 0
        for replica in islice(replicas, _GROUPS_PER_TURN):
            self._write_hard_state(replica)
            written += 1
        if written == _GROUPS_PER_TURN:
            asyncio.get_running_loop().call_soon(self.write_hard_states, replicas)

    def _write_hard_state(self, replica: Replica) -> None:
        def durable() -> None:
            replica.hard_state_file = self._journal.files[-1].number

        state = HardState(term=TERM, vote=self._node_id, commit=replica.applied.index, voters=[self._node_id])
        self._journal.append(
            RecordKind.HARD_STATE, 0, replica.raft_group, 0, TERM, state.SerializeToString(), durable
        )

    def topic_deleted(self) -> None:
        """A topic's raft groups are no more: nobody needs what the journal has of them."""
        self._collect()

    def _collect_later(self) -> None:
        """After a checkpoint has found no room: what waits for it may be all that keeps the disk full."""
        if self._retry is None and not self._stopped:
            self._retry = asyncio.get_running_loop().call_later(_FULL_DISK_RETRY_S, self._collect_again)

    def _collect_again(self) -> None:
        self._retry = None
        self._collect()

    def _collect(self) -> None:
        """Let the oldest journal files go that nobody needs."""
        if self._collecting or self._stopped:
            return
        files = self._journal.files
        if len(files) < 2:
            return
        oldest = files[0]
        needed_by = [
            replica
            for raft_group, index in oldest.last_index.items()
            if (replica := self._replicas.get(raft_group)) is not None and replica.durable_index < index
        ]
        if not needed_by:
            self._collecting = True
            self._begin_carry_over(oldest)
        elif len(files) > _FILES_BEFORE_CHECKPOINT:
            for replica in needed_by:
                if isinstance(replica, StateReplica):
                    self._checkpoint(replica)
            stuck = {
                replica.raft_group: replica.durable_index
                for replica in needed_by
                if isinstance(replica, PartitionReplica) and replica.stuck_bytes
            }
            if len(stuck) == len(needed_by) and self._is_worth_relocating():
                self._collecting = True
                self._files.submit(
                    partial(self._read_journal, oldest.number, stuck), partial(self._relocate, oldest)
                )

    def _is_worth_relocating(self) -> bool:
        """True if at least half of the journal would be removed. With less, entries would be relocated
        again and again.
        """
        stuck_bytes = sum(
            replica.stuck_bytes
            for replica in self._replicas.values()
            if isinstance(replica, PartitionReplica)
        )
        stuck_files = stuck_bytes // self._file_bytes + 1
        return len(self._journal.files) > _FILES_BEFORE_CHECKPOINT + 2 * stuck_files

    def _relocate(
        self, oldest: JournalFile, entries: list[JournalRecord] | None, error: BaseException | None
    ) -> None:
        """Write again the entries that only the oldest file has, and then what else only it says."""
        if self._stopped:
            return
        if error is not None or entries is None:
            assert error is not None
            self._on_fault(error)
            return
        for entry in entries[:_GROUPS_PER_TURN]:
            if entry.raft_group in self._replicas:
                self._journal.append(
                    RecordKind.RELOCATED_ENTRY,
                    entry.entry_type,
                    entry.raft_group,
                    entry.index,
                    entry.term,
                    entry.payload,
                    _nothing,
                )
        rest = entries[_GROUPS_PER_TURN:]
        if rest:
            asyncio.get_running_loop().call_soon(self._relocate, oldest, rest, None)
        else:
            self._begin_carry_over(oldest)

    def _begin_carry_over(self, oldest: JournalFile) -> None:
        self._carry_over(oldest, [each for each in self._replicas.values() if _is_in(each, oldest)])

    def _carry_over(self, oldest: JournalFile, replicas: list[Replica]) -> None:
        """Write again what only the oldest file says, then unlink it."""
        if self._stopped:
            return
        positions: list[AppliedPosition] = []
        for replica in replicas[:_GROUPS_PER_TURN]:
            if isinstance(replica, PartitionReplica):
                if replica.deleted:
                    continue
                if replica.position_file == oldest.number:
                    assert replica.position is not None
                    positions.append(replica.position)
            if replica.hard_state_file == oldest.number:
                self._write_hard_state(replica)
        rest = replicas[_GROUPS_PER_TURN:]
        if rest:
            self._write_positions(positions, _nothing)
            asyncio.get_running_loop().call_soon(self._carry_over, oldest, rest)
        else:
            self._write_positions(positions, partial(self._forget, oldest))

    def _forget(self, oldest: JournalFile) -> None:
        self._collecting = False
        self._journal.forget([oldest])
        self._collect()

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
            if is_disk_full(error):
                self._on_full()
                self._collect_later()
            elif error is not None and not self._stopped:
                # What a failed sync left behind looks durable to the next checkpoint, and is not.
                self._on_fault(error)
            return
        replica.set_checkpoints(ids)
        self._collect()


def _nothing() -> None:
    """Callback of a record that no caller waits for; later records imply its durability."""


def _is_in(replica: Replica, file: JournalFile) -> bool:
    """True if a file has the newest hard state or applied position of a raft group."""
    in_position = isinstance(replica, PartitionReplica) and replica.position_file == file.number
    return in_position or replica.hard_state_file == file.number


def _applied_position(mark: Mark, entry: SyncedLog) -> AppliedPosition:
    return AppliedPosition(
        raft_group=mark.replica.raft_group,
        index=mark.applied.index,
        term=mark.applied.term,
        log_begin_offset=entry.position.log_begin_offset,
        end_offset=entry.end_offset,
        segment_base_offset=entry.position.segment_base_offset,
        segment_bytes=entry.position.segment_bytes,
        publication=mark.publication,
    )
