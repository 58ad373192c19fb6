"""Raft groups at a start: log, hard state and configuration from what the journal has of them."""

from typing import Any

import pytest

from pixy.entry_ids import LogPosition, ProposalId
from pixy.errors import DataDirectoryError
from pixy.multiraft.group_recovery import continues, entry_of, recovered_group
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.raft_storage import RaftStorage
from pixy.proto.state_pb2 import AppliedPosition
from pixy.proto.state_pb2 import HardState as Stored
from pixy.raft import NO_LIMIT, Compacted, ConfState, Entry, HardState, RaftEntryType
from pixy.storage import EntryType, JournalRecord, LogReset, RecordKind, RecoveredGroup

ALONE = Stored(voters=[1])
APPLIED = LogPosition(1, 4)


def found_with(**fields: Any) -> RecoveredGroup:
    """Entries 3 to 9: up to 5 of term 1, then of term 4."""
    return RecoveredGroup(7, **{"first": 3, "last": 9, "terms": [(3, 1), (6, 4)], "end": 9, **fields})


def tail_from(index: int) -> list[Entry]:
    return [Entry(1 if each < 6 else 4, each, data=b"%d" % each) for each in range(index, 10)]


def recovered(up_to: LogPosition = APPLIED, **fields: Any) -> RaftGroup:
    """The group, applied up to a position."""
    return recovered_group(1, 7, found_with(**fields), up_to, tail_from(up_to.index + 1), ALONE)


def terms_of(storage: RaftStorage) -> dict[int, int]:
    return {index: storage.term(index) for index in range(storage.start.index, storage.last_index() + 1)}


# --- entries --------------------------------------------------------------------------------------


def test_an_entry_is_read_as_it_was_proposed() -> None:
    proposal = ProposalId(2, 3, 4)
    record = JournalRecord(
        RecordKind.ENTRY, EntryType.COMMAND, 7, 9, 4, memoryview(b"command"), proposal=proposal
    )
    entry = entry_of(record)
    assert entry == Entry(4, 9, RaftEntryType.NORMAL, b"command", EntryType.COMMAND, proposal)
    assert isinstance(entry.data, bytes)


@pytest.mark.parametrize(
    ("kind", "raft_type"),
    [
        (EntryType.CONF_CHANGE, RaftEntryType.CONF_CHANGE),
        (EntryType.CONF_CHANGE_V2, RaftEntryType.CONF_CHANGE_V2),
    ],
)
def test_a_change_of_the_configuration_is_one_for_the_core(kind: EntryType, raft_type: RaftEntryType) -> None:
    entry = entry_of(JournalRecord(RecordKind.ENTRY, kind, 7, 9, 4, b"change"))
    assert (entry.type, entry.kind) == (raft_type, 0)


# --- the log --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("applied", "goes_on"),
    [
        (LogPosition(1, 2), True),  # from behind it on
        (LogPosition(1, 3), True),
        (LogPosition(1, 5), True),
        (LogPosition(2, 5), False),
        (LogPosition(4, 6), True),
        (LogPosition(1, 6), False),
        (LogPosition(4, 9), True),
        (LogPosition(4, 10), False),
    ],
)
def test_a_journal_goes_on_from_an_entry_of_its_log(applied: LogPosition, goes_on: bool) -> None:
    assert continues(found_with(), applied) is goes_on


def test_a_journal_whose_entries_are_all_elsewhere_goes_on() -> None:
    empty = {"first": 0, "last": 0, "terms": ()}
    assert continues(found_with(**empty), LogPosition(4, 9))
    assert not continues(found_with(**{**empty, "end": 8}), LogPosition(4, 9))


def test_a_journal_whose_last_entries_are_elsewhere_goes_on() -> None:
    assert continues(found_with(end=12), LogPosition(5, 12))


def test_the_tail_is_in_memory_and_the_applied_entries_are_not() -> None:
    group = recovered()
    assert (group.applied, group.has_tail) == (LogPosition(1, 4), True)
    assert group.storage.entries_in_memory == tail_from(5)
    assert terms_of(group.storage) == {3: 1, 4: 1, 5: 1, 6: 4, 7: 4, 8: 4, 9: 4}


def test_followers_can_have_what_is_behind_the_first_entry_of_the_journal() -> None:
    storage = recovered().storage
    with pytest.raises(Compacted):
        storage.entries(3, 5, NO_LIMIT)
    assert storage.first_index() == 4


@pytest.mark.parametrize("applied", [LogPosition(1, 2), LogPosition(1, 0)])
def test_followers_can_have_nothing_up_to_an_applied_entry_before_the_journal(applied: LogPosition) -> None:
    group = recovered_group(1, 7, found_with(), applied, tail_from(3), ALONE)
    assert group.storage.start == applied


def test_without_a_tail_the_applied_entry_is_the_last_one() -> None:
    group = recovered(LogPosition(4, 9))
    assert (group.has_tail, group.storage.last_index(), group.storage.term(9)) == (False, 9, 4)


def test_a_log_that_is_all_elsewhere_begins_behind_the_applied_entry() -> None:
    group = recovered_group(1, 7, RecoveredGroup(7, end=9), LogPosition(4, 9), [], ALONE)
    assert (group.storage.start, group.storage.last_index()) == (LogPosition(4, 9), 9)


