"""A survivor of three nodes goes on alone: node 1, whose journal was written with two others."""

import errno
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pixy.backend.embedded import EmbeddedBackend
from pixy.cluster.log.recovery import recover_node
from pixy.cluster.log.replica import StateReplica
from pixy.cluster.state import MOVES_LEVEL, GroupsState, SinksState, partition_move
from pixy.cluster.state.groups import FIRST_GROUPS_GROUP
from pixy.cluster.state.metadata import METADATA_GROUP
from pixy.cluster.state.publications import SINKS_GROUP
from pixy.cluster.unsafe_recovery.lost_majority import LostMajority, SurvivingGroup
from pixy.cluster.unsafe_recovery.sole_voter import configuration_after
from pixy.cluster.unsafe_recovery.stopped_node import stopped_node
from pixy.entry_ids import LogPosition
from pixy.errors import DataDirectoryError, FailedPrecondition
from pixy.multiraft.group_recovery import entry_of
from pixy.proto.state_pb2 import (
    BeginMoves,
    CommitOffsets,
    CommittedOffset,
    CreateTopic,
    EndMoves,
    GroupsCommand,
    MetadataCommand,
    NodeIdentity,
    PartitionCommand,
    PublishParts,
    RemoveNode,
)
from pixy.raft import ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState, decode_conf_change
from pixy.records import TopicPartition
from pixy.storage import CheckpointId, EntryType, write_identity
from pixy.storage.disk.identity import read_identity
from tests.cluster.nodes import Cluster
from tests.cluster.survivors import ALL, PARTITION, formed, formed_with_records, registration
from tests.conformance.staged import publish_values
from tests.fakes.disk import RecordingDisk
from tests.fakes.worker import InlineWorker

pytestmark = pytest.mark.slow

NEW_ID = b"the new cluster."


async def go_on_alone(directory: Path, disk: RecordingDisk | None = None) -> None:
    with stopped_node(disk or RecordingDisk(), directory) as node:
        await LostMajority(node).go_on_alone(InlineWorker, NEW_ID)


@asynccontextmanager
async def started(directory: Path) -> AsyncIterator[Cluster]:
    async with Cluster(directory).running() as cluster:
        await cluster.settle()
        yield cluster


def read(directory: Path) -> LostMajority:
    with stopped_node(RecordingDisk(), directory) as node:
        return LostMajority(node)


def report_of(directory: Path) -> dict[str, SurvivingGroup]:
    return {group.name: group for group in read(directory).report.groups}


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


# --- going on -------------------------------------------------------------------------------------


async def test_the_survivor_serves_what_it_has_and_takes_writes(tmp_path: Path) -> None:
    (await formed_with_records(tmp_path, b"a", b"b")).end()
    await go_on_alone(tmp_path)
    async with started(tmp_path) as cluster:
        assert cluster.values() == [b"a", b"b"]
        await cluster.append(b"c")
        await cluster.create_topic("new", 2)
        assert cluster.values() == [b"a", b"b", b"c"]
    async with started(tmp_path) as cluster:
        assert cluster.values() == [b"a", b"b", b"c"]
        assert sorted(cluster.node.metadata.topics) == ["new", "topic"]


async def test_the_others_have_left_and_the_incarnation_is_raised(tmp_path: Path) -> None:
    survivor = await formed_with_records(tmp_path)
    before = survivor.log.incarnation.number
    survivor.end()
    await go_on_alone(tmp_path)
    async with started(tmp_path) as cluster:
        metadata = cluster.node.metadata
        assert metadata.registered == [1]
        assert [metadata.nodes[node_id].removed for node_id in (2, 3)] == [True, True]
        assert metadata.topics["topic"].replicas == ((1,),)
        status = await cluster.node.status()
        assert status.nodes[0].incarnation == before + 2
        assert {group.voters for group in status.groups} == {(1,)}


