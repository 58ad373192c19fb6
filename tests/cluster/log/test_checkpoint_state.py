"""Checkpoints that no node writes: refused at a start, found by a check, given up as a download."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pixy.cluster.log.checkpoint_state import restore_state, restored_state
from pixy.cluster.log.replica import StateMachine, StateReplica
from pixy.cluster.state.groups import GroupsState
from pixy.cluster.state.metadata import MetadataState
from pixy.cluster.state.publications import SinksState
from pixy.errors import CorruptData
from pixy.inspect import ReadOnlyDisk, Verdict, check_node
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.raft_storage import RaftStorage
from pixy.proto.state_pb2 import (
    ClusterRecord,
    GroupMember,
    GroupMembers,
    GroupRecord,
    GroupStateRecord,
    HardState,
    NodeRecord,
    PieceRecord,
    PublicationRecord,
    ReplicaSet,
    ReplicatedStageRecord,
    SinksRecord,
    TopicOwners,
    TopicRecord,
)
from pixy.raft import ConfState
from pixy.storage import CheckpointId, CheckpointStore, RealDisk
from tests.cluster.nodes import Cluster

Records = list[tuple[bytes, bytes]]


def cluster(**fields: int) -> tuple[bytes, bytes]:
    record = ClusterRecord(**{"groups_count": 1, "next_raft_group": 1002, "next_node_id": 3, **fields})
    return b"cluster", record.SerializeToString()


def topic(name: str = "t", groups: tuple[int, ...] = (1000,), **fields: object) -> tuple[bytes, bytes]:
    record = TopicRecord(name=name, topic_id=b"i" * 16, raft_groups=groups, **fields)  # type: ignore[arg-type]  # any field
    return b"topic/" + name.encode(), record.SerializeToString()


def replicas(*node_ids: int) -> Records:
    return [cluster(), topic(replica_sets=[ReplicaSet(node_ids=node_ids)], replica_set=[0])]


def group(**membership: object) -> Records:
    members = GroupMembers(members=[GroupMember()], **membership)  # type: ignore[arg-type]  # any field
    return [(b"group\0g", GroupRecord(group="g", membership=members).SerializeToString())]


def owners(
    *numbers: int, targets: tuple[int, ...] = (1,), epochs: tuple[int, ...] = (1,)
) -> list[TopicOwners]:
    return [TopicOwners(topic_id=b"i", owners=numbers, targets=targets, epochs=epochs)]


NONE = b"\xff\xff\xff"
METADATA: dict[str, Records] = {
    "a cluster that is none": [(b"cluster", NONE)],
    "a node that is none": [cluster(), (b"node/1", NONE)],
    "a topic that is none": [cluster(), (b"topic/t", NONE)],
    "a raft group that is none": [(b"\0raft", NONE)],
    "no voters": [(b"\0raft", GroupStateRecord(configuration=HardState(voters=[1, 1])).SerializeToString())],
    "state groups without number": [cluster(groups_count=2**31 - 1)],
    "state groups below none": [cluster(groups_count=-1)],
    "a next raft group that has no next": [cluster(next_raft_group=2**64 - 1)],
    "a next raft group of state groups": [cluster(next_raft_group=5)],
    "a next node that has no next": [cluster(next_node_id=2**31 - 1)],
    "a node below 1": [cluster(), (b"node/x", NodeRecord(node_id=-4).SerializeToString())],
    "a topic above its directory": [cluster(), topic("../../t")],
    "a raft group that was never given out": [cluster(), topic(groups=(1002,))],
    "a raft group of another state": [cluster(), topic(groups=(1,))],
    "a raft group twice in a topic": [cluster(), topic(groups=(1000, 1000))],
    "a raft group in two topics": [cluster(), topic("a"), topic("b")],
    "a version that has no next": [cluster(), topic(changes=2**31 - 1)],
    "a set of replicas that is not there": [
        cluster(),
        topic(replica_sets=[ReplicaSet(node_ids=[1])], replica_set=[7]),
    ],
    "replicas of fewer partitions": [cluster(), topic(replica_sets=[ReplicaSet(node_ids=[1])])],
    "no replica": replicas(),
    "a replica twice": replicas(1, 1),
    "a replica on no node": replicas(0),
    "a replica on a node that never was": replicas(1, 9),
}
GROUPS: dict[str, Records] = {
    "a group that is none": [(b"group\0g", NONE)],
    "offsets that are none": [(b"offset\0g", NONE)],
    "a generation that has no next": group(generation=2**64 - 1),
    "an epoch that has no next": group(epoch=2**64 - 1),
    "an owner that is no member": group(topics=owners(7)),
    "owners without targets": group(topics=owners(1, targets=())),
    "owners without epochs": group(topics=owners(1, epochs=())),
}
SINKS: dict[str, Records] = {
    "a sink that is none": [(b"sink\0s", NONE)],
    "a stage that is none": [(b"stage\0" + b"1", NONE)],
    "sinks that are none": [(b"sinks", NONE)],
    "a publication that has no next": [
        (b"sinks", SinksRecord(next_publication=2**64 - 1).SerializeToString())
    ],
    "a stage that has no next": [
        (b"sinks", SinksRecord(next_publication=1, next_stage=2**64 - 1).SerializeToString())
    ],
    "a publication that was never given out": [
        (b"sinks", SinksRecord(next_publication=1).SerializeToString()),
        (b"publication\0" + b"5", PublicationRecord(publication=5).SerializeToString()),
    ],
    "a stage that was never given out": [
        (b"sinks", SinksRecord(next_publication=1, next_stage=2).SerializeToString()),
        (b"stage\0" + b"5", ReplicatedStageRecord(number=5, sink_id="s", stage_id="t").SerializeToString()),
    ],
    "a piece of no stage": [(b"piece\0" + b"9\0" + b"1", PieceRecord(number=1).SerializeToString())],
    "a piece of what is no number": [(b"piece\0x\0" + b"1", PieceRecord(number=1).SerializeToString())],
}
MACHINES: dict[str, tuple[Callable[[], StateMachine], dict[str, Records]]] = {
    "metadata": (MetadataState, METADATA),
    "groups-0": (GroupsState, GROUPS),
    "sinks": (SinksState, SINKS),
}
CASES = [(name, what) for name, (_, cases) in MACHINES.items() for what in cases]
IMPOSSIBLE = r"the checkpoint of \S+ has (records that no node writes|a configuration that is none): "


@pytest.mark.parametrize(("name", "what"), CASES)
def test_records_that_no_node_writes_are_refused(name: str, what: str) -> None:
    make, cases = MACHINES[name]
    with pytest.raises(CorruptData, match=IMPOSSIBLE):
        restore_state(name, make(), cases[what])


@pytest.mark.parametrize("name", MACHINES)
def test_what_a_machine_writes_is_restored(name: str) -> None:
    machine = MACHINES[name][0]()
    restore_state(name, machine, list(MACHINES[name][0]().snapshot()))


def test_a_restored_state_is_one_of_its_own_and_replaces_that_of_a_replica(tmp_path: Path) -> None:
    machine = MetadataState()
    replica = StateReplica(
        RaftGroup(0, RaftStorage(ConfState((1,))), 1),
        "metadata",
        machine,
        CheckpointStore(RealDisk(), tmp_path),
    )
    replica.take_over(restored_state("metadata", MetadataState, [cluster(), topic()]))
    with pytest.raises(CorruptData):
        restored_state("metadata", MetadataState, [cluster(), topic("a"), topic("b")])
    other = restored_state("metadata", MetadataState, [cluster(), topic("other")])
    assert list(machine.topics) == ["t"]
    replica.take_over(other)
    assert list(machine.topics) == ["other"]
    assert isinstance(other.machine, MetadataState)
    assert list(other.machine.topics) == ["t"]
    assert replica.machine is machine


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("metadata", "a topic above its directory"),
        ("metadata", "a topic that is none"),
        ("metadata", "no voters"),
        ("groups-0", "an owner that is no member"),
        ("sinks", "a publication that has no next"),
    ],
)
async def test_a_start_is_refused_and_a_check_finds_them(tmp_path: Path, name: str, what: str) -> None:
    directory = tmp_path / "node"
    async with Cluster(directory).running() as running:
        await running.create_topic()
        await running.commit(1)
    store = CheckpointStore(RealDisk(), directory / "state" / name)
    store.write(CheckpointId(1, 1), MACHINES[name][1][what], 1)
    with pytest.raises(CorruptData, match=IMPOSSIBLE):
        await Cluster(directory).node.start()
    report = check_node(ReadOnlyDisk(), directory)
    found = [each.found for each in report.findings if each.verdict is Verdict.DAMAGED]
    assert any(
        f"the checkpoint of {name} has" in each and "the next start is refused" in each for each in found
    )
