"""Hard states and log resets of the raft groups of a node, in its journal."""

from pixy.multiraft.group_states import carried_reset_record, hard_state_record, reset_record
from pixy.multiraft.raft_group import RaftGroup
from pixy.raft import StorageAppend
from pixy.storage import Journal, UnitRecord


def state_records(group: RaftGroup, append: StorageAppend) -> list[UnitRecord]:
    """Take over hard state and snapshot from a write of the Raft core; returns their records."""
    storage = group.storage
    records: list[UnitRecord] = []
    if append.snapshot is not None:
        storage.conf_state, storage.conf_index = append.snapshot.conf_state, append.snapshot.index
        group.look_at_members()
        records.append(reset_record(group.raft_group, append.snapshot))
    if append.hard_state is not None:
        storage.hard_state = append.hard_state
    records.append(hard_state_record(group.raft_group, storage))
    return records


def write_hard_state(journal: Journal, group: RaftGroup) -> None:
    """Write the hard state of a group, with its configuration."""

    def durable() -> None:
        group.hard_state_file = journal.files[-1].number

    journal.append((hard_state_record(group.raft_group, group.storage),), durable)


def carry_over(journal: Journal, group: RaftGroup, file_number: int) -> None:
    """Write again the newest hard state and log reset of a group, those of them that are in the
    journal file `file_number`, which is about to be removed.
    """
    records = []
    if group.hard_state_file == file_number:
        records.append(hard_state_record(group.raft_group, group.storage))
    if group.reset_file == file_number:
        assert group.reset is not None
        records.append(carried_reset_record(group.raft_group, group.reset, group.storage))
    if not records:
        return

    def durable() -> None:
        if group.hard_state_file == file_number:
            group.hard_state_file = journal.files[-1].number
        if group.reset_file == file_number:
            group.reset_file = journal.files[-1].number

    journal.append(records, durable)
