"""An older copy of a node's directory, and nodes that join or start later."""

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.cluster.node_clusters import NodeCluster, run_cluster
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("lacks", ["a start", "flushes"])
def test_a_node_that_joins_later_refuses_an_older_copy_too(tmp_path: Path, lacks: str) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        copied = cluster[3]
        node_id, directory = copied.id, cluster.directory / "3"
        if lacks == "a start":
            await copied.stop()
        shutil.copytree(directory, tmp_path / "copy")
        if lacks == "a start":
            await copied.start()
        for _ in range(20):
            await cluster[1].append(b"value")
        # All others hear how far it is.
        await asyncio.sleep(2.0)
        await copied.kill()
        shutil.rmtree(directory)
        (tmp_path / "copy").rename(directory)
        await copied.begin()
        others = [cluster[1], cluster[2]]
        await until(lambda: all("older copy" in str(_refused(each.node, node_id)) for each in others))
        others.append(await cluster.add())
        await until(lambda: all("older copy" in str(_refused(each.node, node_id)) for each in others))
        for each in others:
            assert node_id in each.node.unreachable()
            assert not each.node._is_reachable(node_id), "by way of no other node either"
        assert not copied.node.has_started
        await cluster[1].backend.forget_node(node_id)

    run_cluster(scenario, tmp_path / "cluster")


@pytest.mark.parametrize("hears_late", [False, True], ids=["connected", "connected later"])
def test_a_node_that_has_not_heard_of_flushes_refuses_a_copy_without_them_too(
    tmp_path: Path, hears_late: bool
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        first, cut_off, copied = cluster[1], cluster[2], cluster[3]
        node_id, directory = copied.id, cluster.directory / "3"
        cluster.network.split([cut_off.host], [copied.host])
        await asyncio.sleep(3.0)
        shutil.copytree(directory, tmp_path / "copy")
        for _ in range(20):
            await first.append(b"value")
        await asyncio.sleep(2.0)
        await copied.kill()
        shutil.rmtree(directory)
        (tmp_path / "copy").rename(directory)
        if hears_late:
            cluster.split(1)
        cluster.network.join(cut_off.host, copied.host)
        cluster.network.join(copied.host, cut_off.host)
        await copied.begin()
        if hears_late:
            await until(lambda: node_id not in cut_off.node.unreachable())
            cluster.network.heal()
        for each in (first, cut_off):
            await until(lambda each=each: "older copy" in str(_refused(each.node, node_id)))  # type: ignore[misc]
            await until(lambda each=each: node_id in each.node.unreachable())  # type: ignore[misc]
        await asyncio.sleep(5.0)
        assert node_id in cut_off.node.unreachable()
        assert not cut_off.node._is_reachable(node_id), "by way of no other node either"

    run_cluster(scenario, tmp_path / "cluster")


def _refused(node: object, node_id: int) -> str:
    return str(node.peers.members.refused.get(node_id, ""))  # type: ignore[attr-defined]  # it has peers
