"""Entries that cannot be decoded: nobody appends them for another node, and one that is in the log
has no effect, on all nodes alike, and at every start.
"""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from google.protobuf.message import Message as ProtoMessage

from pixy.backend import TopicPartition
from pixy.cluster import Node
from pixy.cluster.state.metadata import METADATA_GROUP
from pixy.cluster.state.piece_checks import PIECE_BYTES_MAX
from pixy.cluster.state.proposable import why_not_proposable
from pixy.cluster.state.publications import SINKS_GROUP
from pixy.entry_ids import ProposalId
from pixy.errors import VoidEntry
from pixy.inspect import ReadOnlyDisk, Verdict, check_directory
from pixy.multiraft.raft_group import RaftGroup
from pixy.proto.state_pb2 import (
    AddPiece,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    ExpireSinks,
    ForgetNode,
    ForgetTopics,
    GroupsCommand,
    InitCluster,
    MetadataCommand,
    OpenStage,
    PartitionCommand,
    PiecePart,
    PieceRecord,
    PublicationPart,
    PublishedPart,
    PublishParts,
    PublishStages,
    RegisterNode,
    RemoveNode,
    SealRecord,
    SetLogBeginOffset,
    SinksCommand,
    StagedPiece,
    StartNode,
)
from pixy.raft import Entry, Message, MessageType, RaftEntryType
from pixy.records import patch_batch
from pixy.staging import seal_crc
from pixy.storage import EntryType
from tests.cluster.drivers import GROUP, DriverNetwork, DriverNode, batch_of, forwarded_proposal, forwarded_to
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.cluster.nodes import Cluster, copy_of
from tests.cluster.poisoned import write_entries, write_position
from tests.conformance.staged import publish_values
from tests.fakes.waiting import until

GROUPS_0, PARTITION = 2, 1000
SENDER = 3
COMMAND, BATCH, BATCHES = EntryType.COMMAND, EntryType.RECORD_BATCH, EntryType.RECORD_BATCHES
NOISE = Random(1).randbytes(100)
GOOD = bytes(batch_of(b"good"))
LISTS = PublishParts(publication=1, parts=[PublishedPart(stage_number=1, pieces=[1], piece_bytes=[2, 3])])
COUNTS = PublishParts(
    publication=1,
    parts=[
        PublishedPart(
            stage_number=1, records=9, bytes=2, pieces=[1], piece_bytes=[2], piece_records=[1], piece_crcs=[3]
        )
    ],
)


def published(records: int, size: int, pieces: tuple[int, ...] = (1,)) -> PublishParts:
    """A publication of pieces with so many records and bytes."""
    lists = {
        "pieces": pieces,
        "piece_records": [records] * len(pieces),
        "piece_bytes": [size] * len(pieces),
        "piece_crcs": [3] * len(pieces),
    }
    part = PublishedPart(stage_number=1, **lists)  # type: ignore[arg-type]  # fields of it
    part.bytes = min(size * len(pieces), 2**64 - 1)
    part.records = min(records * len(pieces), 2**63 - 1)
    return PublishParts(publication=1, parts=[part])


JOINS: dict[str, Any] = {"secret": bytes(16), "address": "127.0.0.1:1", "version": "1", "feature_level": 3}


def damaged(at: int, value: int) -> bytes:
    """A batch with another byte in its header."""
    batch = bytearray(GOOD)
    batch[at] = value
    return bytes(batch)


