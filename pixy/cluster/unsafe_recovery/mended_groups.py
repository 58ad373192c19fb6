"""Impossible states of raft groups in the journal of a stopped node are mended
(`impossible_states`).

Only for raft groups whose only member this node is: nobody else has voted, or knows of the terms,
so it may forget them. If the configuration itself is impossible, that is certain only in a cluster
that never had another node. Nothing is dropped: entries keep their indexes and payloads.

    impossible is                       written, in one unit of the journal
    ----------------------------------  ------------------------------------------------------------
    the term of the hard state alone    the hard state, with the term behind that of the newest
                                        entry
    the configuration                   the hard state, with this node as the only voter
    the term of entries as well         a reset of the log at the applied entry, and the entries
                                        behind it again, each with the term behind that of the last
                                        possible one; the same of the applied position, and the
                                        hard state

Terms of entries near the largest possible one are lowered with the impossible ones: the new term is
behind them, and there would be none left for an election. The term of a checkpoint cannot be
lowered: it is in the name of the file.

The old records stay in their files, until these are removed as usual.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from pixy.cluster.state import FIRST_GROUPS_GROUP, FIRST_NODE, METADATA_GROUP, SINKS_GROUP
from pixy.cluster.unsafe_recovery.stopped_node import StoppedNode, position_of
from pixy.entry_ids import INDEX_MAX, TERM_KEPT_MAX, TERM_MAX, LogPosition
from pixy.errors import FailedPrecondition
from pixy.multiraft import (
    ADVICE,
    FIRST_PARTITION_GROUP,
    FoundState,
    RaftStorage,
    conf_state_of,
    found_state,
    hard_state_record,
    reset_record,
    why_impossible,
    why_never_a_member,
    why_no_configuration,
)
from pixy.proto.state_pb2 import AppliedPosition, AppliedPositions, HardState
from pixy.raft import ConfState, Snapshot
from pixy.raft import HardState as RaftHardState
from pixy.storage import (
    VERSION_WITH_OFFSETS,
    JournalRecord,
    MakeWorker,
    RecordKind,
    RecoveredGroup,
    UnitRecord,
)


class MendedGroup(NamedTuple):
    """A raft group that is mended.

    Attributes:
        reason: what is impossible in it.
        term: its new term.
        entries: number of entries that are written again.
    """

    raft_group: int
    name: str
    reason: str
    term: int
    entries: int


class MendedGroups:
    """The raft groups of a stopped node that are to be mended.

    Args:
        node: the node.

    Attributes:
        groups: the raft groups with impossible states; nothing is written before `write`.

    Raises:
        CorruptData: durable data is damaged.
        FailedPrecondition: a raft group with an impossible state has other members, or may have.
    """

    def __init__(self, node: StoppedNode) -> None:
        self._node = node
        self._alone = ConfState((node.node_id,))
        self._records: list[UnitRecord] = []
        self.groups = list(self._mend())

    async def write(self, make_worker: MakeWorker) -> None:
        """Mend the groups; durable on return.

        Raises:
            DataDirectoryError: the disk is full, or broken. On a full disk nothing has changed.
        """
        if self._records:
            await self._node.write(self._records, make_worker)

    def _mend(self) -> Iterator[MendedGroup]:
        for raft_group, group in sorted(self._node.recovered.journal.groups.items()):
            found = found_state(group)
            reason = why_impossible(found) or self._why_never_a_member(found)
            if reason:
                name = _name(raft_group)
                self._check(name, found, reason)
                yield self._mend_group(group, name, found, reason)

    @cached_property
    def _was_always_alone(self) -> bool:
        """True if the cluster never had another node."""
        return self._node.node_id == FIRST_NODE and self._node.metadata().next_node_id == FIRST_NODE + 1

    def _why_never_a_member(self, found: FoundState) -> str:
        if _members(found) <= self._alone.members or not self._was_always_alone:
            return ""
        return why_never_a_member(found.hard_state, FIRST_NODE + 1)

    def _check(self, name: str, found: FoundState, reason: str) -> None:
        """Check that this node has the only vote in a group."""
        if found.highest_index > INDEX_MAX:
            raise FailedPrecondition(f"{name}: {reason}; an index cannot be lowered")
        state, members = found.hard_state, _members(found)
        is_known = state is not None and members == self._alone.members and not why_no_configuration(state)
        if not is_known and not self._was_always_alone:
            others = ", ".join(map(str, sorted(members))) or "unknown"
            raise FailedPrecondition(
                f"{name}: {reason}. Its members are {others}, so node {self._node.node_id} cannot mend it alone: {ADVICE}"
            )

    def _mend_group(self, group: RecoveredGroup, name: str, found: FoundState, reason: str) -> MendedGroup:
        applied, state = self._applied(group), found.hard_state or HardState()
        term, vote = state.term, state.vote
        tail: Sequence[JournalRecord] = ()
        if max(term, *found.log_terms, 0) > TERM_MAX:
            if group.raft_group < FIRST_PARTITION_GROUP and applied.term > TERM_KEPT_MAX:
                raise FailedPrecondition(
                    f"{name}: {reason}; its checkpoint has term {applied.term}, which cannot be lowered"
                )
            known = [each for each in (*found.log_terms, applied.term) if each <= TERM_KEPT_MAX]
            term, vote = max(known, default=0) + 1, 0
            if max(found.log_terms, default=0) > TERM_KEPT_MAX:
                tail = group.entries_after(applied.index)
                self._records += self._rewritten(group, applied, tail, term)
        last = max(found.last, applied.index)
        storage = RaftStorage(self._alone, min(state.conf_index, last))
        storage.hard_state = RaftHardState(term, vote, min(state.commit, last))
        self._records.append(hard_state_record(group.raft_group, storage))
        return MendedGroup(group.raft_group, name, reason, term, len(tail))

    def _applied(self, group: RecoveredGroup) -> LogPosition:
        """The last entry in the durable state of the application."""
        if group.raft_group >= FIRST_PARTITION_GROUP:
            position = group.applied or AppliedPosition()
            return LogPosition(position.term, position.index)
        return position_of(self._node.checkpoint(_name(group.raft_group)))

    def _rewritten(
        self, group: RecoveredGroup, applied: LogPosition, tail: Sequence[JournalRecord], term: int
    ) -> Iterator[UnitRecord]:
        """The log from the applied entry on, with possible terms."""
        raft_group = group.raft_group
        begin = LogPosition(_lowered(applied.term, term), applied.index)
        yield reset_record(raft_group, Snapshot(begin.index, begin.term, self._alone))
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


def _members(found: FoundState) -> frozenset[int]:
    return frozenset() if found.hard_state is None else conf_state_of(found.hard_state).members


def _lowered(term: int, highest: int) -> int:
    return highest if term > TERM_KEPT_MAX else term


def _name(raft_group: int) -> str:
    if raft_group == METADATA_GROUP:
        return "metadata"
    if raft_group == SINKS_GROUP:
        return "sinks"
    if raft_group < FIRST_PARTITION_GROUP:
        return f"groups-{raft_group - FIRST_GROUPS_GROUP}"
    return f"raft group {raft_group}"
