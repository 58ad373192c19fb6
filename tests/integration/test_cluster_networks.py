"""Links between the nodes of a cluster that are cut, slow or half open, under load."""

from collections.abc import Iterator

import grpc
import pytest

from tests.fakes.waiting import until_blocking
from tests.integration.clusters import Cluster, ClusterNode
from tests.integration.links import Links
from tests.integration.loaded import LoadedCluster, failed_at, failed_elsewhere
from tests.integration.namespaces import Namespaces

pytestmark = [pytest.mark.process, pytest.mark.long]

NODES = 3
UNKNOWN = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE}


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedCluster]:
    """Nodes in namespaces, whose links can be cut."""
    with Cluster(tmp_path_factory.mktemp("cluster"), NODES, Namespaces(NODES)) as cluster:
        cluster.start()
        yield LoadedCluster(cluster)


@pytest.fixture(scope="module")
def links() -> Links:
    return Links(NODES)


@pytest.fixture(scope="module")
def relayed(tmp_path_factory: pytest.TempPathFactory, links: Links) -> Iterator[LoadedCluster]:
    """Nodes whose connections go through relays."""
    with Cluster(tmp_path_factory.mktemp("cluster"), NODES, links) as cluster:
        cluster.start()
        yield LoadedCluster(cluster)


def test_a_split_isolates_the_leader(apart: LoadedCluster) -> None:
    leader = apart.leader()
    others = apart.cluster.others(leader)
    with apart.produced() as producers:
        for other in others:
            apart.cluster.network.cut(leader.number, other.number)
            apart.cluster.network.cut(other.number, leader.number)
        producers.wait_failures(leader)
        producers.wait_answers(others)
        apart.cluster.network.heal()
    assert failed_elsewhere(producers, leader) == []
    assert {failed.code for failed in failed_at(producers, leader)} <= UNKNOWN


@pytest.mark.parametrize("direction", ["from the leader", "to the leader"])
def test_links_are_cut_in_one_direction(apart: LoadedCluster, direction: str) -> None:
    leader = apart.leader()
    others = apart.cluster.others(leader)
    with apart.produced() as producers:
        for other in others:
            pair = (leader.number, other.number)
            apart.cluster.network.cut(*(pair if direction == "from the leader" else reversed(pair)))
        producers.wait_failures(leader)
        producers.wait_answers(others)
        apart.cluster.network.heal()
    assert failed_elsewhere(producers, leader) == []
    assert {failed.code for failed in failed_at(producers, leader)} <= UNKNOWN


def test_one_of_three_links_is_cut(apart: LoadedCluster) -> None:
    """It deposes nobody. Leaders change for other reasons too, on a busy machine and when they move
    back after the tests before: a cut that deposes does so each time.
    """
    for _ in range(5):
        leader = apart.leader()
        far, near = apart.cluster.others(leader)
        terms = terms_of(near)
        with apart.produced() as producers:
            apart.cluster.network.cut(leader.number, far.number)
            apart.cluster.network.cut(far.number, leader.number)
            until_blocking(lambda: goes_through_another(far) and goes_through_another(leader))  # noqa: B023 - called within the turn
            producers.wait_answers([leader, far, near])
            terms_then = terms_of(near)
            apart.cluster.network.heal()
        assert producers.failed == []
        if terms_then == terms:
            break
    else:
        pytest.fail(f"leaders change with each cut: {terms} before the last one, {terms_then} then")
    # A handshake that was on its way all the time shows no older self.
    assert "older copy" not in apart.cluster.logs()


def goes_through_another(node: ClusterNode) -> bool:
    """True if there is a node that this one reaches through a third one only."""
    return any(each.through for each in node.status().nodes)


def terms_of(node: ClusterNode) -> dict[str, int]:
    """Terms of the partitions; leaders of state groups may still be moved after the start."""
    return {group.name: group.term for group in node.status().groups if group.is_partition}


def test_links_are_slow_and_lossy(relayed: LoadedCluster, links: Links) -> None:
    with relayed.produced() as producers:
        links.slow_down(0.1, 0.05)
        producers.wait_answers(relayed.cluster.nodes, 50)
        links.heal()
    assert producers.failed == []


def test_connections_to_a_dead_leader_stay_open(relayed: LoadedCluster, links: Links) -> None:
    leader = relayed.leader()
    others = relayed.cluster.others(leader)
    with relayed.produced() as producers:
        # Nobody hears that its connections have ended.
        for other in others:
            links.cut(leader.number, other.number)
        leader.kill()
        producers.wait_answers(others)
        links.heal()
        leader.start()
    assert failed_elsewhere(producers, leader) == []


def test_connections_are_reset_again_and_again(relayed: LoadedCluster, links: Links) -> None:
    with relayed.produced() as producers:
        for _ in range(5):
            for one, other in ((1, 2), (2, 3), (3, 1)):
                links.reset(one, other)
                producers.wait_answers(relayed.cluster.nodes, 5)
    assert producers.failed == []
