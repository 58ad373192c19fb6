"""Hard states and log resets, as they are written again before their journal file is removed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pixy.cluster.hard_states import carry_over
from pixy.cluster.raft_group import RaftGroup
from pixy.cluster.raft_storage import RaftStorage
from pixy.log_position import LogPosition
from pixy.raft import ConfState, Entry
from pixy.storage import JournalFile, RecordKind, UnitRecord


@dataclass
class Journal:
    """A journal in which everything is durable when the test says so."""

    files: list[JournalFile] = field(default_factory=lambda: [JournalFile(3), JournalFile(4)])
    records: list[UnitRecord] = field(default_factory=list)
    callbacks: list[Callable[[], None]] = field(default_factory=list)

    def append(self, records: Sequence[UnitRecord], durable: Callable[[], None]) -> None:
        self.records += records
        self.callbacks.append(durable)


def group_behind_a_reset() -> RaftGroup:
    """A group whose log was reset at entry 10, with its records in file 3."""
    group = RaftGroup(7, RaftStorage(ConfState((1, 2, 3))))
    group.storage.reset(LogPosition(2, 10))
    group.storage.append([Entry(2, index) for index in range(11, 21)])
    group.reset, group.reset_file, group.hard_state_file = LogPosition(2, 10), 3, 3
    return group


def test_both_are_carried_over_from_their_file_alone() -> None:
    journal, group = Journal(), group_behind_a_reset()
    carry_over(journal, group, 2)  # type: ignore[arg-type]  # as much of a journal as it takes
    assert journal.records == []
    carry_over(journal, group, 3)  # type: ignore[arg-type]  # as above
    assert [record[0] for record in journal.records] == [
        RecordKind.HARD_STATE,
        RecordKind.RELOCATED_LOG_RESET,
    ]
    assert (group.hard_state_file, group.reset_file) == (3, 3)
    for durable in journal.callbacks:
        durable()
    assert (group.hard_state_file, group.reset_file) == (4, 4)


def test_a_reset_keeps_its_position_when_the_log_begins_later() -> None:
    journal, group = Journal(), group_behind_a_reset()
    group.storage.compact(15)
    assert group.storage.start.index == 15
    carry_over(journal, group, 3)  # type: ignore[arg-type]  # as above
    _, _, raft_group, index, term, *_ = journal.records[-1]
    assert (raft_group, index, term) == (7, 10, 2)