async def test_numbers_that_lost_entries_may_have_given_out_are_left_out(tmp_path: Path) -> None:
    """The partition has publications of which `sinks` knows nothing here, and pieces may be."""
    survivor = await formed_with_records(tmp_path, b"a")
    command = PartitionCommand(publish_parts=PublishParts(publication=7, sink_id="lost"))
    survivor.log.driver.propose(
        survivor.groups[PARTITION], EntryType.COMMAND, command.SerializeToString(), lambda _: None
    )
    await survivor.settle()
    survivor.end()
    await go_on_alone(tmp_path)
    async with started(tmp_path) as cluster:
        replica = cluster.node.partition(TopicPartition("topic", 0))
        assert replica is not None
        assert replica.publication == 7
        backend = EmbeddedBackend(cluster.node)
        values = {TopicPartition("topic", 0): [b"b"]}
        assert (await publish_values(backend, 1, values)).published
        assert cluster.values() == [b"a", b"b"]
        assert replica.publication > 2**32
        assert cluster.node.state_groups.sinks.table.next_stage > 2**32


async def test_producer_ids_that_lost_nodes_may_have_given_are_not_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("node_commands", "state.metadata", "unsafe_recovery.lost_majority"):
        monkeypatch.setattr(f"pixy.cluster.{module}.PRODUCERS_LEVEL", 0)
    survivor = await formed_with_records(tmp_path, b"a")
    survivor.end()
    await go_on_alone(tmp_path)
    async with started(tmp_path) as cluster:
        assert await cluster.node.commands.allocate_producer_ids(1) == 2**31


async def test_consumer_groups_skip_no_record_that_gets_the_offset_of_a_lost_one(tmp_path: Path) -> None:
    survivor = await formed_with_records(tmp_path, b"a", b"b")
    offsets = {"ahead": (7, "", 7), "acks": (1, "BC", 5), "behind": (1, "BC", 2), "set": (1, "BC", 0)}
    for name, (offset, metadata, handed_out) in offsets.items():
        committed = CommittedOffset(
            topic="topic", topic_id=b"t" * 16, offset=offset, metadata=metadata, handed_out=handed_out
        )
        command = CommitOffsets(group=name, offsets=[committed], timestamp_ms=1)
        survivor.log.driver.propose(
            survivor.groups[FIRST_GROUPS_GROUP],
            EntryType.COMMAND,
            GroupsCommand(commit_offsets=command).SerializeToString(),
            lambda _: None,
        )
    await survivor.settle()
    survivor.end()
    assert read(tmp_path).report.cut_offsets == {each: ["topic-0"] for each in ("ahead", "acks", "set")}
    await go_on_alone(tmp_path)
    async with started(tmp_path) as cluster:
        state = cluster.node.state_groups.offsets_of("ahead")
        found = {
            name: (*state.committed(name, b"t" * 16)[0], state.handed_out(name, b"t" * 16)[0])
            for name in offsets
        }
        assert found == {"ahead": (2, "", 2), "acks": (1, "", 2), "behind": (1, "BC", 2), "set": (1, "", 0)}


async def moving(
    directory: Path, replicas: Sequence[int], target: Sequence[int], *, is_copied: bool = True
) -> None:
    """Node 1 of three that move replicas, while a partition moves.

    Args:
        is_copied: node 1 has the partition, with two records, and a vote.
    """
    survivor = await formed(directory, level=MOVES_LEVEL)
    await survivor.state_group(FIRST_GROUPS_GROUP, "groups-0", GroupsState())
    await survivor.state_group(SINKS_GROUP, "sinks", SinksState())
    topic = survivor.metadata.topics["topic"]
    if topic.replicas != (tuple(replicas),):
        before = partition_move(topic, 0, replicas)
        await survivor.command(MetadataCommand(begin_moves=BeginMoves(moves=[before])))
        ended = partition_move(survivor.metadata.topics["topic"], 0, replicas)
        await survivor.command(MetadataCommand(end_moves=EndMoves(moves=[ended])))
    moves = [partition_move(survivor.metadata.topics["topic"], 0, target)]
    await survivor.command(MetadataCommand(begin_moves=BeginMoves(moves=moves)))
    topic = survivor.metadata.topics["topic"]
    assert (topic.replicas[0], topic.moves[0].target) == (tuple(replicas), tuple(target))
    if is_copied:
        await survivor.partition()
        await survivor.append(b"a", b"b")
    survivor.end()


