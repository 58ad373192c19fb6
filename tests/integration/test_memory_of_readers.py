"""Groups that consume a topic with more data than `consumer.max_fetched_bytes`, at a daemon whose
memory stays bounded.
"""

from collections import Counter

import grpc
import pytest

from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto import pixy_log_pb2 as log_pb
from pixy.proto import pixy_topics_pb2 as topics_pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from pixy.proto.pixy_log_pb2_grpc import LogStub
from pixy.proto.pixy_topics_pb2_grpc import TopicsStub
from tests.fakes.batches import batch_of
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import Daemon, proxy_config

pytestmark = [pytest.mark.slow, pytest.mark.process]

PARTITIONS = 30
RECORD_BYTES = 900_000
GROUPS = 3
BYTES_MAX = 12 << 20
MEMORY_BYTES = 64 << 20
"""More than the bound, for allocators and the output; 30 batches of three groups take 240 MB."""
SECONDS = 60.0


def append(daemon: Daemon) -> None:
    """A topic `t` with one large message in each partition."""
    channel = daemon.channel()
    wanted = topics_pb.CreateTopicRequest(topic="t", partitions=PARTITIONS)
    TopicsStub(channel).CreateTopic(wanted, timeout=SECONDS)
    for number in range(PARTITIONS):
        batch = bytes(batch_of(bytes([number]) * RECORD_BYTES))
        partition = log_pb.PartitionBatches(topic="t", partition=number, batches=batch)
        request = log_pb.AppendRequest(partitions=[partition])
        answer = LogStub(channel).Append(request, timeout=SECONDS)
        assert [result.code for result in answer.results] == [0]


def consume(stub: KafkaPixyStub, request: pb.ConsNAckRq) -> pb.ConsRs | None:
    """The next message; None if a poll has found none in time."""
    try:
        message: pb.ConsRs = stub.ConsumeNAck(request, timeout=SECONDS)
    except grpc.RpcError as error:
        if error.code() not in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE):
            raise
        return None
    assert message.message == bytes([message.partition]) * RECORD_BYTES
    return message


def test_a_daemon_holds_few_of_the_batches_that_its_groups_have_not_taken(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(proxy_config(consumer={"max_fetched_bytes": BYTES_MAX}))
    daemon.start()
    append(daemon)
    daemon.stop()
    daemon.start()
    before, largest, stub = daemon.rss_bytes(), 0, daemon.stub()
    groups = [f"g{number}" for number in range(GROUPS)]
    got: dict[str, Counter[int]] = {group: Counter() for group in groups}
    requests = {group: pb.ConsNAckRq(topic="t", group=group, no_ack=True) for group in groups}
    for _ in range(10 * PARTITIONS):
        for group in groups:
            if len(got[group]) < PARTITIONS and (message := consume(stub, requests[group])) is not None:
                got[group][message.partition] += 1
                requests[group] = pb.ConsNAckRq(
                    topic="t", group=group, ack_partition=message.partition, ack_offset=message.offset
                )
        largest = max(largest, daemon.rss_bytes())
    for group, last in requests.items():
        ack = pb.AckRq(topic="t", group=group, partition=last.ack_partition, offset=last.ack_offset)
        stub.Ack(ack, timeout=SECONDS)
    assert largest - before < MEMORY_BYTES
    assert got == {group: Counter(range(PARTITIONS)) for group in groups}
    daemon.stop()
