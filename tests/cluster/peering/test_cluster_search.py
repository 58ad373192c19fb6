"""First starts: a node that a cluster knows founds no second one."""

import asyncio
import shutil
from pathlib import Path

import pytest

from pixy.cluster import ClusterOptions
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow


async def begin_empty(node: ClusterNode) -> None:
    """Kill a node, and start it with an empty directory."""
    await node.kill()
    shutil.rmtree(node.cluster.directory / str(node.number))
    await node.begin()


async def grown(cluster: NodeCluster) -> bytes:
    """Start a node with a list of itself, which two others join; returns the id of the cluster."""
    cluster.look_s = ClusterOptions().look_s
    cluster.lists[1] = [1]
    await cluster[1].start()
    for _ in range(2):
        await cluster.add()
    replicas = [each for node in cluster.nodes.values() for each in node.node.state_groups.replicas()]
    groups = [replica.group for replica in replicas]
    await until(lambda: all(len(group.storage.conf_state.voters) == 3 for group in groups))
    return (await cluster[1].backend.cluster_status()).cluster_id


def test_others_join_a_node_with_a_list_of_itself(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await grown(cluster)
        assert cluster[3].node.metadata.registered == [1, 2, 3]
        await cluster[1].kill()
        await cluster[1].start()

    run_cluster(scenario, tmp_path, 1, starts=False)


@pytest.mark.parametrize("emptied", [[1], [1, 2]])
def test_nodes_without_their_directories_found_no_cluster_while_another_node_knows_them(
    tmp_path: Path, emptied: list[int]
) -> None:
    """Their lists name nobody else, or others that have lost theirs too."""

    async def scenario(cluster: NodeCluster) -> None:
        await grown(cluster)
        for number in emptied:
            cluster.lists[number] = emptied
        await asyncio.gather(*(begin_empty(cluster[number]) for number in emptied))
        await asyncio.sleep(60.0)
        hosts = [cluster[number].host for number in (2, 3) if number not in emptied]
        assert cluster[1].backend.fault in {
            f"a node of a cluster of this name, at {host}, dials this one: its data directory is lost, or not "
            "mounted. It founds no second cluster. With that node in cluster.join it joins as a new node"
            for host in hosts
        }
        for number in emptied:
            assert not cluster[number].node.has_started
            assert (await cluster[number].backend.cluster_status()).cluster_id == b""

    run_cluster(scenario, tmp_path, 1, starts=False)


def test_a_node_without_its_directory_joins_as_a_new_one_once_its_list_names_another(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        cluster_id = await grown(cluster)
        await begin_empty(cluster[1])
        await until(lambda: "dials this one" in cluster[1].backend.fault)
        await cluster[1].kill()
        cluster.lists[1] = [1, 2]
        await cluster[1].start()
        assert (await cluster[1].backend.cluster_status()).cluster_id == cluster_id
        assert cluster[1].id == 4

    run_cluster(scenario, tmp_path, 1, starts=False)


def test_a_node_that_is_dialled_no_more_founds_a_cluster(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        cluster_id = await grown(cluster)
        await begin_empty(cluster[1])
        await until(lambda: "dials this one" in cluster[1].backend.fault)
        for number in (2, 3):
            await cluster[number].kill()
        await cluster[1].backend.wait_ready()
        assert (await cluster[1].backend.cluster_status()).cluster_id != cluster_id

    run_cluster(scenario, tmp_path, 1, starts=False)
