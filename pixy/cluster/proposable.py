"""Entries that a node may propose to a raft group that another node leads. Pure.

A leader appends nothing that it would apply without effect, or that harms who reads it: what other
nodes forward is checked as what clients send (`records.check_forwarded_batches`), also on another
thread (`forwarded_proposals`). The proposals of the leader itself come from code that has checked
them.

    raft group   may be proposed
    -----------  -----------------------------------------------------------------------------------
    state group  a command that the leader knows, of metadata as below; an empty entry, which a node
                 may have proposed for its checkpoint when it led
    partition    record batches that a client may append; a piece of a stage; a command that the
                 leader knows, except a publication of a stage that is in a directory of one node:
                 that node has the only replica, and leads

Of metadata, what harms others is for one node alone. The rest is what clients ask of any node:

    command                                  of another node than the leader
    ---------------------------------------  -------------------------------------------------------
    StartNode                                of the sender itself
    RegisterNode                             as a request to join that was checked (`joining`): the
                                             node that was asked forwards it. It has not started
    InitCluster                              never: the node that makes a cluster leads it
    CreateTopic, AlterTopic, DeleteTopic,    any: clients ask any node
    RemoveNode, ForgetNode
"""

from pixy.cluster.commands import decoded, partition_command
from pixy.cluster.joining import check_join
from pixy.cluster.metadata import FIRST_PARTITION_GROUP, METADATA_GROUP
from pixy.cluster.sinks import SINKS_GROUP
from pixy.errors import FailedPrecondition, PixyError, VoidEntry
from pixy.proto.state_pb2 import GroupsCommand, MetadataCommand, PartitionCommand, SinksCommand
from pixy.records import (
    CheckEffort,
    check_forwarded_batches,
    split_batches,
)
from pixy.storage import EntryType, why_undecodable

__all__ = ["why_not_batches", "why_not_proposable"]


def why_not_proposable(raft_group: int, kind: int, payload: bytes | bytearray, sender: int) -> str:
    """Reason why a proposal of node `sender` is refused, empty if it may be appended.

    Raises:
        LongCheckError: the check of record batches takes more than half a millisecond; see
            `why_not_batches`.
    """
    if kind == EntryType.COMMAND:
        return _why_not_command(raft_group, bytes(payload), sender)
    if raft_group < FIRST_PARTITION_GROUP:
        if kind == EntryType.EMPTY and not payload:
            return ""
        return f"an entry of kind {kind} for state group {raft_group}"
    if kind in (EntryType.RECORD_BATCH, EntryType.RECORD_BATCHES):
        return why_not_batches(kind, payload, CheckEffort())
    if kind == EntryType.STAGED_PIECE:
        return why_undecodable(kind, payload)
    return f"an entry of kind {kind}"


def why_not_batches(kind: int, payload: bytes | bytearray, effort: CheckEffort | None = None) -> str:
    """As `why_not_proposable`, for record batches.

    Args:
        effort: of the check.

    Raises:
        LongCheckError: it takes more than `effort`.
    """
    try:
        batches = split_batches(memoryview(payload))
        if kind == EntryType.RECORD_BATCH and len(batches) > 1:
            return f"{len(batches)} batches for one"
        for batch in batches:
            check_forwarded_batches(batch, effort)
    except PixyError as error:
        return str(error)
    return ""


def _why_not_command(raft_group: int, payload: bytes, sender: int) -> str:
    command: MetadataCommand | SinksCommand | GroupsCommand | PartitionCommand | VoidEntry
    if raft_group >= FIRST_PARTITION_GROUP:
        command = partition_command(payload)
    elif raft_group == METADATA_GROUP:
        command = decoded(MetadataCommand, payload)
    elif raft_group == SINKS_GROUP:
        command = decoded(SinksCommand, payload)
    else:
        command = decoded(GroupsCommand, payload)
    if isinstance(command, VoidEntry):
        return str(command)
    if command.WhichOneof("command") is None:
        return "a command that this release does not know"
    if isinstance(command, PartitionCommand) and not all(
        part.stage_number for part in command.publish_parts.parts
    ):
        return "a publication of a stage that is on another node"
    return _why_not_node(command, sender) if isinstance(command, MetadataCommand) else ""


def _why_not_node(command: MetadataCommand, sender: int) -> str:
    """Reason why a command of metadata is not for the sender to propose.

    A start too high for its node would have the others refuse that one as an older self.
    """
    match command.WhichOneof("command"):
        case "init_cluster":
            return "the first entry of a cluster"
        case "start_node" if command.start_node.node_id != sender:
            return f"a start of node {command.start_node.node_id}"
        case "register_node":
            new = command.register_node
            if new.incarnation or new.process:
                return f"a new node that has started {new.incarnation} times"
            try:
                check_join(new)
            except FailedPrecondition as error:
                return str(error)
    return ""
