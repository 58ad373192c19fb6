"""First starts of a cluster: join lists in different orders, a node that is missing, a lone node
that others join.
"""

import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from pixy.proto import kafkapixy_pb2 as pb
from tests.fakes.waiting import until_blocking
from tests.integration.clusters import Cluster, ClusterNode
from tests.integration.loaded import LoadedCluster
from tests.integration.moving_daemon import MOVING

pytestmark = pytest.mark.process

SECONDS = 60.0
MESSAGE = pb.ProdRq(topic="t", key_value=b"k", message=b"m")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def moving(tmp_path: Path) -> Iterator[Cluster]:
    """Nodes that move replicas soon."""
    with Cluster(tmp_path, program=MOVING) as cluster:
        yield cluster


def set_join_list(node: ClusterNode, addresses: list[str]) -> None:
    node.config["cluster"] = {**node.config["cluster"], "join": addresses}


def refusal(node: ClusterNode) -> str:
    """Answer of a node that does not serve."""
    call = node.stub().Produce.future(MESSAGE, timeout=SECONDS)
    assert call.code() is grpc.StatusCode.UNAVAILABLE
    return call.details()


def test_join_lists_may_have_any_order(cluster: Cluster) -> None:
    one, two, three = cluster.join
    for node, addresses in zip(
        cluster.nodes, ([three, one, two], [two, one, three], [one, two, three]), strict=True
    ):
        set_join_list(node, addresses)
    cluster.start()
    assert sorted(cluster.ids()) == [1, 2, 3]
    assert len({node.status().cluster_id for node in cluster.nodes}) == 1


def test_no_cluster_is_made_while_a_node_of_the_list_is_missing(cluster: Cluster) -> None:
    one, two, missing = cluster.nodes
    for node in (one, two):
        node.start_nowait()
    for node in (one, two):
        until_blocking(lambda node=node: cluster.join[2] in node.log(), cluster.logs)  # type: ignore[misc]
        status = node.status()
        assert not status.cluster_id
        assert cluster.join[2] in status.not_ready
        assert cluster.join[2] in refusal(node)
    missing.start_nowait()
    for node in cluster.nodes:
        node.wait_ready()
    assert sorted(cluster.ids()) == [1, 2, 3]
    # Registered nodes need not run.
    cluster.kill()
    cluster.start(1, 2)
    cluster[1].stub().Produce(MESSAGE, timeout=SECONDS)


def test_nodes_join_a_lone_one_and_its_topics_get_replicas_there(moving: Cluster) -> None:
    cluster = moving
    alone, *later = cluster.nodes
    set_join_list(alone, [])
    alone.start()
    assert not listens(cluster.join[0]), "nothing says that others may come"
    alone.stop()
    set_join_list(alone, [cluster.join[0]])
    alone.start()
    before = LoadedCluster(cluster, "before")
    with before.produced([alone]) as producers:
        for node in later:
            set_join_list(node, [cluster.join[0], cluster.network.advertised(node.number)])
            node.start()
        cluster.wait_in_sync()
        # What it has is served by the nodes that came.
        producers.wait_answers([alone])
    assert producers.failed == []
    with before.produced():
        pass
    with LoadedCluster(cluster, "after").produced():
        pass
    until_blocking(lambda: not alone.status().under_replicated, cluster.logs)
    replicas = {group.name: len(group.voters) for group in alone.status().groups if group.is_partition}
    assert replicas == {f"{topic}-{at}": 3 for topic in ("before", "after") for at in range(3)}
    before.audit()
    # A node that others have joined needs no list, as long as it has its directory.
    warning = "cluster.join names no other node"
    set_join_list(alone, [cluster.join[0], cluster.join[1]])
    alone.restart()
    cluster.wait_in_sync()
    assert warning not in alone.log()
    set_join_list(alone, [])
    alone.restart()
    cluster.wait_in_sync()
    assert listens(cluster.join[0])
    assert warning in alone.log()


def listens(address: str) -> bool:
    """True if something accepts connections at an address."""
    host, port = address.rsplit(":", 1)
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