WITHOUT_EFFECT = [
    (METADATA_GROUP, COMMAND, b"\xff\xff\xff"),
    (METADATA_GROUP, COMMAND, b""),
    (METADATA_GROUP, COMMAND, b"\x12\x03\x0a\x01\xff"),
    (GROUPS_0, COMMAND, b"\xff\xff\xff"),
    (SINKS_GROUP, COMMAND, b"\xff\xff\xff"),
    (PARTITION, COMMAND, b"\xff\xff\xff"),
    (PARTITION, COMMAND, b""),
    (PARTITION, COMMAND, PartitionCommand(publish_parts=LISTS).SerializeToString()),
    (PARTITION, COMMAND, PartitionCommand(publish_parts=COUNTS).SerializeToString()),
    *[
        (PARTITION, COMMAND, PartitionCommand(publish_parts=each).SerializeToString())
        for each in (
            PublishParts(publication=2**64 - 1),
            PublishParts(publication=2**62),
            PublishParts(publication=1, predecessor=2**63),
            published(2**64 - 1, 2**64 - 1),
            published(10, 100, pieces=(1, 1)),
            published(10, 100, pieces=(2, 1)),
            PublishParts(publication=1, parts=[*published(1, 61).parts, *published(1, 61).parts]),
        )
    ],
    (PARTITION, BATCH, NOISE),
    (PARTITION, BATCH, b""),
    (PARTITION, BATCH, GOOD[:60]),
    (PARTITION, BATCH, GOOD + b"x"),
    (PARTITION, BATCH, damaged(16, 1)),
    (PARTITION, BATCH, damaged(23, 0x80)),
    (PARTITION, BATCH, damaged(57, 0x80)),
    (PARTITION, BATCHES, NOISE),
    (PARTITION, BATCHES, b""),
    (PARTITION, BATCHES, GOOD + damaged(16, 1)),
    (PARTITION, EntryType.STAGED_PIECE, b"\xff"),
]
"""Raft group, kind and payload."""

REFUSED = [
    *WITHOUT_EFFECT,
    (METADATA_GROUP, BATCH, GOOD),
    (METADATA_GROUP, COMMAND, b"\xa2\x06\x01x"),
    (GROUPS_0, EntryType.STAGED_PIECE, StagedPiece(number=1).SerializeToString()),
    (PARTITION, EntryType.STAGED_PIECE, StagedPiece(number=1, length=2**60).SerializeToString()),
    (
        PARTITION,
        EntryType.STAGED_PIECE,
        StagedPiece(number=1, length=PIECE_BYTES_MAX + 1).SerializeToString(),
    ),
    (PARTITION, EntryType.STAGED_PIECE, StagedPiece(length=1, records=2).SerializeToString()),
    (PARTITION, EntryType.STAGED_PIECE, StagedPiece(length=1, records=-1).SerializeToString()),
    (PARTITION, COMMAND, b"\xa2\x06\x01x"),
    (
        PARTITION,
        COMMAND,
        PartitionCommand(
            publish_parts=PublishParts(publication=1, parts=[PublishedPart(stage_id="s", records=1)])
        ).SerializeToString(),
    ),
    (PARTITION, BATCH, GOOD + GOOD),
    (PARTITION, BATCH, damaged(60, 9)),
    (PARTITION, BATCH, damaged(len(GOOD) - 1, 9)),
    (PARTITION, EntryType.EMPTY, b""),
    (METADATA_GROUP, EntryType.EMPTY, b"x"),
    (PARTITION, EntryType.CONF_CHANGE_V2, b""),
    *[
        (METADATA_GROUP, COMMAND, MetadataCommand(start_node=StartNode(node_id=each)).SerializeToString())
        for each in (1, 2, 77)
    ],
    *[
        (
            METADATA_GROUP,
            COMMAND,
            MetadataCommand(register_node=RegisterNode(**JOINS | wrong)).SerializeToString(),
        )
        for wrong in (
            {"incarnation": 1},
            {"process": b"p"},
            {"secret": b"s"},
            {"address": ""},
            {"rack": "r" * 301},
            {"feature_level": 2**31},
        )
    ],
    (METADATA_GROUP, COMMAND, MetadataCommand(init_cluster=InitCluster(groups_count=1)).SerializeToString()),
]

