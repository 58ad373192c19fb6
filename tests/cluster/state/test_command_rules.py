"""Rules for commands of other nodes: each has one, and it takes what correct nodes send."""

from typing import Any

import pytest
from google.protobuf.message import Message

from pixy.cluster.state.command_rules import RULES, empty_of, why_not_command
from pixy.proto import state_pb2 as pb

SENDER = 3
ID = bytes(16)
OFFSET: dict[str, Any] = {"topic": "t", "topic_id": ID, "partition": 1, "offset": 5, "metadata": "m"}
PART: dict[str, Any] = {"topic": "t", "topic_id": ID, "partition": 1, "bytes": 61, "records": 1}
PIECE = pb.PieceRecord(number=1, crc=1, parts=[pb.PiecePart(**PART, raft_group=1000)], client="127.0.0.1")
MEMBER = pb.MemberId(node_id=SENDER, incarnation=1, number=1)
OTHER = pb.MemberId(node_id=1, incarnation=1, number=1)
LONG = "x" * 256
MOVE: dict[str, Any] = {"topic": "t", "topic_id": ID, "partition": 1, "raft_group": 1000, "target": [1, 2]}
WRONG_TARGETS: list[dict[str, Any]] = [
    {"target": []},
    {"target": [1, 1]},
    {"target": [0]},
    {"target": [-1]},
    {"partition": -1},
    {"partition": 10_000},
    {"topic": ""},
    {"topic_id": b"short"},
]
WRONG_MOVES = [{"moves": [pb.PartitionMove(**MOVE | wrong)]} for wrong in WRONG_TARGETS]

CASES: list[tuple[type[Message], str, dict[str, Any], list[dict[str, Any]]]] = [
    (
        pb.MetadataCommand,
        "create_topic",
        {
            "name": "t",
            "topic_id": ID,
            "partitions": 3,
            "config": {"segment_bytes": "1000", "replication": "3"},
        },
        [
            {"name": "a/b"},
            {"name": ""},
            {"topic_id": b"short"},
            {"partitions": 0},
            {"partitions": -1},
            {"partitions": 10_001},
            {"config": {"segment_bytes": "abc"}},
            {"config": {"segment.bytes": "1"}},
            {"config": {"retention_ms": "9" * 20}},
        ],
    ),
    (
        pb.MetadataCommand,
        "alter_topic",
        {"name": "t", "set_config": {"retention_ms": "-1"}, "unset_config": ["segment_ms"]},
        [
            {"name": ".."},
            {"partitions": -1},
            {"set_config": {"retention_ms": ""}},
            {"unset_config": ["no"]},
            {"topic_id": b"short"},
        ],
    ),
    (pb.MetadataCommand, "delete_topic", {"name": "t"}, [{"name": "a b"}, {"topic_id": b"short"}]),
    (
        pb.MetadataCommand,
        "start_node",
        {"node_id": SENDER, "address": "a:1", "version": "1", "feature_level": 3},
        [
            {"node_id": 1},
            {"address": "x" * 301},
            {"rack": "\x1b"},
            {"feature_level": 2**31},
            {"max_message_bytes": 2**31},
        ],
    ),
    (pb.MetadataCommand, "begin_moves", {"reason": 1, "moves": [pb.PartitionMove(**MOVE)]}, WRONG_MOVES),
    (
        pb.MetadataCommand,
        "end_moves",
        {"moves": [pb.PartitionMove(**MOVE, plan=1)]},
        [{"moves": [pb.PartitionMove(**MOVE)]}, *WRONG_MOVES],
    ),
    (
        pb.SinksCommand,
        "publish_stages",
        {"sink_id": "s", "epoch": 0, "stage_ids": ["a", "b"], "timestamp_ms": 1, "replicated": True},
        [
            {"sink_id": ""},
            {"sink_id": LONG},
            {"query_id": LONG},
            {"epoch": -1},
            {"stage_ids": ["a", "a"]},
            {"stage_ids": [""]},
            {"timestamp_ms": -1},
            {"timestamp_ms": 2**62},
            {"parts": [pb.PublicationPart(**PART)]},
            *[
                {"replicated": False, "parts": [pb.PublicationPart(**PART | wrong)]}
                for wrong in (
                    {"partition": -100},
                    {"records": -1},
                    {"records": 62},
                    {"bytes": 2**63},
                    {"topic_id": b""},
                    {"topic": ""},
                    {"predecessor": 1},
                )
            ],
            {"replicated": False, "parts": [pb.PublicationPart(**PART)] * 2},
        ],
    ),
    (
        pb.SinksCommand,
        "publish_stages",
        {"sink_id": "s", "query_id": "q", "stage_ids": ["a"], "parts": [pb.PublicationPart(**PART)]},
        [{"replicated": True}],
    ),
    (
        pb.SinksCommand,
        "open_stage",
        {"sink_id": "s", "stage_id": "a", "timestamp_ms": 1},
        [{"sink_id": ""}, {"stage_id": LONG}, {"timestamp_ms": 2**63 - 1}],
    ),
    (
        pb.SinksCommand,
        "add_piece",
        {"stage": 1, "piece": PIECE, "seal": pb.SealRecord(pieces=1), "timestamp_ms": 1},
        [
            {"stage": 0},
            {"stage": 2**64 - 1},
            {"seal": pb.SealRecord(pieces=2**32 - 1)},
            {"timestamp_ms": -1},
            {"piece": pb.PieceRecord(parts=[pb.PiecePart(**PART | {"records": 2**63 - 1})])},
            {"piece": pb.PieceRecord(parts=[pb.PiecePart(**PART | {"records": -1})])},
            {"piece": pb.PieceRecord(parts=[pb.PiecePart(**PART | {"partition": 10_000})])},
            {"piece": pb.PieceRecord(parts=[pb.PiecePart(**PART)] * 2)},
            {"piece": pb.PieceRecord(client=LONG)},
        ],
    ),
    (pb.SinksCommand, "discard_stages", {"sink_id": "s", "stage_ids": ["a"]}, [{"stage_ids": [LONG]}]),
    (pb.SinksCommand, "touch_sink", {"sink_id": "s", "timestamp_ms": 1}, [{"timestamp_ms": 2**60}]),
    (
        pb.GroupsCommand,
        "commit_offsets",
        {"group": "g", "offsets": [pb.CommittedOffset(**OFFSET)], "timestamp_ms": 1, "node_id": SENDER},
        [
            {"group": ""},
            {"group": LONG},
            {"node_id": 1},
            {"timestamp_ms": -1},
            *[
                {"offsets": [pb.CommittedOffset(**OFFSET | wrong)]}
                for wrong in (
                    {"offset": -1},
                    {"handed_out": -1},
                    {"partition": -1},
                    {"topic_id": b"x"},
                    {"metadata": "m" * 70_000},
                )
            ],
        ],
    ),
    (
        pb.GroupsCommand,
        "join_group",
        {"group": "g", "member": pb.GroupMember(id=MEMBER, client_id="c", topics=["t"]), "timestamp_ms": 1},
        [{"group": ""}, {"member": pb.GroupMember(id=OTHER)}, {"timestamp_ms": 2**60}],
    ),
    (pb.GroupsCommand, "leave_group", {"group": "g", "member": MEMBER}, [{"member": OTHER}]),
    (
        pb.GroupsCommand,
        "delete_offsets",
        {"group": "g", "topic": "t", "topic_id": b"i" * 16},
        [{"group": "x" * 256}, {"topic": "."}, {"topic_id": b"short"}],
    ),
    (pb.GroupsCommand, "release_partitions", {"group": "g", "member": MEMBER}, [{"member": OTHER}]),
    (
        pb.PartitionCommand,
        "set_log_begin_offset",
        {"offset": 5, "for_client": True},
        [{"offset": -1}],
    ),
    (
        pb.PartitionCommand,
        "publish_parts",
        {"publication": 1, "parts": [pb.PublishedPart(stage_number=1)]},
        [{"parts": [pb.PublishedPart(stage_id="a")]}],
    ),
]
WRONG = [
    (command, name, fine | wrong, number)
    for command, name, fine, wrongs in CASES
    for number, wrong in enumerate(wrongs)
]


