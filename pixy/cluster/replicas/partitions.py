"""The partitions of a node: their replicas, the application of their entries, and their recovery.

Damaged files make one partition unready, with the file and byte in its fault; the others start and
serve. The finder of the damage decides what becomes of the log (`partition_condition`):

    found by                         condition    the log
    -------------------------------  -----------  --------------------------------------------------
    a start                          UNWRITABLE   not opened: its files stay untouched, and offsets
                                                  are counted
    the log writer, which copies or  UNWRITABLE   given up: a start reads its entries from the
    links a part of a stage, or                   journal and finds the damage
    finds none
    a reader                         UNREADABLE   goes on: what was committed before is written, and
                                                  a damaged batch in a segment stays where it is

A topic may have 10 000 partitions, and comes and goes in one entry: at once for every caller, some
partitions at a time in the background. A partition of a new topic is made when it is first asked
for, its raft group at the first use. The partitions of a deleted topic share one flag, and their
directories are renamed later (`dropped_topic`).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog

from pixy.aio.futures import resolve
from pixy.cluster.log import (
    DataDirectory,
    Mark,
    PartitionCondition,
    PartitionReplica,
    RecoveredNode,
    describe,
)
from pixy.cluster.replicas.dropped_topic import DroppedTopic, take_some
from pixy.cluster.replicas.partition_opening import PartitionOpening
from pixy.cluster.replicas.partition_recovery import PartitionRecovery
from pixy.cluster.replicas.partitions_by_raft_group import PartitionsByRaftGroup
from pixy.cluster.state import (
    FIRST_NODE,
    Topic,
    answer_of,
    log_options,
    newer_command,
    partition_command,
    takes_publication,
    undecodable,
)
from pixy.config import StorageConfig
from pixy.copies import roll_forward, swap_directories
from pixy.entry_ids import LogPosition
from pixy.errors import (
    CorruptData,
    DataDirectoryError,
    FailedPrecondition,
    PixyError,
    Unavailable,
    UnknownPartition,
    VoidEntry,
)
from pixy.multiraft import (
    DedupTable,
    Driver,
    RaftGroup,
    conf_state_of,
    found_state,
    hard_state_of,
    is_blank,
    recovered_group,
)
from pixy.proto.state_pb2 import (
    AppliedPosition,
    HardState,
    PartitionCommand,
    PartitionIdentity,
    PublicationPart,
    PublishParts,
    StagedPiece,
)
from pixy.raft import ConfState, Entry
from pixy.records import (
    NO_PRODUCER_BYTE,
    PRODUCER_AT,
    ProducerTable,
    TopicPartition,
    is_batch,
    producer_batch,
    split_batches,
)
from pixy.storage import (
    DamagedLog,
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
    copy_directory,
    lost_is_corrupt,
    replaced_directory,
    run_on,
    sort_partition_directories,
    unlink_directories,
    why_undecodable,
)

log = structlog.get_logger(__name__)

_UNWRITABLE = PartitionCondition.UNWRITABLE
_RECORD_BATCH = EntryType.RECORD_BATCH

FindParts = Callable[[PartitionReplica, PublishParts], list[StagedPart]]
"""Finds the parts of stages that a publication makes part of a partition's log, in their order. One
that is missing is a part of a file that does not exist: whoever reads it finds the damage.
"""


class Partitions:
    """Every partition of a node.

    Args:
        directory: the node's data directory.
        storage: options for topics that have none of their own.
        driver: of their raft groups.
        writer: moves applied batches to segments.
        upkeep: removes files and looks after indexes in the background.
        find_parts: see `FindParts`.
        on_readiness: called with the name of a topic when one of its partitions becomes unready.

    Attributes:
        elect: elects a leader of a new raft group, of which the other members may not know yet.
        opening: opens the raft groups of new partitions.
        file_time_ms: see `TopicLogs`; set before topics are put.
        producers_ms: time of what producers write, as of the last check of what expires; -1 while
            it is not known.
        damaged_groups: raft groups of the partitions that are not ready.
        departing: replicas of partitions that this node has lost, by raft group; see
            `replica_departures`.
        on_departed: ends the copies for a partition whose replica departs, and removes what they
            have staged.
        on_installed: called with a partition whose log was replaced by a copy.
        staged_pieces: the pieces of a partition, by its raft group, whose stages may yet be
            published.
        left_copies: raft groups of the partitions with copies under way that a start has found.
    """

    def __init__(
        self,
        directory: DataDirectory,
        storage: StorageConfig,
        driver: Driver,
        writer: LogWriter,
        upkeep: Upkeep,
        *,
        find_parts: FindParts,
        on_readiness: Callable[[str], object],
    ) -> None:
        self._disk = directory.disk
        self._topics = directory.path / "topics"
        self._cluster_id = directory.cluster_id
        self._storage = storage
        self._driver = driver
        self.elect: Callable[[RaftGroup], None] = driver.campaign
        self.file_time_ms: Callable[[], int | None] = lambda: None
        self.producers_ms = -1
        self._writer = writer
        self._upkeep = upkeep
        self._removal = Removal(self._disk, self._topics, upkeep)
        self._find_parts = find_parts
        self._on_readiness = on_readiness
        self._by_topic: dict[str, _TopicPartitions] = {}
        self._by_group = PartitionsByRaftGroup()
        self.damaged_groups: set[int] = set()
        self.on_installed: Callable[[PartitionReplica], None] = lambda _: None
        self.staged_pieces: Callable[[int], Iterable[StagedPiece]] = lambda _: ()
        self.left_copies: set[int] = set()
        self.departing: dict[int, PartitionReplica] = {}
        self.on_departed: Callable[[PartitionReplica], Awaitable[None]] = _no_copies
        # Until `restore` a group may be in the journal: a new one would have forgotten its vote.
        self._restored = False
        self.opening = PartitionOpening(self._open_new, self._is_preferred, self._elect)
        # One for each deleted topic with raft groups.
        self._dropped: set[asyncio.Future[None]] = set()
        # Deleted topics whose directories still have their names.
        self._dropping: dict[str, DroppedTopic] = {}

    def __iter__(self) -> Iterator[PartitionReplica]:
        """The partitions that were made; the others have no records yet."""
        return (
            replica
            for of_topic in list(self._by_topic.values())
            for replica in of_topic.replicas
            if replica is not None
        )

    def get(self, partition: TopicPartition) -> PartitionReplica | None:
        """A partition, None if there is no such partition."""
        of_topic = self._by_topic.get(partition.topic)
        if of_topic is None or not 0 <= partition.partition < len(of_topic.replicas):
            return None
        return of_topic.replicas[partition.partition] or self._make(of_topic, partition.partition)

    def find_made(self, partition: TopicPartition) -> PartitionReplica | None:
        """As `get`, None also if it has no records yet."""
        of_topic = self._by_topic.get(partition.topic)
        if of_topic is None or not 0 <= partition.partition < len(of_topic.replicas):
            return None
        return of_topic.replicas[partition.partition]

    def damaged(self, topic: str) -> Iterable[int]:
        """Numbers of a topic's partitions that are not ready."""
        of_topic = self._by_topic.get(topic)
        return () if of_topic is None else of_topic.damaged

    def put_topic(self, topic: Topic) -> None:
        """Add a topic, or apply a change of it."""
        options = log_options(self._storage, topic.config)
        of_topic = self._by_topic.get(topic.name)
        if of_topic is None:
            # The writer must have renamed the old directories before it makes new ones of the name.
            dropped = self._dropping.pop(topic.name, None)
            if dropped is not None:
                dropped.retire_all()
            of_topic = self._by_topic[topic.name] = _TopicPartitions(
                topic, TopicLogs(options, file_time_ms=self.file_time_ms)
            )
        of_topic.put(topic, options)
        self._by_group.put(topic)
        if self._restored:
            self._open_later(of_topic)
            self._look_for_departures(of_topic)

    def _open_later(self, of_topic: "_TopicPartitions") -> None:
        begin, of_topic.opened = of_topic.opened, len(of_topic.replicas)
        self.opening.add(of_topic.topic.name, begin, of_topic.opened)

    def _open_new(self, name: str, number: int) -> RaftGroup | None:
        """Open the raft group of a partition, if it has several replicas and one is here."""
        of_topic = self._by_topic[name]
        replicas = self._replicas_of(of_topic.topic, number)
        if len(replicas) < 2 or self._driver.node_id not in replicas:
            return None
        group = self.group_of(of_topic.replicas[number] or self._make(of_topic, number))
        self._driver.open(group)
        return group

    def _elect(self, group: RaftGroup) -> None:
        self.elect(group)  # by what it is at that time

    def _is_preferred(self, name: str, number: int) -> bool:
        """True if this node is to lead a partition."""
        return self._replicas_of(self._by_topic[name].topic, number)[0] == self._driver.node_id

    def _replicas_of(self, topic: Topic, number: int) -> tuple[int, ...]:
        """Nodes of a partition's replicas, the preferred leader first."""
        replicas = topic.replicas[number] if number < len(topic.replicas) else ()
        # Topics of a release without placement are on the node that has made the cluster.
        return replicas or (FIRST_NODE,)

    def is_member(self, replica: PartitionReplica) -> bool:
        """True if this node is a member of a partition's raft group, or may be: one that a move
        brings here, or takes away, is not among the replicas.
        """
        if replica.is_departing:
            return False
        return replica.group is not None or self.has_replica(replica) or self._is_coming(replica)

    def has_replica(self, replica: PartitionReplica) -> bool:
        """True if this node is one of a partition's replicas, or leads it already at the end of a
        move.
        """
        if replica.is_departing:
            return False
        group = replica.group
        return self._driver.node_id in replica.replicas or (group is not None and group.leads)

    def _is_coming(self, replica: PartitionReplica) -> bool:
        """True if a move is to give this node a replica."""
        topic, number = replica.partition
        of_topic = self._by_topic.get(topic)
        return of_topic is not None and of_topic.topic.is_placed_on(number, self._driver.node_id)

    def is_unplaced(self, replica: PartitionReplica) -> bool:
        """True if this node has no replica of a partition, and no move of it is under way."""
        if replica.deleted or replica.move is not None:
            return False
        return self._driver.node_id not in replica.replicas

    def has_moved(self, replica: PartitionReplica) -> bool:
        """True if a partition has moved to other nodes than those that it was made on."""
        topic, number = replica.partition
        of_topic = self._by_topic.get(topic)
        return of_topic is not None and of_topic.topic.placement(number) > 0

    def _look_for_departures(self, of_topic: "_TopicPartitions") -> None:
        for replica in of_topic.replicas:
            if replica is not None and replica.group is not None and self.is_unplaced(replica):
                self.departing[replica.raft_group] = replica

    def only_replicas(self, parts: Iterable[PublicationPart], topics: Mapping[str, Topic]) -> set[int]:
        """The nodes with the only replicas of the partitions of a publication whose topics are
        there; 0 for a partition with several replicas or none.
        """
        found = set()
        for part in parts:
            topic, number = topics.get(part.topic), part.partition
            if topic is not None and topic.topic_id == part.topic_id:
                is_one = 0 <= number < len(topic.raft_groups)
                replicas = self._replicas_of(topic, number) if is_one else ()
                found.add(replicas[0] if len(replicas) == 1 else 0)
        return found

    def made(self, topic: str) -> Sequence[PartitionReplica | None]:
        """The partitions of a topic by number; None for each that was not made."""
        of_topic = self._by_topic.get(topic)
        return () if of_topic is None else of_topic.replicas

    def knows(self, raft_group: int) -> bool:
        """True if a partition has this raft group."""
        return self._by_group.find(raft_group) is not None

    def find_group(self, raft_group: int) -> RaftGroup | None:
        """The raft group of a partition by its id; None if metadata does not know it, or this node
        is no member.
        """
        replica = self.find_replica(raft_group)
        return None if replica is None else self.group_of(replica)

    def serves(self, raft_group: int) -> bool:
        """True if a partition has this raft group, and this node is a member of it."""
        return self.find_replica(raft_group) is not None

    def find_replica(self, raft_group: int) -> PartitionReplica | None:
        """A partition by its raft group, None if this node is no member of it."""
        partition = self._by_group.find(raft_group)
        replica = None if partition is None else self.get(partition)
        if replica is None or replica.raft_group != raft_group or not self.is_member(replica):
            return None
        return replica

    @property
    def node_id(self) -> int:
        """This node."""
        return self._driver.node_id

    @property
    def topics(self) -> dict[str, Topic]:
        """The topics that it was told of, by name."""
        return {name: of_topic.topic for name, of_topic in self._by_topic.items()}

    def _make_all(self, recovered: RecoveredNode) -> Iterator[PartitionReplica]:
        for of_topic in self._by_topic.values():
            for number, replica in enumerate(of_topic.replicas):
                if self._is_here(of_topic.topic, number, recovered):
                    yield replica or self._make(of_topic, number)

    def _is_here(self, topic: Topic, number: int, recovered: RecoveredNode) -> bool:
        """True if a start opens a partition, see `is_member`. A replica that has to depart, and has
        not done so, is opened too.
        """
        node_id = self._driver.node_id
        if node_id in self._replicas_of(topic, number) or topic.is_placed_on(number, node_id):
            return True
        group = recovered.journal.groups.get(topic.raft_groups[number])
        found = None if group is None else found_state(group)
        if found is None or found.hard_state is None or is_blank(found):
            return False
        moves = number in topic.moves or topic.placement(number) > 0
        return moves or node_id in conf_state_of(found.hard_state).members

    def _make(self, of_topic: "_TopicPartitions", number: int) -> PartitionReplica:
        topic = of_topic.topic
        directory, identity = self._topics / f"{topic.name}-{number}", self._identity(topic, number)
        partition_log = PartitionLog(self._disk, directory, identity, of_topic.logs)
        replica = PartitionReplica(
            topic.raft_groups[number],
            TopicPartition(topic.name, number),
            partition_log,
            self._replicas_of(topic, number),
        )
        replica.move = topic.moves.get(number)
        of_topic.replicas[number] = replica
        return replica

    def group_of(self, replica: PartitionReplica) -> RaftGroup:
        """The raft group of a partition, opened at its first use.

        Raises:
            Unavailable: this node is no member.
        """
        group = replica.group
        if group is None:
            if not self.is_member(replica):
                raise Unavailable(f"node {self._driver.node_id} has no replica of {replica.partition}")
            group = replica.group = self._driver.group(replica.raft_group, self._configuration(replica))
            replica.needs_copy = group.is_blank
            self._bind(group, replica)
        return group

    def _bind(self, group: RaftGroup, replica: PartitionReplica, *, holds: bool = False) -> None:
        self._driver.snapshots.offer(group, partial(describe, group, self._staged_pieces))
        self._driver.bind(group, replica, self.apply, holds=holds)

    def _staged_pieces(self, raft_group: int) -> Iterable[StagedPiece]:
        return self.staged_pieces(raft_group)

    def _configuration(self, replica: PartitionReplica) -> ConfState:
        """Configuration of a partition that the journal knows nothing of: that of its founders, if
        this node is one of them for sure. Any other replica is told of the members by a snapshot:
        it would take itself for a voter.
        """
        topic, number = replica.partition
        founders = self._by_topic[topic].topic.founders.get(number, replica.replicas)
        if self.has_moved(replica) or self._driver.node_id not in founders:
            return ConfState()
        return ConfState(tuple(sorted(founders)))

    def drop_topic(self, topic: Topic, then: Callable[[], None]) -> None:
        """Delete the partitions of a topic: unknown at once, their files removed later.

        `then` is called when the raft groups are gone.
        """
        of_topic = self._by_topic.pop(topic.name)
        self._by_group.remove(of_topic.topic)
        self.damaged_groups.difference_update(topic.raft_groups[each] for each in of_topic.damaged)
        self.opening.drop(topic.name)
        for raft_group in topic.raft_groups:
            self.departing.pop(raft_group, None)
        self._driver.departed.forget(topic.raft_groups)
        of_topic.logs.deleted = True
        replicas = [replica for replica in of_topic.replicas if replica is not None]
        dropped = DroppedTopic(deque(replicas), self._topics, self._writer, self._removal)
        self._dropping[topic.name] = dropped
        self._retire(topic.name, dropped)
        gone = asyncio.get_running_loop().create_future()
        self._dropped.add(gone)

        def forgotten() -> None:
            self._dropped.discard(gone)
            resolve(gone, None)
            then()

        self._forget(deque(replicas), forgotten)

    async def wait_dropped(self) -> None:
        """Wait until the raft groups of all topics that are deleted by now are gone: no entry of
        theirs is confirmed any more.
        """
        if self._dropped:
            await asyncio.wait([*self._dropped])

    def _retire(self, name: str, dropped: DroppedTopic) -> None:
        """Rename the directories of a deleted topic, a few at a time between other jobs."""
        if self._dropping.get(name) is not dropped:
            return  # a new topic of the name had all of them renamed at once
        if not dropped.retire(lambda: self._retire(name, dropped)):
            del self._dropping[name]

    def _forget(self, replicas: deque[PartitionReplica], then: Callable[[], None]) -> None:
        for replica in take_some(replicas):
            if replica.group is not None and replica.group.removed is None:
                error = UnknownPartition(f"topic {replica.partition.topic} was deleted")
                self._driver.remove(replica.group, error)
            replica.wake()
        if replicas:
            asyncio.get_running_loop().call_soon(self._forget, replicas, then)
        else:
            then()

    def drop_segments(self, replica: PartitionReplica, log_begin_offset: int) -> None:
        """Remove the segments of a partition below the log begin of a durable applied position."""
        self._writer.run(partial(replica.log.drop_segments, log_begin_offset), self._removal.remove_files)

    def apply(self, replica: PartitionReplica, entry: Entry) -> int | PixyError | None:
        """Apply a committed entry; returns the base offset of a record batch, the answer to one
        that was not to be appended, or the error of a deleted topic or of a publication that is out
        of order.
        """
        if replica.log.topic.deleted:
            return UnknownPartition(f"topic {replica.partition.topic} was deleted")
        batch = entry.data
        if entry.kind != _RECORD_BATCH or not is_batch(batch):
            return self._apply_other(replica, entry)
        base_offset = replica.log.append(batch)
        if batch[PRODUCER_AT] != NO_PRODUCER_BYTE:
            replica.known_producers.apply(producer_batch(batch), self.producers_ms)
        if replica.condition is _UNWRITABLE:
            replica.stuck_bytes += len(batch)
        else:
            self._writer.mark_dirty(replica.log, replica.mark, len(batch))
        replica.wake()
        return base_offset

    def _apply_other(self, replica: PartitionReplica, entry: Entry) -> int | PixyError | None:
        """Apply what is not one record batch. Of an entry that cannot be decoded only the proposal
        counts.
        """
        result: int | PixyError | None = None
        if why_undecodable(entry.kind, entry.data):
            result = undecodable()
        if entry.kind == EntryType.RECORD_BATCHES and result is None:
            return self._append_all(replica, split_batches(memoryview(entry.data)))
        if entry.kind == EntryType.COMMAND:
            result = self._run_command(replica, entry.term, partition_command(entry.data))
        if replica.condition is not _UNWRITABLE:
            self._writer.mark_changed(replica.log, replica.mark)
        return result

    def _append_all(self, replica: PartitionReplica, batches: Sequence[memoryview]) -> int:
        """Append several batches; returns the base offset of the first one."""
        first = replica.log.end_offset
        for batch in batches:
            replica.log.append(batch)
            if batch[PRODUCER_AT] != NO_PRODUCER_BYTE:
                replica.known_producers.apply(producer_batch(batch), self.producers_ms)
        # Not before all of them are there: the mark is that of the whole entry.
        size = sum(map(len, batches))
        if replica.condition is _UNWRITABLE:
            replica.stuck_bytes += size
        else:
            self._writer.mark_dirty(replica.log, replica.mark, size, len(batches))
        replica.wake()
        return first

    def log_damaged(self, damaged: DamagedLog) -> None:
        """The writer gave up a partition's log: its entries behind the applied position stay in the
        journal.
        """
        assert isinstance(damaged.mark, Mark)
        replica = damaged.mark.replica
        replica.stuck_bytes = damaged.undurable_bytes
        self._worsen(replica, PartitionCondition.UNWRITABLE, damaged.error)

    def set_fault(self, replica: PartitionReplica, error: CorruptData) -> None:
        """Make a partition unreadable: damage of it was found, and its log is still written."""
        self._worsen(replica, PartitionCondition.UNREADABLE, error)

    def _worsen(self, replica: PartitionReplica, condition: PartitionCondition, error: CorruptData) -> None:
        was_ready = replica.condition is PartitionCondition.READY
        replica.condition = max(replica.condition, condition)
        if was_ready and not replica.deleted:
            replica.fault = error
            topic, partition = replica.partition
            self._by_topic[topic].damaged.append(partition)
            self.damaged_groups.add(replica.raft_group)
            log.error(
                "a partition is damaged and not ready", topic=topic, partition=partition, reason=str(error)
            )
            replica.wake()
            self._on_readiness(topic)

    def _run_command(
        self, replica: PartitionReplica, term: int, command: PartitionCommand | VoidEntry
    ) -> int | PixyError | None:
        if isinstance(command, VoidEntry):
            return command
        match command.WhichOneof("command"):
            case "set_log_begin_offset":
                if replica.log.move_begin(command.set_log_begin_offset.offset):
                    replica.wake()
            case "publish_parts":
                return self._publish(replica, term, command.publish_parts)
            case "answered_batch":
                return answer_of(command.answered_batch)
            case "expire_producers":
                expired = command.expire_producers
                replica.known_producers.forget(expired.producer_ids, expired.offsets)
            case _:
                topic, partition = replica.partition
                raise newer_command(f"partition {topic}-{partition}")
        return None

    def _publish(
        self, replica: PartitionReplica, term: int, command: PublishParts
    ) -> FailedPrecondition | None:
        if command.publication <= replica.publication:
            return None  # proposed again by somebody who did not know that it was applied
        if not takes_publication(command, replica.publication):
            return FailedPrecondition(
                f"publication {command.publication} comes before its predecessor {command.predecessor}"
            )
        shared = len(replica.replicas) > 1 or replica.has_peers
        if shared and not all(part.stage_number for part in command.parts):
            return undecodable()  # a stage in a directory of one node, which has the only replica
        for part in self._find_parts(replica, command):
            replica.log.append_part(part, term)
        replica.publication = command.publication
        replica.wake()
        return None

    def _identity(self, topic: Topic, number: int) -> PartitionIdentity:
        return PartitionIdentity(
            cluster_id=self._cluster_id,
            topic_id=topic.topic_id,
            partition=number,
            raft_group=topic.raft_groups[number],
        )

    # --- copies -----------------------------------------------------------------------------------

    def install(self, replica: PartitionReplica, position: AppliedPosition) -> None:
        """Replace the log of a partition by its staged copy, of which the journal has the applied
        position: its entries wait until that is done.
        """
        group, before, name = replica.group, replica.log, "{}-{}".format(*replica.partition)
        assert group is not None
        self._driver.hold(group)
        self._writer.forget(before)
        copy = PartitionLog(self._disk, self._topics / name, before.identity, before.topic)
        copy.begin_at(position)
        replica.log, replica.rows = copy, DedupTable(position.rows)
        replica.publication = replica.durable_publication = position.publication

        def swap() -> _Swapped:
            before.close()
            if copy.topic.deleted:
                left = copy_directory(self._topics, replica.raft_group)
                return _Swapped([], [left] if left.name in self._disk.names(self._topics) else [])
            replaced = swap_directories(self._disk, self._topics, name, replica.raft_group)
            try:
                with lost_is_corrupt(self._topics / name):
                    files = copy.open(position, exists=True)
                    return _Swapped(files, replaced, producers=copy.read_producers(position))
            except CorruptData as error:
                copy.open_given_up(position)
                return _Swapped([], replaced, error, ProducerTable(is_known=False))

        self._writer.run(swap, partial(self._swapped, replica, copy), waits_for_space=True)

    def _swapped(self, replica: PartitionReplica, copy: PartitionLog, swapped: "_Swapped") -> None:
        """A copy is in its place."""
        self._removal.remove_files(swapped.files)
        self._removal.remove_directories(swapped.directories)
        group = replica.group
        if replica.deleted or group is None or group.removed is not None:
            return
        replica.needs_copy, replica.producers = False, swapped.producers
        self._become_ready(replica)
        if swapped.damage is not None:
            self._worsen(replica, _UNWRITABLE, swapped.damage)
        self._driver.release(group)
        replica.wake()
        self.on_installed(replica)

    def _become_ready(self, replica: PartitionReplica) -> None:
        """The files of a partition are new ones: whatever was damaged is not any more."""
        if replica.fault is not None:
            topic, partition = replica.partition
            replica.fault = None
            self._by_topic[topic].damaged.remove(partition)
            self.damaged_groups.discard(replica.raft_group)
            self._on_readiness(topic)
        replica.condition, replica.stuck_bytes = PartitionCondition.READY, 0

    # --- departures -------------------------------------------------------------------------------

    def leave(self, replica: PartitionReplica, then: Callable[[], None]) -> None:
        """Leave the raft group of a muted replica; `then` is called once that is durable."""
        group = replica.group
        assert group is not None
        topic, partition = replica.partition
        gone = Unavailable(f"partition {partition} of topic {topic} has moved to other nodes")
        self._driver.depart(group, gone, then)
        replica.wake()

    def clear(self, replica: PartitionReplica, then: Callable[[], None]) -> None:
        """Remove the files of a replica that has left its raft group, all of which are synced;
        `then` is called when their names are free for a replica that comes back.
        """
        before, name = replica.log, "{}-{}".format(*replica.partition)
        self._writer.forget(before)
        replica.group, replica.needs_copy = None, True
        replica.log = PartitionLog(self._disk, self._topics / name, before.identity, before.topic)
        # What it has published needs no stages any more.
        replica.rows, replica.durable_publication = DedupTable(), replica.publication
        replica.producers = None
        self._become_ready(replica)

        def retire() -> Path | None:
            if before.topic.deleted:
                return None  # together with all of the topic
            gone = replaced_directory(self._topics, replica.raft_group)
            if gone.name in self._disk.names(self._topics):  # of an earlier departure
                for _ in unlink_directories(self._disk, [gone]):
                    pass
            return before.retire(gone)

        def retired(gone: Path | None) -> None:
            self._removal.remove_directories([] if gone is None else [gone])
            then()

        self._writer.run(retire, retired)

    # --- start ------------------------------------------------------------------------------------

    async def restore(
        self, recovered: RecoveredNode, topics: list[Topic], next_raft_group: int, files: Worker
    ) -> list[RaftGroup]:
        """Restore segments up to the applied positions, and open the raft groups.

        Returns:
            Groups with entries behind their applied positions.

        Raises:
            DataDirectoryError, CorruptData: a foreign or unreadable file, or entries that are
                missing from the journal.
        """
        live = {
            f"{topic.name}-{number}": self._identity(topic, number)
            for topic in topics
            for number in range(len(topic.raft_groups))
            if self._is_here(topic, number, recovered)
        }
        departed = {
            raft_group
            for topic in topics
            for number, raft_group in enumerate(topic.raft_groups)
            if self._has_no_files(topic, number, recovered)
        }
        known = KnownPartitions(live, self._cluster_id, next_raft_group, departed)
        # Entries that are missing from the journal are found before any file is touched.
        restoring = [PartitionRecovery(replica, recovered) for replica in self._make_all(recovered)]
        for each in restoring:
            for command in each.publications:
                each.parts += self._find_parts(each.replica, command)

        def open_logs() -> tuple[list[Path], list[Path]]:
            try:
                here = {identity.raft_group: name for name, identity in live.items()}
                waiting = roll_forward(
                    self._disk, self._topics, here, lambda each: recovered.group(each).applied
                )
                found, retired = sort_partition_directories(self._disk, self._topics, known)
                files = [
                    path
                    for each in restoring
                    for path in each.open(found, self._disk, waits=each.replica.raft_group in waiting)
                ]
            except OSError as error:
                raise DataDirectoryError(f"{self._topics} cannot be used: {error}") from error
            names = {*self._disk.names(self._topics)}
            self.left_copies = {
                each for each in here if copy_directory(self._topics, each).name in names
            } - waiting
            return retired, files

        retired, left = await run_on(files, open_logs)
        restored = [self._restore(each, recovered) for each in restoring]
        self._restored = True
        for of_topic in self._by_topic.values():
            self._open_later(of_topic)
            self._look_for_departures(of_topic)
        self._removal.remove_directories(retired)
        self._removal.remove_files(left)
        self._repair_indexes(iter([each.replica.log for each in restoring if each.replica.log.has_indexes()]))
        return [group for group in restored if group is not None]

    def _has_no_files(self, topic: Topic, number: int, recovered: RecoveredNode) -> bool:
        """True if a partition has no replica here, or one that has come back with nothing but its
        vote; the vote of the former is kept until it does.
        """
        group = recovered.journal.groups.get(topic.raft_groups[number])
        found = None if group is None else found_state(group)
        is_known = found is not None and is_blank(found)
        is_here = self._is_here(topic, number, recovered)
        if is_known and not is_here and group is not None:
            assert found is not None
            assert found.hard_state is not None
            state = hard_state_of(found.hard_state)
            self._driver.departed.found(group.raft_group, state, group.hard_state_file)
        return is_known or not is_here

    def _repair_indexes(self, logs: Iterator[PartitionLog]) -> None:
        """Find and replace indexes torn by a loss of power, in one log after the other, in the
        background.
        """
        log = next(logs, None)
        if log is None:
            return

        def found(rebuilt: list[RebuiltIndexes]) -> None:
            if rebuilt:
                self._writer.run(partial(log.replace_indexes, rebuilt), _nothing)
            self._repair_indexes(logs)

        self._upkeep.add(log.find_torn_indexes(), found)

    def _restore(self, restoring: PartitionRecovery, recovered: RecoveredNode) -> RaftGroup | None:
        """Restore one partition; returns its raft group if it has entries to be applied again."""
        replica, position = restoring.replica, restoring.position
        if restoring.damage is not None:
            self._worsen(replica, PartitionCondition.UNWRITABLE, restoring.damage)
        if replica.raft_group not in recovered.journal.groups:
            return None
        applied = LogPosition(0, 0)
        if position is not None:
            applied = LogPosition(position.term, position.index)
            replica.publication = replica.durable_publication = position.publication
            replica.rows = DedupTable(position.rows)
        configuration = self._configuration(replica)
        found = recovered.group(replica.raft_group)
        replica.group = group = recovered_group(
            self._driver.node_id,
            replica.raft_group,
            found,
            applied,
            restoring.tail,
            HardState(voters=configuration.voters, learners=configuration.learners),
        )
        self._driver.add(group)
        replica.needs_copy = group.is_blank
        if restoring.damage is not None:
            if not restoring.counts:
                replica.stuck_bytes = group.storage.memory_bytes(applied.index)
                return None
            # It votes, and what it confirms is in the journal: applied without effect, its entries
            # are not kept in memory.
            replica.log.open_given_up(position)
        if restoring.found:
            self.set_fault(replica, CorruptData(restoring.found))
        self._bind(group, replica, holds=restoring.waits)
        if restoring.waits:
            assert position is not None
            self.install(replica, position)
            return None
        return group if group.has_tail else None


