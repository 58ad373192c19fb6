"""Consumer groups over several nodes: one node consumes in each, the others say which."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pixy.backend import ConsumerMembership, OffsetCommit, Owner, TopicPartition
from pixy.errors import OwnedElsewhere, Unavailable
from tests.cluster.node_clusters import ClusterNode, NodeCluster, leaders, run_cluster
from tests.fakes.waiting import until

TOPIC = TopicPartition("topic", 0)


class ClusterMember:
    """A member of the group at a node, with its assignments."""

    def __init__(self, node: ClusterNode) -> None:
        self.node = node
        self.assignments: list[dict[str, list[int]]] = []
        self.membership: ConsumerMembership

    def _assigned(self, assignment: Mapping[str, Sequence[int]]) -> None:
        self.assignments.append({topic: list(partitions) for topic, partitions in assignment.items()})

    async def join(self) -> "ClusterMember":
        self.membership = await self.node.backend.join_consumer_group(
            "group", f"client-{self.node.number}", ["topic"], self._assigned
        )
        return self

    async def leave(self) -> None:
        await self.membership.leave()


async def commit(node: ClusterNode, offset: int) -> None:
    await node.backend.commit_offsets("group", {TOPIC: OffsetCommit(offset, "")})


async def committed(node: ClusterNode) -> int | None:
    found = (await node.backend.committed_offsets("group", "topic")).get(0)
    return None if found is None else found.offset


async def with_topic(cluster: NodeCluster) -> None:
    await cluster[1].backend.create_topic("topic", 2)


def test_a_group_is_served_by_the_node_that_has_members(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        member = await ClusterMember(cluster[2]).join()
        assert member.assignments == [{"topic": [0, 1]}]
        reason = f"consumer group group is served by node {cluster[2].id} at 127.0.0.2:19091"
        for number in (1, 3):
            with pytest.raises(OwnedElsewhere, match=reason):
                await ClusterMember(cluster[number]).join()
            with pytest.raises(OwnedElsewhere, match=reason):
                await commit(cluster[number], 1)
            with pytest.raises(OwnedElsewhere, match=reason):
                await cluster[number].backend.partition_owner("group", TOPIC)
        await commit(cluster[2], 1)
        assert await cluster[2].backend.partition_owner("group", TOPIC) == Owner("client-2")

    run_cluster(scenario, tmp_path)


def test_any_node_tells_of_groups_members_and_offsets(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        await ClusterMember(cluster[2]).join()
        await commit(cluster[2], 7)
        for node in cluster.nodes.values():
            assert await committed(node) == 7
            assert await node.backend.list_groups() == {"group"}
            assert await node.backend.consumer_group_exists("group")
            assert await node.backend.list_consumers("topic") == {"group": {"client-2": [0, 1]}}

    run_cluster(scenario, tmp_path)


def test_offsets_of_a_group_without_members_are_set_at_any_node(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        for number in (1, 2, 3):
            await commit(cluster[number], number)
            for node in cluster.nodes.values():
                assert await committed(node) == number
                assert not await node.backend.consumer_group_exists("group")

    run_cluster(scenario, tmp_path)


def test_the_last_member_that_leaves_releases_the_group(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        first, second = await ClusterMember(cluster[1]).join(), await ClusterMember(cluster[1]).join()
        await first.leave()
        with pytest.raises(OwnedElsewhere):
            await ClusterMember(cluster[2]).join()
        await commit(cluster[1], 5)
        await second.leave()
        other = await ClusterMember(cluster[2]).join()
        assert await committed(cluster[2]) == 5
        await other.leave()
        assert await cluster[3].backend.list_groups() == {"group"}, "it has offsets"

    run_cluster(scenario, tmp_path)


def test_a_node_that_stops_releases_its_groups(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        await ClusterMember(cluster[2]).join()
        await cluster[2].stop()
        await ClusterMember(cluster[3]).join()

    run_cluster(scenario, tmp_path)


def test_the_group_of_a_node_that_is_gone_is_taken_over_after_a_while(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        await ClusterMember(cluster[2]).join()
        await commit(cluster[2], 3)
        killing = asyncio.create_task(cluster[2].kill())
        await asyncio.sleep(3)
        with pytest.raises(OwnedElsewhere):
            await ClusterMember(cluster[1]).join()
        await asyncio.sleep(3)
        await ClusterMember(cluster[1]).join()
        assert await committed(cluster[1]) == 3
        with pytest.raises(OwnedElsewhere):
            await ClusterMember(cluster[3]).join()
        await killing

    run_cluster(scenario, tmp_path)


def test_the_group_of_a_node_that_has_started_again_is_taken_over_at_once(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        await ClusterMember(cluster[2]).join()
        await cluster[2].kill()
        await cluster[2].start()
        assert await cluster[1].backend.list_groups() == set(), "only the claim of a process that is gone"
        await ClusterMember(cluster[1]).join()

    run_cluster(scenario, tmp_path)


@pytest.mark.parametrize("how", ["forgotten", "removed"])
def test_the_group_of_a_node_that_has_left_is_taken_over_at_once(tmp_path: Path, how: str) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        left = cluster[2].id
        member = await ClusterMember(cluster[2]).join()
        await commit(cluster[2], 3)
        if how == "forgotten":
            await cluster[2].kill()
            await until(lambda: not cluster[1].node.peers.members.is_reachable(left))  # type: ignore[union-attr]
        await until(lambda: all(min(each) > 0 for each in leaders([cluster[1], cluster[3]])))
        # A node that does not know yet that the other has left.
        controller = cluster.by_id(cluster[1].node.state_groups.metadata_replica.group.leader)
        behind = cluster[1] if controller is not cluster[1] else cluster[3]
        cluster.network.way(controller.host, behind.host).delays_s = (0.3, 0.3)
        await (
            controller.backend.forget_node(left)
            if how == "forgotten"
            else controller.backend.remove_node(left)
        )
        assert left in behind.node.metadata.registered
        await ClusterMember(behind).join()
        assert await committed(behind) == 3
        await commit(behind, 4)
        if how == "removed":
            await until(lambda: {} in member.assignments)
            assert cluster[2].backend.fault == "this node was removed from the cluster"
            with pytest.raises(Unavailable):
                await commit(cluster[2], 9)

    run_cluster(scenario, tmp_path)


def test_a_node_that_was_cut_off_loses_its_group_and_its_commits_are_refused(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        cut_off = await ClusterMember(cluster[2]).join()
        await commit(cluster[2], 3)
        cluster.split(2)
        await asyncio.sleep(6)
        taken_over = await ClusterMember(cluster[1]).join()
        await commit(cluster[1], 4)
        with pytest.raises(Unavailable):
            await commit(cluster[2], 9)
        cluster.network.heal()
        await until(lambda: len(cut_off.assignments) == 3)
        assert cut_off.assignments[1:] == [{}, {"topic": [0, 1]}]
        with pytest.raises(OwnedElsewhere, match=f"is served by node {cluster[1].id}"):
            await cluster[2].backend.committed_offsets("group", "topic")
        with pytest.raises(OwnedElsewhere, match=f"is served by node {cluster[1].id}"):
            await commit(cluster[2], 9)
        assert await committed(cluster[3]) == 4
        await taken_over.leave()
        assert await committed(cluster[2]) == 4
        with pytest.raises(OwnedElsewhere, match=f"is served by node {cluster[2].id}"):
            await ClusterMember(cluster[1]).join()

    run_cluster(scenario, tmp_path)


def test_nodes_that_claim_at_the_same_time_do_not_both_get_it(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        members = [ClusterMember(node) for node in cluster.nodes.values()]
        joined = await asyncio.gather(*(member.join() for member in members), return_exceptions=True)
        assert sorted(type(each).__name__ for each in joined) == [
            "ClusterMember",
            "OwnedElsewhere",
            "OwnedElsewhere",
        ]

    run_cluster(scenario, tmp_path)


def test_a_release_that_fails_is_repeated(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        member = await ClusterMember(cluster[2]).join()
        cluster.split(2)
        await asyncio.sleep(1)
        await member.leave()
        claims = cluster[1].node.state_groups.offsets_of("group")
        assert claims.claimed_by("group") is not None
        await asyncio.sleep(20)
        cluster.network.heal()
        await until(lambda: claims.claimed_by("group") is None)
        assert await cluster[2].backend.list_groups() == set()

    run_cluster(scenario, tmp_path)
