"""The partitions of a node: which there are, what applying their entries does, and how they come back at a start.

A partition whose files are damaged does not keep the others from starting or serving. It is *not ready*: it takes and gives nothing, and
says which file and byte. Who reads damaged bytes, or needs a file that is missing, finds it out:

    found by                          what becomes of the log
    --------------------------------  ------------------------------------------------------------------------------
    a start                           not opened: its files stay untouched, its entries stay in the journal
    the writer, which copies or links given up: its entries behind the applied position stay in the journal, for a start to
    a part of a stage                 find what the first row says
    a reader                          goes on: what was committed before that is written behind it, and a damaged batch in a
                                      segment stays where it is
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from pixy.cluster.compaction import Mark
from pixy.cluster.metadata import Topic
from pixy.cluster.recovery import RecoveredNode
from pixy.cluster.replica import LogPosition, PartitionReplica, Replica
from pixy.cluster.sinks import StageName
from pixy.cluster.topic_config import log_options
from pixy.config import StorageConfig
from pixy.errors import CorruptData, DataDirectoryError, UnknownPartition
from pixy.proto.state_pb2 import PartitionCommand, PartitionIdentity, PublishParts
from pixy.records import TopicPartition
from pixy.storage import (
    DamagedLog,
    Disk,
    EntryType,
    KnownPartitions,
    LogWriter,
    PartitionLog,
    StagedPart,
    Worker,
    run_on,
    sort_partition_directories,
)

__all__ = ["Partitions"]

log = structlog.get_logger(__name__)

FindPart = Callable[[StageName, bytes, int], StagedPart | None]


class Partitions:
    """Every partition of a node.

    Args:
        disk, directory: the node's data directory.
        cluster_id: whose it is.
        storage: what counts where a topic has no option of its own.
        replicas: every raft group of the node; kept up to date with the partitions.
        writer: moves what was applied to segments.
        find_part: what a sealed stage holds of a partition, by stage, topic id and number; None if there is no such stage.
        on_readiness: called with the name of a topic when one of its partitions is not ready any more.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        cluster_id: bytes,
        storage: StorageConfig,
        replicas: dict[int, Replica],
        writer: LogWriter,
        find_part: FindPart,
        on_readiness: Callable[[str], object],
    ) -> None:
        self._disk = disk
        self._topics = directory / "topics"
        self._cluster_id = cluster_id
        self._storage = storage
        self._replicas = replicas
        self._writer = writer
        self._find_part = find_part
        self._on_readiness = on_readiness
        self._by_name: dict[TopicPartition, PartitionReplica] = {}

    def __iter__(self) -> Iterator[PartitionReplica]:
        return iter(self._by_name.values())

    def get(self, partition: TopicPartition) -> PartitionReplica | None:
        """One partition, None if there is none of that name."""
        return self._by_name.get(partition)

    def put_topic(self, topic: Topic) -> list[PartitionReplica]:
        """A topic is new or has changed; returns its new partitions."""
        options = log_options(self._storage, topic.config)
        added = []
        for number, raft_group in enumerate(topic.raft_groups):
            partition = TopicPartition(topic.name, number)
            replica = self._by_name.get(partition)
            if replica is None:
                identity = self._identity(topic, number)
                directory = self._topics / f"{topic.name}-{number}"
                partition_log = PartitionLog(self._disk, directory, identity, options)
                replica = PartitionReplica(raft_group, partition, partition_log)
                self._replicas[raft_group] = self._by_name[partition] = replica
                added.append(replica)
            replica.log.options = options
        return added

    def drop_topic(self, topic: Topic) -> None:
        """A topic is deleted: its partitions are unknown at once, and their files go."""
        for number, raft_group in enumerate(topic.raft_groups):
            replica = self._by_name.pop(TopicPartition(topic.name, number))
            del self._replicas[raft_group]
            replica.deleted = True
            replica.wake()
            replica.log.begin_removal()
            self._writer.run(replica.log.remove)

    def apply(
        self,
        replica: PartitionReplica,
        position: LogPosition,
        entry_type: EntryType,
        payload: bytearray | bytes,
    ) -> int | UnknownPartition | None:
        """Apply a committed entry; returns the base offset of a record batch, or why there is none."""
        if replica.deleted:
            return UnknownPartition(f"topic {replica.partition.topic} was deleted")
        replica.applied = position
        if entry_type is EntryType.RECORD_BATCH:
            assert isinstance(payload, bytearray)
            base_offset = replica.log.append(payload, position.term)
            if replica.stuck_bytes:
                replica.stuck_bytes += len(payload)
            else:
                self._writer.mark_dirty(
                    replica.log, Mark(replica, position, replica.publication), len(payload)
                )
            replica.wake()
            return base_offset
        if entry_type is EntryType.COMMAND:
            self._run_command(replica, position, PartitionCommand.FromString(bytes(payload)))
        if not replica.stuck_bytes:
            self._writer.mark_changed(replica.log, Mark(replica, position, replica.publication))
        return None

    def log_damaged(self, damaged: DamagedLog) -> None:
        """The writer cannot go on with a partition's log: what is behind its applied position stays in the journal."""
        assert isinstance(damaged.mark, Mark)
        replica = damaged.mark.replica
        # Never 0, which would say that its entries are applied.
        replica.stuck_bytes = max(damaged.undurable_bytes, 1)
        if not replica.deleted:
            self.set_fault(replica, damaged.error)

    def set_fault(self, replica: PartitionReplica, error: CorruptData) -> None:
        """A partition's files are damaged: it is not ready any more."""
        if replica.fault is None:
            replica.fault = error
            topic, partition = replica.partition
            log.error(
                "a partition is damaged and not ready", topic=topic, partition=partition, reason=str(error)
            )
            replica.wake()
            self._on_readiness(topic)

    def _run_command(
        self, replica: PartitionReplica, position: LogPosition, command: PartitionCommand
    ) -> None:
        match command.WhichOneof("command"):
            case "set_log_begin_offset":
                if replica.log.move_begin(command.set_log_begin_offset.offset):
                    replica.wake()
            case "publish_parts":
                self._publish(replica, position, command.publish_parts)
            case other:
                raise AssertionError(f"partition command {other} is not known")

    def _publish(self, replica: PartitionReplica, position: LogPosition, command: PublishParts) -> None:
        if command.publication <= replica.publication:
            return  # proposed again, by a start that did not find it applied
        for part in self._published(replica, command):
            assert part is not None
            replica.log.append_part(part, position.term)
        replica.publication = command.publication
        replica.wake()

    def _published(self, replica: PartitionReplica, command: PublishParts) -> list[StagedPart | None]:
        """What a publication has for a partition."""
        identity = replica.log.identity
        return [
            self._find_part(StageName(command.sink_id, part.stage_id), identity.topic_id, identity.partition)
            for part in command.parts
        ]

    def _identity(self, topic: Topic, number: int) -> PartitionIdentity:
        return PartitionIdentity(
            cluster_id=self._cluster_id,
            topic_id=topic.topic_id,
            partition=number,
            raft_group=topic.raft_groups[number],
        )

    # --- start --------------------------------------------------------------------------------------------------

    async def restore(
        self, recovered: RecoveredNode, topics: list[Topic], next_raft_group: int, files: Worker
    ) -> None:
        """Bring back what there was: segments up to the applied positions, and what the journal has behind them.

        Raises:
            DataDirectoryError, CorruptData: what does not belong here, cannot be read, or is missing from the journal.
        """
        live = {
            f"{topic.name}-{number}": self._identity(topic, number)
            for topic in topics
            for number in range(len(topic.raft_groups))
        }
        known = KnownPartitions(live, self._cluster_id, next_raft_group)
        # All of the journal is known to be there before any file is touched.
        restoring = [_Restoring(replica, recovered) for replica in self]
        for each in restoring:
            for command in each.publications:
                each.parts += self._published(each.replica, command)

        def open_logs() -> None:
            try:
                found = sort_partition_directories(self._disk, self._topics, known)
                for each in restoring:
                    each.open(found, self._disk)
            except OSError as error:
                raise DataDirectoryError(f"{self._topics} cannot be used: {error}") from error

        await run_on(files, open_logs)
        for each in restoring:
            self._restore(each, recovered)

    def _restore(self, restoring: "_Restoring", recovered: RecoveredNode) -> None:
        replica, position = restoring.replica, restoring.position
        group = recovered.group(replica.raft_group)
        if position is not None:
            replica.applied = LogPosition(position.term, position.index)
            replica.durable_index = position.index
            replica.position, replica.position_file = position, group.applied_file
            replica.publication = replica.durable_publication = position.publication
        replica.hard_state_file = group.hard_state_file
        replica.last = replica.applied
        if restoring.damage is not None:
            self.set_fault(replica, restoring.damage)
        for entry in restoring.tail:
            replica.last = LogPosition(entry.term, entry.index)
            if restoring.damage is None:
                self.apply(replica, replica.last, entry.entry_type, bytearray(entry.payload))
            else:
                replica.stuck_bytes += len(entry.payload)


