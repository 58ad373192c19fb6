"""A node of the embedded cluster: its raft groups, and the path of an entry from proposal to state.

    propose -> journal (one write and sync for all groups) -> committed -> applied -> answered

With one voter an entry is committed once the journal has it. Everything that a replicated group
needs on disk is written from the first start: cluster id, node id, hard states with a configuration
of one voter, terms from 1, indexes without gaps.

`journal_retention` decides which journal files may then be removed.

Invariant: a partition's records are applied in the order of their indexes, and so are a state
group's commands.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import structlog

from pixy.clock import Clock
from pixy.cluster.applied_positions import AppliedPositionWriter
from pixy.cluster.checkpoints import Checkpoints
from pixy.cluster.cold_reads import ColdReads
from pixy.cluster.disk_reserve import Reserve
from pixy.cluster.groups import Forgotten
from pixy.cluster.hard_states import TERM, HardStates
from pixy.cluster.journal_retention import JournalRetention
from pixy.cluster.metadata import DeletedTopic, Topic
from pixy.cluster.node_options import NodeObserver, NodeOptions, unsynced_logs_max
from pixy.cluster.node_time import NodeTime
from pixy.cluster.partitions import Partitions
from pixy.cluster.publisher import Publisher, SinksGroup
from pixy.cluster.recovery import DataDirectory, RecoveredNode, recover_node
from pixy.cluster.relocation import Relocation
from pixy.cluster.replica import PartitionReplica, Proposal, Replica, StateReplica
from pixy.cluster.retention import Retention
from pixy.cluster.sinks import Publication
from pixy.cluster.state_groups import GROUPS_COUNT, StateGroups
from pixy.cluster.topic_commands import alter_command, create_command, delete_command
from pixy.errors import CorruptData, DataDirectoryError, PixyError, Unavailable
from pixy.futures import reject, resolve
from pixy.log_position import LogPosition
from pixy.proto.state_pb2 import InitCluster, MetadataCommand
from pixy.records import TopicPartition
from pixy.staging import Stages
from pixy.steps import run_in_steps
from pixy.storage import (
    DamagedLog,
    Disk,
    EntryType,
    File,
    Journal,
    JournalOptions,
    JournalReader,
    LogWriter,
    LogWriterOptions,
    RecordKind,
    Upkeep,
    Worker,
    run_on,
)

__all__ = ["Node"]

log = structlog.get_logger(__name__)

T = TypeVar("T")

_WRITING_S = 0.1
"""Seconds after a flush for which the journal counts as being written: shorter than the time
between two commits of offsets.
"""


class Node:
    """Owner of the data directory, the journal and every raft group.

    Args:
        disk, clock: the disk and the clock that it runs on.
        options: its configuration.
        on_fault: called once with the error when nothing can be made durable any more. No request
            is answered after that.

    Attributes:
        metadata: the topics.
        node_id: its id, from `start` on.
        state_groups: the state machines in memory.
        publisher: staged writes, from `start` on.
        observer: receives changes of topics.
    """

    def __init__(
        self, disk: Disk, clock: Clock, options: NodeOptions, on_fault: Callable[[BaseException], None]
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._options = options
        self._on_fault = on_fault
        self._lock: File | None = None
        self._loop: asyncio.AbstractEventLoop
        self._files: Worker
        self._journal: Journal
        self._cold_reads: ColdReads
        self._writer: LogWriter
        self._positions: AppliedPositionWriter
        self._hard_states: HardStates
        self._checkpoints: Checkpoints
        self._journal_retention: JournalRetention
        self._partitions: Partitions
        self._reserve: Reserve
        self._retention: Retention
        self._time: NodeTime
        self._stopped = False
        self._broken = False
        self._first_entry: asyncio.Future[None] | None = None
        self._abandon: list[Callable[[], None]] = []
        self._stages: Stages
        self.publisher: Publisher
        self._replicas: dict[int, Replica] = {}
        self.state_groups = StateGroups(disk, options.directory, self._replicas)
        self.metadata = self.state_groups.metadata
        self.node_id = 0
        self.observer: NodeObserver = NodeObserver()

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover everything, then begin to accept proposals.

        Raises:
            DataDirectoryError, CorruptData: the data directory cannot be used.
        """
        self._files = self._options.worker("pixy-files", background=True)
        self._loop = asyncio.get_running_loop()
        self._time = NodeTime(self._clock)
        try:
            recovered = await run_on(self._files, self._recover)
            self.node_id = recovered.identity.node_id
            self._open_journal(recovered)
            await self._restore(recovered)
            await self._write_missing_entries()
            self.publisher.start()
            self._reserve.start()
            self._retention.start()
        except BaseException:
            self._release()
            raise

    async def stop(self) -> None:
        """Make everything durable and release the data directory. No proposal may follow.

        Entries that cannot be written, after a fault or on a full disk, are left to the next start.
        """
        if self._stopped or self._lock is None:
            return
        self._stopped = True
        self.publisher.stop()
        self._journal_retention.stop()
        self._reserve.stop()
        self._retention.stop()
        for replica in self._partitions:
            replica.wake()
        if not self._broken:
            # No more proposals: accepted entries are written, whether or not segments have room.
            self._journal.resume()
            await self._journal.drained()
            await self._writer.stop()
            await self._journal.stop()
        self._release()

    def _recover(self) -> RecoveredNode:
        recovered = recover_node(self._disk, self._options.directory, self._options.random_bytes)
        self._lock = recovered.lock
        return recovered

    def _release(self) -> None:
        for abandon in self._abandon:
            abandon()
        self._files.stop()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _fault(self, error: BaseException) -> None:
        if self._broken:
            return
        self._broken = True
        # No later request is answered, and the journal must not wait for a release that never
        # comes.
        self._journal.give_up()
        self._journal_retention.stop()
        self._reserve.stop()
        self._retention.stop()
        if self._first_entry is not None:
            reason = f"data directory {self._options.directory} cannot be used: {error}"
            reject(self._first_entry, DataDirectoryError(reason))
        self._on_fault(error)

    # --- what others ask for ----------------------------------------------------------------------

    @property
    def blocked(self) -> Unavailable | None:
        """Reason why no messages can be written at the moment, None if they can."""
        reason = self._journal.blocked or self._writer.blocked or self._reserve.blocked
        # An exception raised repeatedly accumulates tracebacks: each caller gets its own.
        return None if reason is None else Unavailable(str(reason))

    async def read(self, read: Callable[[], T]) -> T:
        """Run a read of a partition's segments on another thread."""
        return await self._cold_reads.run(read)

    def partition(self, partition: TopicPartition) -> PartitionReplica | None:
        """A partition, None if it does not exist."""
        return self._partitions.get(partition)

    def damaged_partitions(self, topic: str) -> Iterable[int]:
        """Partitions of a topic that are not ready."""
        return self._partitions.damaged(topic)

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, ascending."""
        return self._time.now_ms()

    def set_fault(self, replica: PartitionReplica, error: CorruptData) -> None:
        """Mark a partition as damaged after a read that found it so."""
        self._partitions.set_fault(replica, error)

    def append(
        self, replica: PartitionReplica, batch: bytearray, done: Callable[[int | PixyError], None]
    ) -> None:
        """Append a record batch to a partition.

        Args:
            done: gets the offset of its first record once it is durable, or an error.
        """
        self._propose(replica, EntryType.RECORD_BATCH, batch, done)

    async def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> Topic:
        """Create a topic.

        Raises:
            InvalidTopic, InvalidArgument, TopicExists.
        """
        topic_id = self._options.random_bytes(16)
        return await self._topic_command(create_command(name, topic_id, partitions, config))

    async def alter_topic(self, name: str, partitions: int | None, config: Mapping[str, str | None]) -> Topic:
        """Add partitions to a topic, or change its options.

        Raises:
            UnknownTopic, InvalidArgument.
        """
        return await self._topic_command(alter_command(name, partitions, config))

    async def delete_topic(self, name: str, *, force: bool = False) -> None:
        """Delete a topic and its records; with `force` also if records of it are staged.

        Raises:
            UnknownTopic, FailedPrecondition.
        """
        command = delete_command(name).SerializeToString()
        topic = self.metadata.topics.get(name)
        if topic is None:
            await self._command(self.state_groups.metadata_replica, command)
            return
        with self.publisher.deleting(topic, force=force):
            await self._command(self.state_groups.metadata_replica, command)

    async def _topic_command(self, command: MetadataCommand) -> Topic:
        topic = await self._command(self.state_groups.metadata_replica, command.SerializeToString())
        assert isinstance(topic, Topic)
        return topic

    async def groups_command(self, consumer_group: str, payload: bytes) -> None:
        """Run a command in the state group of a consumer group; durable and applied on return."""
        await self._command(self.state_groups.group_of(consumer_group), payload)

    async def _command(self, replica: StateReplica, payload: bytes) -> Any:
        stalled = self._stalled()
        if stalled is not None:
            raise Unavailable(str(stalled))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._propose(replica, EntryType.COMMAND, payload, partial(resolve, future))
        result = await future
        if isinstance(result, PixyError):
            raise result
        return result

    def _stalled(self) -> Unavailable | None:
        """Reason why nothing can be made durable at the moment, None if it can."""
        return self._journal.blocked or (self._writer.blocked if self._is_behind() else None)

    # --- propose, commit, apply -------------------------------------------------------------------

    def _propose(
        self, replica: Replica, entry_type: EntryType, payload: bytearray | bytes, done: Callable[[Any], None]
    ) -> None:
        position = replica.last = LogPosition(TERM, replica.last.index + 1)
        try:
            record = (
                RecordKind.ENTRY,
                entry_type,
                replica.raft_group,
                position.index,
                position.term,
                replica.applied.index,
                None,
                payload,
            )
            self._journal.append((record,), Proposal(replica, position, entry_type, payload, done))
        except Exception as bug:
            # The log of the group has a gap that the proposer cannot know of.
            self._fault(bug)
            raise

    def _propose_command(self, replica: Replica, payload: bytes) -> None:
        """Propose a command without waiting for its result; skipped while the disk has no room."""
        if self._stalled() is None and not self._stopped:
            self._propose_and_tell(replica, payload, lambda _: None)

    def _propose_and_tell(self, replica: Replica, payload: bytes, done: Callable[[Any], None]) -> None:
        self._propose(replica, EntryType.COMMAND, payload, done)

    def _propose_empty(self, replica: StateReplica, applied: Callable[[], None]) -> None:
        self._propose(replica, EntryType.EMPTY, b"", lambda _: applied())

    def _durable(self, tokens: list[Any]) -> None:
        """Apply the entries of a synced flush: with one voter they are committed."""
        for token in tokens:
            if isinstance(token, Proposal):
                self._apply(token)
            else:
                token()
        if self._is_behind() and not self._stopped:
            self._journal.pause()

    def _is_behind(self) -> bool:
        """True when unwritten bytes exceed `max_unapplied_bytes`: the journal must wait."""
        return self._writer.unwritten_bytes > self._options.journal.max_unapplied_bytes

    def _apply(self, proposal: Proposal) -> None:
        replica = proposal.replica
        if isinstance(replica, PartitionReplica):
            result: Any = self._partitions.apply(
                replica, proposal.position, proposal.entry_type, proposal.payload
            )
        else:
            assert isinstance(replica, StateReplica)
            result = replica.apply(proposal.position, proposal.entry_type, bytes(proposal.payload))
            if isinstance(result, Topic):
                self._topic_changed(result)
            elif isinstance(result, DeletedTopic):
                self._topic_deleted(result.topic)
            elif isinstance(result, Publication):
                self.publisher.committed(result)
            elif isinstance(result, Forgotten):
                run_in_steps(result.state.sweep())
            self._checkpoints.applied(replica)
        proposal.done(result)

    def _topic_changed(self, topic: Topic) -> None:
        self._hard_states.write_all(self._partitions.put_topic(topic))
        self._loop.call_soon(self.observer.topic_changed, topic.name)

    def _topic_deleted(self, topic: Topic) -> None:
        self._partitions.drop_topic(topic, self._journal_retention.maybe_remove)
        self.publisher.topic_deleted(topic.topic_id)
        self._loop.call_soon(self.observer.topic_deleted, topic.name)
        self.state_groups.topic_deleted(topic.topic_id)
        self._forget_offsets()

    def _forget_offsets(self) -> None:
        """Forget offsets in deleted topics; without room on the disk, at the next `_clean_up`."""
        if self._stalled() is None:
            self.state_groups.forget_offsets(self._propose_command)

    # --- start ------------------------------------------------------------------------------------

    def _open_journal(self, recovered: RecoveredNode) -> None:
        directory = self._options.directory / "journal"
        owner = (recovered.identity.cluster_id, recovered.identity.node_id)
        self._journal = Journal(
            self._disk,
            self._options.worker("pixy-journal", background=False),
            JournalOptions(
                directory,
                owner,
                self._options.journal.file_bytes,
                at=recovered.journal.at,
                files=recovered.journal.files,
            ),
            on_durable=self._durable,
            on_fault=self._fault,
            on_full=self._on_full,
        )
        self._cold_reads = ColdReads(
            self._disk,
            self._files,
            self._options.storage.cold_read_bytes_per_second,
            lambda: self._loop.time() - self._journal.flushed_at < _WRITING_S,
        )
        self._open_journal_retention(JournalReader(self._disk, directory, owner))
        self._writer = LogWriter(
            self._options.worker("pixy-writer", background=True),
            LogWriterOptions(
                tail_cache_bytes=self._options.storage.tail_cache_bytes,
                sync_bytes=self._options.journal.max_unapplied_bytes // 2,
                sync_logs=unsynced_logs_max(self._disk.open_file_limit()),
                pace=self._options.writer_pace,
            ),
            on_synced=self._positions.synced,
            on_progress=self._on_progress,
            on_damaged=self._log_damaged,
            on_full=self._on_full,
            on_fault=self._fault,
        )
        self._open_files(recovered)

    def _open_journal_retention(self, reader: JournalReader) -> None:
        self._positions = AppliedPositionWriter(
            self._journal, self._replicas, self._drop_segments, self._on_positions
        )
        self._hard_states = HardStates(self._journal, self.node_id)
        self._checkpoints = Checkpoints(
            self._options.storage,
            self._clock,
            self._files,
            self._propose_empty,
            on_written=self._on_checkpoint,
            on_full=self._on_full_checkpoint,
            on_fault=self._fault,
        )
        size = self._options.journal.file_bytes
        relocation = Relocation(self._journal, self._replicas, size, self._files, reader, self._fault)
        self._journal_retention = JournalRetention(
            self._journal, self._replicas, self._hard_states, self._positions, self._checkpoints, relocation
        )

    def _open_files(self, recovered: RecoveredNode) -> None:
        self._stages = Stages(
            self._disk,
            self._options.directory / "staging",
            self._options.worker("pixy-staging", background=True),
            self._options.staging.max_bytes,
            self._fault,
        )
        upkeep = Upkeep(self._options.worker("pixy-upkeep", background=True), self._fault)
        self._abandon = [self._writer.abandon, self._journal.abandon, self._stages.stop, upkeep.stop]
        self._partitions = Partitions(
            DataDirectory(self._disk, self._options.directory, recovered.identity.cluster_id),
            self._options.storage,
            self._replicas,
            self._writer,
            upkeep,
            find_part=self._stages.part,
            on_readiness=lambda topic: self._loop.call_soon(self.observer.topic_changed, topic),
        )
        self._reserve = Reserve(
            self._disk,
            self._options.directory,
            self._options.storage.reserve_bytes,
            self._files,
            lambda: (self._journal.blocked or self._writer.blocked) is not None,
        )
        self._retention = Retention(
            self._time,
            self._options.storage,
            self._partitions,
            self.state_groups.groups,
            self._has_members,
            self._propose_command,
            self._clean_up,
        )

    async def _restore(self, recovered: RecoveredNode) -> None:
        await self.state_groups.restore(recovered, self._files)
        topics = list(self.metadata.topics.values())
        for topic in topics:
            deque(self._partitions.put_topic(topic), maxlen=0)
        await self._stages.recover(recovered.identity.cluster_id)
        await self._partitions.restore(recovered, topics, self.metadata.next_raft_group, self._files)
        self.publisher = Publisher(
            SinksGroup(self.state_groups.sinks, self.state_groups.sinks_replica),
            self._stages,
            self.metadata,
            self._partitions,
            self._options.staging,
            self._time.now_ms,
            self._propose_and_tell,
        )

    async def _write_missing_entries(self) -> None:
        """Write the entries of a first start, and those that a crash right after the creation or
        deletion of a topic left out.
        """
        missing = [replica for replica in self._replicas.values() if not replica.hard_state_file]
        self._hard_states.write_all(iter(missing))
        self._forget_offsets()
        if not self.metadata.groups_count:
            command = MetadataCommand(init_cluster=InitCluster(groups_count=GROUPS_COUNT))
            written = self._first_entry = asyncio.get_running_loop().create_future()
            replica, payload = self.state_groups.metadata_replica, command.SerializeToString()
            self._propose(replica, EntryType.COMMAND, payload, partial(resolve, written))
            await written

    def _drop_segments(self, replica: PartitionReplica, log_begin_offset: int) -> None:
        self._partitions.drop_segments(replica, log_begin_offset)

    def _has_members(self, consumer_group: str) -> bool:
        return self.observer.has_members(consumer_group)

    def _clean_up(self) -> None:
        self._forget_offsets()
        if self._stalled() is None:
            self.publisher.expire()

    def _log_damaged(self, damaged: DamagedLog) -> None:
        self._partitions.log_damaged(damaged)

    def _on_positions(self) -> None:
        """Applied positions have become durable: journal files and published stages may go."""
        self._journal_retention.maybe_remove()
        self.publisher.maybe_finish()

    def _on_checkpoint(self) -> None:
        self._journal_retention.maybe_remove()

    def _on_full(self) -> None:
        self._reserve.release()

    def _on_full_checkpoint(self) -> None:
        self._reserve.release()
        self._journal_retention.retry_later()

    def _on_progress(self) -> None:
        if not self._is_behind():
            self._journal.resume()
