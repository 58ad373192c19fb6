"""State of raft groups beside their logs and applications: hard states and log resets as the
journal has them, and the record of a checkpoint.
"""

from collections.abc import Iterable

from pixy.entry_ids import LogPosition
from pixy.multiraft.dedup_table import DedupSnapshot
from pixy.multiraft.raft_storage import RaftStorage
from pixy.parsed_messages import parsed
from pixy.proto import state_pb2
from pixy.raft import ConfState, HardState, Snapshot
from pixy.storage import RecordKind, UnitRecord

_CHECKPOINT_KEY = b"\0raft"
"""Key of the record in a checkpoint: no state machine has one that begins with a zero byte."""


def hard_state_record(raft_group: int, storage: RaftStorage) -> UnitRecord:
    """The hard state of a raft group, with its configuration."""
    state = storage.hard_state
    payload = _encoded(state, storage.conf_state, storage.conf_index)
    return (RecordKind.HARD_STATE, 0, raft_group, 0, state.term, 0, None, payload)


def reset_record(raft_group: int, snapshot: Snapshot) -> UnitRecord:
    """The log of a raft group begins behind a snapshot."""
    payload = _encoded(HardState(), snapshot.conf_state, snapshot.index)
    return (RecordKind.LOG_RESET, 0, raft_group, snapshot.index, snapshot.term, 0, None, payload)


def carried_reset_record(raft_group: int, reset: LogPosition, storage: RaftStorage) -> UnitRecord:
    """The same at the position `reset`, before the file of the original is removed: it voids
    nothing.

    The begin of the log as the storage has it may be higher: it moves as files are removed.
    """
    payload = _encoded(HardState(), storage.conf_state, storage.conf_index)
    return (RecordKind.RELOCATED_LOG_RESET, 0, raft_group, reset.index, reset.term, 0, None, payload)


def gone_record(raft_group: int, state: HardState) -> UnitRecord:
    """A replica has left a raft group, and keeps term and vote: it votes once in a term, also when
    it comes back.
    """
    payload = _encoded(HardState(state.term, state.vote, 0), ConfState(), 0)
    return (RecordKind.REPLICA_GONE, 0, raft_group, 0, state.term, 0, None, payload)


def _encoded(state: HardState, conf: ConfState, conf_index: int) -> bytes:
    return _message(state, conf, conf_index).SerializeToString()


def _message(state: HardState, conf: ConfState, conf_index: int) -> state_pb2.HardState:
    return state_pb2.HardState(
        term=state.term,
        vote=state.vote,
        commit=state.commit,
        voters=conf.voters,
        learners=conf.learners,
        voters_outgoing=conf.voters_outgoing,
        learners_next=conf.learners_next,
        auto_leave=conf.auto_leave,
        conf_index=conf_index,
    )


def hard_state_of(message: state_pb2.HardState) -> HardState:
    """Term, vote and commit index of a stored hard state."""
    return HardState(message.term, message.vote, message.commit)


def conf_state_of(message: state_pb2.HardState) -> ConfState:
    """Configuration of a stored hard state."""
    return ConfState(
        tuple(message.voters),
        tuple(message.learners),
        tuple(message.voters_outgoing),
        tuple(message.learners_next),
        message.auto_leave,
    )


def checkpoint_record(rows: DedupSnapshot, storage: RaftStorage) -> tuple[bytes, bytes]:
    """Record of a checkpoint: results of the last proposals, and the configuration."""
    configuration = _message(HardState(), storage.conf_state, storage.conf_index)
    record = state_pb2.GroupStateRecord(rows=rows.encoded(), configuration=configuration)
    return _CHECKPOINT_KEY, record.SerializeToString()


def split_checkpoint(
    records: Iterable[tuple[bytes, bytes]],
) -> tuple[state_pb2.GroupStateRecord, list[tuple[bytes, bytes]]]:
    """The record of the raft group in a checkpoint, and those of the state machine.

    The former is empty in a checkpoint of the first release.
    """
    group_state, others = state_pb2.GroupStateRecord(), []
    for key, value in records:
        if key == _CHECKPOINT_KEY:
            group_state = parsed(state_pb2.GroupStateRecord, value)
        else:
            others.append((key, value))
    return group_state, others
