"""Nodes of a cluster that are killed, paused, stopped and started, under load: clients of the other
nodes see no failed call while a majority runs, and nothing is lost or doubled.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest

from tests.integration.clusters import Cluster, ClusterNode
from tests.integration.ledger import Ledger
from tests.integration.producers import Failed, Producers, audit

pytestmark = pytest.mark.process

TOPIC = "deaths"
PARTITIONS = 3


class Loaded:
    """A running cluster with one topic, and the ledger of everything that was produced to it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.ledger = Ledger()

    def leader(self) -> ClusterNode:
        """Leader of the first partition."""
        return self.cluster.leader(f"{TOPIC}-0")

    @contextmanager
    def produced(self) -> Iterator[Producers]:
        """Producers at all running nodes; everything is checked at all running nodes in the end."""
        with Producers(self.cluster.running, self.ledger, TOPIC) as producers:
            producers.wait_answers(self.cluster.running)
            yield producers
            producers.wait_answers(self.cluster.running)
        audit(self.cluster.running, self.ledger, TOPIC, PARTITIONS)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.start()
        cluster.create_topic(TOPIC, PARTITIONS)
        yield Loaded(cluster)


def failed_elsewhere(producers: Producers, node: ClusterNode) -> list[Failed]:
    """Failed calls at other nodes than this one."""
    return [failed for failed in producers.failed if failed.node != node.number]


def test_the_leader_is_killed(loaded: Loaded) -> None:
    leader = loaded.leader()
    with loaded.produced() as producers:
        leader.kill()
        producers.wait_answers(loaded.cluster.others(leader))
        leader.start()
    assert failed_elsewhere(producers, leader) == []
    assert {failed.code for failed in producers.failed} <= {grpc.StatusCode.UNAVAILABLE}


def test_a_follower_is_killed(loaded: Loaded) -> None:
    follower = loaded.cluster.others(loaded.leader())[0]
    with loaded.produced() as producers:
        follower.kill()
        producers.wait_answers(loaded.cluster.others(follower))
        follower.start()
    assert failed_elsewhere(producers, follower) == []


def test_the_leader_is_paused(loaded: Loaded) -> None:
    leader = loaded.leader()
    with loaded.produced() as producers:
        leader.pause()
        # Twice the deadline of a call, so that those at the paused node fail.
        producers.wait_answers([node for node in loaded.cluster.nodes if node is not leader], 500)
        leader.resume()
    assert failed_elsewhere(producers, leader) == []
    assert {failed.code for failed in producers.failed} <= {grpc.StatusCode.DEADLINE_EXCEEDED}


def test_the_leader_is_stopped(loaded: Loaded) -> None:
    leader = loaded.leader()
    with loaded.produced() as producers:
        leader.stop()
        producers.wait_answers(loaded.cluster.others(leader))
        leader.start()
    assert failed_elsewhere(producers, leader) == []


def test_all_nodes_are_killed_and_started(loaded: Loaded) -> None:
    with loaded.produced():
        loaded.cluster.kill()
        loaded.cluster.start()


def test_the_majority_is_lost_and_comes_back(loaded: Loaded) -> None:
    last = loaded.leader()
    with loaded.produced() as producers:
        others = loaded.cluster.others(last)
        for node in others:
            node.kill()
        producers.wait_failures(last)
        loaded.cluster.start(*(node.number for node in others))
    codes = {failed.code for failed in producers.failed if failed.node == last.number}
    assert codes <= {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE}
