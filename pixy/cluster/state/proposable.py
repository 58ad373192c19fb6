"""Entries that a node may propose to a raft group that another node leads. Pure.

A leader appends nothing that it would apply without effect, or that harms who reads it: what other
nodes forward is checked as what clients send (`records.check_forwarded_batches`), also on another
thread (`forwarded_proposals`). The proposals of the leader itself come from code that has checked
them.

    raft group   may be proposed
    -----------  -----------------------------------------------------------------------------------
    state group  a command as in `command_rules`; an empty entry, which a node may have proposed for
                 its checkpoint when it led
    partition    record batches that a client may append; a piece of a stage; a command as in
                 `command_rules`

What depends on what this node knows is judged before (`forwarded_commands`).
"""

from pixy.cluster.state.command_rules import why_not_command
from pixy.cluster.state.commands import decoded, partition_command
from pixy.cluster.state.metadata import METADATA_GROUP
from pixy.cluster.state.piece_checks import why_not_staged
from pixy.cluster.state.publications import SINKS_GROUP
from pixy.errors import PixyError, VoidEntry
from pixy.multiraft import FIRST_PARTITION_GROUP
from pixy.parsed_messages import parsed
from pixy.proto.state_pb2 import (
    GroupsCommand,
    MetadataCommand,
    PartitionCommand,
    SinksCommand,
    StagedPiece,
)
from pixy.records import (
    FORWARDED_LIMITS,
    NOT_SMALL,
    CheckEffort,
    check_forwarded_batches,
    headers_of_small,
    split_batches,
)
from pixy.storage import EntryType, why_undecodable

# Members of an enumeration are found slowly.
_COMMAND = EntryType.COMMAND
_RECORD_BATCH = EntryType.RECORD_BATCH
_HEADERS_MAX = FORWARDED_LIMITS.headers_max


def why_not_proposable(raft_group: int, kind: int, payload: bytes | bytearray, sender: int) -> str:
    """Reason why a proposal of node `sender` is refused, empty if it may be appended.

    Raises:
        LongCheckError: the check of record batches takes more than half a millisecond; see
            `why_not_batches`.
    """
    if (
        kind == _RECORD_BATCH
        and raft_group >= FIRST_PARTITION_GROUP
        and NOT_SMALL < headers_of_small(payload, producers=True) <= _HEADERS_MAX
    ):
        return ""  # nearly all
    if kind == _COMMAND:
        return _why_not_command(raft_group, bytes(payload), sender)
    if raft_group < FIRST_PARTITION_GROUP:
        is_empty = kind == EntryType.EMPTY and not payload
        return "" if is_empty else f"an entry of kind {kind} for state group {raft_group}"
    if kind in (EntryType.RECORD_BATCH, EntryType.RECORD_BATCHES):
        return why_not_batches(kind, payload, CheckEffort())
    if kind == EntryType.STAGED_PIECE:
        return why_undecodable(kind, payload) or why_not_staged(parsed(StagedPiece, bytes(payload)))
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
    return why_not_command(command, sender)
