"""pixy/cluster/state/exported_state.py: what leaves with a backup, and what becomes of it."""

from collections.abc import Iterable

import pytest

from pixy.cluster.log import StateMachine, restore_state
from pixy.cluster.state import (
    FEATURE_LEVEL,
    MOVES_LEVEL,
    ExportedRecord,
    FoundedCluster,
    GroupsState,
    MetadataState,
    SinksState,
    StateToFound,
    export_records,
    found_cluster,
)
from pixy.proto.state_pb2 import (
    BeginMoves,
    CommitOffsets,
    CommittedOffset,
    CreateTopic,
    GroupMember,
    GroupsCommand,
    InitCluster,
    JoinGroup,
    MemberId,
    MetadataCommand,
    MoveReason,
    NodeRecord,
    OpenStage,
    PartitionMove,
    PublishStages,
    SinksCommand,
    StartNode,
)

SECRET = b"a node's secret."
TOPIC, OTHER = b"t" * 16, b"o" * 16
ENDS = {(TOPIC, 0): 10, (TOPIC, 1): 0}


def metadata() -> MetadataState:
    state = MetadataState()
    first = NodeRecord(node_id=1, secret=SECRET, feature_level=MOVES_LEVEL, incarnation=1)
    commands = [MetadataCommand(init_cluster=InitCluster(groups_count=2, first_node=first))]
    for secret in (b"2" * 16, b"3" * 16):
        start = StartNode(secret=secret, incarnation=1, feature_level=MOVES_LEVEL)
        register = MetadataCommand()
        register.register_node.secret, register.register_node.feature_level = secret, MOVES_LEVEL
        commands.append(register)
        start.node_id = len(commands)
        commands.append(MetadataCommand(start_node=start))
    for name, topic_id in (("topic", TOPIC), ("other", OTHER)):
        create = CreateTopic(name=name, topic_id=topic_id, partitions=2, config={"replication": "2"})
        commands.append(MetadataCommand(create_topic=create))
    for command in commands:
        state.apply(command.SerializeToString())
    topic = state.topics["topic"]
    move = PartitionMove(
        topic="topic", topic_id=TOPIC, partition=0, raft_group=topic.raft_groups[0], target=[2, 3]
    )
    begin = BeginMoves(reason=MoveReason.MOVE_REASON_MOVE, moves=[move])
    state.apply(MetadataCommand(begin_moves=begin).SerializeToString())
    return state


def groups() -> GroupsState:
    state = GroupsState()
    offsets = [
        CommittedOffset(topic=name, topic_id=topic_id, partition=number, offset=offset, handed_out=offset)
        for name, topic_id, number, offset in (
            ("topic", TOPIC, 0, 7),
            ("topic", TOPIC, 1, 3),
            ("other", OTHER, 0, 5),
        )
    ]
    commit = CommitOffsets(group="group", offsets=offsets, timestamp_ms=1)
    member = GroupMember(id=MemberId(node_id=1, incarnation=1, number=1), topics=["topic"])
    for command in (
        GroupsCommand(commit_offsets=commit),
        GroupsCommand(join_group=JoinGroup(group="group", member=member, timestamp_ms=1)),
    ):
        state.apply(command.SerializeToString())
    return state


def sinks() -> SinksState:
    state = SinksState()
    for command in (
        SinksCommand(publish_stages=PublishStages(sink_id="sink", epoch=4, query_id="q", timestamp_ms=1)),
        SinksCommand(open_stage=OpenStage(sink_id="sink", stage_id="stage", timestamp_ms=2)),
    ):
        state.apply(command.SerializeToString())
    assert state.publications
    assert state.table.stages
    return state


def exported() -> list[ExportedRecord]:
    machines: dict[str, StateMachine] = {
        "metadata": metadata(),
        "groups-0": groups(),
        "groups-1": GroupsState(),
        "sinks": sinks(),
    }
    return list(export_records({name: machine.snapshot() for name, machine in machines.items()}))


