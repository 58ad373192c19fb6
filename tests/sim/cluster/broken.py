"""Functions of the product with one rule left out; `rules` says which."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pixy.cluster.log import applied_positions, partition_snapshots
from pixy.cluster.log.applied_positions import AppliedPositionWriter
from pixy.cluster.log.checkpoints import Checkpoints
from pixy.cluster.log.incarnation import Incarnation
from pixy.cluster.log.node_log import NodeLog
from pixy.cluster.log.replica import Mark, PartitionReplica, RestoredState, StateReplica
from pixy.copies import StagedCopy
from pixy.entry_ids import LogPosition, ProposalId
from pixy.errors import PixyError
from pixy.multiraft import group_recovery, group_states, hard_states
from pixy.multiraft.dedup_table import DedupSnapshot, DedupTable, DedupVerdict
from pixy.multiraft.group_clock import GroupClock
from pixy.multiraft.proposals import Proposal, Proposals, judge
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.raft_storage import RaftStorage
from pixy.proto.state_pb2 import AppliedPosition, PartitionDescriptor
from pixy.raft import Entry, MessageType, RaftNode, Snapshot, Work
from pixy.raft.raft import Raft
from pixy.raft.responses import own_entries_stored
from pixy.storage import (
    CheckpointId,
    Disk,
    Journal,
    LogWriter,
    PartitionLog,
    UnitRecord,
    copy_directory,
    replaced_directory,
)
from pixy.storage.journal.gathered_units import GatheredUnits
from pixy.storage.partition.segment import Segment
from tests.sim.cluster.machine import Machine
from tests.sim.disk import SimulatedDisk

# --- the core -------------------------------------------------------------------------------------

_append_payload = RaftNode.append_payload
_become_leader = Raft.become_leader
_own_stored = RaftNode.own_stored
_work = RaftNode.work


def counted_at_once(self: RaftNode, *arguments: Any) -> Entry:
    """A leader counts its own entry before it is durable."""
    entry = _append_payload(self, *arguments)
    own_entries_stored(self.raft, entry.index)
    return entry


def _sent_at_once(node: RaftNode, kind: MessageType) -> Work | None:
    work = _work(node)
    if work is not None and work.append is not None:
        responses = work.append.responses
        early = [each for each in responses if each.type is kind and each.to != node.raft.id]
        work.append.responses = [each for each in responses if each not in early]
        work.messages = [*work.messages, *early]
    return work


def acknowledged_at_once(self: RaftNode) -> Work | None:
    """A follower acknowledges entries before they are durable."""
    return _sent_at_once(self, MessageType.APP_RESP)


def voted_at_once(self: RaftNode) -> Work | None:
    """A vote is sent before it is durable."""
    return _sent_at_once(self, MessageType.VOTE_RESP)


def asked_for_votes_at_once(self: RaftNode) -> Work | None:
    """A candidate asks for votes before its term is durable."""
    return _sent_at_once(self, MessageType.VOTE)


def lead_all_terms(self: Raft) -> None:
    """A leader commits entries of earlier terms by counting (Raft §5.4.2)."""
    _become_leader(self)
    self.first_own_index = 1


def committed_when_stored(self: RaftNode, entry: Entry) -> list[Entry]:
    """A leader applies its entry as soon as it has stored it."""
    committed = _own_stored(self, entry)
    log = self.raft.log
    if not committed and log.applying + 1 == entry.index and entry.term == self.raft.term:
        log.applying = entry.index
        return [entry]
    return committed


# --- starts ---------------------------------------------------------------------------------------


def all_committed(*arguments: Any) -> RaftGroup:
    """A start takes everything in the journal for committed."""
    group = group_recovery.recovered_group(*arguments)
    storage = group.storage
    storage.hard_state = storage.hard_state._replace(commit=storage.last_index())
    return group


# --- proposals ------------------------------------------------------------------------------------


def retry_as_new(self: Proposals[Any], sequence: int, proposal: Proposal) -> None:
    """A retry gets a sequence of its own."""
    del self._in_flight[sequence]
    again = self._sequences.next
    self._sequences.next = again + 1
    self._append_first(again, proposal._replace(payload=bytearray(proposal.payload)))


def retry_in_place(self: Proposals[Any], sequence: int, proposal: Proposal) -> None:
    """A retry gets its offset in the payload of the first attempt."""
    known = judge(self._group.rows, self._group.tail_ids, self._id(sequence))
    if known is DedupVerdict.NEW:
        self._append_first(sequence, proposal)
    elif known is not None:
        self._repeated(sequence, proposal, known)


def judge_by_rows(
    rows: DedupTable, _: set[ProposalId], proposal: ProposalId
) -> int | PixyError | DedupVerdict:
    """A retry is not looked for in the unapplied tail."""
    return rows.judge(proposal)


def judge_by_tail(_: DedupTable, tail_ids: set[ProposalId], proposal: ProposalId) -> DedupVerdict | None:
    """A retry is not looked for among the applied entries."""
    return None if proposal in tail_ids else DedupVerdict.NEW


_lead = PartitionReplica.lead


def lead_without_tail(self: PartitionReplica, _: Sequence[Entry]) -> None:
    """A new leader gives offsets from the end of the applied log on."""
    _lead(self, ())


# --- rows -----------------------------------------------------------------------------------------

_applied_position = applied_positions._applied_position
_reset_records = NodeLog.reset_records
_tick = GroupClock.tick


def without_rows(_: DedupSnapshot, storage: RaftStorage) -> tuple[bytes, bytes]:
    """A checkpoint has no results of proposals."""
    return group_states.checkpoint_record(DedupSnapshot(()), storage)


def position_without_rows(*arguments: Any) -> Any:
    """An applied position has no results of proposals."""
    position = _applied_position(*arguments)
    del position.rows[:]
    return position


def tick_and_forget(self: GroupClock, groups: Sequence[RaftGroup]) -> None:
    """Results of proposals are dropped after a while."""
    _tick(self, groups)
    if self._ticks % 50 == 0:
        for group in groups:
            if group.application is not None:
                group.application.rows = DedupTable()


def is_of_no_group(self: AppliedPositionWriter, _: PartitionLog, mark: Mark) -> bool:
    """Segments of a log that a copy has replaced count as those of the copy."""
    return mark.replica.raft_group not in self._groups


async def not_flushed(_: LogWriter) -> None:
    """Nobody waits until everything is written."""


# --- checkpoints and log resets -------------------------------------------------------------------

_reset = RaftStorage.reset
_write = Journal._write
_write_incarnation = Incarnation.write


def write_at_once(self: Checkpoints, replica: StateReplica) -> None:
    """A checkpoint is taken while its last entry has no result yet."""
    if replica.checkpointing or replica.group.storage.conf_index > replica.group.applied_index:
        return
    if not replica.checkpoints or replica.checkpoints[-1].end_offset < replica.group.applied_index:
        replica.checkpointing = True
        self._begin(replica)


def install_at_once(
    self: Checkpoints,
    replica: StateReplica,
    id: CheckpointId,
    restored: RestoredState,
    done: Callable[[bool], None],
    records: Iterable[tuple[bytes, bytes]],
) -> None:
    """The log is reset while the checkpoint is being written."""
    write = partial(replica.store.write, id, records, self._clock.wall_ms())
    self._files.submit(write, lambda *_: None)
    self._installing[replica.group, id] = restored
    done(True)


def write_without_sync(self: Journal, gathered: GatheredUnits) -> Any:
    """A flush counts as durable, and is not."""
    assert isinstance(self._disk, SimulatedDisk)
    self._disk.ignored = frozenset({"storage/journal/journal.py:Journal._write write_durably"})
    return _write(self, gathered)


def ends_installing(self: Machine) -> None:
    """A process ends at each install of a checkpoint, and starts again soon."""
    self._restarts = True
    self.disk.die_near, self.disk.die_phase = ("rename", ".checkpoint"), "after"


def ends_with_power(self: Machine) -> None:
    """A process that ends in a call on the disk loses nothing that was not synced."""
    if self.life is not None:
        self._release(power=False)


def reset_before_tail(self: RaftStorage, start: LogPosition) -> None:
    """Entries behind the position of a log reset stay."""
    last, tail = self._last, [each for each in self.entries_in_memory if each.index > start.index]
    _reset(self, start)
    if tail and last > start.index:
        self.append(tail)


def hard_state_again(raft_group: int, _: LogPosition, storage: RaftStorage) -> UnitRecord:
    """A log reset is not carried over."""
    return group_states.hard_state_record(raft_group, storage)


def carry_over_reset(journal: Journal, group: RaftGroup, file_number: int) -> None:
    """A hard state is not carried over."""
    if group.hard_state_file == file_number:
        group.hard_state_file = 0
    hard_states.carry_over(journal, group, file_number)


def written_once(self: Incarnation) -> None:
    """An incarnation is not written again when its file is removed."""
    if not self.file:
        _write_incarnation(self)


_APART_S = 0.3
"""Long enough for a crash in between."""


def position_apart(self: NodeLog, group: RaftGroup, snapshot: Snapshot) -> list[UnitRecord]:
    """The applied position of a partition is written behind the unit with the log reset."""
    records = _reset_records(self, group, snapshot)
    if records:
        loop = asyncio.get_running_loop()
        loop.call_later(_APART_S, self.journal.append, tuple(records), lambda: None)
    return []


def position_of_unsynced(replica: PartitionReplica, snapshot: Snapshot) -> AppliedPosition:
    """A replica takes over a position whatever its segments have."""
    assert replica.group is not None
    position = AppliedPosition()
    if replica.group.position is not None:
        position.CopyFrom(replica.group.position)
    descriptor = PartitionDescriptor.FromString(snapshot.data)
    position.raft_group, position.index, position.term = replica.raft_group, snapshot.index, snapshot.term
    position.end_offset, position.publication = replica.log.end_offset, descriptor.publication
    del position.rows[:]
    position.rows.extend(descriptor.rows)
    return position


# --- copies ---------------------------------------------------------------------------------------

_write_manifest = StagedCopy._write_manifest
_copied_position = partition_snapshots.copied_position


def copied_without_rows(replica: PartitionReplica, snapshot: Snapshot) -> AppliedPosition:
    """A copy has no results of proposals."""
    position = _copied_position(replica, snapshot)
    del position.rows[:]
    return position


def copied_position_apart(self: NodeLog, group: RaftGroup, snapshot: Snapshot) -> list[UnitRecord]:
    """The applied position of a copy is written behind the unit with the log reset."""
    return (position_apart if group in self._copied else _reset_records)(self, group, snapshot)


def copied_unsynced(self: StagedCopy) -> AppliedPosition:
    """Copied records count as durable, and are not."""
    segments = self._log._files.segments
    self._unsynced_bytes = 0
    base, size = (segments[-1].base_offset, segments[-1].size) if segments else (self.end_offset, 0)
    return self._position(self.begin_offset, self.end_offset, base, size)


def manifest_unsynced(
    self: StagedCopy, copied: AppliedPosition, complete: AppliedPosition | None = None
) -> None:
    """That a copy is complete counts as durable, and is not."""
    assert isinstance(self._disk, SimulatedDisk)
    if complete is not None:
        self._disk.ignored = frozenset(
            f"storage/disk/identity.py:_write {what}" for what in ("sync", "sync_directory")
        )
    _write_manifest(self, copied, complete)
    self._disk.ignored = frozenset()


def share_unsynced(self: Segment, directory: Path) -> None:
    """The records that a replica keeps are part of its copy as they are."""
    for suffix in (".log", ".index", ".timeindex"):
        with suppress(FileNotFoundError):
            self._link_or_copy(self.path.with_suffix(suffix), directory)


def swap_unsynced(disk: Disk, topics: Path, name: str, raft_group: int) -> list[Path]:
    """The files of a replica are replaced, and the new names are not durable."""
    copy, replaced = copy_directory(topics, raft_group), replaced_directory(topics, raft_group)
    if copy.name in disk.names(topics):
        if name in disk.names(topics):
            disk.rename(topics / name, replaced)
        disk.rename(copy, topics / name)
    return []
