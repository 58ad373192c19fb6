"""Impossible terms in the journal of a stopped node are lowered (`impossible_terms`).

Only for raft groups whose only member is this node: nobody else has voted, or knows of the terms,
so it may forget them. Nothing is dropped: entries keep their indexes and payloads.

    the impossible term is     written, in one unit of the journal
    -------------------------  ---------------------------------------------------------------------
    of the hard state alone    the hard state, with the term behind that of the newest entry
    of entries as well         a reset of the log at the applied entry, and the entries behind it
                               again, each with the term behind that of the last possible one; the
                               same of the applied position, and the hard state

The old records stay in their files, until these are removed as usual.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pixy.cluster.group_recovery import found_terms
from pixy.cluster.group_states import conf_state_of, hard_state_record, reset_record
from pixy.cluster.groups import FIRST_GROUPS_GROUP
from pixy.cluster.impossible_terms import ADVICE, FoundTerms, why_impossible
from pixy.cluster.metadata import FIRST_PARTITION_GROUP, METADATA_GROUP
from pixy.cluster.offline_unit import write_unit
from pixy.cluster.raft_storage import RaftStorage
from pixy.cluster.recovery import RecoveredNode, recover_node
from pixy.cluster.sinks import SINKS_GROUP
from pixy.errors import DataDirectoryError, FailedPrecondition
from pixy.log_position import INDEX_MAX, TERM_MAX, LogPosition
from pixy.proto.state_pb2 import AppliedPosition, AppliedPositions, HardState
from pixy.raft import HardState as RaftHardState
from pixy.raft import Snapshot
from pixy.storage import (
    VERSION_WITH_OFFSETS,
    CheckpointStore,
    Disk,
    JournalRecord,
    MakeWorker,
    RecordKind,
    RecoveredGroup,
    UnitRecord,
)

__all__ = ["MendedGroup", "MendedTerms"]


class MendedGroup(NamedTuple):
    """A raft group whose terms are lowered.

    Attributes:
        reason: the impossible term.
        term: its new term.
        entries: number of entries that are written again.
    """

    raft_group: int
    name: str
    reason: str
    term: int
    entries: int


class MendedTerms:
    """The data directory of a stopped node, locked until `close`.

    Args:
        disk: the disk of the directory.
        directory: the data directory of one node.
        recovered: contents of it.

    Attributes:
        groups: the raft groups with impossible terms; nothing is written before `write`.
    """

    def __init__(self, disk: Disk, directory: Path, recovered: RecoveredNode) -> None:
        self._disk = disk
        self._directory = directory
        self._recovered = recovered
        self._records: list[UnitRecord] = []
        self.groups = list(self._mend())

    @classmethod
    def read(cls, disk: Disk, directory: Path) -> "MendedTerms":
        """Lock and read a data directory, with the repairs that every start makes. Blocks.

        Raises:
            DataDirectoryError: it is in use, not writable, no node's, or of a newer release.
            CorruptData: durable data is damaged.
            FailedPrecondition: a raft group with an impossible term has other members.
        """
        if not (directory / "identity").exists():
            raise DataDirectoryError(f"{directory} is not the data directory of a node")
        recovered = recover_node(disk, directory, os.urandom)
        try:
            return cls(disk, directory, recovered)
        except BaseException:
            recovered.lock.close()
            raise

    def close(self) -> None:
        """Unlock the directory."""
        self._recovered.lock.close()

    async def write(self, make_worker: MakeWorker) -> None:
        """Lower the terms; durable on return.

        Raises:
            DataDirectoryError: the disk is full, or broken. On a full disk nothing has changed.
        """
        if self._records:
            await write_unit(self._disk, self._directory, self._recovered, self._records, make_worker)

    def _mend(self) -> Iterator[MendedGroup]:
        for raft_group, group in sorted(self._recovered.journal.groups.items()):
            found = found_terms(group)
            reason = why_impossible(found)
            if reason:
                name = _name(raft_group)
                state = self._check(name, found, reason)
                yield self._mend_group(group, name, found, state, reason)

    def _check(self, name: str, found: FoundTerms, reason: str) -> HardState:
        """The hard state of a group that can be mended."""
        node_id, state = self._recovered.identity.node_id, found.hard_state
        if max(found.last, 0 if state is None else state.commit) > INDEX_MAX:
            raise FailedPrecondition(f"{name}: {reason}; an index cannot be lowered")
        members = set() if state is None else conf_state_of(state).members
        if state is None or members != {node_id}:
            others = ", ".join(map(str, sorted(members))) or "unknown"
            raise FailedPrecondition(
                f"{name}: {reason}. Its members are {others}, so node {node_id} cannot lower it alone: {ADVICE}"
            )
        return state

    def _mend_group(
        self, group: RecoveredGroup, name: str, found: FoundTerms, state: HardState, reason: str
    ) -> MendedGroup:
        applied = self._applied(group)
        known = [term for term in (*found.log_terms, applied.term) if term <= TERM_MAX]
        term = max(known, default=0) + 1
        tail: Sequence[JournalRecord] = ()
        if max(found.log_terms, default=0) > TERM_MAX:
            tail = group.entries_after(applied.index)
            self._records += self._rewritten(group, state, applied, tail, term)
        storage = RaftStorage(conf_state_of(state), state.conf_index)
        storage.hard_state = RaftHardState(term, 0, min(state.commit, max(found.last, applied.index)))
        self._records.append(hard_state_record(group.raft_group, storage))
        return MendedGroup(group.raft_group, name, reason, term, len(tail))

    def _applied(self, group: RecoveredGroup) -> LogPosition:
        """The last entry in the durable state of the application."""
        if group.raft_group >= FIRST_PARTITION_GROUP:
            position = group.applied or AppliedPosition()
            return LogPosition(position.term, position.index)
        store = CheckpointStore(self._disk, self._directory / "state" / _name(group.raft_group))
        checkpoint, _ = store.load()
        if checkpoint is None:
            return LogPosition(0, 0)
        return LogPosition(checkpoint.id.epoch, checkpoint.id.end_offset)

    def _rewritten(
        self,
        group: RecoveredGroup,
        state: HardState,
        applied: LogPosition,
        tail: Sequence[JournalRecord],
        term: int,
    ) -> Iterator[UnitRecord]:
        """The log from the applied entry on, with possible terms."""
        raft_group = group.raft_group
        begin = LogPosition(_lowered(applied.term, term), applied.index)
        yield reset_record(raft_group, Snapshot(begin.index, begin.term, conf_state_of(state)))
        if group.applied is not None:
            position = AppliedPosition()
            position.CopyFrom(group.applied)
            position.term = begin.term
            payload = AppliedPositions(positions=[position]).SerializeToString()
            yield (RecordKind.APPLIED_POSITIONS, 0, 0, 0, 0, 0, None, payload)
        for record in tail:
            if record.version < VERSION_WITH_OFFSETS:
                raise FailedPrecondition(
                    f"{_name(raft_group)}: entry {record.index} is of the first release, which had no such terms"
                )
            entry = replace(record, term=_lowered(record.term, term))
            yield (
                RecordKind.ENTRY,
                entry.entry_type,
                raft_group,
                entry.index,
                entry.term,
                entry.commit,
                entry.proposal,
                entry.payload,
            )


def _lowered(term: int, highest: int) -> int:
    return highest if term > TERM_MAX else term


def _name(raft_group: int) -> str:
    if raft_group == METADATA_GROUP:
        return "metadata"
    if raft_group == SINKS_GROUP:
        return "sinks"
    if raft_group < FIRST_PARTITION_GROUP:
        return f"groups-{raft_group - FIRST_GROUPS_GROUP}"
    return f"raft group {raft_group}"