@pytest.mark.parametrize(
    ("replicas", "target"),
    [((2, 3), (1, 2)), ((2, 3), (2, 3, 1)), (ALL, (2, 3)), ((1, 2), (3,)), ((1,), ALL)],
)
async def test_a_partition_that_moves_to_or_from_the_survivor_goes_on_there(
    tmp_path: Path, replicas: Sequence[int], target: Sequence[int]
) -> None:
    await moving(tmp_path, replicas, target)
    assert read(tmp_path).report.lost_partitions == ()
    await go_on_alone(tmp_path)
    for count in (2, 3):
        async with started(tmp_path) as cluster:
            topic = cluster.node.metadata.topics["topic"]
            assert (topic.replicas, topic.moves) == (((1,),), {})
            assert len(cluster.values()) == count
            await cluster.append(b"more")


async def test_a_partition_that_has_not_come_to_the_survivor_is_lost(tmp_path: Path) -> None:
    await moving(tmp_path, (2, 3), (1, 2), is_copied=False)
    assert read(tmp_path).report.lost_partitions == ("topic-0",)
    await go_on_alone(tmp_path)
    async with started(tmp_path) as cluster:
        await cluster.create_topic("new")
        await cluster.append(b"a", topic="new")


async def test_entries_that_were_not_committed_are_kept(tmp_path: Path) -> None:
    survivor = await formed_with_records(tmp_path, b"a")
    survivor.answers = False
    await survivor.append(b"b")
    await survivor.command(
        MetadataCommand(create_topic=CreateTopic(name="late", topic_id=b"l" * 16, partitions=1))
    )
    survivor.end()
    found = report_of(tmp_path)
    assert (found["topic-0"].uncommitted, found["metadata"].uncommitted) == (1, 1)
    await go_on_alone(tmp_path)
    async with started(tmp_path) as cluster:
        assert cluster.values() == [b"a", b"b"]
        await cluster.append(b"c", topic="late")
        assert cluster.values("late") == [b"c"]


async def test_groups_that_were_never_used_get_a_leader_too(tmp_path: Path) -> None:
    (await formed(tmp_path)).end()
    await go_on_alone(tmp_path)
    async with started(tmp_path) as cluster:
        await cluster.append(b"a")
        await cluster.commit(1)
        assert cluster.values() == [b"a"]
        assert cluster.committed() == {0: 1}


async def test_a_change_of_the_configuration_in_the_log_does_not_bring_others_back(tmp_path: Path) -> None:
    survivor = await formed_with_records(tmp_path, b"a")
    group = survivor.groups[PARTITION]
    assert group.node is not None
    survivor.answers = False
    group.node.propose_conf_change(ConfChangeV2((ConfChangeSingle(ConfChangeType.ADD_NODE, 4),)))
    survivor.log.driver.drive(group)
    await survivor.settle()
    survivor.end()
    assert report_of(tmp_path)["topic-0"].uncommitted == 1
    await go_on_alone(tmp_path)
    async with started(tmp_path) as cluster:
        await cluster.append(b"b")
        assert cluster.values() == [b"a", b"b"]
        replica = cluster.node.partition(TopicPartition("topic", 0))
        assert replica is not None
        assert replica.group is not None
        assert replica.group.storage.conf_state.voters == (1,)


async def test_a_checkpoint_ahead_of_the_journal_is_where_the_log_begins(tmp_path: Path) -> None:
    """A crash after a leader's checkpoint was written, and before the journal knew of it."""
    survivor = await formed_with_records(tmp_path, b"a")
    metadata = survivor.groups[METADATA_GROUP].application
    assert isinstance(metadata, StateReplica)
    survivor.end()
    ahead = CheckpointId(metadata.group.applied_term, metadata.group.applied_index + 50)
    metadata.store.write(ahead, metadata.checkpoint_records(), 0)
    assert report_of(tmp_path)["metadata"].last == LogPosition(*ahead)
    await go_on_alone(tmp_path)
    async with started(tmp_path) as cluster:
        assert cluster.node.metadata.registered == [1]
        assert cluster.values() == [b"a"]


