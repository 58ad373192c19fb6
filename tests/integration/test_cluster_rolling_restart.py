"""A rolling restart of three nodes under load, as the documentation describes it: clients that have
the addresses of all nodes see no failed call.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.waiting import until_blocking
from tests.integration.clusters import Cluster, ClusterNode
from tests.integration.loaded import LoadedCluster
from tests.integration.producers import ANYWHERE, Producers

pytestmark = pytest.mark.process


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        cluster.start()
        yield cluster


def may_stop(cluster: Cluster, node: ClusterNode) -> bool:
    """As `pixy cluster status --safe-to-stop`."""
    node_id = cluster.id_of(node)
    return not any(each.reasons_to_stay for each in node.status().nodes if each.node_id == node_id)


def test_no_call_fails(cluster: Cluster) -> None:
    loaded = LoadedCluster(cluster, "restarted", 6)
    with Producers(cluster.nodes, loaded.ledger, loaded.topic, anywhere=True) as producers:
        for node in cluster.nodes:
            until_blocking(lambda node=node: may_stop(cluster, node), cluster.logs)  # type: ignore[misc]
            before = producers.answered[ANYWHERE]
            node.stop()
            node.start()
            until_blocking(lambda before=before: producers.answered[ANYWHERE] > before + 50)  # type: ignore[misc]
    assert producers.failed == []
    loaded.audit()
    # Neither the first start nor a restart is a reason to warn of nodes that refuse each other.
    warnings = [line for line in cluster.logs().splitlines() if "[warning" in line]
    assert [line for line in warnings if "refuse" in line or "no connection to a peer" in line] == []
