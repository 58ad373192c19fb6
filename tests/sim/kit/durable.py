"""The durable part of a node's journal, rebuilt from the bytes that were synced: a model of the
journal that knows nothing of the code that writes it, beyond its format.

It says what a node may promise at any moment, because that much survives a crash; and what a start
must find. A start may find one flush more: one that was written and not synced.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from pixy.entry_ids import LogPosition
from pixy.multiraft.group_states import hard_state_of
from pixy.proto.state_pb2 import AppliedPositions, HardState
from pixy.storage import JournalRecord, RecordKind, RecoveredGroup, RecoveredJournal, journal_record
from pixy.storage.journal.journal_format import (
    FLUSH_FRAME_BYTES,
    FORMAT_VERSION,
    read_flush_frame,
    read_records,
)
from tests.sim.kit.failure import require

_BEGIN = LogPosition(0, 0)


class StoredEntry(NamedTuple):
    """An entry in a journal."""

    term: int
    kind: int
    checksum: int
    proposal: tuple[int, int, int] | None


@dataclass(slots=True)
class DurableGroup:
    """Durable records of one raft group.

    Attributes:
        log: entries by index, those that were truncated or voided excluded; never shortened at the
            front.
        start: position of the newest log reset.
        votes: vote by term.
        reached: by term, the last entry that was there while the hard state had that term.
        term: term of the newest hard state.
        hard_state: the newest hard state.
        applied: index and end offset of the newest applied position.
    """

    raft_group: int
    log: dict[int, StoredEntry] = field(default_factory=dict)
    start: LogPosition = _BEGIN
    votes: dict[int, int] = field(default_factory=dict)
    reached: dict[int, int] = field(default_factory=dict)
    term: int = 0
    hard_state: bytes = b""
    applied: tuple[int, int] = (0, 0)
    last: int = 0

    def term_at(self, index: int) -> int:
        """Term of an entry, 0 if there is none."""
        if index == self.start.index:
            return self.start.term
        entry = self.log.get(index)
        return 0 if entry is None else entry.term

    def has(self, index: int, term: int) -> bool:
        """True if an entry is there, or included in a log reset."""
        return index <= self.start.index or self.term_at(index) == term

    def append(self, index: int, entry: StoredEntry) -> None:
        require(
            index <= self.last + 1, f"{self.raft_group}: entry {index} is written behind entry {self.last}"
        )
        require(
            index > self.start.index,
            f"{self.raft_group}: entry {index} is written behind a log reset at {self.start}",
        )
        for behind in range(index + 1, self.last + 1):
            self.log.pop(behind, None)
        self.log[index] = entry
        self._reach(index)

    def reset(self, position: LogPosition) -> None:
        self.log.clear()
        self.start = position
        self._reach(position.index)

    def leave(self, payload: bytes) -> None:
        """The replica has gone to other nodes: its vote stays."""
        self.vote(payload)
        self.log.clear()
        self.start, self.applied, self.last = _BEGIN, (0, 0), 0

    def _reach(self, last: int) -> None:
        self.last = last
        self.reached[self.term] = max(self.reached.get(self.term, 0), last)

    def vote(self, payload: bytes) -> None:
        state = hard_state_of(HardState.FromString(payload))
        require(
            state.term >= self.term,
            f"{self.raft_group}: a hard state of term {state.term} is written behind one of {self.term}",
        )
        known = self.votes.get(state.term, 0)
        require(
            known in (0, state.vote),
            f"{self.raft_group}: votes in term {state.term}: {known} and {state.vote}",
        )
        self.term, self.hard_state = state.term, payload
        self.votes[state.term] = state.vote
        self._reach(self.last)


class DurableJournal:
    """The durable content of one node's journal.

    Args:
        cluster_id: id of the cluster, which the checksums of flushes include.

    Attributes:
        groups: records by raft group.
        flush_number: newest durable flush.
        incarnation: newest durable start.
        carries_reset: a log reset was carried over since this was set to False.
        on_reset: called with raft group and position when a flush with a log reset is durable.
    """

    def __init__(self, cluster_id: bytes) -> None:
        self._cluster_id = cluster_id
        self.groups: dict[int, DurableGroup] = {}
        self.flush_number = 0
        self.incarnation = 0
        # The flush that is being written; after a crash it may be there or not.
        self._pending: tuple[int, list[JournalRecord]] | None = None
        self.carries_reset = False
        self.on_reset: Callable[[int, LogPosition], None] = lambda *_: None

    def group(self, raft_group: int) -> DurableGroup:
        found = self.groups.get(raft_group)
        if found is None:
            found = self.groups[raft_group] = DurableGroup(raft_group)
        return found

    def writing(self, path: Path, _position: int, data: bytes) -> None:
        """A flush is about to be written."""
        if path.suffix == ".journal":
            self._pending = self._flush(data)

    def synced(self, path: Path, _position: int, _data: bytes) -> None:
        """The flush is durable."""
        if path.suffix == ".journal" and self._pending is not None:
            self._take()

    def _flush(self, data: bytes) -> tuple[int, list[JournalRecord]]:
        view = memoryview(data)
        frame = read_flush_frame(view, 0, self._cluster_id)
        require(frame is not None, "the journal writes something else than a flush")
        assert frame is not None
        places = read_records(view, FLUSH_FRAME_BYTES, FLUSH_FRAME_BYTES + frame[3], FORMAT_VERSION)
        require(isinstance(places, list), f"flush {frame[0]}: {places}")
        assert isinstance(places, list)
        return frame[0], [journal_record(view, place, FORMAT_VERSION) for place in places]

    def _take(self) -> None:
        assert self._pending is not None
        (number, records), self._pending = self._pending, None
        require(number == self.flush_number + 1, f"flush {number} behind flush {self.flush_number}")
        self.flush_number = number
        for record in records:
            self._record(record)
        for record in records:
            if record.kind is RecordKind.LOG_RESET:
                self.on_reset(record.raft_group, LogPosition(record.term, record.index))

    def _record(self, record: JournalRecord) -> None:
        match record.kind:
            case RecordKind.ENTRY:
                self.group(record.raft_group).append(record.index, _stored(record))
            case RecordKind.HARD_STATE:
                self.group(record.raft_group).vote(bytes(record.payload))
            case RecordKind.LOG_RESET:
                self.group(record.raft_group).reset(LogPosition(record.term, record.index))
            case RecordKind.REPLICA_GONE:
                self.group(record.raft_group).leave(bytes(record.payload))
            case RecordKind.RELOCATED_LOG_RESET:
                self.carries_reset = True
            case RecordKind.APPLIED_POSITIONS:
                for applied in AppliedPositions.FromString(bytes(record.payload)).positions:
                    self.group(applied.raft_group).applied = applied.index, applied.end_offset
            case RecordKind.INCARNATION:
                self.incarnation = record.index

    # --- starts -----------------------------------------------------------------------------------

    def check_recovered(self, journal: RecoveredJournal, applied: Mapping[int, LogPosition]) -> None:
        """Check what a start has found, and take over a flush that was written and not synced.

        Args:
            applied: entry up to which the data of each raft group goes.

        Raises:
            ClusterFailure: something is missing, or is not what was written.
        """
        self.take_up(journal)
        for raft_group, group in self.groups.items():
            recovered = journal.groups.get(raft_group)
            where = f"raft group {raft_group} at a start"
            require(recovered is not None or not group.last, f"{where}: nothing is left of it")
            if recovered is None:
                continue
            require(
                (recovered.hard_state or b"") == group.hard_state,
                f"{where}: hard state {recovered.hard_state!r}, expected {group.hard_state!r}",
            )
            position = recovered.applied
            found_applied = (0, 0) if position is None else (position.index, position.end_offset)
            require(
                found_applied == group.applied,
                f"{where}: applied position {found_applied}, expected {group.applied}",
            )
            reset = _BEGIN if recovered.reset is None else recovered.reset.position
            require(reset == group.start, f"{where}: log reset {reset}, expected {group.start}")
            self._check_entries(group, recovered, applied[raft_group], where)

    def take_up(self, journal: RecoveredJournal) -> None:
        """Take over what a start has found: perhaps a flush that was written and not synced.

        Raises:
            ClusterFailure: the newest flush, or the newest start, is missing.
        """
        found = journal.at.flush_number - 1
        if self._pending is not None and found == self.flush_number + 1:
            self._take()
        self._pending = None
        require(found == self.flush_number, f"the journal ends with flush {found}, not {self.flush_number}")
        require(
            journal.incarnation == self.incarnation,
            f"incarnation {journal.incarnation}, expected {self.incarnation}",
        )

    @classmethod
    def found(cls, cluster_id: bytes, journal: RecoveredJournal) -> "DurableJournal":
        """The journal that a start has found, of which nothing was known."""
        model = cls(cluster_id)
        model.flush_number, model.incarnation = journal.at.flush_number - 1, journal.incarnation
        for raft_group, recovered in journal.groups.items():
            group = model.group(raft_group)
            if recovered.reset is not None:
                group.reset(recovered.reset.position)
            if recovered.hard_state:
                group.vote(recovered.hard_state)
            for each in recovered.entries:
                if each.index > group.start.index:
                    group.last = max(group.last, each.index - 1)
                    group.append(each.index, _stored(each))
            # Applied entries are not among them, and their files may be gone.
            applied = 0 if recovered.applied is None else recovered.applied.index
            group._reach(max(group.last, recovered.end, applied))
        return model

    def _check_entries(
        self, group: DurableGroup, recovered: RecoveredGroup, applied: LogPosition, where: str
    ) -> None:
        require(applied.index >= group.start.index, f"{where}: data up to {applied}, log from {group.start}")
        if not group.has(applied.index, applied.term):
            return  # a snapshot ahead of the log, which is void
        found = [(each.index, _stored(each)) for each in recovered.entries if each.index > applied.index]
        expected = [(index, group.log[index]) for index in range(applied.index + 1, group.last + 1)]
        require(
            found == expected,
            f"{where}: entries behind {applied}: {_positions(found)}, expected {_positions(expected)}",
        )

    def copy(self) -> "DurableJournal":
        """The same, for a copy of the disk."""
        copy = DurableJournal(self._cluster_id)
        copy.groups = {
            raft_group: replace(
                group, log=dict(group.log), votes=dict(group.votes), reached=dict(group.reached)
            )
            for raft_group, group in self.groups.items()
        }
        copy.flush_number, copy.incarnation = self.flush_number, self.incarnation
        copy._pending = self._pending
        return copy


def _stored(record: JournalRecord) -> StoredEntry:
    return StoredEntry(record.term, int(record.entry_type), crc32(record.payload), record.proposal)


def _positions(entries: Sequence[tuple[int, StoredEntry]]) -> list[LogPosition]:
    return [LogPosition(entry.term, index) for index, entry in entries]