async def test_a_replica_that_replays_the_log_gets_the_same_configuration(tmp_path: Path) -> None:
    """A node that joins later may be sent the log from its begin."""
    survivor = await formed_with_records(tmp_path, b"a")
    group = survivor.groups[PARTITION]
    assert group.node is not None
    group.node.propose_conf_change(ConfChangeV2((ConfChangeSingle(ConfChangeType.ADD_LEARNER_NODE, 4),)))
    survivor.log.driver.drive(group)
    await survivor.settle()
    survivor.end()
    await go_on_alone(tmp_path)
    recovered = recover_node(RecordingDisk(), tmp_path, bytes)
    recovered.lock.close()
    for raft_group in (METADATA_GROUP, PARTITION):
        entries = [entry_of(record) for record in recovered.group(raft_group).entries_after(0)]
        changes = [decode_conf_change(entry) for entry in entries if entry.type]
        assert configuration_after(ConfState(ALL), changes) == ConfState((1,))


# --- the report -----------------------------------------------------------------------------------


async def test_the_report_says_what_there_is_and_what_may_be_missing(tmp_path: Path) -> None:
    (await formed_with_records(tmp_path, b"a", b"b")).end()
    lost = read(tmp_path)
    report = lost.report
    assert report.node_id == 1
    assert [(node.node_id, node.address) for node in report.lost_nodes] == [
        (2, "10.0.0.2:19094"),
        (3, "10.0.0.3:19094"),
    ]
    assert [group.name for group in report.groups] == ["metadata", "groups-0", "sinks", "topic-0"]
    assert report.lost_partitions == ()
    # An empty entry of the leader, and the batches.
    assert report.groups[3] == SurvivingGroup(PARTITION, "topic-0", ALL, LogPosition(1, 3), 2, True)


async def test_a_node_that_was_leaving_is_lost_too(tmp_path: Path) -> None:
    survivor = await formed_with_records(tmp_path)
    await survivor.command(MetadataCommand(remove_node=RemoveNode(node_id=3)))
    survivor.end()
    await go_on_alone(tmp_path)
    async with started(tmp_path) as cluster:
        nodes = cluster.node.metadata.nodes
        assert [nodes[node_id].lost for node_id in (2, 3)] == [True, True]


async def test_a_node_that_has_left_is_not_among_those_that_are_lost(tmp_path: Path) -> None:
    survivor = await formed_with_records(tmp_path)
    await survivor.command(registration(4))
    await survivor.command(MetadataCommand(remove_node=RemoveNode(node_id=4)))
    survivor.end()
    assert [each.node_id for each in read(tmp_path).report.lost_nodes] == [2, 3]


async def test_of_two_voters_each_has_everything(tmp_path: Path) -> None:
    survivor = await formed(tmp_path, (1, 2))
    survivor.end()
    assert not report_of(tmp_path)["metadata"].may_lack
    await go_on_alone(tmp_path)
    async with started(tmp_path) as cluster:
        assert cluster.node.metadata.registered == [1]


async def test_partitions_without_a_replica_here_are_lost(tmp_path: Path) -> None:
    survivor = await formed_with_records(tmp_path)
    config = {"replication": "1"}
    await survivor.command(
        MetadataCommand(
            create_topic=CreateTopic(name="single", topic_id=b"s" * 16, partitions=3, config=config)
        )
    )
    survivor.end()
    lost = read(tmp_path)
    assert len(lost.report.lost_partitions) == 2
    assert all(name.startswith("single-") for name in lost.report.lost_partitions)
    (own,) = (group for group in lost.report.groups if group.name.startswith("single-"))
    assert (own.voters, own.may_lack) == ((1,), False)


# --- refusals -------------------------------------------------------------------------------------


async def test_a_node_alone_needs_no_recovery(tmp_path: Path) -> None:
    async with Cluster(tmp_path).running() as cluster:
        await cluster.create_topic()
    with pytest.raises(FailedPrecondition, match="node 1 is the only node of its cluster"):
        read(tmp_path)


async def test_a_second_run_has_nothing_to_do(tmp_path: Path) -> None:
    (await formed_with_records(tmp_path)).end()
    await go_on_alone(tmp_path)
    with pytest.raises(FailedPrecondition, match="node 1 is the only node of its cluster"):
        read(tmp_path)