def made(kind: type[Message], name: str, fields: dict[str, Any]) -> Message:
    command = kind()
    field = getattr(command, name)
    field.SetInParent()
    field.MergeFrom(type(field)(**fields))
    return command


@pytest.mark.parametrize("kind", [pb.MetadataCommand, pb.SinksCommand, pb.GroupsCommand, pb.PartitionCommand])
def test_there_is_a_rule_for_each_command(kind: type[Message]) -> None:
    assert RULES[kind].keys() == {field.name for field in kind.DESCRIPTOR.fields}


@pytest.mark.parametrize(("kind", "name", "fine"), [case[:3] for case in CASES])
def test_what_a_correct_node_sends_is_taken_as_it_is(
    kind: type[Message], name: str, fine: dict[str, Any]
) -> None:
    command = made(kind, name, fine)
    assert why_not_command(command, SENDER) == ""
    assert empty_of(command, SENDER) is None


@pytest.mark.parametrize(
    ("kind", "name", "fields"), [case[:3] for case in WRONG], ids=[f"{case[1]}-{case[3]}" for case in WRONG]
)
def test_what_no_correct_node_sends_is_refused(
    kind: type[Message], name: str, fields: dict[str, Any]
) -> None:
    assert why_not_command(made(kind, name, fields), SENDER)


@pytest.mark.parametrize(
    ("kind", "name", "fields"),
    [
        (pb.SinksCommand, "expire_sinks", {"sink_ids": ["s"], "before_ms": 1}),
        (pb.SinksCommand, "expire_stages", {"stages": [1], "before_ms": 1}),
        (pb.GroupsCommand, "touch_groups", {"groups": ["g"], "timestamp_ms": 1}),
        (pb.GroupsCommand, "expire_groups", {"groups": ["g"], "before_ms": 1}),
        (pb.GroupsCommand, "expel_process", {"node_id": 1, "incarnation": 1, "groups": ["g"]}),
        (pb.GroupsCommand, "set_targets", {"targets": [pb.GroupTarget(group="g")]}),
        (pb.PartitionCommand, "set_log_begin_offset", {"offset": 5}),
    ],
)
def test_what_a_leader_decides_alone_is_appended_without_content(
    kind: type[Message], name: str, fields: dict[str, Any]
) -> None:
    empty = empty_of(made(kind, name, fields), SENDER)
    assert empty is not None
    assert empty == made(kind, name, {})
    assert empty.WhichOneof("command") == name


def test_a_process_is_expelled_by_its_own_node() -> None:
    command = made(pb.GroupsCommand, "expel_process", {"node_id": SENDER, "groups": ["g"]})
    assert empty_of(command, SENDER) is None