def founded(**changes: object) -> FoundedCluster:
    options = {"secret": b"the new secret..", "version": "1.0", "now_ms": 5000, "ends": ENDS}
    return FoundedCluster(**(options | changes))  # type: ignore[arg-type]


def restored(records: Iterable[ExportedRecord], cluster: FoundedCluster) -> dict[str, StateMachine]:
    """The state machines of a new cluster, restored as a start does."""
    found = found_cluster(StateToFound(records), cluster)
    machines: dict[str, StateMachine] = {}
    for name, contents in found.items():
        kinds: dict[str, type[StateMachine]] = {"metadata": MetadataState, "sinks": SinksState}
        machine = kinds.get(name, GroupsState)()
        state = restore_state(name, machine, contents)
        assert not state.rows, "they would answer proposals of the new nodes"
        machines[name] = machine
    return machines


def test_secrets_members_publications_and_stages_stay() -> None:
    records = exported()
    assert not any(SECRET in record.value for record in records)
    kinds = {(record.state_group, record.key.partition(b"/")[0].partition(b"\0")[0]) for record in records}
    assert kinds == {
        ("metadata", b"cluster"),
        ("metadata", b"topic"),
        ("groups-0", b"group"),
        ("groups-0", b"offset"),
        ("sinks", b"sinks"),
        ("sinks", b"sink"),
    }
    again = GroupsState()
    again.restore([(each.key, each.value) for each in records if each.state_group == "groups-0"])
    assert not again.has_members("group")


def test_a_new_cluster_has_one_node_and_the_same_topics() -> None:
    before, after = metadata(), restored(exported(), founded())["metadata"]
    assert isinstance(after, MetadataState)
    assert list(after.topics) == ["topic"]
    topic = after.topics["topic"]
    assert (topic.topic_id, topic.config) == (TOPIC, {"replication": "2"})
    assert topic.raft_groups == before.topics["topic"].raft_groups
    assert (topic.replicas, topic.moves, topic.placements) == (((1,), (1,)), {}, {})
    assert (after.next_raft_group, after.groups_count) == (before.next_raft_group, 2)
    assert (after.registered, after.next_node_id, after.feature_level) == ([1], 2, FEATURE_LEVEL)
    assert after.nodes[1].secret == b"the new secret.."


def test_offsets_of_what_is_restored_are_kept_up_to_the_ends() -> None:
    after = restored(exported(), founded())["groups-0"]
    assert isinstance(after, GroupsState)
    committed = after.committed("group", TOPIC)
    assert {number: each.offset for number, each in committed.items()} == {0: 7, 1: 0}
    assert after.handed_out("group", TOPIC) == {0: 7, 1: 0}
    assert after.topic_ids() == {TOPIC}
    assert not after.is_inactive_since("group", 5000), "it would expire at once"


def test_sinks_go_on_behind_their_last_epochs_unless_records_are_cut() -> None:
    after = restored(exported(), founded())["sinks"]
    assert isinstance(after, SinksState)
    assert after.sinks["sink"].last_epoch == 4
    assert not after.is_inactive_since("sink", 5000)
    assert not after.publications
    assert not after.table.stages
    assert after.next_publication == sinks().next_publication
    assert after.table.next_stage == sinks().table.next_stage
    cut = restored(exported(), founded(keeps_sinks=False))["sinks"]
    assert isinstance(cut, SinksState)
    assert (cut.sinks, cut.next_publication) == ({}, after.next_publication)


@pytest.mark.parametrize(
    "record",
    [
        ExportedRecord("groups-2", b"group\0x", b""),
        ExportedRecord("metadata", b"node/1", b""),
        ExportedRecord("none", b"x", b""),
    ],
)
def test_state_that_no_cluster_exports_is_refused(record: ExportedRecord) -> None:
    with pytest.raises(ValueError, match="state group"):
        found_cluster(StateToFound([*exported(), record]), founded())


def test_state_without_a_cluster_is_refused() -> None:
    with pytest.raises(ValueError, match="0 state groups"):
        found_cluster(StateToFound([]), founded())