async def test_a_node_that_has_left_cannot_go_on(tmp_path: Path) -> None:
    survivor = await formed(tmp_path)
    await survivor.command(MetadataCommand(remove_node=RemoveNode(node_id=1)))
    survivor.end()
    with pytest.raises(FailedPrecondition, match="node 1 has left the cluster"):
        read(tmp_path)


async def test_a_running_node_is_left_alone(tmp_path: Path) -> None:
    async with Cluster(tmp_path).running():
        with pytest.raises(DataDirectoryError, match="in use by another process"):
            read(tmp_path)


async def test_any_other_directory_is_refused_and_stays_empty(tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryError, match="is not the data directory of a node"):
        read(tmp_path)
    assert contents(tmp_path) == {}


async def test_a_refusal_unlocks_the_directory(tmp_path: Path) -> None:
    async with Cluster(tmp_path).running():
        pass
    for _ in range(2):
        with pytest.raises(FailedPrecondition):
            read(tmp_path)


async def test_a_directory_of_which_nothing_was_written_changes_nothing(tmp_path: Path) -> None:
    """Reading, as before a question that is answered with no."""
    (await formed_with_records(tmp_path, b"a")).end()
    before = contents(tmp_path)
    report_of(tmp_path)
    assert contents(tmp_path) == before


async def test_a_disk_that_fails_leaves_the_cluster_as_it_was(tmp_path: Path) -> None:
    (await formed_with_records(tmp_path, b"a")).end()
    disk = RecordingDisk()
    with stopped_node(disk, tmp_path) as node:
        lost = LostMajority(node)
        disk.fail("write", ".journal", errno.EIO)
        with pytest.raises(DataDirectoryError, match="cannot be written"):
            await lost.go_on_alone(InlineWorker, NEW_ID)
    assert len(report_of(tmp_path)) == 4


# --- the new cluster ------------------------------------------------------------------------------


def identity_of(directory: Path) -> NodeIdentity:
    return read_identity(RecordingDisk(), directory / "identity")


async def test_the_cluster_has_another_id_and_files_keep_theirs(tmp_path: Path) -> None:
    (await formed_with_records(tmp_path, b"a")).end()
    before = identity_of(tmp_path)
    await go_on_alone(tmp_path)
    after = identity_of(tmp_path)
    assert (after.cluster_id, after.new_cluster_id) == (before.cluster_id, NEW_ID)
    assert (after.node_id, after.secret) == (before.node_id, before.secret)
    for _ in range(2):
        async with started(tmp_path) as cluster:
            assert (await cluster.node.status()).cluster_id == NEW_ID
            await cluster.append(b"b")
    assert identity_of(tmp_path) == after


@pytest.mark.parametrize("name", ["identity.part", ".journal"])
async def test_a_disk_that_fails_leaves_the_id_of_the_cluster(tmp_path: Path, name: str) -> None:
    (await formed_with_records(tmp_path, b"a")).end()
    before, disk = identity_of(tmp_path), RecordingDisk()
    with stopped_node(disk, tmp_path) as node:
        lost = LostMajority(node)
        disk.fail("write", name, errno.ENOSPC)
        with pytest.raises(DataDirectoryError, match="cannot be written"):
            await lost.go_on_alone(InlineWorker, NEW_ID)
    assert identity_of(tmp_path) == before


async def test_a_crash_between_the_two_writes_can_be_repeated(tmp_path: Path) -> None:
    (await formed_with_records(tmp_path, b"a")).end()
    with stopped_node(RecordingDisk(), tmp_path) as node:
        crashed = NodeIdentity()
        crashed.CopyFrom(node.recovered.identity)
        crashed.new_cluster_id = b"of the first run"
        write_identity(RecordingDisk(), tmp_path, crashed)
    assert len(report_of(tmp_path)) == 4
    await go_on_alone(tmp_path)
    assert identity_of(tmp_path).new_cluster_id == NEW_ID
    async with started(tmp_path) as cluster:
        assert cluster.values() == [b"a"]
