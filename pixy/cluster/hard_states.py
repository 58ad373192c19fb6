"""Hard states and log resets that are written again before their journal file is removed."""

from pixy.cluster.group_states import carried_reset_record, hard_state_record
from pixy.cluster.raft_group import RaftGroup
from pixy.storage import Journal

__all__ = ["carry_over"]


def carry_over(journal: Journal, group: RaftGroup, file_number: int) -> None:
    """Write again the hard state and the log reset of a group, as far as a file has the newest
    ones.
    """
    records = []
    if group.hard_state_file == file_number:
        records.append(hard_state_record(group.raft_group, group.storage))
    if group.reset_file == file_number:
        records.append(carried_reset_record(group.raft_group, group.storage))
    if not records:
        return

    def durable() -> None:
        if group.hard_state_file == file_number:
            group.hard_state_file = journal.files[-1].number
        if group.reset_file == file_number:
            group.reset_file = journal.files[-1].number

    journal.append(records, durable)