async def _no_copies(_: PartitionReplica) -> None:
    """A node without peers has no copies."""


def _nothing(_: object) -> None:
    """Callback of a replaced index, which nobody waits for."""


class _Swapped(NamedTuple):
    """Files and directories of a partition to be removed, and the damage and the producers of its
    new ones.
    """

    files: list[Path]
    directories: list[Path]
    damage: CorruptData | None = None
    producers: ProducerTable | None = None


class _TopicPartitions:
    """The partitions of one topic; None for each that was not made yet."""

    __slots__ = ("damaged", "logs", "opened", "replicas", "topic")

    def __init__(self, topic: Topic, logs: TopicLogs) -> None:
        self.topic = topic
        self.logs = logs
        self.damaged: list[int] = []
        self.replicas: list[PartitionReplica | None] = []
        # Partitions whose raft groups were opened, if they have peers.
        self.opened = 0

    def put(self, topic: Topic, options: LogOptions) -> None:
        """Apply a change of the topic."""
        is_placed_anew = (topic.replicas, topic.moves) != (self.topic.replicas, self.topic.moves)
        for number, replica in enumerate(self.replicas if is_placed_anew else ()):
            if replica is not None:
                replica.replicas, replica.move = topic.replicas[number], topic.moves.get(number)
        self.topic = topic
        self.logs.options = options
        self.replicas += [None] * (len(topic.raft_groups) - len(self.replicas))
