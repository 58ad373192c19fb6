"""Topics on a real daemon: creation, growth, deletion and recreation, unaffected by a kill at any
point.
"""

from typing import Any

import grpc
import pytest

from pixy.proto import kafkapixy_pb2 as kafkapixy
from pixy.proto import pixy_topics_pb2 as pb
from pixy.proto.pixy_topics_pb2_grpc import TopicsStub
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import Daemon, proxy_config

pytestmark = pytest.mark.process

SECONDS = 60.0
CODE = grpc.StatusCode


def topics(daemon: Daemon) -> TopicsStub:
    return TopicsStub(daemon.channel())


def describe(daemon: Daemon) -> pb.TopicDescription:
    request = pb.DescribeTopicRequest(topic="t")
    described: pb.TopicDescription = topics(daemon).DescribeTopic(request, timeout=SECONDS)
    return described


def ranges(daemon: Daemon) -> list[tuple[int, int]]:
    return [(each.offsets.begin, each.offsets.end) for each in describe(daemon).partitions]


def produce(daemon: Daemon, count: int) -> set[int]:
    """Produce messages without a key; returns the partitions that they went to."""
    request = kafkapixy.ProdRq(topic="t", key_undefined=True, message=b"m")
    stub = daemon.stub()
    return {stub.Produce(request, timeout=SECONDS).partition for _ in range(count)}


def consume(daemon: Daemon) -> kafkapixy.ConsRs:
    request = kafkapixy.ConsNAckRq(topic="t", group="g", auto_ack=True)
    message: kafkapixy.ConsRs = daemon.stub().ConsumeNAck(request, timeout=SECONDS)
    return message


def committed(daemon: Daemon) -> list[int]:
    request = kafkapixy.GetOffsetsRq(topic="t", group="g")
    return [entry.offset for entry in daemon.stub().GetOffsets(request, timeout=SECONDS).offsets]


def status(error: pytest.ExceptionInfo[Any]) -> grpc.StatusCode:
    code: grpc.StatusCode = error.value.code()
    return code


def test_a_topic_is_created_grown_deleted_and_recreated_across_kills(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(proxy_config(auto_create_topics=False, producer={"partitioner": "roundrobin"}))
    daemon.start()
    with pytest.raises(grpc.RpcError) as missing:
        produce(daemon, 1)
    assert status(missing) is CODE.INVALID_ARGUMENT

    config = {"retention.ms": "3600000"}
    request = pb.CreateTopicRequest(topic="t", partitions=1, config=config)
    created = topics(daemon).CreateTopic(request, timeout=SECONDS)
    assert produce(daemon, 3) == {0}
    daemon.restart()
    assert (describe(daemon).topic_id, ranges(daemon)) == (created.topic_id, [(0, 3)])
    assert dict(describe(daemon).config) == {"retention_ms": "3600000"}

    changes = pb.AlterTopicRequest(
        topic="t", partitions=3, set={"segment_ms": "60000"}, unset=["retention_ms"]
    )
    altered = topics(daemon).AlterTopic(changes, timeout=SECONDS)
    assert altered.version > created.version
    assert produce(daemon, 6) == {0, 1, 2}
    daemon.restart()
    assert dict(describe(daemon).config) == {"segment_ms": "60000"}
    grown = ranges(daemon)
    assert (len(grown), sum(end - begin for begin, end in grown)) == (3, 9)
    consume(daemon)

    topics(daemon).DeleteTopic(pb.DeleteTopicRequest(topic="t"), timeout=SECONDS)
    for attempt in range(2):
        with pytest.raises(grpc.RpcError) as gone:
            describe(daemon)
        assert status(gone) is CODE.NOT_FOUND
        with pytest.raises(grpc.RpcError) as refused:
            produce(daemon, 1)
        assert status(refused) is CODE.INVALID_ARGUMENT
        if attempt == 0:
            daemon.restart()

    again = topics(daemon).CreateTopic(pb.CreateTopicRequest(topic="t", partitions=2), timeout=SECONDS)
    assert again.topic_id != created.topic_id
    assert (ranges(daemon), committed(daemon)) == ([(0, 0), (0, 0)], [-1, -1])
    produce(daemon, 1)
    assert consume(daemon).offset == 0
    daemon.restart()
    assert describe(daemon).topic_id == again.topic_id
    assert sorted(ranges(daemon)) == [(0, 0), (0, 1)]
    daemon.stop()


def test_invalid_topics_are_rejected_and_change_nothing(daemon: Daemon) -> None:
    created = topics(daemon).CreateTopic(pb.CreateTopicRequest(topic="t", partitions=2), timeout=SECONDS)
    for method, request in [
        ("CreateTopic", pb.CreateTopicRequest(topic="new", config={"nosuch": "1"})),
        ("CreateTopic", pb.CreateTopicRequest(topic="new", config={"segment_bytes": "much"})),
        ("CreateTopic", pb.CreateTopicRequest(topic="new", config={"segment_bytes": "1"})),
        ("AlterTopic", pb.AlterTopicRequest(topic="t", set={"segment.ms": "1"})),
        ("AlterTopic", pb.AlterTopicRequest(topic="t", partitions=1)),
        ("AlterTopic", pb.AlterTopicRequest(topic="t", partitions=3, set={"retention_ms": "x"})),
    ]:
        with pytest.raises(grpc.RpcError) as refused:
            getattr(topics(daemon), method)(request, timeout=SECONDS)
        assert status(refused) is CODE.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError) as there_already:
        topics(daemon).CreateTopic(pb.CreateTopicRequest(topic="t"), timeout=SECONDS)
    assert status(there_already) is CODE.ALREADY_EXISTS
    assert (describe(daemon).version, len(describe(daemon).partitions)) == (created.version, 2)
    listed = daemon.stub().ListTopics(kafkapixy.ListTopicRq(), timeout=SECONDS).topics
    assert set(listed) == {"t"}
