"""The sink of a mirror at the target, and its state topic.

A round is one stage with batches of many partitions and one record of the state topic, and one
publication of it under the next epoch. So either all of the round is there and its positions are,
or nothing is.

A start takes two steps, after which no earlier publication can come any more:

    1  an epoch without stages is published, above the last one: one of another process that has not
       been committed yet is too late from here on
    2  the same again: its answer comes when everything before it is visible

Then the state is read. Whoever finds that an epoch was published already has met another mirror of
the same name, and ends.
"""

import uuid
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from pixy.errors import PixyError, TopicExists, Unavailable
from pixy.mirror.cluster_client import ClusterClient
from pixy.mirror.mirrored_topics import MirrorError
from pixy.mirror.positions import Copied, Positions, change
from pixy.proto import pixy_log_pb2 as log_pb
from pixy.proto import pixy_topics_pb2 as topics_pb
from pixy.proto.pixy_log_pb2_grpc import LogStub
from pixy.proto.pixy_topics_pb2_grpc import TopicsStub
from pixy.records import NewRecord, TopicPartition, batch_bytes, build_batch, crc32c, read_records

STATE_PREFIX = "pixy-mirror."
"""Of the names of state topics."""

_QUERY = "mirror"
_IN_FLIGHT = 4
_PIECE_BYTES = 2 << 20
_WHOLE_EVERY = 200
"""Records of the state topic after which one has everything."""


class TargetSink:
    """The sink.

    Args:
        client: the target.
        name: of the mirror.
        now_ms: the time, in milliseconds since the Unix epoch.

    Attributes:
        positions: what is there, as of the last `establish` and the rounds since.
    """

    def __init__(self, client: ClusterClient, name: str, now_ms: Callable[[], int]) -> None:
        self._client = client
        self._now_ms = now_ms
        self._sink = f"pixy-mirror-{name}"
        self._state = TopicPartition(STATE_PREFIX + name, 0)
        self._name = name
        self._epoch = 0
        self._state_versions: list[log_pb.TopicVersion] = []
        self.positions = Positions()

    def establish(self) -> None:
        """Make sure that nothing comes any more from before, and read what is there."""
        topic = self._state.topic
        if not self.look():
            config = {"retention_ms": "-1", "retention_bytes": "-1"}
            request = topics_pb.CreateTopicRequest(topic=topic, partitions=1, config=config)
            with suppress(TopicExists):
                self._client.call(TopicsStub, "CreateTopic", request)
            if not self.look():
                raise Unavailable(f"{self._client.side}: topic {topic} was made, and is not known yet")
        answer = self._publish(0, [])
        while not answer.published:
            self._epoch = answer.last_epoch + 1
            answer = self._publish(self._epoch, [])
        self._publish(self._epoch, [])
        self.positions = self._read()

    def look(self) -> bool:
        """Read what is there, if there is a state topic. More may come any moment."""
        found = self._client.topics([self._state.topic])
        if self._state.topic not in found:
            return False
        self._state_versions = [version_of(found[self._state.topic])]
        self.positions = self._read()
        return True

    def begin_round(self) -> "Round":
        """A new round; one that was begun before must not be used any more."""
        return Round(self._client, self._sink)

    def publish(
        self, round: "Round", copied: Sequence[Copied], versions: Sequence[log_pb.TopicVersion]
    ) -> None:
        """Publish a round, with what it has copied.

        Raises:
            MirrorError: another mirror of this name has published.
            PixyError: whether it is published is unknown, or it is not.
        """
        versions = [*versions, *self._state_versions]
        whole, before = self.positions.records >= _WHOLE_EVERY, 0
        if whole:
            before = self._client.ends([self._state]).get(self._state, 0)
        for value in self.positions.whole(copied) if whole else change(copied):
            record = NewRecord(None, value, [], self._now_ms())
            round.add(self._state, build_batch([record]), versions)
        round.seal(versions)
        if not self._publish(self._epoch + 1, [round.stage_id]).published:
            raise MirrorError(
                f"another mirror of the name {self._name} has begun, in this direction or in the other one: end one of "
                "them, or give it another --name"
            )
        self.positions.add(copied)
        if whole:
            self.positions.records = 1
            self._remove_before(before)

    def _publish(self, epoch: int, stage_ids: Sequence[str]) -> Any:
        request = log_pb.PublishRequest(sink_id=self._sink, epoch=epoch, query_id=_QUERY, stage_ids=stage_ids)
        answer = self._client.call(LogStub, "Publish", request)
        if answer.published:
            self._epoch = epoch
        return answer

    def _read(self) -> Positions:
        positions = Positions()
        begin = self._client.ends([self._state], begins=True).get(self._state, 0)
        end = self._client.ends([self._state]).get(self._state, 0)
        if begin >= end:
            return positions
        wanted = log_pb.FetchRange(
            topic=self._state.topic,
            partition=0,
            from_offset=begin,
            to_offset=end,
            topic_id=self._state_versions[0].topic_id,
        )
        reached = begin
        for answer in self._client.fetch([wanted]):
            at = 0
            while at < len(answer.batches):
                size = batch_bytes(answer.batches, at)
                for record in read_records(answer.batches[at : at + size]):
                    if begin <= record.offset:
                        positions.read(record.value or b"")
                at += size
            reached = answer.next_offset
        if reached < end:
            raise Unavailable(
                f"{self._client.side}: the state topic was read to offset {reached} only, expected {end}"
            )
        return positions

    def _remove_before(self, offset: int) -> None:
        request = topics_pb.DeleteRecordsRequest(
            topic=self._state.topic, partitions=[topics_pb.RecordsToDelete(partition=0, before_offset=offset)]
        )
        with suppress(PixyError):  # they are removed with the next whole one
            self._client.call(TopicsStub, "DeleteRecords", request)