class _Restoring:
    """A partition at a start: its applied position, the entries behind it, and the stages that these name."""

    __slots__ = ("damage", "parts", "position", "publications", "replica", "tail")

    def __init__(self, replica: PartitionReplica, recovered: RecoveredNode) -> None:
        self.replica = replica
        self.position = recovered.group(replica.raft_group).applied
        index = 0 if self.position is None else self.position.index
        self.tail = recovered.group(replica.raft_group).entries_after(index)
        self.damage: CorruptData | None = None
        publication = 0 if self.position is None else self.position.publication
        commands = [
            PartitionCommand.FromString(bytes(entry.payload))
            for entry in self.tail
            if entry.entry_type is EntryType.COMMAND
        ]
        self.publications = [
            command.publish_parts
            for command in commands
            if command.HasField("publish_parts") and command.publish_parts.publication > publication
        ]
        self.parts: list[StagedPart | None] = []

    def open(self, found: dict[str, CorruptData | None], disk: Disk) -> None:
        """Open the log's files, and prove the stages that become part of it. Blocks."""
        name = "{}-{}".format(*self.replica.partition)
        self.damage = found.get(name)
        if self.damage is None:
            try:
                for part in self.parts:
                    if part is None:
                        raise CorruptData(f"a stage was published in {name}, and is missing")
                    part.check(disk)
                self.replica.log.open(self.position, exists=name in found, replayed=bool(self.tail))
            except CorruptData as error:
                self.damage = error
