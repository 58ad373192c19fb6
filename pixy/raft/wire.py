"""Encoding: the only module that uses the generated messages of `pixy/proto/raft.proto`.

Field numbers and types are etcd's raftpb. A field is written if it differs from the value that its
absence implies; a reader treats absent fields as that value and skips unknown ones. Unknown
enumeration values raise `MalformedMessage`: a message that is not understood must not be acted
upon. The generated classes keep such a value, because `raft.proto` is proto3. The kind of a payload
is a number of the application's, and any is passed on. raftpb has no fields for kind and identity
of a proposal, so an entry without them has etcd's bytes.

Configuration changes inside entries are encoded here as well.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeVar

from google.protobuf.message import DecodeError

from pixy.entry_ids import ProposalId
from pixy.proto import raft_pb2
from pixy.raft.errors import MalformedMessage
from pixy.raft.messages import (
    NODE_ID_MAX,
    ConfChange,
    ConfChangeSingle,
    ConfChangeTransition,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
    Entry,
    HardState,
    Message,
    MessageType,
    RaftEntryType,
    Snapshot,
)

__all__ = [
    "decode_conf_change",
    "decode_entry",
    "decode_hard_state",
    "decode_message",
    "decode_snapshot",
    "encode_conf_change",
    "encode_entry",
    "encode_hard_state",
    "encode_message",
    "encode_snapshot",
]

_Parsed = TypeVar("_Parsed", raft_pb2.Message, raft_pb2.Entry, raft_pb2.Snapshot, raft_pb2.HardState)

_MESSAGE_TYPES = {kind.value: kind for kind in MessageType}
_ENTRY_TYPES = {kind.value: kind for kind in RaftEntryType}


# --- entries --------------------------------------------------------------------------------------


def _put_entry(pb: raft_pb2.Entry, entry: Entry) -> None:
    if entry.type:
        pb.type = entry.type.value  # type: ignore[assignment]  # the stub wants the generated enum, any int is taken
    pb.term = entry.term
    pb.index = entry.index
    if entry.data:
        pb.data = bytes(entry.data)
    if entry.kind:
        pb.kind = entry.kind
    if entry.proposal is not None:
        pb.node_id, pb.incarnation, pb.sequence = entry.proposal


def _get_entry(pb: raft_pb2.Entry) -> Entry:
    kind = _ENTRY_TYPES.get(pb.type)
    if kind is None:
        raise MalformedMessage(
            f"entry {pb.term}/{pb.index} has unknown type {pb.type}, expected {_numbers(RaftEntryType)}"
        )
    proposal = ProposalId(pb.node_id, pb.incarnation, pb.sequence) if pb.node_id else None
    return Entry(pb.term, pb.index, kind, pb.data, pb.kind, proposal)


def encode_entry(entry: Entry) -> bytes:
    """Encode an entry for storage."""
    pb = raft_pb2.Entry()
    _put_entry(pb, entry)
    return pb.SerializeToString()


def decode_entry(encoded: bytes) -> Entry:
    """Raises MalformedMessage if these bytes are not an entry."""
    return _get_entry(_parse(raft_pb2.Entry(), encoded))


# --- snapshots and states -------------------------------------------------------------------------


def _put_snapshot(pb: raft_pb2.Snapshot, snapshot: Snapshot) -> None:
    if snapshot.data:
        pb.data = snapshot.data
    pb.metadata.index = snapshot.index
    pb.metadata.term = snapshot.term
    state = pb.metadata.conf_state
    state.voters.extend(snapshot.conf_state.voters)
    state.learners.extend(snapshot.conf_state.learners)
    state.voters_outgoing.extend(snapshot.conf_state.voters_outgoing)
    state.learners_next.extend(snapshot.conf_state.learners_next)
    state.auto_leave = snapshot.conf_state.auto_leave


def _get_snapshot(pb: raft_pb2.Snapshot) -> Snapshot:
    state = pb.metadata.conf_state
    conf_state = ConfState(
        tuple(state.voters),
        tuple(state.learners),
        tuple(state.voters_outgoing),
        tuple(state.learners_next),
        state.auto_leave,
    )
    return Snapshot(pb.metadata.index, pb.metadata.term, conf_state, pb.data)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Encode a snapshot for storage."""
    pb = raft_pb2.Snapshot()
    _put_snapshot(pb, snapshot)
    return pb.SerializeToString()


def decode_snapshot(encoded: bytes) -> Snapshot:
    """Raises MalformedMessage if these bytes are not a snapshot."""
    return _get_snapshot(_parse(raft_pb2.Snapshot(), encoded))


def encode_hard_state(state: HardState) -> bytes:
    """Encode a hard state for storage."""
    return raft_pb2.HardState(term=state.term, vote=state.vote, commit=state.commit).SerializeToString()


def decode_hard_state(encoded: bytes) -> HardState:
    """Raises MalformedMessage if these bytes are not a hard state."""
    pb = _parse(raft_pb2.HardState(), encoded)
    return HardState(pb.term, pb.vote, pb.commit)


# --- messages -------------------------------------------------------------------------------------


