"""State of raft groups beside their logs, as records of the journal and of a checkpoint."""

from pixy.entry_ids import LogPosition, ProposalId
from pixy.multiraft.dedup_table import DedupTable
from pixy.multiraft.group_states import (
    carried_reset_record,
    checkpoint_record,
    conf_state_of,
    hard_state_of,
    hard_state_record,
    reset_record,
    split_checkpoint,
)
from pixy.multiraft.raft_storage import RaftStorage
from pixy.proto import state_pb2
from pixy.raft import ConfState, HardState, Snapshot
from pixy.storage import RecordKind, UnitRecord

JOINT = ConfState((1, 2), (3, 4), (1, 5), (6,), True)
"""A configuration in which every field has a value of its own."""


def storage() -> RaftStorage:
    made = RaftStorage(JOINT, 9)
    made.hard_state = HardState(5, 2, 11)
    return made


def message_in(record: UnitRecord) -> state_pb2.HardState:
    return state_pb2.HardState.FromString(bytes(record[-1]))


def test_a_hard_state_is_read_as_it_was_written() -> None:
    record = hard_state_record(7, storage())
    assert record[:-1] == (RecordKind.HARD_STATE, 0, 7, 0, 5, 0, None)
    message = message_in(record)
    assert (hard_state_of(message), conf_state_of(message), message.conf_index) == (
        HardState(5, 2, 11),
        JOINT,
        9,
    )


def test_a_reset_has_the_position_and_configuration_of_its_snapshot() -> None:
    record = reset_record(7, Snapshot(20, 4, JOINT))
    assert record[:-1] == (RecordKind.LOG_RESET, 0, 7, 20, 4, 0, None)
    message = message_in(record)
    assert (hard_state_of(message), conf_state_of(message), message.conf_index) == (HardState(), JOINT, 20)


def test_a_reset_that_is_carried_over_has_its_position_and_the_newest_configuration() -> None:
    record = carried_reset_record(7, LogPosition(4, 8), storage())
    assert record[:-1] == (RecordKind.RELOCATED_LOG_RESET, 0, 7, 8, 4, 0, None)
    message = message_in(record)
    assert (conf_state_of(message), message.conf_index) == (JOINT, 9)


def test_a_checkpoint_has_rows_and_configuration_beside_the_state() -> None:
    rows = DedupTable()
    rows.record(ProposalId(2, 3, 4), 17)
    state = [(b"key", b"value"), (b"", b"empty key")]
    group_state, others = split_checkpoint([checkpoint_record(rows.snapshot(), storage()), *state])
    assert others == state
    assert conf_state_of(group_state.configuration) == JOINT
    assert group_state.configuration.conf_index == 9
    assert hard_state_of(group_state.configuration) == HardState()
    assert DedupTable(group_state.rows).judge(ProposalId(2, 3, 4)) == 17


def test_the_place_of_the_record_in_a_checkpoint_does_not_matter() -> None:
    record = checkpoint_record(DedupTable().snapshot(), storage())
    group_state, others = split_checkpoint([(b"a", b"1"), record, (b"b", b"2")])
    assert (conf_state_of(group_state.configuration), others) == (JOINT, [(b"a", b"1"), (b"b", b"2")])


def test_a_checkpoint_of_the_first_release_has_no_rows_and_no_configuration() -> None:
    group_state, others = split_checkpoint([(b"key", b"value")])
    assert group_state == state_pb2.GroupStateRecord()
    assert others == [(b"key", b"value")]
