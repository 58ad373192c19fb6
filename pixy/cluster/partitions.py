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

A topic may have 10 000 partitions, and comes and goes in one entry: at once, for everybody who asks. What that means for each partition
is done later, for some of them at a time. A partition of a new topic is made when it is first asked for, or when its turn comes to be
written down. A deleted topic shares one flag with all that it had. Its directories lose their names on the thread that writes them,
before that thread sees anything of a later topic of the same name; how their files go is the business of `storage.removal`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import structlog

from pixy.cluster.applied_positions import Mark
from pixy.cluster.metadata import Topic
from pixy.cluster.recovery import RecoveredNode
from pixy.cluster.replica import PartitionReplica, Replica
from pixy.cluster.sinks import StageName
from pixy.cluster.topic_config import log_options
from pixy.config import StorageConfig
from pixy.errors import CorruptData, DataDirectoryError, UnknownPartition
from pixy.log_position import LogPosition
from pixy.proto.state_pb2 import PartitionCommand, PartitionIdentity, PublishParts
from pixy.records import TopicPartition
from pixy.storage import (
    DamagedLog,
    Disk,
    EntryType,
    KnownPartitions,
    LogOptions,
    LogWriter,
    PartitionLog,
    RebuiltIndexes,
    Removal,
    StagedPart,
    TopicLogs,
    Upkeep,
    Worker,
    run_on,
    sort_partition_directories,
)

__all__ = ["Partitions"]

log = structlog.get_logger(__name__)

_DROPPED_PER_TURN = 100
"""Partitions of a deleted topic that are let go of in a turn of the loop, and whose directories are renamed in one job of the writer."""

FindPart = Callable[[StageName, bytes, int], StagedPart | None]


class Partitions:
    """Every partition of a node.

    Args:
        disk, directory: the node's data directory.
        cluster_id: whose it is.
        storage: what counts where a topic has no option of its own.
        replicas: every raft group of the node; kept up to date with the partitions.
        writer: moves what was applied to segments.
        upkeep: removes files that are needed no more, and looks after indexes.
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
        upkeep: Upkeep,
        *,
        find_part: FindPart,
        on_readiness: Callable[[str], object],
    ) -> None:
        self._disk = disk
        self._topics = directory / "topics"
        self._cluster_id = cluster_id
        self._storage = storage
        self._replicas = replicas
        self._writer = writer
        self._upkeep = upkeep
        self._removal = Removal(disk, self._topics, upkeep)
        self._find_part = find_part
        self._on_readiness = on_readiness
        self._by_topic: dict[str, _TopicPartitions] = {}
        # Deleted topics whose directories still have their names.
        self._dropping: dict[str, _Dropped] = {}

    def __iter__(self) -> Iterator[PartitionReplica]:
        """Those that were made: the others have nothing yet."""
        return (
            replica
            for of_topic in list(self._by_topic.values())
            for replica in of_topic.replicas
            if replica is not None
        )

    def get(self, partition: TopicPartition) -> PartitionReplica | None:
        """One partition, None if there is none of that name."""
        of_topic = self._by_topic.get(partition.topic)
        if of_topic is None or not 0 <= partition.partition < len(of_topic.replicas):
            return None
        return of_topic.replicas[partition.partition] or self._make(of_topic, partition.partition)

    def damaged(self, topic: str) -> Iterable[int]:
        """Those of a topic's partitions that are not ready."""
        of_topic = self._by_topic.get(topic)
        return () if of_topic is None else of_topic.damaged

    def put_topic(self, topic: Topic) -> Iterator[PartitionReplica]:
        """A topic is new or has changed.

        Returns:
            Its new partitions; each is made when the iterator comes to it, unless somebody has asked for it before.
        """
        options = log_options(self._storage, topic.config)
        of_topic = self._by_topic.get(topic.name)
        if of_topic is None:
            # What writes into its directories must find that they have lost the names that it wants.
            dropped = self._dropping.pop(topic.name, None)
            if dropped is not None:
                dropped.retire_all()
            of_topic = self._by_topic[topic.name] = _TopicPartitions(topic, TopicLogs(options))
        return self._made(of_topic, of_topic.put(topic, options))

    def _made(self, of_topic: "_TopicPartitions", numbers: range) -> Iterator[PartitionReplica]:
        for number in numbers:
            if of_topic.logs.deleted:
                return
            yield of_topic.replicas[number] or self._make(of_topic, number)

    def _make(self, of_topic: "_TopicPartitions", number: int) -> PartitionReplica:
        topic = of_topic.topic
        directory, identity = self._topics / f"{topic.name}-{number}", self._identity(topic, number)
        partition_log = PartitionLog(self._disk, directory, identity, of_topic.logs)
        replica = PartitionReplica(
            topic.raft_groups[number], TopicPartition(topic.name, number), partition_log
        )
        self._replicas[replica.raft_group] = of_topic.replicas[number] = replica
        return replica

    def drop_topic(self, topic: Topic, then: Callable[[], None]) -> None:
        """A topic is deleted: its partitions are unknown at once, and their files go. `then` is called when the raft groups are gone."""
        of_topic = self._by_topic.pop(topic.name)
        of_topic.logs.deleted = True
        replicas = [replica for replica in of_topic.replicas if replica is not None]
        dropped = self._dropping[topic.name] = _Dropped(deque(replicas), self._writer, self._removal)
        self._retire(topic.name, dropped)
        self._forget(deque(replicas), then)

    def _retire(self, name: str, dropped: "_Dropped") -> None:
        """Let the directories of a deleted topic lose their names, some at a time, with the writer's own work in between."""
        if self._dropping.get(name) is not dropped:
            return  # a new topic wanted its name, and had all of it done
        if not dropped.retire(lambda: self._retire(name, dropped)):
            del self._dropping[name]

    def _forget(self, replicas: deque[PartitionReplica], then: Callable[[], None]) -> None:
        for replica in _taken(replicas):
            del self._replicas[replica.raft_group]
            replica.wake()
        if replicas:
            asyncio.get_running_loop().call_soon(self._forget, replicas, then)
        else:
            then()

    def drop_segments(self, replica: PartitionReplica, log_begin_offset: int) -> None:
        """Let the segments of a partition go that are below an offset that an applied position durably says."""
        self._writer.run(partial(replica.log.drop_segments, log_begin_offset), self._removal.remove_files)

    def apply(
        self,
        replica: PartitionReplica,
        position: LogPosition,
        entry_type: EntryType,
        payload: bytearray | bytes,
    ) -> int | UnknownPartition | None:
        """Apply a committed entry; returns the base offset of a record batch, or why there is none."""
        if replica.log.topic.deleted:
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
            if not replica.deleted:
                self._by_topic[topic].damaged.append(partition)
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
        """Parts of a publication for a partition."""
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

        def open_logs() -> tuple[list[Path], list[Path]]:
            try:
                found, retired = sort_partition_directories(self._disk, self._topics, known)
                files = [path for each in restoring for path in each.open(found, self._disk)]
            except OSError as error:
                raise DataDirectoryError(f"{self._topics} cannot be used: {error}") from error
            return retired, files

        retired, left = await run_on(files, open_logs)
        for each in restoring:
            self._restore(each, recovered)
        self._removal.remove_directories(retired)
        self._removal.remove_files(left)
        self._repair_indexes(iter([each.replica.log for each in restoring if each.replica.log.has_indexes()]))

    def _repair_indexes(self, logs: Iterator[PartitionLog]) -> None:
        """Look for indexes that a loss of power has torn in one log after the other, in the background, and replace them."""
        log = next(logs, None)
        if log is None:
            return

        def found(rebuilt: list[RebuiltIndexes]) -> None:
            if rebuilt:
                self._writer.run(partial(log.replace_indexes, rebuilt), _nothing)
            self._repair_indexes(logs)

        self._upkeep.add(log.find_torn_indexes(), found)

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


