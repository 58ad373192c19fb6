"""Nodes that are not what they were: an older copy of a data directory, a directory that is used
twice, a lost disk, a wrong clock.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from pixy.proto import kafkapixy_pb2
from pixy.proto import pixy_cluster_pb2 as pb
from pixy.proto.pixy_cluster_pb2_grpc import ClusterStub
from pixy.storage.journal.journal_format import (
    FILE_HEADER_BYTES,
    FLUSH_FRAME_BYTES,
    FileHeader,
    read_file_header,
    read_flush_frame,
)
from tests.fakes.waiting import until_blocking
from tests.integration.clusters import Cluster, ClusterNode, killed_in_the_end
from tests.integration.daemon import wait_until_refused
from tests.integration.faulty_daemon import FAULTY, Faults
from tests.integration.loaded import LoadedCluster, failed_elsewhere
from tests.integration.networks import Loopback

pytestmark = [pytest.mark.process, pytest.mark.long]

SECONDS = 60.0
HOUR_S = 3600.0
NODES = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # The network has a place for one node more.
    network = Loopback(NODES + 1)
    with Cluster(tmp_path_factory.mktemp("cluster"), NODES, network, program=FAULTY) as cluster:
        cluster.start()
        yield cluster


def forget(cluster: Cluster, node_id: int) -> None:
    """Give up a node at another one, once no node reaches it any more."""

    def is_lost() -> bool:
        return not any(each.up for each in cluster[1].status().nodes if each.node_id == node_id)

    until_blocking(is_lost, cluster[1].log)
    with grpc.insecure_channel(cluster[1].address) as channel:
        ClusterStub(channel).ForgetNode(pb.ForgetNodeRequest(node_id=node_id), timeout=SECONDS)


def join_again(cluster: Cluster, node: ClusterNode) -> None:
    """Start a node that was given up with an empty directory."""
    node.kill()
    shutil.rmtree(node.folder / "data")
    node.start()
    cluster.wait_in_sync()


def replicas_of(cluster: Cluster, name: str) -> set[int]:
    """Nodes with a vote in a raft group."""
    return {voter for group in cluster[1].status().groups if group.name == name for voter in group.voters}


def wait_for_log(node: ClusterNode, text: str) -> None:
    until_blocking(lambda: text in node.log(), node.log)


def test_a_node_is_started_from_an_older_copy_of_its_directory(cluster: Cluster) -> None:
    loaded = LoadedCluster(cluster, "older")
    node, others = cluster[3], [cluster[1], cluster[2]]
    node_id = cluster.id_of(node)
    copy = node.folder / "copy"
    node.stop()
    shutil.copytree(node.folder / "data", copy)
    node.start()
    with loaded.produced() as producers:
        producers.wait_answers(cluster.nodes)
    node.kill()
    shutil.rmtree(node.folder / "data")
    copy.rename(node.folder / "data")
    with loaded.produced(others) as producers:
        node.start_nowait()
        for each in cluster.nodes:
            wait_for_log(each, f"node {node_id} comes with start 2")
        producers.wait_answers(others)
    assert producers.failed == []
    problems = " ".join(cluster[1].status().problems)
    for says in (problems, node.status().not_ready):
        assert "older copy" in says
        assert "forget the node" in says

    forget(cluster, node_id)
    join_again(cluster, node)
    assert cluster.id_of(node) > NODES
    with LoadedCluster(cluster, "after-older").produced() as producers:
        pass
    assert producers.failed == []


def test_a_node_has_lost_its_disk(cluster: Cluster) -> None:
    loaded = LoadedCluster(cluster, "lost-disk")
    node, others = cluster[3], [cluster[1], cluster[2]]
    node_id = cluster.id_of(node)
    with loaded.produced() as producers:
        node.kill()
        producers.wait_answers(others)
        forget(cluster, node_id)
        join_again(cluster, node)
    assert failed_elsewhere(producers, node) == []
    assert cluster.id_of(node) > node_id
    # Its new node gets replicas of the topics of the old one.
    until_blocking(lambda: not cluster[1].status().under_replicated, cluster.logs)
    assert cluster.id_of(node) in replicas_of(cluster, "lost-disk-0")


@pytest.mark.parametrize("place", ["newest flush", "middle"])
def test_a_journal_is_damaged(cluster: Cluster, place: str) -> None:
    loaded = LoadedCluster(cluster, f"damaged-{place.replace(' ', '-')}")
    node, others = cluster[3], [cluster[1], cluster[2]]
    node_id = cluster.id_of(node)
    with loaded.produced() as producers:
        node.kill()
        journal = Journal(node)
        journal.damage(len(journal.written) - 1 if place == "newest flush" else len(journal.written) // 2)
        code, log = wait_until_refused(node)
        assert code == 1
        assert journal.file.name in log
        producers.wait_answers(others)
        forget(cluster, node_id)
        join_again(cluster, node)
    assert failed_elsewhere(producers, node) == []


def test_the_newest_flushes_of_a_journal_are_lost(cluster: Cluster) -> None:
    """It looks as if the node had been killed while it wrote, but the others know of it."""
    loaded = LoadedCluster(cluster, "lost-flush")
    node, others = cluster[3], [cluster[1], cluster[2]]
    node_id = cluster.id_of(node)
    with loaded.produced():
        pass
    cluster.wait_in_sync()
    node.kill()
    Journal(node).lose_newest_flushes()
    with loaded.produced(others) as producers:
        node.start_nowait()
        for each in cluster.nodes:
            wait_for_log(each, f"node {node_id} comes with start 2 and flush")
        producers.wait_answers(others)
        forget(cluster, node_id)
        join_again(cluster, node)
    assert producers.failed == []


class Journal:
    """The newest journal file of a node that does not run."""

    def __init__(self, node: ClusterNode) -> None:
        files = sorted((node.data / "journal").iterdir())
        contents = {file: file.read_bytes() for file in files}
        self.file = max(file for file in files if contents[file].rstrip(b"\0")[FILE_HEADER_BYTES:])
        self._content = bytearray(contents[self.file])
        self.written = contents[self.file].rstrip(b"\0")

    def damage(self, at: int) -> None:
        """Change a bit of one byte."""
        self._content[at] ^= 1
        self.file.write_bytes(self._content)

    def lose_newest_flushes(self, count: int = 3) -> None:
        """Replace the newest flushes by zeros; of the very last one, others may know nothing."""
        header = read_file_header(self._content)
        assert isinstance(header, FileHeader)
        at = len(self.written) - FLUSH_FRAME_BYTES
        for _ in range(count):
            at -= 1
            while read_flush_frame(memoryview(self._content), at, header.cluster_id) is None:
                at -= 1
        self._content[at:] = bytes(len(self._content) - at)
        self.file.write_bytes(self._content)


def test_a_directory_is_used_twice(cluster: Cluster, tmp_path: Path) -> None:
    loaded = LoadedCluster(cluster, "twice")
    original = cluster[2]
    original.stop()
    shutil.copytree(original.folder / "data", tmp_path / "data")
    original.start()
    options = {**original.config["cluster"], "join": [cluster.network.advertised(NODES + 1)]}
    copy = ClusterNode(NODES + 1, cluster.network, tmp_path, {"cluster": options})
    with loaded.produced() as producers, killed_in_the_end(copy):
        copy.start_nowait()
        for each in (copy, cluster[1], cluster[3]):
            wait_for_log(each, "one of their data directories is a copy")
        producers.wait_answers(cluster.nodes)
    assert producers.failed == []


def test_the_clock_of_a_node_is_an_hour_ahead(cluster: Cluster) -> None:
    loaded = LoadedCluster(cluster, "clock")
    leader = loaded.leader()
    faults = Faults(leader.folder)
    with loaded.produced() as producers:
        faults.set_clock_ahead(HOUR_S)
        other = cluster.others(leader)[0]
        until_blocking(lambda: "clock" in " ".join(other.status().problems), cluster.logs)
        producers.wait_answers(cluster.nodes)
        faults.heal()
    assert producers.failed == []


def status_of(node: ClusterNode, cluster: str) -> str:
    """Output of `pixy cluster status`, in one line."""
    command = ["cluster", "status", "--address", node.address, "--cluster", cluster]
    done = subprocess.run(
        [sys.executable, "-m", "pixy", *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    # A cluster of two nodes is never without a problem.
    assert done.returncode == 1, done
    return " ".join(done.stdout.split())


def test_a_node_is_refused_in_one_of_two_clusters(tmp_path: Path) -> None:
    with Cluster(tmp_path, 2, config={"proxies": {"well": {}, "copied": {}}}) as cluster:
        cluster.start()
        one, two = cluster.nodes
        node_id = cluster.id_of(two)
        data, copy = two.folder / "data" / "copied", two.folder / "copy"
        two.stop()
        shutil.copytree(data, copy)
        two.start()
        two.stop()
        shutil.rmtree(data)
        copy.rename(data)
        two.start_nowait()
        for node in cluster.nodes:
            wait_for_log(node, f"node {node_id} comes with start 2")
        always = only_problem(one)
        lost = f"node {node_id} ({cluster.join[1]}) is not reachable"
        until_blocking(lambda: lost in status_of(one, "copied"), one.log)
        refused = status_of(one, "copied")
        assert f"node {node_id} comes with start 2" in refused
        assert "older copy" in refused
        well = status_of(one, "well")
        assert always in well
        for word in ("not reachable", "comes with start", "older copy", "refuse", "not ready"):
            assert word not in well
        for node in cluster.nodes:
            message = kafkapixy_pb2.ProdRq(cluster="well", topic="t", message=b"m", key_undefined=True)
            node.stub().Produce(message, timeout=SECONDS)


def only_problem(node: ClusterNode) -> str:
    """The only problem of the default cluster, once both of its nodes are up."""
    found: list[str] = []

    def is_well() -> bool:
        status = node.status()
        found[:] = status.problems
        return len(found) == 1 and all(each.up for each in status.nodes)

    until_blocking(is_well, node.log)
    return found[0]