TAKEN = [
    (METADATA_GROUP, EntryType.EMPTY, b""),
    (PARTITION, BATCH, GOOD),
    (PARTITION, BATCHES, GOOD + GOOD),
    (PARTITION, EntryType.STAGED_PIECE, StagedPiece(number=1).SerializeToString()),
    (
        PARTITION,
        COMMAND,
        PartitionCommand(set_log_begin_offset=SetLogBeginOffset(offset=1)).SerializeToString(),
    ),
    (METADATA_GROUP, COMMAND, MetadataCommand(delete_topic=DeleteTopic(name="t")).SerializeToString()),
    (METADATA_GROUP, COMMAND, MetadataCommand(start_node=StartNode(node_id=SENDER)).SerializeToString()),
    (METADATA_GROUP, COMMAND, MetadataCommand(register_node=RegisterNode(**JOINS)).SerializeToString()),
    (METADATA_GROUP, COMMAND, MetadataCommand(remove_node=RemoveNode(node_id=1)).SerializeToString()),
    (METADATA_GROUP, COMMAND, MetadataCommand(forget_node=ForgetNode(node_id=1)).SerializeToString()),
    (GROUPS_0, COMMAND, GroupsCommand(forget_topics=ForgetTopics()).SerializeToString()),
    (SINKS_GROUP, COMMAND, SinksCommand(expire_sinks=ExpireSinks()).SerializeToString()),
]


def parametrized(cases: list[tuple[int, EntryType, bytes]]) -> pytest.MarkDecorator:
    ids = [f"{raft_group}-{kind.name}-{number}" for number, (raft_group, kind, _) in enumerate(cases)]
    return pytest.mark.parametrize(("raft_group", "kind", "payload"), cases, ids=ids)


CASES = parametrized(WITHOUT_EFFECT)


# --- what is proposed for others ------------------------------------------------------------------


@parametrized(REFUSED)
def test_what_has_no_effect_or_is_not_for_others_to_propose_is_refused(
    raft_group: int, kind: EntryType, payload: bytes
) -> None:
    assert why_not_proposable(raft_group, kind, payload, SENDER)


@parametrized(TAKEN)
def test_what_a_correct_node_proposes_is_taken(raft_group: int, kind: EntryType, payload: bytes) -> None:
    assert why_not_proposable(raft_group, kind, payload, SENDER) == ""


async def test_a_leader_appends_nothing_of_it(node: DriverNode) -> None:
    await node.lead()
    before = node.group.storage.last_index()
    with pytest.raises(VoidEntry):
        node.driver.propose_for(*forwarded_proposal(node.group, BATCH, NOISE, ProposalId(77, 1, 1)))
    forwarded = forwarded_to(node)
    forwarded.propose_nowait(*forwarded_proposal(node.group, BATCHES, NOISE, ProposalId(77, 1, 2)))
    await node.settle()
    assert node.group.storage.last_index() == before
    assert node.faults == []


# --- what is in the log ---------------------------------------------------------------------------


def append(node: Node, raft_group: int, kind: EntryType, payload: bytes, proposer: int = 77) -> None:
    """Append an entry as a leader of the release before did."""
    driver = node._log.driver
    group = driver.groups[raft_group]
    assert group.leads
    driver._append(group, kind, bytearray(payload), ProposalId(proposer, 1, 1))
    driver.drive(group)


async def used(cluster: Cluster) -> None:
    """A topic, a record, an offset and a sink: every kind of raft group is led."""
    await cluster.create_topic()
    await cluster.append(b"before")
    for replica in cluster.node.state_groups.replicas():
        cluster.node._log.driver.seek_leader(replica.group)
    await cluster.settle()


def check(directory: Path) -> tuple[Verdict, list[str]]:
    report = check_directory(ReadOnlyDisk(), directory)
    wrong = [finding.found for finding in report.findings if finding.verdict is not Verdict.OK]
    return report.verdict, wrong


@pytest.mark.slow
@CASES
async def test_an_entry_that_cannot_be_decoded_has_no_effect(
    tmp_path: Path, raft_group: int, kind: EntryType, payload: bytes
) -> None:
    directory = tmp_path / "data"
    async with Cluster(directory).running() as cluster:
        await used(cluster)
        append(cluster.node, raft_group, kind, payload)
        await cluster.append(b"after")
        rows = cluster.node._log.driver.groups[raft_group].rows
        assert isinstance(rows.judge(ProposalId(77, 1, 1)), VoidEntry)
        assert cluster.values() == [b"before", b"after"]
    assert check(directory)[0] is not Verdict.DAMAGED
    async with Cluster(directory).running() as cluster:
        assert cluster.values() == [b"before", b"after"]
        await cluster.append(b"again")
        await cluster.create_topic("other")
        rows = cluster.node._log.driver.groups[raft_group].rows
        assert isinstance(rows.judge(ProposalId(77, 1, 1)), VoidEntry)