def _nothing(_: object) -> None:
    """Nobody waits for an index."""


class _TopicPartitions:
    """The partitions of one topic, as far as they were made."""

    __slots__ = ("damaged", "logs", "replicas", "topic")

    def __init__(self, topic: Topic, logs: TopicLogs) -> None:
        self.topic = topic
        self.logs = logs
        self.damaged: list[int] = []
        self.replicas: list[PartitionReplica | None] = []

    def put(self, topic: Topic, options: LogOptions) -> range:
        """The topic has changed; returns the numbers of its new partitions."""
        self.topic = topic
        self.logs.options = options
        before, count = len(self.replicas), len(topic.raft_groups)
        self.replicas += [None] * (count - before)
        return range(before, count)


class _Dropped:
    """The partitions of a deleted topic whose directories still have their names."""

    __slots__ = ("_removal", "_replicas", "_writer")

    def __init__(self, replicas: deque[PartitionReplica], writer: LogWriter, removal: Removal) -> None:
        self._replicas = replicas
        self._writer = writer
        self._removal = removal

    def retire(self, then: Callable[[], None]) -> bool:
        """Let the writer rename the next directories, and call back when it has; False if there are none left."""
        replicas = _taken(self._replicas)
        if not replicas:
            return False

        def retired(directories: list[Path]) -> None:
            self._removal.remove_directories(directories)
            then()

        self._writer.run(partial(_retire, replicas), retired)
        return True

    def retire_all(self) -> None:
        """Let the writer rename all the rest before it does anything else."""
        while self.retire(lambda: None):
            pass


def _taken(replicas: deque[PartitionReplica]) -> list[PartitionReplica]:
    """The next ones, which are taken out: memory is given back for as many at a time, which takes longer than all the rest."""
    return [replicas.popleft() for _ in range(min(_DROPPED_PER_TURN, len(replicas)))]


def _retire(replicas: Sequence[PartitionReplica]) -> list[Path]:
    """On the writer's thread; returns the directories that are to be removed."""
    return [path for replica in replicas if (path := replica.log.retire()) is not None]


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

    def open(self, found: dict[str, CorruptData | None], disk: Disk) -> list[Path]:
        """Open the log's files, and prove the stages that become part of it; returns files that are to be removed. Blocks."""
        name = "{}-{}".format(*self.replica.partition)
        self.damage = found.get(name)
        if self.damage is None:
            try:
                for part in self.parts:
                    if part is None:
                        raise CorruptData(f"a stage was published in {name}, and is missing")
                    part.check(disk)
                return self.replica.log.open(self.position, exists=name in found, replayed=bool(self.tail))
            except CorruptData as error:
                self.damage = error
        return []
