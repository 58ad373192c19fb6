"""A cluster in memory, as a backup sees one: state, ends and batches, and faults."""

import threading
from collections.abc import Callable, Iterator, Sequence

from pixy.backup.source import BegunLater, ClusterSource, GivenBatches, TopicGone, WantedRange
from pixy.errors import Unavailable
from pixy.multiraft import FIRST_PARTITION_GROUP
from pixy.proto import pixy_cluster_pb2 as pb
from pixy.proto.state_pb2 import ClusterRecord, CommittedOffset, GroupRecord, OffsetRecord, TopicRecord
from pixy.records import (
    NewRecord,
    OffsetRange,
    TopicPartition,
    build_batch,
    patch_batch,
    read_header,
    read_records,
)

CLUSTER_ID = bytes(range(16))
TOPIC_ID = b"t" * 16


def batch_at(offset: int, *values: bytes, timestamp_ms: int = 1000, epoch: int = 1) -> bytes:
    """A batch as a log has it; timestamps are those of the offsets."""
    records = [NewRecord(None, value, [], timestamp_ms + offset + at) for at, value in enumerate(values)]
    batch = build_batch(records)
    patch_batch(batch, offset, epoch)
    return bytes(batch)


def values_in(batches: Sequence[bytes | bytearray | memoryview]) -> list[bytes | None]:
    """Values of all records."""
    return [record.value for batch in batches for record in read_records(batch)]


class LogSource(ClusterSource):
    """Topics with one log for each partition.

    Args:
        partitions: of the topic "topic".

    Attributes:
        logs: batches by partition.
        begins: first offsets.
        offsets: committed by the group "group".
        fetched: ranges that were asked for.
        before_answer: called before each answer, and may raise.
    """

    def __init__(self, partitions: int = 1) -> None:
        self.logs: list[list[bytes]] = [[] for _ in range(partitions)]
        self.begins = [0] * partitions
        self._ends = [0] * partitions
        self.offsets: dict[int, int] = {}
        self.fetched: list[WantedRange] = []
        self.before_answer: Callable[[], None] = lambda: None
        self.topic_id = TOPIC_ID
        self.stopped = threading.Event()

    def append(self, partition: int, *values: bytes, timestamp_ms: int = 1000, epoch: int = 1) -> None:
        """Append one batch."""
        batch = batch_at(self.end(partition), *values, timestamp_ms=timestamp_ms, epoch=epoch)
        self.logs[partition].append(batch)
        self._ends[partition] += len(values)

    def end(self, partition: int) -> int:
        """End of a log."""
        return self._ends[partition]

    def remove(self, partition: int, before: int) -> None:
        """Remove the records below an offset."""
        self.begins[partition] = before
        self.logs[partition] = [
            batch for batch in self.logs[partition] if read_header(batch).next_offset > before
        ]

    def state(self) -> list[bytes]:
        groups = range(FIRST_PARTITION_GROUP, FIRST_PARTITION_GROUP + len(self.logs))
        topic = TopicRecord(name="topic", topic_id=self.topic_id, raft_groups=groups, config={"a": "1"})
        cluster = ClusterRecord(groups_count=1, next_raft_group=2 * FIRST_PARTITION_GROUP, next_node_id=4)
        records = [
            ("metadata", b"cluster", cluster),
            ("metadata", b"topic/topic", topic),
            ("groups-0", b"group\0group", GroupRecord(group="group", active_ms=1)),
        ]
        for partition, offset in self.offsets.items():
            committed = CommittedOffset(
                topic="topic", topic_id=TOPIC_ID, partition=partition, offset=offset, handed_out=offset
            )
            record = OffsetRecord(group="group", offset=committed)
            records.append(("groups-0", b"offset\0group\0%d" % partition, record))
        first = pb.ExportStateResponse(cluster_id=CLUSTER_ID, version="1.0", feature_level=9, time_ms=5000)
        rest = pb.ExportStateResponse(
            records=[
                pb.StateRecord(state_group=name, key=key, value=value.SerializeToString())
                for name, key, value in records
            ]
        )
        return [first.SerializeToString(), rest.SerializeToString()]

    def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetRange]:
        return {
            each: OffsetRange(self.begins[each.partition], self.end(each.partition)) for each in partitions
        }

    def topic_ids(self) -> dict[str, bytes]:
        return {"topic": self.topic_id}

    def look_for_replicas(self) -> None:
        pass

    def fetch(self, wanted: WantedRange) -> Iterator[GivenBatches]:
        self.fetched.append(wanted)
        number = wanted.partition.partition
        if wanted.topic_id != self.topic_id:
            raise TopicGone
        if wanted.begin < self.begins[number]:
            raise BegunLater(self.begins[number])
        for batch in self.logs[number]:
            header = read_header(batch)
            if header.next_offset > wanted.begin and header.base_offset < wanted.end:
                self.before_answer()
                yield GivenBatches(batch, header.next_offset)


def broken_after(answers: int) -> Callable[[], None]:
    """For `LogSource.before_answer`: fails from the next answer on."""
    left = answers

    def answer() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Unavailable("the link is cut")

    return answer