# --- the hard state -------------------------------------------------------------------------------


def hard_state_with(found: Stored, **fields: Any) -> HardState:
    found.voters.append(1)
    return recovered(hard_state=found.SerializeToString(), **fields).storage.hard_state


def test_term_and_vote_are_those_that_were_stored() -> None:
    assert hard_state_with(Stored(term=6, vote=2, commit=5)) == HardState(6, 2, 5)
    assert hard_state_with(Stored(term=4, vote=2, commit=5)) == HardState(4, 2, 5)


def test_a_vote_of_an_earlier_term_than_the_last_entry_does_not_count() -> None:
    assert hard_state_with(Stored(term=3, vote=2, commit=5)) == HardState(4, 0, 5)


def test_without_a_hard_state_the_term_is_that_of_the_last_entry() -> None:
    assert recovered().storage.hard_state == HardState(4, 0, 4)
    assert recovered(LogPosition(4, 9)).storage.hard_state == HardState(4, 0, 9)


@pytest.mark.parametrize(
    ("stored", "heads", "commit"), [(6, 0, 6), (6, 8, 8), (0, 0, 4), (2, 3, 4), (20, 0, 9), (0, 20, 9)]
)
def test_the_commit_index_is_the_highest_known_up_to_the_last_entry(
    stored: int, heads: int, commit: int
) -> None:
    assert hard_state_with(Stored(term=4, commit=stored), commit=heads).commit == commit


def test_a_configuration_is_committed_once_it_is_written() -> None:
    assert hard_state_with(Stored(term=4, commit=6, conf_index=7)).commit == 7
    state = Stored(voters=[1, 2], conf_index=8)
    assert recovered_group(1, 7, found_with(), APPLIED, tail_from(5), state).storage.hard_state.commit == 8


# --- the configuration ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("journal", "state", "used"),
    [
        (Stored(voters=[1, 2], conf_index=5), Stored(voters=[1], conf_index=3), ((1, 2), 5)),
        (Stored(voters=[1, 2], conf_index=5), Stored(voters=[1], conf_index=5), ((1, 2), 5)),
        (Stored(voters=[1, 2], conf_index=3), Stored(voters=[1], conf_index=5), ((1,), 5)),
        (Stored(voters=[1, 2], conf_index=3), Stored(conf_index=5), ((1, 2), 3)),
        (None, Stored(voters=[1, 3], conf_index=5), ((1, 3), 5)),
    ],
)
def test_the_newer_configuration_of_journal_and_state_is_used(
    journal: Stored | None, state: Stored, used: tuple[tuple[int, ...], int]
) -> None:
    found = found_with(hard_state=None if journal is None else journal.SerializeToString())
    storage = recovered_group(1, 7, found, APPLIED, tail_from(5), state).storage
    assert (storage.conf_state, storage.conf_index) == (ConfState(used[0]), used[1])


def test_a_configuration_that_is_none_is_refused_wherever_it_is_from() -> None:
    with pytest.raises(DataDirectoryError, match="raft group 7 has a configuration that is none: no voters"):
        recovered_group(1, 7, found_with(), APPLIED, tail_from(5), Stored(voters=[1, 1]))


def test_a_replica_that_has_voted_and_knows_no_members_starts_again() -> None:
    state = Stored(term=7, vote=3)
    found = RecoveredGroup(7, hard_state=state.SerializeToString(), hard_state_file=2)
    group = recovered_group(1, 7, found, LogPosition(0, 0), [], Stored(voters=[1, 2]))
    assert group.is_blank, "not the founders: the journal knows better"
    assert group.storage.hard_state == HardState(7, 3, 0)


@pytest.mark.parametrize(
    "log",
    [
        {"first": 1, "last": 2, "terms": [(1, 4)], "end": 2},
        {"reset": LogReset(LogPosition(4, 9), Stored()), "end": 9},
        {"applied": AppliedPosition(index=4, term=4)},
    ],
)
def test_a_replica_with_a_log_and_without_members_is_refused(log: dict[str, Any]) -> None:
    found = RecoveredGroup(7, hard_state=Stored(term=7).SerializeToString(), **log)
    with pytest.raises(DataDirectoryError, match="no voters"):
        recovered_group(1, 7, found, LogPosition(0, 0), [], Stored())


# --- files that hold its records ------------------------------------------------------------------


def test_the_files_of_its_records_are_known() -> None:
    position = AppliedPosition(raft_group=7, index=4, term=1)
    reset = LogReset(LogPosition(1, 2), ALONE)
    group = recovered(hard_state_file=3, reset=reset, reset_file=4, applied=position, applied_file=5)
    assert (group.hard_state_file, group.reset_file, group.position_file) == (3, 4, 5)
    assert (group.reset, group.position, group.durable_index) == (LogPosition(1, 2), position, 4)


def test_a_group_without_such_records_has_no_files_for_them() -> None:
    group = recovered()
    assert (group.hard_state_file, group.reset_file, group.position_file) == (0, 0, 0)
    assert (group.reset, group.position, group.durable_index) == (None, None, 0)
