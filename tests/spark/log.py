"""Access to a daemon's log without Spark: creates, alters, fills and reads topics."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pixy.proto import pixy_log_pb2 as pb
from pixy.proto import pixy_topics_pb2 as topics_pb
from pixy.proto.pixy_log_pb2_grpc import LogStub
from pixy.proto.pixy_topics_pb2_grpc import TopicsStub
from pixy.records import Header, NewRecord, batch_bytes, build_batch, read_records
from tests.fakes.waiting import until_blocking
from tests.integration.daemon import Daemon

_names = itertools.count()


class Written(NamedTuple):
    """A record to write, with defaults."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[Header] = ()
    timestamp_ms: int = 1_700_000_000_000


class Stored(NamedTuple):
    """One record of a topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


class Log:
    """The log of one daemon. Survives its restarts if `reconnect` is called."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self.reconnect()

    def reconnect(self) -> None:
        channel = self._daemon.channel()
        self.stub = LogStub(channel)
        self._topics = TopicsStub(channel)

    @property
    def options(self) -> dict[str, str]:
        """Connector options for this daemon."""
        return {"pixy.address": self._daemon.address, "pixy.timeoutMs": "20000"}

    def create(self, partitions: int, prefix: str = "topic", config: Mapping[str, str] | None = None) -> str:
        """Create a topic; returns its unique name."""
        name = f"{prefix}-{next(_names)}"
        self.create_named(name, partitions, config)
        return name

    def create_named(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        self._topics.CreateTopic(
            topics_pb.CreateTopicRequest(topic=name, partitions=partitions, config=config or {})
        )

    def grow(self, topic: str, partitions: int) -> None:
        self._topics.AlterTopic(topics_pb.AlterTopicRequest(topic=topic, partitions=partitions))

    def set_option(self, topic: str, name: str, value: str) -> None:
        self._topics.AlterTopic(topics_pb.AlterTopicRequest(topic=topic, set={name: value}))

    def delete(self, topic: str) -> None:
        self._topics.DeleteTopic(topics_pb.DeleteTopicRequest(topic=topic))

    def append(self, topic: str, partition: int, records: Iterable[Written | bytes]) -> None:
        """Write one batch of records."""
        rows = [each if isinstance(each, Written) else Written(each) for each in records]
        batch = build_batch([NewRecord(row.key, row.value, row.headers, row.timestamp_ms) for row in rows])
        batches = pb.PartitionBatches(topic=topic, partition=partition, batches=bytes(batch))
        answer = self.stub.Append(pb.AppendRequest(partitions=[batches]))
        assert answer.results[0].code == 0, answer

    def partitions(self, topic: str) -> int:
        return self.stub.DescribeTopics(pb.DescribeTopicsRequest(topics=[topic])).topics[0].partitions

    def topic_id(self, topic: str) -> bytes:
        return self.stub.DescribeTopics(pb.DescribeTopicsRequest(topics=[topic])).topics[0].topic_id

    def read(self, topic: str) -> list[Stored]:
        """All records, by partition and offset."""
        ranges = [
            pb.FetchRange(topic=topic, partition=partition, from_offset=0, to_offset=-1)
            for partition in range(self.partitions(topic))
        ]
        found = []
        for response in self.stub.Fetch(pb.FetchRequest(ranges=ranges)):
            at = 0
            while at < len(response.batches):
                size = batch_bytes(response.batches, at)
                for record in read_records(response.batches[at : at + size]):
                    headers = tuple((name, value) for name, value in record.headers)
                    found.append(Stored(response.range, record.offset, record.key, record.value, headers))
                at += size
        return sorted(found, key=lambda each: each[:2])

    def values(self, topic: str) -> list[bytes | None]:
        return [each.value for each in self.read(topic)]

    def earliest(self, topic: str, partition: int = 0) -> int:
        query = pb.OffsetQuery(topic=topic, partition=partition, earliest=True)
        return self.stub.ListOffsets(pb.ListOffsetsRequest(queries=[query])).answers[0].offset

    def count(self, topic: str) -> int:
        """Number of records written to the topic, if none are deleted."""
        queries = [
            pb.OffsetQuery(topic=topic, partition=partition, latest=True)
            for partition in range(self.partitions(topic))
        ]
        answers = self.stub.ListOffsets(pb.ListOffsetsRequest(queries=queries)).answers
        return sum(each.offset for each in answers)

    def wait_for_retention(self, topic: str) -> int:
        """Wait until the first records are deleted; returns the first remaining offset."""
        until_blocking(lambda: self.earliest(topic))
        return self.earliest(topic)
