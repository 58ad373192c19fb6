"""Encoding of snapshots and configuration changes: the only module of the core that uses the
generated messages of `pixy/proto/raft.proto`.

Field numbers and types are etcd's raftpb. A field is written if it differs from the value that its
absence implies; a reader treats absent fields as that value and skips unknown ones. Unknown
enumeration values raise `MalformedMessage`: a change that is not understood must not be acted upon.
The generated classes keep such a value, because `raft.proto` is proto3.

A driver encodes messages and entries in its own way.
"""

from collections.abc import Sequence

from google.protobuf.message import DecodeError

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
    RaftEntryType,
    Snapshot,
)

# --- snapshots ------------------------------------------------------------------------------------


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Encode a snapshot for storage or the network."""
    pb = raft_pb2.Snapshot()
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
    return pb.SerializeToString()


def decode_snapshot(encoded: bytes) -> Snapshot:
    """Raises MalformedMessage if these bytes are not a snapshot."""
    try:
        pb = raft_pb2.Snapshot.FromString(encoded)
    except DecodeError as error:
        raise MalformedMessage(f"{len(encoded)} bytes are not a Snapshot: {error}") from error
    state = pb.metadata.conf_state
    conf_state = ConfState(
        tuple(state.voters),
        tuple(state.learners),
        tuple(state.voters_outgoing),
        tuple(state.learners_next),
        state.auto_leave,
    )
    return Snapshot(pb.metadata.index, pb.metadata.term, conf_state, pb.data)


# --- configuration changes ------------------------------------------------------------------------


def encode_conf_change(change: ConfChange | ConfChangeV2) -> bytes:
    """Encode the data of an entry of type CONF_CHANGE or CONF_CHANGE_V2."""
    if isinstance(change, ConfChange):
        v1 = raft_pb2.ConfChange(type=change.type.value, node_id=change.node_id)  # type: ignore[arg-type]  # the stub wants the generated enum, any int is taken
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
