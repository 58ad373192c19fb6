"""Nodes of a cluster that are killed, paused, stopped and started, under load: clients of the other
nodes see no failed call while a majority runs, and nothing is lost or doubled.
"""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.integration.clusters import Cluster
from tests.integration.daemon import proxy_config
from tests.integration.loaded import LoadedCluster, failed_at, failed_elsewhere

pytestmark = pytest.mark.process

SMALL = proxy_config(
    journal={"file_bytes": "1MiB", "max_unapplied_bytes": "1MiB"},
    storage={"segment_bytes": "1MiB", "checkpoint_entries": 20},
)
UNKNOWN = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedCluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.start()
        yield LoadedCluster(cluster)


def test_the_leader_is_killed(loaded: LoadedCluster) -> None:
    leader = loaded.leader()
    with loaded.produced() as producers:
        leader.kill()
        producers.wait_answers(loaded.cluster.others(leader))
        leader.start()
    assert failed_elsewhere(producers, leader) == []
    assert {failed.code for failed in producers.failed} <= {grpc.StatusCode.UNAVAILABLE}


def test_a_follower_is_killed(loaded: LoadedCluster) -> None:
    follower = loaded.cluster.others(loaded.leader())[0]
    with loaded.produced() as producers:
        follower.kill()
        producers.wait_answers(loaded.cluster.others(follower))
        follower.start()
    assert failed_elsewhere(producers, follower) == []


@pytest.mark.parametrize("failures", [2, pytest.param(12, marks=pytest.mark.long)])
def test_the_leader_is_paused(loaded: LoadedCluster, failures: int) -> None:
    """Two producers with deadlines of 5 s make 12 failures in 30 s."""
    leader = loaded.leader()
    with loaded.produced() as producers:
        leader.pause()
        producers.wait_failures(leader, failures)
        leader.resume()
    assert failed_elsewhere(producers, leader) == []
    assert {failed.code for failed in producers.failed} <= UNKNOWN


def test_the_leader_is_stopped(loaded: LoadedCluster) -> None:
    leader = loaded.leader()
    with loaded.produced() as producers:
        leader.stop()
        producers.wait_answers(loaded.cluster.others(leader))
        leader.start()
    assert failed_elsewhere(producers, leader) == []


def test_all_nodes_are_killed_and_started(loaded: LoadedCluster) -> None:
    with loaded.produced():
        loaded.cluster.kill()
        loaded.cluster.start()


def test_the_majority_is_lost_and_comes_back(loaded: LoadedCluster) -> None:
    last = loaded.leader()
    with loaded.produced() as producers:
        others = loaded.cluster.others(last)
        for node in others:
            node.kill()
        producers.wait_failures(last)
        loaded.cluster.start(*(node.number for node in others))
    assert {failed.code for failed in failed_at(producers, last)} <= UNKNOWN


@pytest.mark.parametrize(
    "small", [pytest.param((1, 2, 3), marks=pytest.mark.long, id="all"), pytest.param((1, 2), id="mixed")]
)
def test_nodes_with_small_files_and_little_back_pressure_are_killed_one_by_one_and_together(
    tmp_path: Path, small: tuple[int, ...]
) -> None:
    """Journals rotate all the time, and keep what the node that is away needs."""
    with Cluster(tmp_path, own=dict.fromkeys(small, SMALL)) as cluster:
        cluster.start()
        loaded = LoadedCluster(cluster)
        with loaded.produced(pad_bytes=20_000) as producers:
            for node in (loaded.leader(), cluster.nodes[0]):
                node.kill()
                producers.wait_answers(cluster.others(node), 150)
                node.start()
                producers.wait_answers([node])
            cluster.kill()
            cluster.start()
