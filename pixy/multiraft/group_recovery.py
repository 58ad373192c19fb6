"""Raft groups at a start: made from what the journal has of them."""

from collections.abc import Sequence

from pixy.entry_ids import LogPosition
from pixy.errors import DataDirectoryError
from pixy.multiraft.group_states import conf_state_of, hard_state_of
from pixy.multiraft.impossible_states import (
    ADVICE,
    FoundState,
    is_blank,
    why_impossible,
    why_no_configuration,
)
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.raft_storage import RaftStorage
from pixy.parsed_messages import parsed
from pixy.proto import state_pb2
from pixy.raft import Entry, HardState, RaftEntryType
from pixy.storage import EntryType, JournalRecord, RecoveredGroup

_RAFT_TYPES = {
    EntryType.CONF_CHANGE: RaftEntryType.CONF_CHANGE,
    EntryType.CONF_CHANGE_V2: RaftEntryType.CONF_CHANGE_V2,
}


def entry_of(record: JournalRecord) -> Entry:
    """The entry of a journal record."""
    raft_type = _RAFT_TYPES.get(record.entry_type, RaftEntryType.NORMAL)
    kind = 0 if raft_type else int(record.entry_type)
    payload = record.payload if isinstance(record.payload, (bytes, bytearray)) else bytes(record.payload)
    return Entry(record.term, record.index, raft_type, payload, kind, record.proposal)


def found_state(found: RecoveredGroup) -> FoundState:
    """Terms, indexes and configuration of a group in the journal."""
    state = None if found.hard_state is None else parsed(state_pb2.HardState, found.hard_state)
    reset = None if found.reset is None else found.reset.position
    return FoundState(state, found.terms, found.end, reset, found.applied)


def continues(found: RecoveredGroup, applied: LogPosition) -> bool:
    """True if the journal has the log up to `applied`, or from behind it on."""
    return applied.index <= found.end and found.term(applied.index) in (0, applied.term)


def recovered_group(
    node_id: int,
    raft_group: int,
    found: RecoveredGroup,
    applied: LogPosition,
    tail: Sequence[Entry],
    configuration: state_pb2.HardState,
) -> RaftGroup:
    """A raft group with the log, hard state and configuration that a start has found.

    Args:
        node_id: this node.
        found: what the journal has.
        applied: last entry in the application's durable state.
        tail: the entries behind it.
        configuration: of the application's state; used if the journal has none, or an older one.

    Raises:
        DataDirectoryError: a term, an index or the configuration is impossible.
    """
    state_found = found_state(found)
    reason = why_impossible(state_found)
    if reason:
        raise DataDirectoryError(f"raft group {raft_group} cannot be used: {reason}; {ADVICE}")
    state = HardState()
    message = state_found.hard_state
    if message is not None:
        state = hard_state_of(message)
        if message.conf_index >= configuration.conf_index or not configuration.voters:
            configuration = message
    reason = "" if is_blank(state_found) else why_no_configuration(configuration)
    if reason:
        raise DataDirectoryError(f"raft group {raft_group} has a configuration that is none: {reason}")
    storage = RaftStorage(conf_state_of(configuration), configuration.conf_index)
    last = tail[-1] if tail else None
    last_index = applied.index if last is None else last.index
    storage.recover(_start(found, applied), found.terms, last_index, tail)
    # The first release wrote the hard state of a new group behind its first entries.
    term = max(state.term, applied.term if last is None else last.term)
    # A configuration is written once its entry is applied, with the commit index before it.
    known = (state.commit, found.commit, applied.index, configuration.conf_index)
    commit = min(max(known), last_index)
    storage.hard_state = HardState(term, state.vote if term == state.term else 0, commit)
    group = RaftGroup(raft_group, storage, node_id)
    group.applied_term, group.applied_index = applied
    group.hard_state_file = found.hard_state_file
    if found.reset is not None:
        group.reset, group.reset_file = found.reset.position, found.reset_file
    if found.applied is not None:
        group.durable_index = found.applied.index
        group.position, group.position_file = found.applied, found.applied_file
        group.begin = found.applied
    return group


def _start(found: RecoveredGroup, applied: LogPosition) -> LogPosition:
    """Position before the entries that followers can have. It is that of the first entry in the
    journal, whose term is known, if there are no holes from there to the applied one; else that of
    the applied one.
    """
    if found.first and found.first <= applied.index <= found.last:
        return LogPosition(found.terms[0][1], found.first)
    return applied