@pytest.mark.slow
@CASES
async def test_a_directory_with_such_an_entry_is_found_and_starts(
    tmp_path: Path, raft_group: int, kind: EntryType, payload: bytes
) -> None:
    directory = tmp_path / "data"
    cluster = Cluster(directory)
    await cluster.node.start()
    await used(cluster)
    append(cluster.node, raft_group, kind, payload)
    await cluster.append(b"after")
    await cluster.settle()
    killed = copy_of(directory, "copy")
    await cluster.node.stop()
    verdict, wrong = check(killed)
    assert verdict is Verdict.WARNING
    assert any("it has no effect" in found for found in wrong), wrong
    async with Cluster(killed).running() as again:
        assert again.values() == [b"before", b"after"]
        await again.append(b"again")


@pytest.mark.slow
def test_three_nodes_go_on_with_the_same_state(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1, {})
        await cluster[1].append(b"before")
        for proposer, (raft_group, kind, payload) in enumerate(WITHOUT_EFFECT, 77):
            leader = await leader_of(cluster, raft_group)
            append(leader.node, raft_group, kind, payload, proposer)
        await cluster[1].append(b"after")
        for _ in range(2):
            await cluster.stop()
            await cluster.start()
        await cluster[2].append(b"again")
        for node in cluster.nodes.values():
            await until_values(node, [b"before", b"after", b"again"])
            for proposer, (raft_group, _, _) in enumerate(WITHOUT_EFFECT, 77):
                rows = node.node._log.driver.groups[raft_group].rows
                assert isinstance(rows.judge(ProposalId(proposer, 1, 1)), VoidEntry)

    run_cluster(scenario, tmp_path)


def commands_of(topic_id: bytes) -> list[tuple[int, ProtoMessage]]:
    """Raft groups and commands that can be decoded, which only a hostile leader appends."""
    config = {"segment_bytes": "abc", "retention_ms": "9" * 5000, "replication": "x", "no": "1"}
    parts = [
        PiecePart(topic="topic", topic_id=topic_id, partition=each, bytes=9, records=2**63 - 1)
        for each in (0, 0)
    ]
    add = AddPiece(
        stage=1, piece=PieceRecord(parts=parts, crc=1), seal=SealRecord(pieces=1, crc=seal_crc([1]))
    )

    def publish(sink_id: str, **part: Any) -> SinksCommand:
        parts = [PublicationPart(topic="topic", topic_id=topic_id, **part)]
        return SinksCommand(publish_stages=PublishStages(sink_id=sink_id, stage_ids=["s"], parts=parts))

    return [
        (METADATA_GROUP, MetadataCommand(create_topic=CreateTopic(name="a", partitions=1, config=config))),
        (METADATA_GROUP, MetadataCommand(alter_topic=AlterTopic(name="topic", set_config=config))),
        *[(SINKS_GROUP, publish(f"b{each}", partition=each, bytes=1)) for each in (-100, 7, 2**31 - 1)],
        *[(SINKS_GROUP, publish(f"c{each}", bytes=each, records=-5)) for each in (0, 5, 2**64 - 1)],
        (SINKS_GROUP, SinksCommand(open_stage=OpenStage(sink_id="replicated", stage_id="s"))),
        (SINKS_GROUP, SinksCommand(add_piece=add)),
        (
            SINKS_GROUP,
            SinksCommand(
                publish_stages=PublishStages(sink_id="replicated", stage_ids=["s"], replicated=True)
            ),
        ),
        (PARTITION, PartitionCommand(set_log_begin_offset=SetLogBeginOffset(offset=-(2**63)))),
    ]


