"""Messages that are answered after a deletion was: none goes into what was deleted."""

from pathlib import Path

import grpc
import pytest

from pixy.proto import pixy_log_pb2 as log_pb
from pixy.proto import pixy_topics_pb2 as topics_pb
from pixy.proto.kafkapixy_pb2 import ProdRq
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from pixy.proto.pixy_log_pb2_grpc import LogStub
from pixy.proto.pixy_topics_pb2_grpc import TopicsStub
from tests.integration.clusters import Cluster, ClusterNode
from tests.integration.daemon import proxy_config

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROUNDS, PARTITIONS, MESSAGES = 10, 3, 8
ANSWER_S = 30.0


class Client:
    """Calls of one node, one after the other."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._pixy, self._topics, self._log = KafkaPixyStub(channel), TopicsStub(channel), LogStub(channel)

    def create(self, topic: str) -> None:
        self._topics.CreateTopic(
            topics_pb.CreateTopicRequest(topic=topic, partitions=PARTITIONS), timeout=ANSWER_S
        )

    def delete(self, topic: str) -> None:
        self._topics.DeleteTopic(topics_pb.DeleteTopicRequest(topic=topic), timeout=ANSWER_S)

    def produce(self, topic: str, key: bytes) -> bool:
        """Produce a message; True if it is acknowledged, False if it is not written."""
        request = ProdRq(topic=topic, key_value=key, message=key)
        try:
            self._pixy.Produce(request, timeout=ANSWER_S)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False
        return True

    def count(self, topic: str) -> int:
        """Messages of a topic, 0 if there is none."""
        queries = [
            log_pb.OffsetQuery(topic=topic, partition=number, latest=True) for number in range(PARTITIONS)
        ]
        answers = self._log.ListOffsets(log_pb.ListOffsetsRequest(queries=queries), timeout=ANSWER_S).answers
        return sum(max(0, each.offset) for each in answers)


def test_what_is_acknowledged_after_the_answer_to_a_deletion_is_in_the_next_topic(tmp_path: Path) -> None:
    """Deleted at the node that knows first, and produced at the others at once."""
    config = proxy_config(default_partitions=PARTITIONS)
    with Cluster(tmp_path, 3, config=config) as cluster:
        cluster.start()
        first = cluster.leader("metadata")
        others = cluster.others(first)
        with grpc.insecure_channel(first.address) as channel:
            here = Client(channel)
            for number in range(ROUNDS):
                _round(here, others[number % 2], f"topic-{number}")


def _round(here: Client, other: ClusterNode, topic: str) -> None:
    with grpc.insecure_channel(other.address) as channel:
        there = Client(channel)
        here.create(topic)
        for number in range(MESSAGES):
            assert there.produce(topic, b"before %d" % number)
        here.delete(topic)
        acknowledged = sum(there.produce(topic, b"after %d" % number) for number in range(MESSAGES))
        assert there.count(topic) == acknowledged, topic
