"""A change of `producer.max_message_bytes` in three nodes, one after the other and under load:
nothing is refused or lost because of it, and what a node accepts with the larger limit all have.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from pixy.proto import kafkapixy_pb2 as pb
from tests.fakes.waiting import until_blocking
from tests.integration.clusters import Cluster, ClusterNode
from tests.integration.daemon import proxy_config
from tests.integration.loaded import LoadedCluster
from tests.integration.producers import ANYWHERE, Producers
from tests.integration.test_cluster_rolling_restart import may_stop

pytestmark = pytest.mark.process

MIB = 1 << 20
LARGE = 17 * MIB
SMALLER, LARGER = 1_000_000, 20 * MIB
SECONDS_MAX = 60.0


def options(max_message_bytes: int) -> dict[str, Any]:
    sizes = {"max_message_bytes": 24 * MIB, "output_buffer_bytes": 24 * MIB}
    return {"grpc": sizes, **proxy_config(producer={"max_message_bytes": max_message_bytes})}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, config=options(SMALLER)) as cluster:
        cluster.start()
        yield cluster


def produce(node: ClusterNode, topic: str) -> None:
    request = pb.ProdRq(topic=topic, message=bytes(LARGE), key_undefined=True)
    node.stub().Produce(request, timeout=SECONDS_MAX)


def roll_out(cluster: Cluster, node: ClusterNode, producers: Producers, max_message_bytes: int) -> None:
    """Restart a node with another limit, as the documentation describes it."""
    until_blocking(lambda: may_stop(cluster, node), cluster.logs)
    before = producers.answered[ANYWHERE]
    node.stop()
    node.config |= options(max_message_bytes)
    node.start()
    until_blocking(lambda: producers.answered[ANYWHERE] > before + 50)


def differences(node: ClusterNode) -> list[str]:
    return [problem for problem in node.status().problems if "max_message_bytes" in problem]


def ends(node: ClusterNode, topic: str) -> list[int]:
    answer = node.stub().GetOffsets(pb.GetOffsetsRq(topic=topic, group="audit"), timeout=SECONDS_MAX)
    return [each.end for each in answer.offsets]


def test_a_limit_is_rolled_out_and_taken_back_under_load(cluster: Cluster) -> None:
    loaded = LoadedCluster(cluster, "loaded", 3)
    cluster.create_topic("large", 1)
    large = 0
    with Producers(cluster.nodes, loaded.ledger, loaded.topic, anywhere=True) as producers:
        for number, node in enumerate(cluster.nodes):
            roll_out(cluster, node, producers, LARGER)
            produce(node, "large")
            large += 1
            until_blocking(lambda last=number == 2: bool(differences(cluster.nodes[0])) != last)  # type: ignore[misc]
            for other in cluster.nodes[number + 1 :]:
                with pytest.raises(grpc.RpcError) as refused:
                    produce(other, "large")
                assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        for node in cluster.nodes:
            roll_out(cluster, node, producers, SMALLER)
            if node is not cluster.nodes[-1]:
                produce(cluster.nodes[-1], "large")
                large += 1
    # On a busy machine five times 17 MiB on three disks may take a while.
    assert {failed.code for failed in producers.failed} <= {grpc.StatusCode.DEADLINE_EXCEEDED}
    cluster.wait_in_sync()
    assert [ends(node, "large") for node in cluster.nodes] == [[large]] * 3
    until_blocking(lambda: not any(differences(node) for node in cluster.nodes))
    assert "at most" not in cluster.logs()
    loaded.audit()
