"""Hard states and log resets: with the writes of the core, and written again before their journal
file is removed.
"""

from pixy.entry_ids import LogPosition
from pixy.multiraft.group_states import hard_state_of
from pixy.multiraft.hard_states import carry_over, state_records, write_hard_state
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.raft_storage import RaftStorage
from pixy.proto import state_pb2
from pixy.raft import ConfState, Entry, HardState, Snapshot, StorageAppend
from pixy.storage import RecordKind, UnitRecord
from tests.cluster.held_journal import HeldJournal

HARD_STATE, LOG_RESET = RecordKind.HARD_STATE, RecordKind.LOG_RESET


def write(hard_state: HardState | None = None, snapshot: Snapshot | None = None) -> StorageAppend:
    """A write of the core without entries."""
    return StorageAppend(1, [], hard_state, snapshot, None, [])


def kinds(records: list[UnitRecord]) -> list[int]:
    return [record[0] for record in records]


def message_in(record: UnitRecord) -> state_pb2.HardState:
    return state_pb2.HardState.FromString(bytes(record[-1]))


def new_group(*voters: int) -> RaftGroup:
    return RaftGroup(7, RaftStorage(ConfState(voters)), 1)


# --- writes of the core ---------------------------------------------------------------------------


def test_a_hard_state_has_the_configuration_beside_it() -> None:
    group = new_group(1, 2, 3)
    records = state_records(group, write(HardState(5, 2, 9)))
    assert kinds(records) == [HARD_STATE]
    assert hard_state_of(message_in(records[0])) == group.storage.hard_state == HardState(5, 2, 9)
    assert list(message_in(records[0]).voters) == [1, 2, 3]


def test_a_snapshot_brings_its_configuration_and_keeps_the_hard_state() -> None:
    group = new_group(1)
    group.storage.hard_state = HardState(5, 2, 9)
    records = state_records(group, write(snapshot=Snapshot(20, 4, ConfState((1, 2), (3,)))))
    assert kinds(records) == [LOG_RESET, HARD_STATE]
    assert records[0][2:5] == (7, 20, 4)
    assert (group.storage.conf_state, group.storage.conf_index) == (ConfState((1, 2), (3,)), 20)
    assert group.has_peers
    state = message_in(records[1])
    assert (hard_state_of(state), list(state.learners), state.conf_index) == (HardState(5, 2, 9), [3], 20)


def test_the_file_of_a_hard_state_is_known_once_it_is_durable() -> None:
    journal, group = HeldJournal(), new_group(1)
    write_hard_state(journal.as_journal(), group)
    assert (journal.kinds, group.hard_state_file) == ([[HARD_STATE]], 0)
    journal.make_durable()
    assert group.hard_state_file == 4


# --- before the file is removed -------------------------------------------------------------------


def group_behind_a_reset() -> RaftGroup:
    """A group whose log was reset at entry 10, with its records in file 3."""
    group = new_group(1, 2, 3)
    group.storage.reset(LogPosition(2, 10))
    group.storage.append([Entry(2, index) for index in range(11, 21)])
    group.reset, group.reset_file, group.hard_state_file = LogPosition(2, 10), 3, 3
    return group


def test_both_are_carried_over_from_their_file_alone() -> None:
    journal, group = HeldJournal(), group_behind_a_reset()
    carry_over(journal.as_journal(), group, 2)
    assert journal.units == []
    carry_over(journal.as_journal(), group, 3)
    assert journal.kinds == [[HARD_STATE, RecordKind.RELOCATED_LOG_RESET]]
    assert (group.hard_state_file, group.reset_file) == (3, 3)
    journal.make_durable()
    assert (group.hard_state_file, group.reset_file) == (4, 4)


def test_one_of_them_is_carried_over_without_the_other() -> None:
    for others, carried in (((4, 3), [RecordKind.RELOCATED_LOG_RESET]), ((3, 4), [HARD_STATE])):
        journal, group = HeldJournal(), group_behind_a_reset()
        group.hard_state_file, group.reset_file = others
        carry_over(journal.as_journal(), group, 3)
        assert journal.kinds == [carried]


def test_a_newer_hard_state_that_is_durable_meanwhile_keeps_its_file() -> None:
    journal, group = HeldJournal(), group_behind_a_reset()
    carry_over(journal.as_journal(), group, 3)
    group.hard_state_file = group.reset_file = 5
    journal.make_durable()
    assert (group.hard_state_file, group.reset_file) == (5, 5)


def test_a_reset_keeps_its_position_when_the_log_begins_later() -> None:
    journal, group = HeldJournal(), group_behind_a_reset()
    group.storage.compact(15)
    assert group.storage.start.index == 15
    carry_over(journal.as_journal(), group, 3)
    assert journal.units[0][-1][2:5] == (7, 10, 2)
