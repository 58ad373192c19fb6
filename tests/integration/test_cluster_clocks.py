"""Nodes whose wall clock is wrong: nothing that was answered goes for it, and what is old enough
does.
"""

from pathlib import Path

import grpc
import pytest

from pixy.noted_time import noted_time
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto import pixy_topics_pb2 as topics_pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from pixy.proto.pixy_topics_pb2_grpc import TopicsStub
from pixy.storage import RealDisk
from tests.fakes.waiting import until_blocking
from tests.integration.clusters import Cluster, ClusterNode
from tests.integration.daemon import proxy_config
from tests.integration.faulty_daemon import FAULTY, Faults

pytestmark = [pytest.mark.process, pytest.mark.long]

SECONDS = 60.0
HOUR_S = 3600.0
PARTITIONS = 6
CONFIG = proxy_config(storage={"retention_check": "500ms", "offsets_retention": "2h"})


def create(cluster: Cluster, topic: str, retention_ms: int) -> None:
    with grpc.insecure_channel(cluster[1].address) as channel:
        request = topics_pb.CreateTopicRequest(
            topic=topic, partitions=PARTITIONS, config={"retention_ms": str(retention_ms)}
        )
        TopicsStub(channel).CreateTopic(request, timeout=SECONDS)


def produce(node: ClusterNode, topic: str, count: int) -> None:
    """Messages to all partitions."""
    with grpc.insecure_channel(node.address) as channel:
        for number in range(count):
            request = pb.ProdRq(topic=topic, key_value=b"%d" % number, message=b"value")
            KafkaPixyStub(channel).Produce(request, timeout=SECONDS)


def offsets(node: ClusterNode, topic: str) -> list[pb.PartitionOffset]:
    with grpc.insecure_channel(node.address) as channel:
        request = pb.GetOffsetsRq(topic=topic, group="group")
        return list(KafkaPixyStub(channel).GetOffsets(request, timeout=SECONDS).offsets)


def set_offsets(node: ClusterNode, topic: str) -> None:
    with grpc.insecure_channel(node.address) as channel:
        wanted = [pb.PartitionOffset(partition=number, offset=1) for number in range(PARTITIONS)]
        request = pb.SetOffsetsRq(topic=topic, group="group", offsets=wanted)
        KafkaPixyStub(channel).SetOffsets(request, timeout=SECONDS)


@pytest.mark.parametrize(("hours", "restarts"), [(-3, True), (240, False)])
def test_what_a_node_with_a_wrong_clock_answers_stays_as_long_as_it_should(
    tmp_path: Path, hours: int, *, restarts: bool
) -> None:
    with Cluster(tmp_path, config=CONFIG, program=FAULTY) as cluster:
        cluster.start()
        create(cluster, "kept", 2 * int(HOUR_S) * 1000)
        create(cluster, "short", 1000)
        node = cluster[3]
        node_id = cluster.id_of(node)
        Faults(node.folder).set_clock_ahead(hours * HOUR_S)
        if restarts:
            node.kill()
            node.start()
        for each in cluster.nodes:
            produce(each, "kept", 20)
        set_offsets(node, "kept")
        produce(node, "short", 20)
        # Each leader has looked at what is too old.
        until_blocking(
            lambda: all(each.begin == each.end > 0 for each in offsets(node, "short")), cluster.logs
        )
        assert [(each.begin, each.offset) for each in offsets(node, "kept")] == [(0, 1)] * PARTITIONS
        assert sum(each.count for each in offsets(node, "kept")) == 20 * len(cluster.nodes)
        for each in cluster.nodes:
            assert any(
                problem.startswith(f"the clock of node {node_id} ") for problem in each.status().problems
            )

        def has_given_up() -> bool:
            return all(group.leader != node_id for group in cluster[1].status().groups)

        until_blocking(has_given_up, cluster.logs)
        Faults(node.folder).heal()
        until_blocking(lambda: "clock" not in " ".join(cluster[1].status().problems), cluster.logs)


@pytest.mark.parametrize("ahead", [True, False])
def test_a_node_that_starts_after_all_clocks_have_jumped_has_nothing_removed_early(
    tmp_path: Path, *, ahead: bool
) -> None:
    with Cluster(tmp_path, config=CONFIG, program=FAULTY) as cluster:
        cluster.start()
        for topic in ("kept", "late", "short"):
            create(cluster, topic, 2 * int(HOUR_S) * 1000)
        for topic in ("kept", "short"):
            produce(cluster[1], topic, 60)
        set_offsets(cluster[1], "kept")
        until_blocking(lambda: all(noted_time(RealDisk(), node.data) for node in cluster.nodes), cluster.logs)
        for node in cluster.nodes:
            Faults(node.folder).set_clock_ahead((240 if ahead else -240) * HOUR_S)
        cluster[3].kill()
        cluster.start(3)
        produce(cluster[3], "late", 60)
        if ahead:
            cluster.kill()
            cluster.start()
        else:
            for node in cluster.nodes:
                Faults(node.folder).set_clock_ahead(0)
        # All leaders have looked at what is too old by the time before the jump.
        with grpc.insecure_channel(cluster[1].address) as channel:
            request = topics_pb.AlterTopicRequest(topic="short", set={"retention_ms": "1000"})
            TopicsStub(channel).AlterTopic(request, timeout=SECONDS)
        until_blocking(
            lambda: all(each.begin == each.end > 0 for each in offsets(cluster[1], "short")), cluster.logs
        )
        assert [(each.begin, each.offset) for each in offsets(cluster[1], "kept")] == [(0, 1)] * PARTITIONS
        for topic in ("kept", "late"):
            assert sum(each.count for each in offsets(cluster[1], topic)) == 60
