"""Records of a journal, sorted by raft group as a scan meets them.

`journal_scan` decides about files and flushes, this module about records whose checksums are valid,
`journal_entries` about the entries and resets of one raft group. Records that cannot be decoded, or
contradict earlier ones, become reasons to refuse the start.

A replica that leaves its raft group may come back, and knows nothing of the group then but its
vote. What the journal has of its former life would contradict the new one: a record REPLICA_GONE
voids it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from google.protobuf.message import DecodeError

from pixy.entry_ids import INCARNATION_MAX, LogPosition
from pixy.errors import CorruptData
from pixy.parsed_messages import parsed
from pixy.proto.state_pb2 import AppliedPosition, AppliedPositions, HardState, NodeStarts
from pixy.records import split_batches
from pixy.storage.journal.journal_entries import GroupEntries
from pixy.storage.journal.journal_files import JournalFile
from pixy.storage.journal.journal_format import (
    ENTRY_KINDS,
    EntryType,
    JournalRecord,
    RecordKind,
    RecordPlace,
    head_bytes,
)

_ENTRY = int(RecordKind.ENTRY)
_ENTRIES = frozenset(map(int, ENTRY_KINDS))

T = TypeVar("T", bound=tuple[Any, ...])

MakeEntry = Callable[[JournalFile, memoryview, RecordPlace], T]
"""Makes the tuple that is kept of an entry, its term first, from the file, its bytes and the
entry's place in them. CorruptData is reported as a refusal.
"""


class LogReset(NamedTuple):
    """Begin of a raft group's log: it was replaced by the state up to and including `position`.

    `configuration` is that of the group at the position.
    """

    position: LogPosition
    configuration: HardState


@dataclass(slots=True)
class ScannedGroup(Generic[T]):
    """Records of one raft group.

    Attributes:
        entries: entries behind `applied`, or all of them if that is None.
        hard_state: newest one, None if there is none; and the number of its file.
        applied: newest applied position of a partition, None if there is none; and its file.
        reset: newest reset of its log, None if there is none; and the newest file that has it.
        entries_commit: highest commit index in the heads of entries since the newest reset. That in
            an entry that was replaced counts: a commit index never goes back.
        hard_state_commit: commit index in the newest hard state.
    """

    entries: GroupEntries[T]
    hard_state: bytes | None = None
    hard_state_file: int = 0
    applied: AppliedPosition | None = None
    applied_file: int = 0
    reset: LogReset | None = None
    reset_file: int = 0
    entries_commit: int = 0
    hard_state_commit: int = 0

    @property
    def commit(self) -> int:
        """Highest known commit index, 0 for none."""
        return max(self.entries_commit, self.hard_state_commit)

    @property
    def end(self) -> int:
        """Index of the last entry that the journal knows of, included in a reset or not; 0 for
        none.
        """
        return max(self.entries.available().last, 0 if self.reset is None else self.reset.position.index)


class JournalGroups(Generic[T]):
    """All records of a journal up to the first refusal.

    Args:
        make_entry: see `MakeEntry`.

    Attributes:
        groups: records by raft group.
        incarnation: newest number of a start of the node, 0 if there is none; and its file.
        peer_starts: newest record of that kind, empty if there is none; and its file.
        gone: file of the newest REPLICA_GONE of each raft group that has one.
        trusted: set to False behind a refusal: records are still examined, and no more kept.
    """

    def __init__(self, make_entry: MakeEntry[T]) -> None:
        self._make_entry = make_entry
        self.groups: dict[int, ScannedGroup[T]] = {}
        self.incarnation = 0
        self.incarnation_file = 0
        self.peer_starts = b""
        self.peer_starts_file = 0
        self.gone: dict[int, int] = {}
        self.trusted = True

    def take(
        self, file: JournalFile, view: memoryview, position: int, places: list[RecordPlace]
    ) -> Iterator[str]:
        """Sort the records of the flush at `position` of a file; yields reasons to refuse them."""
        spans, groups, make_entry = file.spans, self.groups, self._make_entry
        for place in places:
            _, _, kind, _, raft_group, index, _, commit = place
            try:
                if kind not in _ENTRIES:
                    self._take_state(file, view, place)
                    continue
                span = spans.get(raft_group)
                if span is None:
                    spans[raft_group] = (index, index, position)
                elif index > span[1]:
                    spans[raft_group] = (span[0], index, span[2])
                elif index < span[0]:
                    spans[raft_group] = (index, span[1], span[2])
                entry = make_entry(file, view, place)
                if self.trusted:
                    group = groups.get(raft_group) or self._group(raft_group)
                    take = group.entries.original if kind == _ENTRY else group.entries.relocated
                    take(index, entry)
                    if commit > group.entries_commit:  # noqa: PLR1730  # a call takes three times as long
                        group.entries_commit = commit
            except CorruptData as error:
                yield str(error)

    def _take_state(self, file: JournalFile, view: memoryview, place: RecordPlace) -> None:
        at, end, kind, _, raft_group, index, term, _ = place
        payload = bytes(view[at + head_bytes(file.version) : end])
        match kind:
            case RecordKind.HARD_STATE:
                self._take_hard_state(file.number, raft_group, payload)
            case RecordKind.APPLIED_POSITIONS:
                self._take_positions(file.number, payload)
            case RecordKind.LOG_RESET | RecordKind.RELOCATED_LOG_RESET:
                state = _decoded(HardState, payload, f"raft group {raft_group}: log reset")
                reset = LogReset(LogPosition(term, index), state)
                self._take_reset(file.number, raft_group, reset, original=kind == RecordKind.LOG_RESET)
            case RecordKind.REPLICA_GONE:
                self._take_gone(file, raft_group, payload)
            case RecordKind.INCARNATION:
                self._take_incarnation(file.number, index)
            case RecordKind.PEER_STARTS:
                self._take_peer_starts(file.number, payload)
            case _:
                raise AssertionError(f"record kind {kind} is not known")

    def _take_hard_state(self, number: int, raft_group: int, payload: bytes) -> None:
        state = _decoded(HardState, payload, f"raft group {raft_group}: hard state")
        if self.trusted:
            group = self._group(raft_group)
            group.hard_state, group.hard_state_file = payload, number
            group.hard_state_commit = state.commit

    def _take_positions(self, number: int, payload: bytes) -> None:
        positions = _decoded(AppliedPositions, payload, "applied positions").positions
        if self.trusted:
            for position in positions:
                group = self._group(position.raft_group)
                group.applied, group.applied_file = position, number
                group.entries.applied(position.index)

    def _take_reset(self, number: int, raft_group: int, reset: LogReset, *, original: bool) -> None:
        if not self.trusted:
            return
        group = self._group(raft_group)
        if original:
            group.entries.reset_to(reset.position)
            group.entries_commit = 0
        elif not group.entries.carried_over(reset.position):
            return
        group.reset, group.reset_file = reset, number

    def _take_gone(self, file: JournalFile, raft_group: int, payload: bytes) -> None:
        _decoded(HardState, payload, f"raft group {raft_group}: replica that is gone")
        if self.trusted:
            file.spans.pop(raft_group, None)
            self.gone[raft_group] = file.number
            self.groups[raft_group] = ScannedGroup(
                GroupEntries(raft_group), hard_state=payload, hard_state_file=file.number
            )

    def _take_incarnation(self, number: int, incarnation: int) -> None:
        if not self.trusted:
            return
        if incarnation < self.incarnation:
            raise CorruptData(f"incarnation {incarnation} of the node behind {self.incarnation}")
        if incarnation >= INCARNATION_MAX:
            raise CorruptData(
                f"incarnation {incarnation} of the node: the next start is a higher one, and at most {INCARNATION_MAX} is possible"
            )
        self.incarnation, self.incarnation_file = incarnation, number

    def _take_peer_starts(self, number: int, payload: bytes) -> None:
        _decoded(NodeStarts, payload, "starts of other nodes")
        if self.trusted:
            self.peer_starts, self.peer_starts_file = payload, number

    def _group(self, raft_group: int) -> ScannedGroup[T]:
        group = self.groups.get(raft_group)
        if group is None:
            group = self.groups[raft_group] = ScannedGroup(GroupEntries(raft_group))
        return group


M = TypeVar("M", HardState, AppliedPositions, NodeStarts)


def _decoded(message: type[M], payload: bytes, what: str) -> M:
    try:
        return parsed(message, payload)
    except DecodeError as error:
        raise CorruptData(f"{what} cannot be decoded: {error}") from error


def batches_of(record: JournalRecord) -> list[memoryview]:
    """The record batches of an entry; none if it has another type.

    Raises:
        CorruptData: their lengths do not add up.
    """
    payload = memoryview(record.payload)
    if record.entry_type is EntryType.RECORD_BATCH:
        return [payload]
    return split_batches(payload) if record.entry_type is EntryType.RECORD_BATCHES else []
