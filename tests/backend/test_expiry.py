"""Expiry in a cluster of several nodes: records, offsets of consumer groups, sinks; by the decision
of the leader concerned, once.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pixy.backend import OffsetCommit, TopicPartition
from pixy.cluster import PartitionReplica, problems
from pixy.cluster.replicas.state_groups import GROUPS_COUNT
from pixy.cluster.state import POLICY_LEVEL
from pixy.cluster.state.groups import groups_index
from pixy.config import StagingConfig, StorageConfig
from pixy.errors import FailedPrecondition
from pixy.multiraft.raft_group import RaftGroup
from tests.cluster.moving import set_level
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

TOPIC = TopicPartition("topic", 0)
STORAGE = StorageConfig(
    retention=30.0, offsets_retention=30.0, retention_check=1.0, segment_bytes=2000, reserve_bytes=0
)
STAGING = StagingConfig(sink_retention=30.0)
OPTIONS: dict[str, Any] = {"storage": STORAGE, "staging": STAGING}
VALUE = b"v" * 550  # three per segment


def replica_on(node: ClusterNode) -> PartitionReplica:
    found = node.node.partition(TOPIC)
    assert found is not None
    return found


def partition_of(node: ClusterNode) -> RaftGroup:
    group = replica_on(node).group
    assert group is not None
    return group


def groups_of(node: ClusterNode) -> RaftGroup:
    return node.node.state_groups.groups[groups_index("group", GROUPS_COUNT)].group


def sinks_of(node: ClusterNode) -> RaftGroup:
    return node.node.state_groups.sinks_replica.group


def begin_at(node: ClusterNode) -> int:
    return replica_on(node).log.begin_offset


def sink_ids(node: ClusterNode) -> set[str]:
    return {*node.node.state_groups.sinks.sinks}


GroupOf = Callable[[ClusterNode], RaftGroup]
GROUPS: list[GroupOf] = [partition_of, groups_of, sinks_of]


async def prepare(cluster: NodeCluster) -> None:
    """Records, offsets and a sink, all of this moment, when leaders do not move any more."""
    backend = cluster[1].backend
    await backend.create_topic("topic", 1)
    await asyncio.sleep(15)
    for _ in range(3):
        await cluster[1].append(*[VALUE] * 3)
    await backend.commit_offsets("group", {TOPIC: OffsetCommit(1)}, set=True)
    await backend.publish("sink", 1, "query", [])
    await asyncio.sleep(1)


async def led(cluster: NodeCluster) -> None:
    """Wait until the partition has a leader."""
    await until(lambda: any_leads([partition_of(node) for node in cluster.nodes.values()]))


def any_leads(groups: Sequence[RaftGroup]) -> bool:
    return any(group.leads for group in groups)


async def offsets_of(node: ClusterNode) -> dict[int, OffsetCommit]:
    return {**await node.backend.committed_offsets("group", "topic")}


async def assert_kept(cluster: NodeCluster) -> None:
    for node in cluster.nodes.values():
        assert (begin_at(node), await offsets_of(node)) == (0, {0: OffsetCommit(1)})
        assert sink_ids(node) == {"sink"}


async def assert_expired(cluster: NodeCluster) -> None:
    for node in cluster.nodes.values():
        assert (begin_at(node), await offsets_of(node), sink_ids(node)) == (9, {}, set())


def test_everything_expires_at_every_node_by_one_decision_each(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await prepare(cluster)
        nodes = list(cluster.nodes.values())
        before = [[group_of(node).applied_index for group_of in GROUPS] for node in nodes]
        await asyncio.sleep(25)
        await assert_kept(cluster)
        await asyncio.sleep(10)
        await assert_expired(cluster)
        after = [[group_of(node).applied_index for group_of in GROUPS] for node in nodes]
        assert after == [[index + 1 for index in indexes] for indexes in before]

    run_cluster(scenario, tmp_path, **OPTIONS)


def test_the_next_leader_decides(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await prepare(cluster)
        nodes = list(cluster.nodes.values())
        for group_of in GROUPS:
            (leader,) = (node for node in nodes if group_of(node).leads)
            await leader.kill()
            others = [group_of(node) for node in nodes if node is not leader]
            await until(partial(any_leads, others))
            await leader.start()
        await asyncio.sleep(35)
        await assert_expired(cluster)

    run_cluster(scenario, tmp_path, **OPTIONS)


# --- wrong clocks ---------------------------------------------------------------------------------

DAY_MS = 86_400_000


def test_files_of_a_node_whose_clock_is_wrong_have_the_time_of_the_others(tmp_path: Path) -> None:
    """It is that of records without timestamps, also when the clock is right again."""

    def written_ms(node: ClusterNode) -> list[int]:
        files = sorted((tmp_path / str(node.number)).glob("topics/**/*.log"))
        return [file.stat().st_mtime_ns // 1_000_000 for file in files]

    async def scenario(cluster: NodeCluster) -> None:
        wrong, right = cluster[1], cluster[2]
        wrong.clock.set_wall(-DAY_MS)
        await prepare(cluster)
        await until(lambda: len(written_ms(wrong)) == len(written_ms(right)) >= 2)
        now_ms = wrong.clock.true_ms()
        # The file system has another clock than the nodes.
        assert all(abs(each - now_ms) < DAY_MS // 2 for each in written_ms(wrong)[:-1])
        assert all(each - now_ms > DAY_MS for each in written_ms(right)[:-1])

    run_cluster(scenario, tmp_path, **OPTIONS)


@pytest.mark.parametrize(
    ("group_of", "error_ms"),
    [(partition_of, -8 * DAY_MS), (groups_of, 10 * DAY_MS), (sinks_of, 60_100)],
)
def test_a_leader_whose_clock_is_set_wrong_gives_up_and_everything_expires_when_it_should(
    tmp_path: Path, group_of: GroupOf, error_ms: int
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await prepare(cluster)
        (leader,) = (node for node in cluster.nodes.values() if group_of(node).leads)
        leader.clock.step_wall(error_ms)
        await asyncio.sleep(10)
        assert not any(group_of(leader).leads for group_of in GROUPS)
        for node in cluster.nodes.values():
            (problem,) = problems(await node.node.status())
            assert problem.startswith(f"the clock of node {leader.id} (")
            assert "the time that a majority of the nodes agrees on" in problem
        await asyncio.sleep(15)
        await assert_kept(cluster)
        await asyncio.sleep(10)
        await assert_expired(cluster)
        leader.clock.set_wall(0)
        await asyncio.sleep(1)
        assert problems(await leader.node.status()) == ()

    run_cluster(scenario, tmp_path, **OPTIONS)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("error_ms", [-8 * DAY_MS, 10 * DAY_MS])
def test_what_a_node_with_a_wrong_clock_accepts_expires_when_it_should(
    tmp_path: Path, error_ms: int, *, restarts: bool
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        node = cluster[3]
        await cluster[1].backend.create_topic("topic", 1)
        await led(cluster)
        node.clock.set_wall(error_ms)
        if restarts:
            await node.kill()
            await node.start()
        for _ in range(3):
            await node.append(*[VALUE] * 3)
        await node.backend.commit_offsets("group", {TOPIC: OffsetCommit(1)}, set=True)
        await node.backend.publish("sink", 1, "query", [])
        await asyncio.sleep(25)
        await assert_kept(cluster)
        await asyncio.sleep(10)
        await assert_expired(cluster)

    run_cluster(scenario, tmp_path, **OPTIONS)


@pytest.mark.parametrize("error_ms", [-8 * DAY_MS, 10 * DAY_MS])
def test_a_new_node_whose_clock_is_wrong_stamps_by_the_others(tmp_path: Path, error_ms: int) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        node = cluster.nodes[4] = ClusterNode(cluster, 4)
        node.clock.set_wall(error_ms)
        await node.start()
        assert abs(node.node.now_ms() - node.clock.true_ms()) < 1000
        await node.backend.commit_offsets("group", {TOPIC: OffsetCommit(1)}, set=True)
        await asyncio.sleep(25)
        assert await offsets_of(cluster[1]) == {0: OffsetCommit(1)}

    run_cluster(scenario, tmp_path, **OPTIONS)


def test_nothing_expires_while_no_majority_agrees_on_the_time(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await prepare(cluster)
        for number, error_ms in ((1, -DAY_MS), (2, DAY_MS)):
            cluster[number].clock.step_wall(error_ms)
        await asyncio.sleep(100)
        await assert_kept(cluster)
        assert all(
            "no majority of the nodes agrees" in each for each in problems(await cluster[3].node.status())
        )
        for number in (1, 2):
            cluster[number].clock.set_wall(0)
        await asyncio.sleep(5)
        await assert_expired(cluster)

    run_cluster(scenario, tmp_path, **OPTIONS)


@pytest.mark.parametrize("asked", [1, 2])
def test_a_node_whose_clock_is_wrong_does_not_stay_alone(tmp_path: Path, asked: int) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        wrong, other, last = cluster[1], cluster[2], cluster[3]
        wrong.clock.step_wall(400 * DAY_MS)
        await asyncio.sleep(5)
        await cluster[asked].backend.remove_node(last.id)
        await until(lambda: last.node.left != "")
        for node in (wrong, other):
            with pytest.raises(FailedPrecondition, match="no majority of the nodes agrees on the time"):
                await cluster[asked].backend.remove_node(node.id)
        wrong.clock.set_wall(0)
        await asyncio.sleep(5)
        await cluster[asked].backend.remove_node(other.id)

    run_cluster(scenario, tmp_path, **OPTIONS)


def test_no_topic_is_compacted_while_a_node_would_delete_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_level(monkeypatch, POLICY_LEVEL - 1)

    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        with pytest.raises(FailedPrecondition, match="cleanup_policy=compact needs feature level 12"):
            await cluster[1].backend.create_topic("other", 1, {"cleanup_policy": "compact"})
        with pytest.raises(FailedPrecondition, match="needs feature level"):
            await cluster[2].backend.alter_topic("topic", config={"cleanup_policy": "compact,delete"})
        monkeypatch.undo()
        for node in cluster.nodes.values():
            await node.stop()
            await node.start()
        levels = [node.node.state_groups for node in cluster.nodes.values()]
        await until(lambda: all(each.feature_level >= POLICY_LEVEL for each in levels))
        made = await cluster[2].backend.create_topic("other", 1, {"cleanup_policy": "compact"})
        assert made.config == {"cleanup_policy": "compact"}

    run_cluster(scenario, tmp_path, 2)


@pytest.mark.parametrize("count", [1, 3])
def test_a_node_that_comes_after_all_clocks_have_jumped_goes_by_the_time_before_it(
    tmp_path: Path, count: int
) -> None:
    """Beside a lone node, or in the place of one with a lost disk. It leads groups at once."""
    groups = [f"group-{number}" for number in range(24)]

    async def scenario(cluster: NodeCluster) -> None:
        backend = cluster[1].backend
        await backend.create_topic("topic", 1)
        for group in groups:
            await backend.commit_offsets(group, {TOPIC: OffsetCommit(1)}, set=True)
        new = ClusterNode(cluster, 4)
        for node in (*cluster.nodes.values(), new):
            node.clock.step_wall(10 * DAY_MS)
        await asyncio.sleep(2)
        if count > 1:
            await cluster[3].kill()
            await backend.forget_node(cluster[3].id)
        cluster.nodes[4] = new
        await new.start()
        await until(lambda: any(each.group.leads for each in new.node.state_groups.groups))
        await asyncio.sleep(5 * STORAGE.retention_check)
        for group in groups:
            assert await backend.committed_offsets(group, "topic") == {0: OffsetCommit(1)}
        for node in cluster.nodes.values():
            node.clock.advance(3600)
        await asyncio.sleep(5 * STORAGE.retention_check)
        for group in groups:
            assert await backend.committed_offsets(group, "topic") == {}

    run_cluster(scenario, tmp_path, count, storage=replace(STORAGE, offsets_retention=86_400.0))
