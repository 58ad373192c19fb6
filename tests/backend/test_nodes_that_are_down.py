"""New partitions in a cluster with nodes that are down: they are placed on the others."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pixy.backend import OffsetCommit, TopicPartition
from pixy.backend.embedded import EmbeddedBackend
from pixy.cluster.peering import cluster_search, node_peers
from pixy.cluster.state.nodes import PLACEMENT_LEVEL, REMOVING_LEVEL, SEEN_LEVEL
from pixy.cluster.status.status_problems import problems
from pixy.errors import FailedPrecondition, OffsetsSet, StaleTopicVersion
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

WHERE = TopicPartition("topic", 0)


async def kill(cluster: NodeCluster, *numbers: int) -> None:
    """Lose nodes; the others know."""
    for number in numbers:
        await cluster[number].kill()
    left = [node for number, node in cluster.nodes.items() if number not in numbers]
    await until(lambda: all(len(node.node.unreachable()) >= len(numbers) for node in left))


@pytest.mark.parametrize("asked", [1, 3], ids=["at the leader", "at another node"])
def test_every_new_partition_can_be_written_while_a_minority_of_the_nodes_is_down(
    tmp_path: Path, asked: int
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await kill(cluster, 4, 5)
        node = cluster[asked]
        await node.backend.create_topic("topic", 5)
        await asyncio.gather(*(node.append(b"a", partition=each) for each in range(5)))
        described = await node.backend.alter_topic("topic", partitions=10)
        await asyncio.gather(*(node.append(b"b", partition=each) for each in range(10)))
        down = {cluster[4].id, cluster[5].id}
        assert all(
            len(each.replicas) == 3 and down.isdisjoint(each.replicas) for each in described.partitions
        )

    run_cluster(scenario, tmp_path, 5)


def test_partitions_are_placed_on_all_nodes_while_one_of_them_has_a_release_that_does_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (cluster_search, node_peers):
        monkeypatch.setattr(module, "FEATURE_LEVEL", PLACEMENT_LEVEL - 1)

    async def scenario(cluster: NodeCluster) -> None:
        await kill(cluster, 4)
        described = await cluster[1].backend.create_topic("topic", 4)
        assert any(cluster[4].id in each.replicas for each in described.partitions)

    run_cluster(scenario, tmp_path, 4)


def test_nothing_is_removed_for_a_client_while_a_node_has_a_release_that_does_not_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (cluster_search, node_peers):
        monkeypatch.setattr(module, "FEATURE_LEVEL", REMOVING_LEVEL - 1)

    async def scenario(cluster: NodeCluster) -> None:
        backend = cluster[1].backend
        await backend.create_topic("topic", 1)
        await cluster[1].append(b"a")
        await backend.commit_offsets("group", {TopicPartition("topic", 0): OffsetCommit(1)})
        for removal in (backend.delete_records("topic", {0: 1}), backend.delete_group("group")):
            with pytest.raises(FailedPrecondition, match="older release"):
                await removal
        assert await backend.offset_ranges("topic") == {0: (0, 1)}
        assert await backend.committed_offsets("group", "topic") == {0: (1, "")}

    run_cluster(scenario, tmp_path)


def test_a_removal_of_offsets_that_comes_late_leaves_later_ones(tmp_path: Path) -> None:
    """The node that was asked, and given up, has proposed it before, and was paused."""

    async def scenario(cluster: NodeCluster) -> None:
        asked, paused = cluster[1].backend, cluster[2].node
        where = TopicPartition("topic", 0)
        await asked.create_topic("topic", 1)
        await cluster[1].append(b"a", b"b")
        await asked.commit_offsets("group", {where: OffsetCommit(1)})
        await paused.confirm([paused.state_groups.group_of("group")], 5.0)
        seen = paused.state_groups.offsets_of("group").checksum("group", b"")
        await asked.delete_group("group")
        await asked.commit_offsets("group", {where: OffsetCommit(2)})
        with pytest.raises(FailedPrecondition, match="other offsets than when their removal was asked for"):
            await paused.commands.delete_offsets("group", "", b"", seen)
        assert await asked.committed_offsets("group", "topic") == {0: (2, "")}
        await cluster[3].backend.delete_group("group")
        assert await asked.committed_offsets("group", "topic") == {}

    run_cluster(scenario, tmp_path)


LATE: dict[str, Callable[[EmbeddedBackend, int], Awaitable[object]]] = {
    "offsets that are set": lambda backend, value: backend.commit_offsets(
        "group", {WHERE: OffsetCommit(value)}, set=True
    ),
    "a topic that is altered": lambda backend, value: backend.alter_topic(
        "topic", config={"retention_ms": str(value)}
    ),
}


async def value_of(node: ClusterNode) -> tuple[object, object]:
    """The offset and the option that the calls of `LATE` change, as a node has them."""
    committed = await node.backend.committed_offsets("group", "topic")
    await node.node.confirm_metadata(5.0)
    return committed[0].offset, node.node.metadata.topics["topic"].config.get("retention_ms")


@pytest.mark.parametrize("kind", LATE)
@pytest.mark.parametrize("level", [SEEN_LEVEL, SEEN_LEVEL - 1])
def test_a_change_that_comes_late_leaves_a_later_one(
    tmp_path: Path, kind: str, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node that was asked, and given up, was paused when it was about to propose it."""
    for module in (cluster_search, node_peers):
        monkeypatch.setattr(module, "FEATURE_LEVEL", level)
    change = LATE[kind]

    async def scenario(cluster: NodeCluster) -> None:
        asked, paused = cluster[1].backend, cluster[2]
        await asked.create_topic("topic", 1)
        for value in (10, 10):
            for each in LATE.values():
                await each(asked, value)
        assert await value_of(paused) == (10, "10")
        proposals: Any = paused.node.commands._proposals
        run, begun, goes_on = proposals.run, asyncio.Event(), asyncio.Event()

        async def run_late(*args: Any, **options: Any) -> Any:
            begun.set()
            await goes_on.wait()
            return await run(*args, **options)

        proposals.run = run_late
        late = asyncio.ensure_future(change(paused.backend, 20))
        await begun.wait()
        await asyncio.sleep(1.0)  # of the simulated clock: a pause
        # The first of these changes nothing, as one that corrects a mistake before it is made.
        for value in (10, 30):
            await change(asked, value)
        before = await value_of(cluster[3])
        goes_on.set()
        await asyncio.wait([late])
        proposals.run = run
        if level < SEEN_LEVEL:
            late.result()
        else:
            assert isinstance(late.exception(), StaleTopicVersion | OffsetsSet)
        assert (await value_of(cluster[3]) == before) is (level >= SEEN_LEVEL)
        for node in cluster.nodes.values():
            await node.backend.committed_offsets("group", "topic")
            await change(node.backend, 40 + node.number)
        assert {await value_of(node) for node in cluster.nodes.values()} == {await value_of(cluster[1])}

    run_cluster(scenario, tmp_path)


