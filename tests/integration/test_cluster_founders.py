"""No second cluster beside the first: lost directories, and nodes from before a recovery."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.waiting import until_blocking
from tests.integration.clusters import Cluster, ClusterNode

pytestmark = [pytest.mark.process, pytest.mark.slow]

SECONDS = 60.0


def start_empty(node: ClusterNode) -> None:
    """Begin the start of a node that does not run, with an empty directory."""
    shutil.rmtree(node.folder / "data")
    node.start_nowait()


def set_list(node: ClusterNode, *addresses: str) -> None:
    node.config["cluster"] = {**node.config["cluster"], "join": list(addresses)}


def wait_for_reason(node: ClusterNode, text: str) -> None:
    until_blocking(lambda: text in node.status().not_ready, node.log)


def wait_for_voters(cluster: Cluster) -> None:
    """Wait until all nodes vote in all raft groups: then each can be lost."""

    def all_vote() -> bool:
        groups = [group for node in cluster.nodes for group in node.status().groups]
        return all(len(group.voters) == len(cluster.nodes) for group in groups)

    until_blocking(all_vote, cluster.logs)
    cluster.wait_in_sync()


def test_a_founder_that_has_lost_its_directory_founds_no_second_cluster(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        founder, *others = cluster.nodes
        set_list(founder, cluster.join[0])
        founder.start()
        for node, address in zip(others, cluster.join[1:], strict=True):
            set_list(node, cluster.join[0], address)
            node.start()
        wait_for_voters(cluster)
        founder.kill()
        start_empty(founder)
        wait_for_reason(founder, "a node of a cluster of this name, at 127.0.0.1, dials this one")
        assert not founder.status().cluster_id
        # Its list names another node: it joins that one's cluster.
        founder.kill()
        set_list(founder, *cluster.join[:2])
        founder.start_nowait()
        founder.wait_serving()
        assert len({node.status().cluster_id for node in cluster.nodes}) == 1
        assert founder.status().node_id == 4


@pytest.mark.long
def test_the_nodes_before_a_recovery_and_the_recovered_one_refuse_each_other(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start()
        survivor, *others = cluster.nodes
        before = survivor.status().cluster_id
        cluster.kill()
        flags = ("--other-nodes-are-gone", "--messages-may-be-lost")
        command = ["cluster", "recover", "--data-dir", str(survivor.folder / "data"), *flags]
        told = subprocess.run(
            [sys.executable, "-m", "pixy", *command],
            check=True,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        ).stdout
        assert "Empty their data directories first" in told
        survivor.start()
        # They are a majority by themselves.
        cluster.start(2, 3)
        after = survivor.status().cluster_id
        assert after != before
        assert {node.status().cluster_id for node in others} == {before}
        for node in others:
            until_blocking(lambda node=node: after.hex() in " ".join(node.status().problems), node.log)  # type: ignore[misc]
        until_blocking(lambda: "`pixy cluster recover` was run" in survivor.log(), survivor.log)
        assert len(survivor.status().nodes) == 1
        # A new node that is told of both joins neither.
        others[0].kill()
        start_empty(others[0])
        wait_for_reason(others[0], "belong to different clusters")
        others[1].kill()
        start_empty(others[1])
        for node in others:
            node.wait_ready()
        assert {node.status().cluster_id for node in cluster.nodes} == {after}
        assert len(survivor.status().nodes) == len(cluster.nodes)
