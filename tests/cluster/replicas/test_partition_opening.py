"""pixy/cluster/replicas/partition_opening.py: large topics are made in pieces, and answered when
they are there.
"""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from pixy.errors import UnknownTopic
from pixy.multiraft.raft_group import RaftGroup
from pixy.raft import NONE
from tests.cluster.node_clusters import NodeCluster, leaders, run_cluster

pytestmark = pytest.mark.slow

MANY = 90
ELECTIONS_MAX = 4


class Elections:
    """The elections that the nodes of a cluster begin: how many of each were under way at most."""

    def __init__(self, cluster: NodeCluster) -> None:
        self.begun: dict[int, list[RaftGroup]] = {number: [] for number in cluster.nodes}
        self.most: Counter[int] = Counter()
        for number, node in cluster.nodes.items():
            self._watch(number, node.node.partitions)

    def _watch(self, number: int, partitions: object) -> None:
        begin = partitions.elect  # type: ignore[attr-defined]  # of `Partitions`

        def elect(group: RaftGroup) -> None:
            begin(group)
            self.begun[number].append(group)
            open_ones = sum(group.leader == NONE for group in self.begun[number])
            self.most[number] = max(self.most[number], open_ones)

        partitions.elect = elect  # type: ignore[attr-defined]


def test_a_large_topic_is_elected_in_pieces_and_answered_when_all_have_leaders(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        elections = Elections(cluster)
        await cluster[1].backend.create_topic("topic", MANY)
        assert [sum(each.leader == NONE for each in groups) for groups in elections.begun.values()] == [0] * 3
        described = await cluster[1].backend.describe_topic("topic")
        assert all(partition.leader > 0 for partition in described.partitions)
        # Each node has elected its third, in the first term: none was disturbed.
        assert [len(groups) for groups in elections.begun.values()] == [MANY // 3] * 3
        assert {group.term for groups in elections.begun.values() for group in groups} == {1}
        assert max(elections.most.values()) <= ELECTIONS_MAX

    run_cluster(scenario, tmp_path)


def test_partitions_that_are_added_are_elected_before_the_answer(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[2].backend.create_topic("topic", 1)
        await cluster[2].backend.alter_topic("topic", partitions=30)
        described = await cluster[2].backend.describe_topic("topic")
        assert all(partition.leader > 0 for partition in described.partitions)

    run_cluster(scenario, tmp_path)


def test_a_small_topic_does_not_wait_for_a_large_one(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        large = asyncio.create_task(cluster[1].backend.create_topic("large", MANY))
        await asyncio.sleep(0.05)
        await cluster[2].backend.create_topic("topic", 3)
        assert not large.done()
        await cluster[2].append(b"x")
        await large

    run_cluster(scenario, tmp_path)


def test_a_topic_that_is_deleted_while_it_is_made_is_gone_for_its_creator(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        creation = asyncio.create_task(cluster[1].backend.create_topic("topic", MANY))
        await asyncio.sleep(0.05)
        assert not creation.done()
        await cluster[2].backend.delete_topic("topic")
        await asyncio.wait([creation])
        await asyncio.sleep(1)
        with pytest.raises(UnknownTopic):
            await cluster[1].backend.describe_topic("topic")
        await cluster[1].backend.create_topic("topic", 3)
        await cluster[3].append(b"x")

    run_cluster(scenario, tmp_path)


def test_a_topic_with_a_preferred_leader_that_is_down_gets_other_leaders(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        down = cluster[3].id
        await cluster[3].kill()
        await asyncio.sleep(3)
        await cluster[1].backend.create_topic("topic", 12)
        assert all(each <= {1, 2, 3} - {down} for each in leaders([cluster[1]]))
        await cluster[1].append(b"x")

    run_cluster(scenario, tmp_path)