@pytest.mark.slow
def test_commands_with_impossible_numbers_end_nobody_and_hold_nothing_up(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1, {})
        await cluster[1].append(b"before")
        topic_id = cluster[1].node.metadata.topics["topic"].topic_id
        for proposer, (raft_group, command) in enumerate(commands_of(topic_id), 77):
            leader = await leader_of(cluster, raft_group)
            append(leader.node, raft_group, COMMAND, command.SerializeToString(), proposer)
        where = TopicPartition("topic", 0)
        assert (await publish_values(cluster[1].backend, 1, {where: [b"published"]})).published
        for _ in range(2):
            await cluster.stop()
            await cluster.start()
        assert (await publish_values(cluster[2].backend, 2, {where: [b"again"]})).published
        for node in cluster.nodes.values():
            await until_values(node, [b"before", b"published", b"again"])
            assert list(node.node.partitions.damaged("topic")) == []

    run_cluster(scenario, tmp_path)


async def leader_of(cluster: NodeCluster, raft_group: int) -> ClusterNode:
    def leads(node: ClusterNode) -> bool:
        group: RaftGroup | None = node.node._log.driver.groups.get(raft_group)
        return group is not None and group.leads

    await until(lambda: any(map(leads, cluster.nodes.values())))
    return next(filter(leads, cluster.nodes.values()))


async def until_values(node: ClusterNode, values: list[bytes]) -> None:
    async def has_them() -> bool:
        return await node.values() == values

    await until(has_them)


# --- changes of the configuration -----------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [b"\xff", b"\x08\x09", b"", b"\x12\x0c\x08\x00\x10" + b"\xff" * 8 + b"\x7f"],
)
async def test_an_impossible_change_of_the_configuration_has_no_effect(
    network: DriverNetwork, change: bytes
) -> None:
    """Not decodable, of an unknown kind, not joint, or of a node that cannot be."""
    await network.elect(1)
    entry = Entry(2, 2, RaftEntryType.CONF_CHANGE_V2, change)
    message = Message(MessageType.APP, 2, 3, 2, 1, 1, [entry], 2)
    before = network[2].group.storage.conf_state
    network[2].driver.step(GROUP, message)
    await network.run()
    follower = network[2]
    assert (follower.group.applied_index, follower.faults) == (2, [])
    assert follower.group.storage.conf_state == before


# --- what was counted as records ------------------------------------------------------------------


async def test_batches_behind_garbage_that_was_counted_make_the_partition_unready_and_nothing_else(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "data"
    async with Cluster(directory).running() as cluster:
        await cluster.create_topic("topic", 2)
        await cluster.append(b"before")
        last = cluster.node._log.driver.groups[PARTITION].applied_index
    behind = bytearray(GOOD)
    patch_batch(behind, 2_000_000_000, 1)
    await write_entries(directory, PARTITION, last + 1, NOISE, bytes(behind))
    async with Cluster(directory).running() as cluster:
        assert list(cluster.node.partitions.damaged("topic")) == [0]
        await cluster.append(b"other", partition=1)
        assert cluster.values(partition=1) == [b"other"]


# --- positions ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        {"log_begin_offset": 2**62},
        {"log_begin_offset": -5},
        {"log_begin_offset": -7, "end_offset": -1},
        {"segment_base_offset": 2**62},
        {"publication": 2**64 - 1},
    ],
    ids=str,
)
async def test_an_impossible_applied_position_makes_its_partition_unready_and_nothing_else(
    tmp_path: Path, change: dict[str, int], tail: bool
) -> None:
    directory = tmp_path / "data"
    async with Cluster(directory).running() as cluster:
        await cluster.create_topic("topic", 2)
        await cluster.append(b"before")
        await cluster.sync()
        if tail:
            await cluster.append(b"behind")
    await write_position(directory, PARTITION, **change)
    verdict, wrong = check(directory)
    assert verdict is Verdict.DAMAGED
    assert any("its applied position has" in found and "is not ready" in found for found in wrong), wrong
    for _ in range(2):
        async with Cluster(directory).running() as cluster:
            assert list(cluster.node.partitions.damaged("topic")) == [0]
            await cluster.append(b"other", partition=1)
            damaged = cluster.node.partition(TopicPartition("topic", 0))
            assert damaged is not None
            assert "topic-0: its applied position has" in str(damaged.fault)
    async with Cluster(directory).running() as cluster:
        assert cluster.values(partition=1) == [b"other", b"other"]
