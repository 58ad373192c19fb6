"""Disks of nodes that stall, fail and are full, under load."""

from collections.abc import Iterator

import grpc
import pytest

from tests.integration.clusters import Cluster
from tests.integration.daemon import proxy_config
from tests.integration.faulty_daemon import FAULTY, Faults
from tests.integration.loaded import LoadedCluster, failed_at, failed_elsewhere

pytestmark = [pytest.mark.process, pytest.mark.long]

VALUE_BYTES = 50_000
MAX_UNAPPLIED_BYTES = 16 << 20
CONFIG = proxy_config(journal={"max_unapplied_bytes": MAX_UNAPPLIED_BYTES})
UNKNOWN = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedCluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), config=CONFIG, program=FAULTY) as cluster:
        cluster.start()
        yield LoadedCluster(cluster)


@pytest.fixture
def faults(loaded: LoadedCluster) -> Iterator[dict[int, Faults]]:
    """Faults of each node."""
    faults = {node.number: Faults(node.folder) for node in loaded.cluster.nodes}
    yield faults
    for each in faults.values():
        each.heal()


def test_the_disk_of_the_leader_stalls(loaded: LoadedCluster, faults: dict[int, Faults]) -> None:
    leader = loaded.leader()
    others = loaded.cluster.others(leader)
    with loaded.produced() as producers:
        faults[leader.number].stall()
        producers.wait_answers(others)
        producers.wait_failures(leader)
        faults[leader.number].resume()
    assert failed_elsewhere(producers, leader) == []
    assert {failed.code for failed in failed_at(producers, leader)} <= UNKNOWN


def test_the_disk_of_the_leader_fails(loaded: LoadedCluster, faults: dict[int, Faults]) -> None:
    leader = loaded.leader()
    with loaded.produced() as producers:
        faults[leader.number].fail()
        producers.wait_answers(loaded.cluster.others(leader))
        assert leader.wait() != 0
        faults[leader.number].heal()
        leader.start()
    assert failed_elsewhere(producers, leader) == []


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_disk_is_full(loaded: LoadedCluster, faults: dict[int, Faults], role: str) -> None:
    leader = loaded.leader()
    node = leader if role == "leader" else loaded.cluster.others(leader)[0]
    others = loaded.cluster.others(node)
    with loaded.produced(pad_bytes=VALUE_BYTES) as producers:
        faults[node.number].fill()
        producers.wait_failures(node)
        # More than the node keeps in its journal alone, where there is still room.
        producers.wait_answers(others, MAX_UNAPPLIED_BYTES // VALUE_BYTES)
        faults[node.number].heal()
    assert failed_elsewhere(producers, node) == []
    assert {failed.code for failed in failed_at(producers, node)} == {grpc.StatusCode.UNAVAILABLE}
    assert all("the disk is full" in failed.details for failed in producers.failed)