def test_a_partition_with_more_replicas_than_nodes_are_up_has_its_majority_on_these(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await kill(cluster, 3)
        described = await cluster[1].backend.create_topic("topic", 4)
        assert all(
            len(each.replicas) == 3 and each.replicas[0] != cluster[3].id for each in described.partitions
        )
        await asyncio.gather(*(cluster[1].append(b"a", partition=each) for each in range(4)))

    run_cluster(scenario, tmp_path)


def test_partitions_of_which_no_node_is_up_are_named_also_when_none_comes_back(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        described = await cluster[1].backend.create_topic("topic", 8, {"replication": "1"})
        numbers = [each.partition for each in described.partitions if each.replicas == (cluster[4].id,)]
        assert numbers
        await kill(cluster, 4)

        async def leaderless() -> list[str]:
            found = problems(await cluster[1].backend.cluster_status())
            return [each for each in found if "no leader" in each]

        named = " and ".join(f"topic-{number}" for number in numbers)
        assert await leaderless() == [
            f"no leader for raft groups {named}: of voter {cluster[4].id} none is up"
        ]
        await cluster[1].backend.forget_node(cluster[4].id)
        (problem,) = await leaderless()
        assert problem.endswith(f"and node {cluster[4].id} will not come back: there cannot be one any more")

    run_cluster(scenario, tmp_path, 4)


@pytest.mark.parametrize("replication", [1, 2])
def test_the_ends_of_partitions_with_a_leader_are_known_while_others_have_none(
    tmp_path: Path, replication: int
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        lost, loop = cluster[3].id, asyncio.get_running_loop()
        config = {"replication": str(replication)}
        described = (await cluster[1].backend.create_topic("topic", 6, config)).partitions
        gone = {each.partition for each in described if lost in each.replicas}
        assert 0 < len(gone) < 6
        await asyncio.gather(*(cluster[1].append(b"a", partition=each) for each in range(6)))
        await kill(cluster, 3)
        await cluster[1].node.confirm_metadata(5.0)
        for pause_s, patience_s in ((0.0, 0.5), (4.0, 5.0)):
            await asyncio.sleep(pause_s)
            for node in (cluster[1], cluster[2]):
                begun = loop.time()
                ranges, unknown = await node.backend.known_ranges("topic", patience_s=patience_s)
                assert loop.time() - begun < 2.0
                assert ranges == {number: (0, 1) for number in range(6) if number not in gone}
                assert unknown.keys() == gone
                assert f"partition {min(gone)} of topic topic" in str(unknown[min(gone)])
                assert (await node.backend.known_ranges("topic", [min(gone), 9])).ranges == {}
        await cluster[3].start()
        await until(lambda: cluster[1].node.unreachable() == [])
        assert (await cluster[1].backend.known_ranges("topic")).unknown == {}
        assert (await cluster[1].backend.known_ranges("topic")).ranges.keys() == {*range(6)}

    run_cluster(scenario, tmp_path)
