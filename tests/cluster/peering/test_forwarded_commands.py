"""Commands of a node that does not lead: nothing that is another node's to decide happens, and its
own requests go on.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from google.protobuf.message import Message

from pixy.backend import TopicPartition
from pixy.cluster.peering.forwarded_commands import ForwardedCommands
from pixy.cluster.peering.partition_proposals import PartitionProposals
from pixy.cluster.state.cluster_limits import ClusterLimits
from pixy.cluster.state.groups import GroupsState
from pixy.cluster.state.metadata import METADATA_GROUP
from pixy.cluster.state.nodes import MOVES_LEVEL
from pixy.cluster.state.publications import SINKS_GROUP, SinksState
from pixy.config import LimitsConfig
from pixy.errors import FailedPrecondition, PixyError, VoidEntry
from pixy.multiraft.raft_group import RaftGroup
from pixy.proto.state_pb2 import (
    AddPiece,
    AlterTopic,
    BeginMoves,
    CommitOffsets,
    CommittedOffset,
    CreateTopic,
    DeleteTopic,
    DrainNode,
    EndMoves,
    ExpelProcess,
    ExpireGroups,
    ExpireSinks,
    ExpireStages,
    FinishPublications,
    ForgetNode,
    ForgetTopics,
    GroupsCommand,
    MetadataCommand,
    OpenStage,
    PartitionCommand,
    PiecePart,
    PieceRecord,
    PublicationPart,
    PublishParts,
    PublishStages,
    RemoveNode,
    SealRecord,
    SetLogBeginOffset,
    SinksCommand,
    TouchGroups,
)
from pixy.staging import seal_crc
from pixy.storage import EntryType
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.conformance.staged import publish_values, stage_values
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

TOPIC = TopicPartition("topic", 0)
EVER = 2**53


def leads(node: ClusterNode, raft_group: int) -> bool:
    group: RaftGroup | None = node.node._log.driver.groups.get(raft_group)
    return group is not None and group.leads


async def hostile_to(cluster: NodeCluster, raft_group: int) -> ClusterNode:
    """A node that has the raft group, and does not lead it."""
    await until(lambda: any(leads(node, raft_group) for node in cluster.nodes.values()))
    others = [node for node in cluster.nodes.values() if not leads(node, raft_group)]
    return next(node for node in others if raft_group in node.node._log.driver.groups)


async def propose(node: ClusterNode, raft_group: int, command: Message) -> None:
    """Propose a command, whatever becomes of it."""
    replica = next(
        (each for each in node.node.state_groups.replicas() if each.group.raft_group == raft_group), None
    )
    payload = command.SerializeToString()
    with suppress(PixyError):
        if replica is not None:
            await node.node.commands._proposals.run(replica, payload, 5.0)
        else:
            partition = node.node.partition(TOPIC)
            assert partition is not None
            proposals = PartitionProposals(node.node._log.driver, node.node.partitions, node.node.remote)
            await proposals.propose(partition, EntryType.COMMAND, payload, 5.0)


def group_of(node: ClusterNode) -> int:
    """The raft group of the consumer group `group`."""
    return node.node.state_groups.group_of("group").group.raft_group


async def used(cluster: NodeCluster) -> bytes:
    """A topic with a record, an offset, a publication, and a stage; returns the id of the topic."""
    node = cluster[1]
    await node.backend.create_topic("topic", 1)
    await node.append(b"before")
    topic_id = node.node.metadata.topics["topic"].topic_id
    commit = CommitOffsets(group="group", timestamp_ms=node.clock.wall_ms(), set=True)
    commit.offsets.add(topic="topic", topic_id=topic_id, offset=1)
    payload = GroupsCommand(commit_offsets=commit).SerializeToString()
    await node.node.commands.change_group("group", payload)
    assert (await publish_values(node.backend, 1, {TOPIC: [b"published"]})).published
    await stage_values(node.backend, "sink", "staged", {TOPIC: [b"staged"]})
    return topic_id


async def nothing_is_lost(cluster: NodeCluster, topic_id: bytes, *values: bytes) -> None:
    for node in cluster.nodes.values():
        groups = node.node.state_groups

        async def has_values(node: ClusterNode = node) -> bool:
            return await node.values() == [b"before", b"published", *values]

        await until(has_values)
        assert groups.offsets_of("group").committed("group", topic_id)[0].offset == 1
        assert groups.sinks.sinks["sink"].last_epoch >= 1
        partition = node.node.partition(TOPIC)
        assert partition is not None
        assert partition.publication <= 50


def commands_to_sinks(topic_id: bytes) -> list[SinksCommand]:
    part = PublicationPart(topic="topic", topic_id=topic_id, bytes=5, records=1)
    wrong = PiecePart(topic="topic", topic_id=topic_id, partition=0, raft_group=7, bytes=61, records=1)
    other = PiecePart(topic="other", topic_id=topic_id, partition=0, raft_group=1000, bytes=61, records=1)
    misnamed = PublicationPart(topic="other", topic_id=topic_id, bytes=5, records=1)
    seal = SealRecord(pieces=1, crc=seal_crc([1]))
    return [
        SinksCommand(expire_sinks=ExpireSinks(sink_ids=["sink"], before_ms=EVER)),
        SinksCommand(expire_stages=ExpireStages(stages=[1, 2, 3], before_ms=EVER)),
        SinksCommand(finish_publications=FinishPublications(publications=range(1, 400))),
        SinksCommand(publish_stages=PublishStages(sink_id="hostile", stage_ids=["s"], parts=[part])),
        SinksCommand(open_stage=OpenStage(sink_id="hostile", stage_id="wrong")),
        *[
            SinksCommand(add_piece=AddPiece(stage=stage, piece=PieceRecord(crc=1, parts=[wrong]), seal=seal))
            for stage in range(1, 8)
        ],
        SinksCommand(publish_stages=PublishStages(sink_id="hostile", stage_ids=["wrong"], replicated=True)),
        SinksCommand(publish_stages=PublishStages(sink_id="h2", stage_ids=["s"], parts=[misnamed])),
        SinksCommand(open_stage=OpenStage(sink_id="h3", stage_id="misnamed")),
        *[
            SinksCommand(add_piece=AddPiece(stage=stage, piece=PieceRecord(crc=1, parts=[other]), seal=seal))
            for stage in range(1, 8)
        ],
        SinksCommand(publish_stages=PublishStages(sink_id="h3", stage_ids=["misnamed"], replicated=True)),
    ]


def commands_to_metadata(topic_id: bytes) -> list[MetadataCommand]:
    twin = CreateTopic(name="twin", topic_id=topic_id, partitions=1)
    return [
        MetadataCommand(create_topic=twin),
        MetadataCommand(delete_topic=DeleteTopic(name="twin")),
        # A node of an earlier release would end at them.
        MetadataCommand(begin_moves=BeginMoves()),
        MetadataCommand(end_moves=EndMoves()),
        MetadataCommand(drain_node=DrainNode(node_id=1, draining=True)),
    ]


def commands_to_groups(topic_id: bytes) -> list[GroupsCommand]:
    commit = CommitOffsets(group="group", timestamp_ms=1, node_id=1, incarnation=1)
    commit.offsets.add(topic="topic", topic_id=topic_id, offset=-5)
    return [
        GroupsCommand(forget_topics=ForgetTopics(topic_ids=[topic_id])),
        GroupsCommand(expire_groups=ExpireGroups(groups=["group"], before_ms=EVER)),
        GroupsCommand(touch_groups=TouchGroups(groups=["group"], timestamp_ms=EVER)),
        GroupsCommand(expel_process=ExpelProcess(node_id=99, incarnation=1, groups=["group"])),
        GroupsCommand(commit_offsets=commit),
    ]


def commands_to_partition(_: bytes) -> list[PartitionCommand]:
    return [
        PartitionCommand(set_log_begin_offset=SetLogBeginOffset(offset=2**40)),
        *[
            PartitionCommand(publish_parts=PublishParts(publication=number, predecessor=1))
            for number in (2, 3, 50, 2**62 - 1, 2**64 - 1)
        ],
    ]


@pytest.mark.parametrize(
    ("group", "commands"),
    [
        (lambda _: METADATA_GROUP, commands_to_metadata),
        (lambda _: SINKS_GROUP, commands_to_sinks),
        (group_of, commands_to_groups),
        (lambda _: 1000, commands_to_partition),
    ],
    ids=["metadata", "sinks", "groups", "partition"],
)
def test_what_is_not_for_a_node_to_decide_does_not_happen(
    tmp_path: Path,
    group: Callable[[ClusterNode], int],
    commands: Callable[[bytes], list[Message]],
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        topic_id = await used(cluster)
        raft_group = group(cluster[1])
        hostile = await hostile_to(cluster, raft_group)
        for command in commands(topic_id):
            await propose(hostile, raft_group, command)
        await nothing_is_lost(cluster, topic_id)
        assert (await hostile.backend.publish("sink", 2, "query", ["staged"])).published
        await cluster.stop()
        await cluster.start()
        assert (await publish_values(cluster[2].backend, 3, {TOPIC: [b"again"]})).published
        await nothing_is_lost(cluster, topic_id, b"staged", b"again")

    run_cluster(scenario, tmp_path)


def test_a_time_far_from_the_leaders_is_replaced(tmp_path: Path) -> None:
    """Else a stage, a sink or a group would never expire, or at once."""

    async def scenario(cluster: NodeCluster) -> None:
        topic_id = await used(cluster)
        now_ms = cluster[1].clock.wall_ms()
        before_ms, after_ms = now_ms - 120_000, now_ms + 120_000
        hostile = await hostile_to(cluster, SINKS_GROUP)
        for time_ms in (1, EVER):
            opened = OpenStage(sink_id=f"stage-{time_ms}", stage_id="s", timestamp_ms=time_ms)
            await propose(hostile, SINKS_GROUP, SinksCommand(open_stage=opened))
            published = PublishStages(
                sink_id=f"sink-{time_ms}", query_id="q", replicated=True, timestamp_ms=time_ms
            )
            await propose(hostile, SINKS_GROUP, SinksCommand(publish_stages=published))
        hostile = await hostile_to(cluster, group_of(cluster[1]))
        commit = CommitOffsets(group="group", timestamp_ms=EVER, set=True)
        commit.offsets.add(topic="topic", topic_id=topic_id, offset=0)
        await propose(hostile, group_of(cluster[1]), GroupsCommand(commit_offsets=commit))
        for node in cluster.nodes.values():
            groups = node.node.state_groups
            sinks, offsets = groups.sinks, groups.offsets_of("group")

            def has_applied(sinks: SinksState = sinks, offsets: GroupsState = offsets) -> bool:
                committed = offsets.committed("group", topic_id)[0].offset
                return committed == 0 and {"sink-1", f"sink-{EVER}"} <= sinks.sinks.keys()

            await until(has_applied)
            assert all(before_ms < sinks.sinks[f"sink-{each}"].active_ms < after_ms for each in (1, EVER))
            stages = [each for each in sinks.table.stages.values() if each.name.stage_id == "s"]
            assert len(stages) == 2
            assert not any(sinks.table.is_over_since(stage, before_ms) for stage in stages)
            assert all(sinks.table.is_over_since(stage, after_ms) for stage in stages)
            assert offsets.is_inactive_since("group", after_ms)
            assert not offsets.is_inactive_since("group", before_ms)

    run_cluster(scenario, tmp_path)


def test_limits_of_the_leader_hold_for_commands_of_others(tmp_path: Path) -> None:
    """They travel in the command, where 0 is none."""

    async def scenario(cluster: NodeCluster) -> None:
        topic_id = await used(cluster)
        hostile = await hostile_to(cluster, METADATA_GROUP)
        for name, partitions in (("many", 50), ("few", 4), ("one", 1), ("more", 1)):
            create = CreateTopic(name=name, topic_id=name.encode() * 16, partitions=partitions)
            create.topic_id = create.topic_id[:16]
            await propose(hostile, METADATA_GROUP, MetadataCommand(create_topic=create))
        alter = AlterTopic(name="few", partitions=10)
        await propose(hostile, METADATA_GROUP, MetadataCommand(alter_topic=alter))
        await until(lambda: "one" in cluster[1].node.metadata.topics)
        assert cluster[1].node.metadata.partitions == 6
        assert cluster[1].node.metadata.topics.keys() == {"topic", "few", "one"}
        raft_group = group_of(cluster[1])
        hostile, groups = await hostile_to(cluster, raft_group), cluster[1].node.state_groups
        state = groups.offsets_of("group")
        for number in range(100):
            name = f"other-{number}"
            if groups.offsets_of(name) is not state:
                continue
            commit = CommitOffsets(group=name, timestamp_ms=cluster[1].clock.wall_ms())
            commit.offsets.extend(
                CommittedOffset(topic="topic", topic_id=topic_id, partition=each) for each in range(20)
            )
            await propose(hostile, raft_group, GroupsCommand(commit_offsets=commit))
        held = [name for name in (f"other-{number}" for number in range(100)) if state.has_offsets(name)]
        assert 1 <= len(held) < 10
        assert state.offset_bytes <= 2 * 65536 / 8

    limits = LimitsConfig(max_topics=3, max_partitions=6, max_groups=800, max_offsets_bytes=65536)
    run_cluster(scenario, tmp_path, limits=limits)


def test_publications_are_whole_while_a_node_finishes_them_all_the_time(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        hostile = await hostile_to(cluster, SINKS_GROUP)
        command = SinksCommand(finish_publications=FinishPublications(publications=range(1, 100)))
        finishing = asyncio.create_task(_repeat(lambda: propose(hostile, SINKS_GROUP, command)))
        values = [b"%d" % epoch for epoch in range(20)]
        for epoch, value in enumerate(values):
            assert (await publish_values(cluster[1].backend, epoch, {TOPIC: [value]})).published
        finishing.cancel()
        await asyncio.wait([finishing])
        for node in cluster.nodes.values():
            assert await node.values() == values

    run_cluster(scenario, tmp_path)


async def _repeat(act: Callable[[], Awaitable[None]]) -> None:
    while True:
        await act()


def test_a_publication_is_what_was_staged_whoever_proposes_it(tmp_path: Path) -> None:
    """The leader of the partition makes it anew, once it knows that it was committed."""

    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].append(b"before")
        hostile = await hostile_to(cluster, 1000)
        empty = [PartitionCommand(publish_parts=PublishParts(publication=number)) for number in range(1, 11)]
        proposing = asyncio.create_task(
            _repeat(lambda: _all([propose(hostile, 1000, command) for command in empty[:4]]))
        )
        values = [b"%d" % epoch for epoch in range(10)]
        for epoch, value in enumerate(values):
            assert (await publish_values(cluster[1].backend, epoch, {TOPIC: [value]})).published
        proposing.cancel()
        await asyncio.wait([proposing])
        for node in cluster.nodes.values():
            assert await node.values() == [b"before", *values]

    run_cluster(scenario, tmp_path)


async def _all(acts: list[Awaitable[None]]) -> None:
    await asyncio.gather(*acts)


def test_nodes_that_are_needed_are_neither_forgotten_nor_removed(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        topic_id = await used(cluster)
        hostile = await hostile_to(cluster, METADATA_GROUP)
        for node_id in (1, 2, 3):
            command = MetadataCommand(forget_node=ForgetNode(node_id=node_id))
            await propose(hostile, METADATA_GROUP, command)
        assert cluster[1].node.metadata.registered == [1, 2, 3]
        third = next(node for node in cluster.nodes.values() if node is not hostile and not leads(node, 1))
        gone = third.id
        await third.kill()
        # Without a node that is there, the other one has no majority.
        for node_id in {1, 2, 3} - {gone}:
            command = MetadataCommand(remove_node=RemoveNode(node_id=node_id))
            await propose(hostile, METADATA_GROUP, command)
        assert hostile.node.metadata.registered == [1, 2, 3]
        await third.start()
        await nothing_is_lost(cluster, topic_id)
        await third.kill()
        await until(lambda: not hostile.node.peers.members.is_reachable(gone))  # type: ignore[union-attr]  # it has peers
        await hostile.backend.forget_node(gone)
        assert gone not in hostile.node.metadata.registered

    run_cluster(scenario, tmp_path)


def test_a_refused_command_is_answered_at_once_and_holds_nothing_up(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await used(cluster)
        follower = await hostile_to(cluster, METADATA_GROUP)
        proposals = follower.node.commands._proposals
        replica = follower.node.state_groups.metadata_replica
        running = next(each for each in cluster.nodes.values() if each is not follower)
        payload = MetadataCommand(forget_node=ForgetNode(node_id=running.id)).SerializeToString()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        # More than a window of them, which else hold up what comes behind until their deadlines.
        refused = [asyncio.ensure_future(proposals.run(replica, payload, 60.0)) for _ in range(20)]
        created = asyncio.ensure_future(follower.backend.create_topic("behind", 1))
        for each in refused:
            with pytest.raises(FailedPrecondition, match=f"node {running.id} is running"):
                await each
        await created
        assert loop.time() - begun < 5.0

    run_cluster(scenario, tmp_path)


@pytest.mark.parametrize("comes_back", [False, True], ids=["another leads", "it leads again"])
def test_a_command_that_waits_while_the_leader_changes_goes_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    """The copy that waits is not taken, also if its node leads again: it comes again."""
    begun, may_go = asyncio.Event(), asyncio.Event()

    async def wait(_: ForwardedCommands, group: RaftGroup, payload: bytes, sender: int) -> bytes:
        begun.set()
        await may_go.wait()
        return payload

    async def lead(cluster: NodeCluster, node: ClusterNode) -> None:
        before = next(each for each in cluster.nodes.values() if leads(each, METADATA_GROUP))
        before.node._log.driver.transfer(before.node.state_groups.metadata_replica.group, node.id)
        await until(lambda: leads(node, METADATA_GROUP))

    async def scenario(cluster: NodeCluster) -> None:
        await used(cluster)
        gone = await cluster.add()
        await gone.kill()
        sender = await hostile_to(cluster, METADATA_GROUP)
        first = next(node for node in cluster.nodes.values() if leads(node, METADATA_GROUP))
        third = next(node for node in cluster.nodes.values() if node not in (sender, first, gone))
        monkeypatch.setattr(ForwardedCommands, "wait", wait)
        replica = sender.node.state_groups.metadata_replica
        payload = MetadataCommand(remove_node=RemoveNode(node_id=gone.id)).SerializeToString()
        removed = asyncio.ensure_future(sender.node.commands._proposals.run(replica, payload, 60.0))
        await begun.wait()
        await lead(cluster, third)
        if comes_back:
            await lead(cluster, first)
        may_go.set()
        await removed
        assert gone.id not in sender.node.metadata.registered

    run_cluster(scenario, tmp_path)


def test_a_command_about_moves_waits_until_no_node_would_end_at_it(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        node = cluster[1].node
        group = node.state_groups.metadata_replica.group
        payloads = [
            MetadataCommand(begin_moves=BeginMoves()).SerializeToString(),
            MetadataCommand(end_moves=EndMoves()).SerializeToString(),
            MetadataCommand(drain_node=DrainNode(node_id=1)).SerializeToString(),
        ]
        for level in (MOVES_LEVEL - 1, MOVES_LEVEL):
            commands = ForwardedCommands(
                ClusterLimits(LimitsConfig(), node.metadata, lambda level=level: level),  # type: ignore[misc]  # bound
                node.state_groups.sinks,
                node.partitions,
                node._confirm_sinks,
                node._is_reachable,
                node._reasons_to_keep,
                node.now_ms,
            )
            for payload in payloads:
                if level < MOVES_LEVEL:
                    with pytest.raises(VoidEntry, match="that needs feature level 9"):
                        commands.judge(group, payload, 2)
                else:
                    assert commands.judge(group, payload, 2) == payload

    run_cluster(scenario, tmp_path)
