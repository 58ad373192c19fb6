"""pixy/cluster/state/cluster_limits.py: topics, partitions and consumer groups of a cluster are
bounded, whoever adds them and however many at once.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pixy.backend import TopicPartition
from pixy.cluster.state.cluster_limits import ClusterLimits
from pixy.cluster.state.groups import GroupsState
from pixy.cluster.state.metadata import MetadataState
from pixy.cluster.state.topic import Topic
from pixy.config import LimitsConfig
from pixy.errors import InvalidArgument, PixyError, ResourceExhausted
from pixy.proto.state_pb2 import (
    AlterTopic,
    CommitOffsets,
    CommittedOffset,
    CreateTopic,
    DeleteTopic,
    ForgetTopics,
    GroupMember,
    GroupsCommand,
    InitCluster,
    JoinGroup,
    MemberId,
    MetadataCommand,
    RegisterNode,
)
from pixy.records import OffsetCommit
from tests.cluster.node_clusters import NodeCluster, run_cluster


def create(name: str, partitions: int, **limits: Any) -> bytes:
    command = CreateTopic(name=name, topic_id=name.encode(), partitions=partitions, **limits)
    return MetadataCommand(create_topic=command).SerializeToString()


def alter(name: str, partitions: int, **limits: Any) -> bytes:
    command = AlterTopic(name=name, partitions=partitions, **limits)
    return MetadataCommand(alter_topic=command).SerializeToString()


def refusal(result: object) -> tuple[str, str]:
    assert isinstance(result, ResourceExhausted)
    return result.limit, str(result)


def commit(group: str, limit: int, topic: str = "a", *, set: bool = False) -> bytes:
    offset = CommittedOffset(topic=topic, topic_id=topic.encode(), partition=0, offset=1)
    command = CommitOffsets(group=group, offsets=[offset], max_groups=limit, set=set)
    return GroupsCommand(commit_offsets=command).SerializeToString()


def join(group: str, limit: int) -> bytes:
    member = GroupMember(id=MemberId(node_id=1, incarnation=1, number=1), client_id="c", topics=["a"])
    return GroupsCommand(
        join_group=JoinGroup(group=group, member=member, max_groups=limit)
    ).SerializeToString()


# --- the state machines ---------------------------------------------------------------------------


def test_a_topic_beyond_the_limit_is_refused_when_it_is_applied() -> None:
    state = MetadataState()
    assert isinstance(state.apply(create("a", 3, max_topics=2)), Topic)
    assert isinstance(state.apply(create("b", 3, max_topics=2)), Topic)
    assert refusal(state.apply(create("c", 1, max_topics=2))) == (
        "limits.max_topics",
        "the cluster has 2 topics, limits.max_topics allows 2",
    )
    assert list(state.topics) == ["a", "b"]
    state.apply(MetadataCommand(delete_topic=DeleteTopic(name="a")).SerializeToString())
    assert isinstance(state.apply(create("c", 1, max_topics=2)), Topic)


@pytest.mark.parametrize("command", [create("b", 3, max_partitions=5), alter("a", 6, max_partitions=5)])
def test_partitions_beyond_the_limit_are_refused_when_they_are_applied(command: bytes) -> None:
    state = MetadataState()
    state.apply(create("a", 3))
    before = state.topics["a"]
    assert refusal(state.apply(command)) == (
        "limits.max_partitions",
        "the cluster has 3 partitions, limits.max_partitions allows 5: 3 more do not fit",
    )
    assert state.topics == {"a": before}
    assert (state.partitions, state.next_raft_group) == (3, 1003)
    assert isinstance(state.apply(alter("a", 5, max_partitions=5)), Topic)


def test_a_cluster_beyond_a_limit_goes_on_and_adds_nothing() -> None:
    state = MetadataState()
    state.apply(create("a", 10))
    assert isinstance(state.apply(alter("a", 0, max_partitions=5)), Topic)
    assert isinstance(state.apply(create("b", 1, max_partitions=5)), ResourceExhausted)
    restored = MetadataState()
    restored.restore(state.snapshot())
    assert restored.partitions == 10
    assert isinstance(restored.apply(create("b", 1, max_partitions=5)), ResourceExhausted)


@pytest.mark.parametrize("command", [commit("c", 2), commit("c", 2, set=True), join("c", 2)])
def test_a_consumer_group_beyond_the_limit_is_refused_when_it_is_applied(command: bytes) -> None:
    state = GroupsState()
    for group in "ab":
        assert not isinstance(state.apply(commit(group, 2)), PixyError)
    assert refusal(state.apply(command)) == (
        "limits.max_groups",
        "there are 2 consumer groups in the same part of the cluster as this one, and limits.max_groups allows 2 "
        "there",
    )
    assert not isinstance(state.apply(join("a", 1)), PixyError)


def test_a_member_commits_whatever_the_limit_is() -> None:
    state = GroupsState()
    state.apply(join("a", 1))
    command = CommitOffsets(group="a", node_id=1, incarnation=1, max_groups=1)
    assert state.apply(GroupsCommand(commit_offsets=command).SerializeToString()) is None


@pytest.mark.parametrize("swept", [False, True])
def test_groups_of_deleted_topics_do_not_count_whether_or_not_they_are_swept(swept: bool) -> None:
    state = GroupsState()
    for group in "ab":
        state.apply(commit(group, 2))
    state.apply(GroupsCommand(forget_topics=ForgetTopics(topic_ids=[b"a"])).SerializeToString())
    for _ in state.sweep() if swept else ():
        pass
    assert state.apply(commit("c", 2, "b")) is None
    assert sorted(name for names in state.scan(10) for name in names) == ["c"]


def set_metadata(group: str, metadata: str, limit: int, topic: str = "a", *, set: bool = True) -> bytes:
    offset = CommittedOffset(topic=topic, topic_id=topic.encode(), partition=0, offset=1, metadata=metadata)
    command = CommitOffsets(group=group, offsets=[offset], max_offset_bytes=limit, set=set)
    return GroupsCommand(commit_offsets=command).SerializeToString()


@pytest.mark.parametrize("swept", [False, True])
def test_offsets_beyond_the_limit_are_refused_when_they_are_applied(swept: bool) -> None:
    state = GroupsState()
    assert state.apply(set_metadata("a", "m" * 744, 2000)) is None
    assert state.apply(set_metadata("b", "m" * 744, 2000)) is None
    before = [*state.snapshot()]
    assert refusal(state.apply(set_metadata("c", "", 2000))) == (
        "limits.max_offsets_bytes",
        "committed offsets in the same part of the cluster as those of c take 2000 bytes, these would add 256, and "
        "limits.max_offsets_bytes allows 2000 there",
    )
    assert refusal(state.apply(set_metadata("b", "m" * 745, 2000)))[0] == "limits.max_offsets_bytes"
    assert [*state.snapshot()] == before
    assert state.offset_bytes == 2000
    # Those that take no more, and those that consumers commit.
    assert state.apply(set_metadata("b", "n" * 744, 1000)) is None
    assert state.apply(set_metadata("c", "m", 0)) is None
    # Those of deleted topics do not count.
    state.apply(GroupsCommand(forget_topics=ForgetTopics(topic_ids=[b"a"])).SerializeToString())
    for _ in state.sweep() if swept else ():
        pass
    assert state.apply(set_metadata("d", "m" * 744, 1000, "b")) is None
    assert isinstance(state.apply(set_metadata("e", "", 1000, "b")), ResourceExhausted)


# --- a cluster ------------------------------------------------------------------------------------

SMALL = LimitsConfig(max_topics=5, max_partitions=20, max_groups=16)


async def outcomes(*work: Any) -> list[str]:
    """Limits that were reached, "" for each success."""
    results = await asyncio.gather(*work, return_exceptions=True)
    # A topic may have been given more partitions by another one meanwhile.
    allowed = (ResourceExhausted, InvalidArgument)
    assert all(isinstance(each, allowed) for each in results if isinstance(each, BaseException))
    return sorted(getattr(each, "limit", "") for each in results)


@pytest.mark.slow
def test_concurrent_creations_at_all_nodes_do_not_pass_the_limit(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes = list(cluster.nodes.values())
        found = await outcomes(*(nodes[i % 3].backend.create_topic(f"t{i}", 1) for i in range(12)))
        assert found == [""] * 5 + ["limits.max_topics"] * 7
        await nodes[1].backend.delete_topic(next(iter(nodes[1].node.metadata.topics)))
        # A node that has not heard of the deletion yet asks before it refuses.
        await nodes[2].backend.create_topic("again", 1)

    run_cluster(scenario, tmp_path, limits=SMALL)


@pytest.mark.slow
def test_concurrent_partitions_at_all_nodes_do_not_pass_the_limit(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes = list(cluster.nodes.values())
        found = await outcomes(*(nodes[i].backend.create_topic(f"t{i}", 8) for i in range(3)))
        assert found == ["", "", "limits.max_partitions"]
        name = next(iter(nodes[0].node.metadata.topics))
        await outcomes(*(nodes[i].backend.alter_topic(name, partitions=10 + i) for i in range(3)))
        assert nodes[0].node.metadata.partitions <= 20
        with pytest.raises(ResourceExhausted, match=r"limits\.max_partitions allows 20"):
            await nodes[0].backend.alter_topic(name, partitions=13)

    run_cluster(scenario, tmp_path, limits=SMALL)


@pytest.mark.slow
def test_what_is_refused_at_once_is_no_entry(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("a", 20)
        applied = cluster[1].node.state_groups.metadata_replica.group.applied_index
        assert (
            await outcomes(*(cluster[1].backend.create_topic(f"b{i}", 1) for i in range(50)))
            == ["limits.max_partitions"] * 50
        )
        assert cluster[1].node.state_groups.metadata_replica.group.applied_index == applied

    run_cluster(scenario, tmp_path, limits=SMALL)


@pytest.mark.slow
def test_consumer_groups_of_all_nodes_together_are_bounded(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes = list(cluster.nodes.values())
        await nodes[0].backend.create_topic("topic", 1)
        offsets = {TopicPartition("topic", 0): OffsetCommit(0)}
        found = await outcomes(
            *(nodes[i % 3].backend.commit_offsets(f"g{i}", offsets, set=True) for i in range(60))
        )
        taken = found.count("")
        assert 10 <= taken <= 16
        assert found.count("limits.max_groups") == 60 - taken
        assert len(await nodes[1].backend.list_groups()) == taken

    run_cluster(scenario, tmp_path, limits=SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 3])
def test_offsets_that_are_set_together_do_not_pass_the_limit(tmp_path: Path, nodes: int) -> None:
    """Sixty callers of one consumer group each, at the last bytes."""
    limits = LimitsConfig(max_offsets_bytes=8 * 3000)

    async def scenario(cluster: NodeCluster) -> None:
        asked = list(cluster.nodes.values())
        await asked[0].backend.create_topic("topic", 1)
        offsets = {TopicPartition("topic", 0): OffsetCommit(0, "m" * 744)}
        found = await outcomes(
            *(asked[i % nodes].backend.commit_offsets(f"g{i}", offsets, set=True) for i in range(60))
        )
        assert found.count("") == 8 * 3
        assert found.count("limits.max_offsets_bytes") == 60 - 8 * 3

    run_cluster(scenario, tmp_path, nodes, limits=limits)


@pytest.mark.slow
def test_the_default_for_partitions_depends_on_the_number_of_nodes(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        limits = cluster[1].node.commands.limits
        assert limits.max_partitions == 10_000
        await cluster.add()
        assert limits.max_partitions == 1000
        with pytest.raises(
            ResourceExhausted, match=r"the cluster has 0 partitions, limits\.max_partitions allows 1000"
        ):
            await cluster[1].backend.create_topic("large", 1001)

    run_cluster(scenario, tmp_path, 1)


@pytest.mark.parametrize(("level", "limit"), [(1, 0), (2, 0), (3, 5)])
def test_limits_are_part_of_commands_once_every_node_knows_them(level: int, limit: int) -> None:
    state = MetadataState()
    state.apply(MetadataCommand(init_cluster=InitCluster(groups_count=8)).SerializeToString())
    node = RegisterNode(secret=b"2", feature_level=level)
    state.apply(MetadataCommand(register_node=node).SerializeToString())
    assert len(state.registered) == 2
    limits = ClusterLimits(SMALL, state, lambda: level)
    creation, altering = (
        MetadataCommand(create_topic=CreateTopic()),
        MetadataCommand(alter_topic=AlterTopic()),
    )
    joining, commit = JoinGroup(group="g"), CommitOffsets(group="g")
    limits.limit(creation)
    limits.limit(altering)
    limits.limit_group(joining)
    limits.limit_group(commit)
    limits.limit_offsets(commit, GroupsState())
    assert bool(commit.max_offset_bytes) == bool(limit)
    assert creation.create_topic.max_topics == limit
    assert bool(altering.alter_topic.max_partitions) == bool(limit)
    assert (joining.max_groups, commit.max_groups) == ((2, 2) if limit else (0, 0))
