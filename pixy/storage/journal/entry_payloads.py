"""Payloads of entries: which of them can be decoded. Pure.

A committed entry that cannot be decoded is an entry without effect, on every node alike and at
every start: so nothing here depends on a state. Nobody proposes one
(`cluster/state/proposable`); a node of an earlier release may have, or one with a bug.

    entry             can be decoded if
    ----------------  ------------------------------------------------------------------------------
    record batch      its header is that of one whole batch; the checksum is not computed
    record batches    the same for each of them, and they end with the payload
    piece of a stage  it is a `StagedPiece`
    change of the     it is a change of known types, and each node id is one, or 0 for none
    configuration

Commands are decoded by the state machine that they are for (`cluster/state/commands`).
"""

from google.protobuf.message import DecodeError

from pixy.errors import CorruptData
from pixy.parsed_messages import parsed
from pixy.proto.state_pb2 import StagedPiece
from pixy.raft import Entry, MalformedMessage, RaftEntryType, decode_conf_change
from pixy.records import is_batch, split_batches
from pixy.storage.journal.journal_format import EntryType

_CONF_CHANGES = {
    EntryType.CONF_CHANGE: RaftEntryType.CONF_CHANGE,
    EntryType.CONF_CHANGE_V2: RaftEntryType.CONF_CHANGE_V2,
}


def why_undecodable(entry_type: int, payload: bytes | bytearray | memoryview) -> str:
    """Reason why an entry that is no command has no effect, empty if it can be decoded."""
    try:
        if entry_type == EntryType.RECORD_BATCH:
            return "" if is_batch(payload) else f"{len(payload)} bytes are no record batch"
        if entry_type == EntryType.RECORD_BATCHES:
            whole = all(map(is_batch, split_batches(memoryview(payload))))
            return "" if whole else f"{len(payload)} bytes are no record batches"
        if entry_type == EntryType.STAGED_PIECE:
            parsed(StagedPiece, bytes(payload))
        elif entry_type in _CONF_CHANGES:
            decode_conf_change(Entry(type=_CONF_CHANGES[EntryType(entry_type)], data=bytes(payload)))
    except (CorruptData, DecodeError, MalformedMessage) as error:
        return str(error) or type(error).__name__
    return ""
