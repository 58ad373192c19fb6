import json
import sys
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto import pixy_cluster_pb2 as cluster_pb
from pixy.proto import pixy_topics_pb2 as topics_pb

from .conftest import Run
from .fake_server import FakePixy, Refused


@pytest.fixture(autouse=True)
def growing(pixy: FakePixy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two topics; from look to look `busy` gets 100 messages, of which the group consumes 40."""
    seconds = iter(range(0, 1000, 2))
    module: Any = sys.modules["pixy.cli.top"]
    clock = SimpleNamespace(sleep=lambda _: None, monotonic=lambda: float(next(seconds)))
    monkeypatch.setattr(module, "time", clock)

    def looks() -> int:
        return len(pixy.named("ListGroups"))

    def describe(request: topics_pb.DescribeTopicRequest) -> topics_pb.TopicDescription:
        end = 1000 + 100 * looks() if request.topic == "busy" else 10
        ranges = topics_pb.OffsetRange(begin=5, end=end)
        partitions = [topics_pb.PartitionDescription(offsets=ranges)]
        return topics_pb.TopicDescription(topic=request.topic, partitions=partitions)

    def offsets(request: pb.GetOffsetsRq) -> pb.GetOffsetsRs:
        found = pb.PartitionOffset(offset=-1)
        if request.topic == "busy":
            found = pb.PartitionOffset(offset=40 * looks(), lag=1000 + 60 * looks())
        return pb.GetOffsetsRs(offsets=[found])

    topics = {name: pb.GetTopicMetadataRs() for name in ("idle", "busy")}
    pixy.answers |= {
        "ListTopics": pb.ListTopicRs(topics=topics),
        "ListGroups": topics_pb.ListGroupsResponse(groups=["g"]),
        "DescribeTopic": describe,
        "GetOffsets": offsets,
    }


def test_top_shows_rates_and_lag(run: Run) -> None:
    assert run("top", "-n", "1").stdout.splitlines() == [
        "2 topics, 50 messages/s, 1 group, lag 1120",
        "",
        "TOPIC  PARTITIONS  MESSAGES  RATE/S",
        "busy            1      1195      50",
        "idle            1         5       0",
        "",
        "GROUP  TOPIC   LAG  RATE/S",
        "g      busy   1120      20",
    ]


def test_partitions_without_a_leader_do_not_change_the_rate(pixy: FakePixy, run: Run) -> None:
    def describe(request: topics_pb.DescribeTopicRequest) -> topics_pb.TopicDescription:
        looks = len(pixy.named("ListGroups"))
        partitions = [
            topics_pb.PartitionDescription(partition=0, offsets=topics_pb.OffsetRange(end=100 * looks)),
            topics_pb.PartitionDescription(partition=1, leader=-1),
        ]
        if looks % 2:
            partitions[1].offsets.end = 1_000_000
        return topics_pb.TopicDescription(topic=request.topic, partitions=partitions)

    pixy.answers |= {
        "ListTopics": pb.ListTopicRs(topics={"t": pb.GetTopicMetadataRs()}),
        "DescribeTopic": describe,
    }
    looks = [json.loads(line) for line in run("top", "-n", "3", "--json").stdout.splitlines()]
    assert [look["topics"][0]["rate"] for look in looks] == [50, 50, 50]


def test_top_prints_a_json_object_for_each_look(run: Run) -> None:
    looks = [json.loads(line) for line in run("top", "-n", "2", "--json").stdout.splitlines()]
    assert [look["topics"][0]["messages"] for look in looks] == [1195, 1295]
    assert looks[1]["disks"] is None, "a Kafka cluster"
    assert looks[1]["groups"] == [{"group": "g", "topic": "busy", "lag": 1180, "rate": 20}]


def test_top_shows_the_disks_of_nodes_that_tell(pixy: FakePixy, run: Run) -> None:
    nodes = [
        cluster_pb.NodeStatus(
            node_id=1, grpc_address="10.0.0.1:19091", disk_bytes=100 << 30, disk_free_bytes=25 << 30
        ),
        cluster_pb.NodeStatus(node_id=2, grpc_address="10.0.0.2:19091"),
    ]
    pixy.answers["Status"] = cluster_pb.StatusResponse(nodes=nodes)
    assert [line.split() for line in run("top", "-n", "1").stdout.splitlines()[-2:]] == [
        ["NODE", "ADDRESS", "DISK", "FREE", "USED"],
        ["1", "10.0.0.1:19091", "100.0", "GiB", "25.0", "GiB", "75", "%"],
    ]
    look = json.loads(run("top", "-n", "1", "--json").stdout)
    assert look["disks"] == [
        {"node_id": 1, "address": "10.0.0.1:19091", "total_bytes": 100 << 30, "free_bytes": 25 << 30}
    ]


def test_top_goes_on_without_a_topic_that_was_deleted_and_when_the_daemon_is_back(
    pixy: FakePixy, run: Run
) -> None:
    describe = pixy.answers["DescribeTopic"]

    def answer(request: topics_pb.DescribeTopicRequest) -> topics_pb.TopicDescription:
        if request.topic == "idle":
            raise Refused(grpc.StatusCode.NOT_FOUND, "unknown topic idle")
        if len(pixy.named("ListGroups")) == 2:
            raise Refused(grpc.StatusCode.UNAVAILABLE, "the daemon is stopping")
        described: topics_pb.TopicDescription = describe(request)
        return described

    pixy.answers["DescribeTopic"] = answer
    result = run("top", "-n", "1", "--json")
    assert [each["topic"] for each in json.loads(result.stdout)["topics"]] == ["busy"]
    assert result.stderr.startswith("pixy: UNAVAILABLE: the daemon is stopping; trying again")
