"""Rules for the commands that another node proposes: what a correct node's command looks like, and
who may propose it. Pure.

A node that a client asks checks the request before it makes a command of it. A leader checks what
other nodes send in the same way, since whatever is in the log is applied by all of them.

    metadata            of another node than the leader
    ------------------  ----------------------------------------------------------------------------
    InitCluster         never: the node that makes a cluster leads it
    CreateTopic         as clients may: name, 16 bytes of id, partitions, options
    AlterTopic          the same
    DeleteTopic         any
    RegisterNode        as a request to join that was checked (`joining`): the node that was asked
                        forwards it. It has not started
    StartNode           of the sender itself
    RemoveNode          of a node that the raft groups can do without (*)
    ForgetNode          of a node that cannot be reached (*)
    DrainNode           once all nodes know moves (*)
    BeginMoves          the same
    EndMoves            the same
    AllocateProducerIds  a block of as many as a node takes

    sinks
    ------------------  ----------------------------------------------------------------------------
    PublishStages       as clients may: names, an epoch, each stage once. Of replicated stages
                        without parts; of others, parts of partitions whose only replica the sender
                        has (*)
    FinishPublications  those of stages in directories of the sender (*)
    ExpireSinks         without effect: only the leader decides so
    OpenStage           as clients may
    AddPiece            as clients may: counts that can be, of partitions that there are (*)
    DiscardStages       as clients may
    ExpireStages        without effect
    TouchSink           as clients may

    groups-n
    ------------------  ----------------------------------------------------------------------------
    CommitOffsets       of members of the sender, or of none
    ForgetTopics        those that metadata does not have here (*)
    TouchGroups         without effect
    ExpireGroups        without effect
    DeleteOffsets       as clients may
    JoinGroup           of a member of the sender, as are the next two
    LeaveGroup
    ReleasePartitions
    ExpelProcess        of a process of the sender, else without effect
    SetTargets          without effect
    SetClassicGroup     without effect

    partitions
    ------------------  ----------------------------------------------------------------------------
    SetLogBeginOffset   for a client, else without effect
    PublishParts        of replicated stages, if `sinks` has the publication unfinished, with what
                        this node makes of it (*)
    AnsweredBatch       never: the batch is proposed, and the leader judges it
    ExpireProducers     without effect

(*) By what this node knows: `forwarded_commands`.

What a leader decides alone comes from another node only if that one led before: it lost the
leadership on the way. A command that is refused would keep its sender waiting, and what that one
proposes behind it. So it is appended with nothing in it, and its sender gets a result.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import Message

from pixy.cluster.state.join_request_checks import LEVEL_MAX, TEXT_MAX, check_join
from pixy.cluster.state.metadata import PARTITIONS_MAX, check_partitions
from pixy.cluster.state.piece_checks import why_impossible
from pixy.cluster.state.producer_commands import BLOCK_IDS
from pixy.cluster.state.topic_config import check_forwarded_config, check_option_names
from pixy.errors import FailedPrecondition, InvalidArgument, PixyError
from pixy.multiraft import MESSAGE_BYTES_MAX
from pixy.proto.state_pb2 import (
    AddPiece,
    AllocateProducerIds,
    AlterTopic,
    AnsweredBatch,
    BeginMoves,
    CommitOffsets,
    CommittedOffset,
    CreateTopic,
    CutOffsets,
    DeleteOffsets,
    DeleteTopic,
    DiscardStages,
    EndMoves,
    ExpelProcess,
    GroupsCommand,
    InitCluster,
    JoinGroup,
    LeaveGroup,
    MetadataCommand,
    OpenStage,
    PartitionCommand,
    PartitionMove,
    PiecePart,
    PublicationPart,
    PublishParts,
    PublishStages,
    RegisterNode,
    ReleasePartitions,
    SetLogBeginOffset,
    SinksCommand,
    SkipNumbers,
    StartNode,
    TouchSink,
)
from pixy.records import check_topic_name
from pixy.staging import PIECES_MAX

_ID_BYTES = 16
_NAME_MAX = 255
_METADATA_MAX = 64 << 10
_SET_MAX = 2000
"""Offsets that a client may set at a time."""
_MS_MAX = 2**53

Sender = int


class Rule(NamedTuple):
    """The rule for one command.

    Attributes:
        check: raises `PixyError` for a command that no correct node sends.
        is_of_leader: true of a command that only the leader decides: it is appended without
            content.
    """

    check: Callable[[Any, Sender], None]
    is_of_leader: Callable[[Any, Sender], bool] = lambda *_: False


def why_not_command(command: Message, sender: Sender) -> str:
    """Reason why a command of a node is refused, empty if it may be appended."""
    name = command.WhichOneof("command")
    rule = RULES[type(command)].get(name or "")
    if rule is None:
        return "a command that this release does not know"
    try:
        rule.check(getattr(command, name or ""), sender)
    except PixyError as error:
        return str(error)
    return ""


def empty_of(command: Message, sender: Sender) -> Message | None:
    """The same command without content, if another node than its sender decides alone."""
    name = command.WhichOneof("command")
    rule = RULES[type(command)].get(name or "")
    if name is None or rule is None or not rule.is_of_leader(getattr(command, name), sender):
        return None
    empty = type(command)()
    getattr(empty, name).SetInParent()
    return empty


# --- parts of commands ----------------------------------------------------------------------------


def _require(holds: object, reason: str) -> None:
    if not holds:
        raise InvalidArgument(reason)


def _names(names: Iterable[str]) -> None:
    for name in names:
        _require(0 < len(name) <= _NAME_MAX, f"{name[:60]!r} is no name of 1 to {_NAME_MAX} characters")


def _distinct(names: Iterable[str]) -> None:
    seen = list(names)
    _names(seen)
    _require(len(seen) == len({*seen}), "a name is there more than once")


def _time(timestamp_ms: int) -> None:
    _require(0 <= timestamp_ms <= _MS_MAX, f"the time {timestamp_ms} ms, 0 to {_MS_MAX} are allowed")


def _topic_id(topic_id: bytes, *, may_be_empty: bool = False) -> None:
    if may_be_empty and not topic_id:
        return
    _require(len(topic_id) == _ID_BYTES, f"a topic id of {len(topic_id)} bytes, {_ID_BYTES} are expected")


def _partitions(parts: Iterable[PublicationPart | PiecePart | CommittedOffset | PartitionMove]) -> None:
    for topic, topic_id in {(part.topic, part.topic_id) for part in parts}:
        check_topic_name(topic)
        _topic_id(topic_id)
    for part in parts:
        if not 0 <= part.partition < PARTITIONS_MAX:
            raise InvalidArgument(f"partition {part.partition} of topic {part.topic}")


# --- metadata -------------------------------------------------------------------------------------


def _anything(_: Any, __: Sender) -> None:
    """No rule."""


def _never(_: InitCluster | SkipNumbers | CutOffsets, __: Sender) -> None:
    raise FailedPrecondition(
        "an entry that only the first node of a cluster, or the last one, writes for itself"
    )


def _create_topic(command: CreateTopic, _: Sender) -> None:
    check_topic_name(command.name)
    check_partitions(command.partitions)
    _topic_id(command.topic_id)
    check_forwarded_config(command.config)


def _alter_topic(command: AlterTopic, _: Sender) -> None:
    check_topic_name(command.name)
    if command.partitions:
        check_partitions(command.partitions)
    check_forwarded_config(command.set_config)
    check_option_names(command.unset_config)
    _topic_id(command.topic_id, may_be_empty=True)


def _delete_topic(command: DeleteTopic, _: Sender) -> None:
    check_topic_name(command.name)
    _topic_id(command.topic_id, may_be_empty=True)


def _register_node(command: RegisterNode, _: Sender) -> None:
    if command.incarnation or command.process:
        raise FailedPrecondition(f"a new node that has started {command.incarnation} times")
    check_join(command)


def _start_node(command: StartNode, sender: Sender) -> None:
    """A start too high for its node would have the others refuse that one as an older self."""
    if command.node_id != sender:
        raise FailedPrecondition(f"a start of node {command.node_id}")
    for text in (command.address, command.grpc_address, command.rack, command.version):
        _require(len(text) <= TEXT_MAX and text.isprintable(), f"{text[:60]!r} in a start")
    _require(command.feature_level <= LEVEL_MAX, f"a start with feature level {command.feature_level}")
    size = command.max_message_bytes
    _require(size <= MESSAGE_BYTES_MAX, f"a start with messages of {size} bytes")


def _begin_moves(command: BeginMoves, _: Sender) -> None:
    _moves(command.moves)


def _end_moves(command: EndMoves, _: Sender) -> None:
    _moves(command.moves)
    _require(all(each.plan for each in command.moves), "the end of a move that has not begun")


def _allocate_producer_ids(command: AllocateProducerIds, _: Sender) -> None:
    _require(0 < command.count <= BLOCK_IDS, f"{command.count} producer ids, 1 to {BLOCK_IDS} are allowed")


def _moves(moves: Iterable[PartitionMove]) -> None:
    _partitions(moves)
    for each in moves:
        _require(
            0 < len(each.target) == len({*each.target}) and min(each.target) > 0,
            f"a move to nodes {list(each.target)[:10]}",
        )


# --- sinks ----------------------------------------------------------------------------------------


def _publish_stages(command: PublishStages, _: Sender) -> None:
    queries = (command.query_id, command.replaces_query_id)
    _names([command.sink_id, *filter(None, queries)])
    _distinct(command.stage_ids)
    _require(command.epoch >= 0, f"epoch {command.epoch}")
    _require(len(command.client) <= _NAME_MAX, f"an address of {len(command.client)} characters")
    _time(command.timestamp_ms)
    _require(not (command.replicated and command.parts), "parts of replicated stages")
    _publication_parts(command.parts)


def _publication_parts(parts: Iterable[PublicationPart]) -> None:
    _partitions(parts)
    seen = set()
    for part in parts:
        _require(
            0 <= part.records <= part.bytes < 2**62 and not part.predecessor,
            f"{part.records} records in {part.bytes} bytes behind publication {part.predecessor}",
        )
        key = (part.topic_id, part.partition)
        _require(key not in seen, f"partition {part.partition} of topic {part.topic} is there more than once")
        seen.add(key)


def _open_stage(command: OpenStage, _: Sender) -> None:
    _names([command.sink_id, command.stage_id])
    _time(command.timestamp_ms)


def _add_piece(command: AddPiece, _: Sender) -> None:
    _require(0 < command.stage < 2**62, f"stage {command.stage}")
    _time(command.timestamp_ms)
    _require(command.seal.pieces <= PIECES_MAX, f"a seal of {command.seal.pieces} pieces")
    piece = command.piece
    _require(len(piece.client) <= _NAME_MAX, f"an address of {len(piece.client)} characters")
    impossible = why_impossible(piece)
    _require(not impossible, impossible)
    _partitions(piece.parts)


def _discard_stages(command: DiscardStages, _: Sender) -> None:
    _names([command.sink_id, *command.stage_ids])


def _touch_sink(command: TouchSink, _: Sender) -> None:
    _names([command.sink_id])
    _time(command.timestamp_ms)


# --- groups-n -------------------------------------------------------------------------------------


def _commit_offsets(command: CommitOffsets, sender: Sender) -> None:
    _names([command.group])
    _time(command.timestamp_ms)
    count = len(command.offsets)
    _require(not command.set or count <= _SET_MAX, f"{count} offsets that a client sets")
    _require(command.node_id in (0, sender), f"a commit of members of node {command.node_id}")
    _partitions(command.offsets)
    for each in command.offsets:
        _require(
            not each.HasField("set_ms") or (command.set and -1 <= each.set_ms <= _MS_MAX),
            f"an offset that was set at {each.set_ms}",
        )
        if not (each.offset >= 0 <= each.handed_out and len(each.metadata) <= _METADATA_MAX):
            raise InvalidArgument(
                f"offset {each.offset}, handed out {each.handed_out}, {len(each.metadata)} characters of metadata"
            )


def _join_group(command: JoinGroup, sender: Sender) -> None:
    _of_own_member(command, sender, command.member.id.node_id)
    _time(command.timestamp_ms)
    _names(command.member.topics)
    _require(len(command.member.client_id) <= _METADATA_MAX, "a client id of so many characters")


def _leave_group(command: LeaveGroup | ReleasePartitions, sender: Sender) -> None:
    _of_own_member(command, sender, command.member.node_id)


def _of_own_member(command: JoinGroup | LeaveGroup | ReleasePartitions, sender: Sender, node_id: int) -> None:
    _names([command.group])
    _require(node_id == sender, f"a member of node {node_id}")


def _delete_offsets(command: DeleteOffsets, _: Sender) -> None:
    _names([command.group])
    if command.topic:
        check_topic_name(command.topic)
        _topic_id(command.topic_id)


def _is_of_another(command: ExpelProcess, sender: Sender) -> bool:
    return command.node_id != sender


# --- partitions -----------------------------------------------------------------------------------


def _publish_parts(command: PublishParts, _: Sender) -> None:
    """A stage in a directory is on the node with the only replica, which leads."""
    _require(
        all(part.stage_number for part in command.parts), "a publication of a stage that is on another node"
    )


def _set_log_begin_offset(command: SetLogBeginOffset, _: Sender) -> None:
    _require(not command.for_client or command.offset >= 0, f"a log that begins at {command.offset}")


def _answer_of_leader(_: AnsweredBatch, __: Sender) -> None:
    raise FailedPrecondition("an answer to a batch, which the leader gives")


def _is_retention(command: SetLogBeginOffset, _: Sender) -> bool:
    return not command.for_client


# --- the table ------------------------------------------------------------------------------------

_OF_LEADER = Rule(_anything, lambda *_: True)
_ANY = Rule(_anything)

RULES: Mapping[type[Message], Mapping[str, Rule]] = {
    MetadataCommand: {
        "init_cluster": Rule(_never),
        "create_topic": Rule(_create_topic),
        "alter_topic": Rule(_alter_topic),
        "delete_topic": Rule(_delete_topic),
        "register_node": Rule(_register_node),
        "start_node": Rule(_start_node),
        "remove_node": _ANY,
        "forget_node": _ANY,
        "drain_node": _ANY,
        "begin_moves": Rule(_begin_moves),
        "end_moves": Rule(_end_moves),
        "allocate_producer_ids": Rule(_allocate_producer_ids),
    },
    SinksCommand: {
        "publish_stages": Rule(_publish_stages),
        "finish_publications": _ANY,
        "expire_sinks": _OF_LEADER,
        "open_stage": Rule(_open_stage),
        "add_piece": Rule(_add_piece),
        "discard_stages": Rule(_discard_stages),
        "expire_stages": _OF_LEADER,
        "touch_sink": Rule(_touch_sink),
        "skip_numbers": Rule(_never),
    },
    GroupsCommand: {
        "commit_offsets": Rule(_commit_offsets),
        "forget_topics": _ANY,
        "touch_groups": _OF_LEADER,
        "expire_groups": _OF_LEADER,
        "join_group": Rule(_join_group),
        "leave_group": Rule(_leave_group),
        "expel_process": Rule(_anything, _is_of_another),
        "set_targets": _OF_LEADER,
        "release_partitions": Rule(_leave_group),
        "delete_offsets": Rule(_delete_offsets),
        "cut_offsets": Rule(_never),
        "set_classic_group": _OF_LEADER,
    },
    PartitionCommand: {
        "set_log_begin_offset": Rule(_set_log_begin_offset, _is_retention),
        "publish_parts": Rule(_publish_parts),
        "answered_batch": Rule(_answer_of_leader),
        "expire_producers": _OF_LEADER,
    },
}
"""The rule for each command by its field in the message of its raft group."""