class Round:
    """A stage that is being written, some pieces at a time.

    Attributes:
        stage_id: new for each.
        size: bytes of its batches.
    """

    def __init__(self, client: ClusterClient, sink: str) -> None:
        self._client = client
        self._sink = sink
        self.stage_id = uuid.uuid4().hex
        self.size = 0
        self._gathered: dict[TopicPartition, list[bytes | bytearray | memoryview]] = {}
        self._gathered_bytes = 0
        self._crcs: list[int] = []
        self._calls: deque[Any] = deque()

    def add(
        self,
        partition: TopicPartition,
        batch: bytes | bytearray | memoryview,
        versions: Sequence[log_pb.TopicVersion],
    ) -> None:
        """Add a batch behind those of its partition.

        Args:
            versions: that the topics have to have.
        """
        size = len(batch)
        if self._gathered_bytes and self._gathered_bytes + size > _PIECE_BYTES:
            self._send(versions)
        self._gathered.setdefault(partition, []).append(batch)
        self._gathered_bytes += size
        self.size += size

    def seal(self, versions: Sequence[log_pb.TopicVersion]) -> None:
        """Send what is left, and wait until all of it is durable."""
        self._send(versions, seal=True)
        while self._calls:
            self._client.result(self._calls.popleft())

    def discard(self) -> None:
        """Drop it, as far as that is possible."""
        for call in self._calls:
            call.cancel()
        request = log_pb.DiscardRequest(sink_id=self._sink, stage_ids=[self.stage_id])
        with suppress(PixyError):
            self._client.call(LogStub, "Discard", request)

    def _send(self, versions: Sequence[log_pb.TopicVersion], *, seal: bool = False) -> None:
        request = log_pb.StageRequest(sink_id=self._sink, stage_id=self.stage_id, piece=len(self._crcs))
        crc = 0
        for (topic, number), batches in self._gathered.items():
            joined = b"".join(batches)
            crc = crc32c(joined, crc)
            request.partitions.add(topic=topic, partition=number, batches=joined)
        named = {topic for topic, _ in self._gathered}
        request.versions.extend(each for each in versions if each.topic in named)
        self._gathered, self._gathered_bytes = {}, 0
        self._crcs.append(crc)
        if seal:
            # Everything else has to be there first.
            while self._calls:
                self._client.result(self._calls.popleft())
            total = 0
            for each_crc in self._crcs:
                total = crc32c(each_crc.to_bytes(4, "big"), total)
            request.seal.pieces, request.seal.crc = len(self._crcs), total
        self._calls.append(self._client.begin(LogStub, "Stage", request))
        while len(self._calls) > _IN_FLIGHT:
            self._client.result(self._calls.popleft())


def version_of(topic: log_pb.Topic) -> log_pb.TopicVersion:
    """The version that a topic has to have when records are staged for it."""
    return log_pb.TopicVersion(topic=topic.topic, version=topic.version, topic_id=topic.topic_id)