def _put_message(pb: raft_pb2.Message, message: Message) -> None:
    pb.type = message.type.value  # type: ignore[assignment]  # the stub wants the generated enum, any int is taken
    pb.to = message.to
    setattr(pb, "from", message.sender)
    for name in ("term", "log_term", "index", "commit", "reject", "reject_hint", "context"):
        value = getattr(message, name)
        if value:
            setattr(pb, name, value)
    for entry in message.entries:
        _put_entry(pb.entries.add(), entry)
    if message.snapshot is not None:
        _put_snapshot(pb.snapshot, message.snapshot)


def _get_message(pb: raft_pb2.Message) -> Message:
    kind = _MESSAGE_TYPES.get(pb.type)
    if kind is None:
        raise MalformedMessage(f"message of unknown type {pb.type}, expected {_numbers(MessageType)}")
    return Message(
        kind,
        pb.to,
        getattr(pb, "from"),
        pb.term,
        pb.log_term,
        pb.index,
        [_get_entry(entry) for entry in pb.entries],
        pb.commit,
        _get_snapshot(pb.snapshot) if pb.snapshot.metadata.index else None,
        pb.reject,
        pb.reject_hint,
        pb.context,
    )


def encode_message(message: Message) -> bytes:
    """Encode a message for the network."""
    pb = raft_pb2.Message()
    _put_message(pb, message)
    return pb.SerializeToString()


def decode_message(encoded: bytes) -> Message:
    """Decode a message from a peer.

    A snapshot of index 0 is treated as absent: older nodes send one with every message.

    Raises:
        MalformedMessage: these bytes are not a message, or not one of a correct node: its type is
            missing or unknown, or the entries of an APP do not follow `index`, or their terms
            decrease or exceed the message's (Raft §5.3).
    """
    pb = _parse(raft_pb2.Message(), encoded)
    if not pb.HasField("type"):
        raise MalformedMessage("message without a type")
    message = _get_message(pb)
    if message.type is MessageType.APP:
        _check_append(message)
    return message


def _check_append(message: Message) -> None:
    term, index = message.log_term, message.index
    for entry in message.entries:
        if entry.index != index + 1 or entry.term < term:
            raise MalformedMessage(
                f"leader term {message.term}: entries {term}/{index} and {entry.term}/{entry.index} not consistent"
            )
        term, index = entry.term, entry.index
    if term > message.term:
        raise MalformedMessage(f"leader term {message.term}: entry {term}/{index} has a newer term")


def _numbers(enum: type[IntEnum]) -> str:
    return f"{min(enum).value} to {max(enum).value}"


def _parse(pb: _Parsed, encoded: bytes) -> _Parsed:
    try:
        pb.ParseFromString(encoded)
    except DecodeError as error:
        raise MalformedMessage(f"{len(encoded)} bytes are not a {type(pb).__name__}: {error}") from error
    return pb


# --- configuration changes ------------------------------------------------------------------------


def encode_conf_change(change: ConfChange | ConfChangeV2) -> bytes:
    """Encode the data of an entry of type CONF_CHANGE or CONF_CHANGE_V2."""
    if isinstance(change, ConfChange):
        v1 = raft_pb2.ConfChange(type=change.type.value, node_id=change.node_id)  # type: ignore[arg-type]  # as above
        if change.context:
            v1.context = change.context
        if change.change_id:
            v1.id = change.change_id
        return v1.SerializeToString()
    v2 = raft_pb2.ConfChangeV2()
    if change.transition:
        v2.transition = change.transition.value  # type: ignore[assignment]  # as above
    for kind, node_id in change.changes:
        v2.changes.add(type=kind.value, node_id=node_id)
    if change.context:
        v2.context = change.context
    return v2.SerializeToString()


def decode_conf_change(entry: Entry) -> ConfChange | ConfChangeV2:
    """Decode the configuration change of an entry; an entry of type CONF_CHANGE_V2 without data
    leaves a joint configuration.

    Raises:
        MalformedMessage: the entry has none.
    """
    try:
        if entry.type is RaftEntryType.CONF_CHANGE:
            v1 = raft_pb2.ConfChange.FromString(bytes(entry.data))
            _check_node_ids((v1.node_id,))
            return ConfChange(ConfChangeType(v1.type), v1.node_id, v1.context, v1.id)
        if entry.type is RaftEntryType.CONF_CHANGE_V2:
            v2 = raft_pb2.ConfChangeV2.FromString(bytes(entry.data))
            _check_node_ids([one.node_id for one in v2.changes])
            changes = tuple([ConfChangeSingle(ConfChangeType(one.type), one.node_id) for one in v2.changes])
            return ConfChangeV2(changes, ConfChangeTransition(v2.transition), v2.context)
    except (DecodeError, ValueError) as error:  # ValueError: unknown enumeration value, or a node id
        raise MalformedMessage(
            f"entry {entry.term}/{entry.index} is not a configuration change: {error}"
        ) from error
    raise MalformedMessage(
        f"entry {entry.term}/{entry.index} of type {entry.type} is not a configuration change"
    )


def _check_node_ids(node_ids: Sequence[int]) -> None:
    if node_ids and max(node_ids) > NODE_ID_MAX:
        raise ValueError(f"node {max(node_ids)}, at most {NODE_ID_MAX} is possible")
