"""The state machine of raft group `metadata`: the topics, and the raft group of each partition.

Pure and deterministic: every replica that applies the same commands has the same state. Ids of
topics and raft groups are never reused.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from pixy.errors import InvalidArgument, PixyError, TopicExists, UnknownTopic
from pixy.proto.state_pb2 import (
    AlterTopic,
    ClusterRecord,
    CreateTopic,
    DeleteTopic,
    MetadataCommand,
    TopicRecord,
)
from pixy.records import check_topic_name

__all__ = [
    "FIRST_PARTITION_GROUP",
    "METADATA_GROUP",
    "PARTITIONS_MAX",
    "DeletedTopic",
    "MetadataState",
    "Topic",
    "check_partitions",
]

METADATA_GROUP = 1
"""The raft group of this state machine."""

FIRST_PARTITION_GROUP = 1000
"""Lowest raft group of a partition; raft groups below it are state groups."""

PARTITIONS_MAX = 10_000
_CLUSTER_KEY = b"cluster"


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic.

    Attributes:
        version: 1 at creation, raised by every change.
        raft_groups: raft group of each partition, by its number.
    """

    name: str
    topic_id: bytes
    version: int
    config: Mapping[str, str]
    raft_groups: tuple[int, ...]


def check_partitions(count: int) -> None:
    """Reject a number of partitions that no topic may have.

    Raises:
        InvalidArgument: states the allowed range.
    """
    if not 1 <= count <= PARTITIONS_MAX:
        raise InvalidArgument(f"{count} partitions; 1 to {PARTITIONS_MAX} are allowed")


class DeletedTopic(NamedTuple):
    """A topic as it was when it was deleted."""

    topic: Topic


class MetadataState:
    """Topics and the raft groups of their partitions.

    Attributes:
        groups_count: number of state groups for consumer groups; 0 before the cluster's first
            entry.
        topics: by name.
        next_raft_group: raft group of the next partition. Invariant: above every raft group ever
            assigned.
    """

    def __init__(self) -> None:
        self.groups_count = 0
        self.next_raft_group = FIRST_PARTITION_GROUP
        self.topics: dict[str, Topic] = {}

    def apply(self, payload: bytes) -> Topic | DeletedTopic | PixyError | None:
        """Apply one command; returns its result for the proposer."""
        command = MetadataCommand.FromString(payload)
        match command.WhichOneof("command"):
            case "init_cluster":
                self.groups_count = self.groups_count or command.init_cluster.groups_count
                return None
            case "create_topic":
                return self._create_topic(command.create_topic)
            case "alter_topic":
                return self._alter_topic(command.alter_topic)
            case "delete_topic":
                return self._delete_topic(command.delete_topic)
            case other:
                raise AssertionError(f"unknown metadata command {other}")

    def snapshot(self) -> Iterable[tuple[bytes, bytes]]:
        """The whole state as checkpoint records.

        May be consumed on another thread while commands are applied.
        """
        cluster = ClusterRecord(groups_count=self.groups_count, next_raft_group=self.next_raft_group)
        return _records(cluster, list(self.topics.values()))

    def restore(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Replace the whole state by a checkpoint's records."""
        self.topics = {}
        for key, value in records:
            if key == _CLUSTER_KEY:
                cluster = ClusterRecord.FromString(value)
                self.groups_count, self.next_raft_group = cluster.groups_count, cluster.next_raft_group
            else:
                record = TopicRecord.FromString(value)
                self.topics[record.name] = Topic(
                    record.name,
                    record.topic_id,
                    record.changes + 1,
                    dict(record.config),
                    tuple(record.raft_groups),
                )

    def _create_topic(self, command: CreateTopic) -> Topic | PixyError:
        try:
            check_topic_name(command.name)
            check_partitions(command.partitions)
        except PixyError as error:
            return error
        if command.name in self.topics:
            return TopicExists(f"topic {command.name} exists already")
        raft_groups = self._new_raft_groups(command.partitions)
        topic = Topic(command.name, command.topic_id, 1, dict(command.config), raft_groups)
        self.topics[topic.name] = topic
        return topic

    def _alter_topic(self, command: AlterTopic) -> Topic | PixyError:
        topic = self.topics.get(command.name)
        if topic is None:
            return UnknownTopic(f"unknown topic {command.name}")
        present = len(topic.raft_groups)
        wanted = command.partitions or present
        if not present <= wanted <= PARTITIONS_MAX:
            return InvalidArgument(
                f"{wanted} partitions; topic {topic.name} has {present}, and {present} to {PARTITIONS_MAX} are allowed"
            )
        config = {name: value for name, value in topic.config.items() if name not in command.unset_config}
        config |= command.set_config
        if wanted != present or config != topic.config:
            raft_groups = topic.raft_groups + self._new_raft_groups(wanted - present)
            topic = replace(topic, version=topic.version + 1, config=config, raft_groups=raft_groups)
            self.topics[topic.name] = topic
        return topic

    def _delete_topic(self, command: DeleteTopic) -> DeletedTopic | PixyError:
        topic = self.topics.pop(command.name, None)
        return UnknownTopic(f"unknown topic {command.name}") if topic is None else DeletedTopic(topic)

    def _new_raft_groups(self, count: int) -> tuple[int, ...]:
        first = self.next_raft_group
        self.next_raft_group += count
        return tuple(range(first, self.next_raft_group))


def _records(cluster: ClusterRecord, topics: list[Topic]) -> Iterable[tuple[bytes, bytes]]:
    yield _CLUSTER_KEY, cluster.SerializeToString()
    for topic in topics:
        record = TopicRecord(
            name=topic.name,
            topic_id=topic.topic_id,
            config=topic.config,
            changes=topic.version - 1,
            raft_groups=topic.raft_groups,
        )
        yield b"topic/" + topic.name.encode(), record.SerializeToString()
