"""One node of the embedded cluster: its raft groups, and the way of an entry from proposal to state.

    propose -> journal (written and synced with everybody else's) -> committed -> applied -> answered

With one voter an entry is committed when the journal has it. Everything a replicated group needs on disk is written from the first
start on: cluster id, node id, hard states with a configuration of one voter, terms from 1, indexes without holes.

Who may forget what: the journal keeps a file until every raft group has what is in it elsewhere: a partition in synced segments with an
applied position, a state group in the older of two checkpoints. What only the oldest file says (hard states, applied positions) is
written again before it goes.

Invariant: a partition's records are applied in the order of their indexes, and a state group's commands likewise.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from pixy.clock import Clock
from pixy.cluster.groups import GroupsState, groups_index
from pixy.cluster.metadata import MetadataState, Topic
from pixy.cluster.recovery import RecoveredNode, recover_node
from pixy.cluster.replica import LogPosition, PartitionReplica, Proposal, Replica, StateReplica
from pixy.config import JournalConfig, StorageConfig
from pixy.errors import CorruptData, DataDirectoryError, PixyError, Unavailable
from pixy.proto.state_pb2 import (
    AppliedPosition,
    AppliedPositions,
    CreateTopic,
    HardState,
    InitCluster,
    MetadataCommand,
)
from pixy.records import TopicPartition
from pixy.storage import (
    CheckpointId,
    CheckpointStore,
    Disk,
    EntryType,
    File,
    Journal,
    JournalFile,
    LogWriter,
    PartitionLog,
    RecordKind,
    SyncedLog,
    Worker,
    run_on,
)

__all__ = ["Node", "NodeOptions"]

log = structlog.get_logger(__name__)

_TERM = 1
_METADATA_GROUP = 1
_FIRST_GROUPS_GROUP = 2
_GROUPS_COUNT = 1
_FILES_BEFORE_CHECKPOINT = 4


class _Mark(NamedTuple):
    """What the log writer gives back once a partition's segments are synced up to `applied`."""

    replica: PartitionReplica
    applied: LogPosition


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """What a node is told.

    Attributes:
        directory: its data directory.
        journal, storage: the sections of the configuration.
        random_bytes: source of ids.
        worker: makes a worker thread of the given name.
    """

    directory: Path
    journal: JournalConfig
    storage: StorageConfig
    random_bytes: Callable[[int], bytes]
    worker: Callable[[str], Worker]


class Node:
    """Owns the data directory, the journal and every raft group.

    Args:
        disk, clock, options: what it stands on.
        on_fault: called once with what broke when nothing can be made durable any more. Nothing is answered after that.

    Attributes:
        metadata: the topics.
        node_id: known from `start` on.
        on_topic_created: called from the event loop with the name of a new topic, soon after it can be used.
    """

    def __init__(
        self, disk: Disk, clock: Clock, options: NodeOptions, on_fault: Callable[[BaseException], None]
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._options = options
        self._on_fault = on_fault
        self._lock: File | None = None
        self._files: Worker
        self._journal: Journal
        self._writer: LogWriter
        self._collecting = False
        self._stopped = False
        self._broken = False
        self._first_entry: asyncio.Future[None] | None = None
        self._abandon: list[Callable[[], None]] = []
        self._groups: list[StateReplica] = []
        self._metadata_replica: StateReplica
        self._replicas: dict[int, Replica] = {}
        self._partitions: dict[TopicPartition, PartitionReplica] = {}
        self.metadata = MetadataState()
        self.node_id = 0
        self.on_topic_created: Callable[[str], None] | None = None

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover everything, then begin to take proposals.

        Raises:
            DataDirectoryError, CorruptData: the data directory cannot be used.
        """
        self._files = self._options.worker("pixy-files")
        try:
            recovered = await run_on(self._files, self._recover)
            self.node_id = recovered.identity.node_id
            self._open_journal(recovered)
            await self._restore(recovered)
            await self._write_what_is_missing()
        except BaseException:
            self._release()
            raise

    async def stop(self) -> None:
        """Make everything durable and release the data directory. Nothing may be proposed any more.

        What cannot be written, after a fault or on a full disk, is left to the next start.
        """
        if self._stopped or self._lock is None:
            return
        self._stopped = True
        for replica in self._partitions.values():
            replica.wake()
        if not self._broken:
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
        if self._first_entry is not None and not self._first_entry.done():
            reason = f"data directory {self._options.directory} cannot be used: {error}"
            self._first_entry.set_exception(DataDirectoryError(reason))
        self._on_fault(error)

    # --- what others ask for ------------------------------------------------------------------------------------

    @property
    def blocked(self) -> Unavailable | None:
        """Why nothing can be written at the moment, None if all is well."""
        reason = self._journal.blocked or self._writer.blocked
        # An exception that is raised again and again gathers tracebacks: each asker gets its own.
        return None if reason is None else Unavailable(str(reason))

    @property
    def files(self) -> Worker:
        """The thread for cold reads."""
        return self._files

    def partition(self, partition: TopicPartition) -> PartitionReplica | None:
        """One partition, None if there is none of that name."""
        return self._partitions.get(partition)

    def wake_fetches(self) -> None:
        """Let every waiting fetch look again."""
        for replica in self._partitions.values():
            replica.wake()

    def offsets_of(self, consumer_group: str) -> GroupsState:
        """The state that holds the offsets of a consumer group."""
        machine = self._groups_replica(consumer_group).machine
        assert isinstance(machine, GroupsState)
        return machine

    def append(self, replica: PartitionReplica, batch: bytearray, done: Callable[[int], None]) -> None:
        """Append a record batch to a partition; `done` gets the offset of its first record once it is durable."""
        self._propose(replica, EntryType.RECORD_BATCH, batch, done)

    async def create_topic(self, name: str, partitions: int, config: dict[str, str]) -> Topic:
        """Create a topic.

        Raises:
            InvalidTopic, InvalidArgument, TopicExists.
        """
        topic_id = self._options.random_bytes(16)
        command = CreateTopic(name=name, topic_id=topic_id, partitions=partitions, config=config)
        topic = await self._command(
            self._metadata_replica, MetadataCommand(create_topic=command).SerializeToString()
        )
        assert isinstance(topic, Topic)
        return topic

    async def groups_command(self, consumer_group: str, payload: bytes) -> None:
        """Run a command in the state group of a consumer group; durable and applied on return."""
        await self._command(self._groups_replica(consumer_group), payload)

    async def _command(self, replica: StateReplica, payload: bytes) -> Any:
        if self._journal.blocked is not None:
            raise Unavailable(str(self._journal.blocked))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(result: Any) -> None:
            if not future.done():
                future.set_result(result)

        self._propose(replica, EntryType.COMMAND, payload, done)
        result = await future
        if isinstance(result, PixyError):
            raise result
        return result

    def _groups_replica(self, consumer_group: str) -> StateReplica:
        return self._groups[groups_index(consumer_group, len(self._groups))]

    # --- propose, commit, apply ---------------------------------------------------------------------------------

    def _propose(
        self, replica: Replica, entry_type: EntryType, payload: bytearray | bytes, done: Callable[[Any], None]
    ) -> None:
        position = replica.last = LogPosition(_TERM, replica.last.index + 1)
        self._journal.append(
            RecordKind.ENTRY,
            entry_type,
            replica.raft_group,
            position.index,
            position.term,
            payload,
            Proposal(replica, position, entry_type, payload, done),
        )

    def _durable(self, tokens: list[Any]) -> None:
        """A flush is on stable storage: with one voter its entries are committed."""
        for token in tokens:
            if isinstance(token, Proposal):
                self._apply(token)
            else:
                token()
        if self._writer.unwritten_bytes > self._options.journal.max_unapplied_bytes:
            self._journal.hold()

    def _apply(self, proposal: Proposal) -> None:
        replica = proposal.replica
        if isinstance(replica, PartitionReplica):
            assert isinstance(proposal.payload, bytearray)
            result: Any = self._append_batch(replica, proposal.position, proposal.payload)
            replica.wake()
        else:
            assert isinstance(replica, StateReplica)
            result = replica.apply(proposal.position, proposal.entry_type, bytes(proposal.payload))
            if isinstance(result, Topic):
                for partition in self._add_topic(result):
                    self._write_hard_state(partition)
                if self.on_topic_created is not None:
                    asyncio.get_running_loop().call_soon(self.on_topic_created, result.name)
            self._maybe_checkpoint(replica)
        proposal.done(result)

    def _append_batch(self, replica: PartitionReplica, position: LogPosition, batch: bytearray) -> int:
        base = replica.log.append(batch, position.term)
        replica.applied = position
        self._writer.mark_dirty(replica.log, _Mark(replica, position), len(batch))
        return base

    def _add_topic(self, topic: Topic) -> list[PartitionReplica]:
        added = []
        for number, raft_group in enumerate(topic.raft_groups):
            directory = self._options.directory / "topics" / f"{topic.name}-{number}"
            partition_log = PartitionLog(self._disk, directory, self._options.storage.segment_bytes)
            replica = PartitionReplica(raft_group, TopicPartition(topic.name, number), partition_log)
            self._replicas[raft_group] = self._partitions[replica.partition] = replica
            added.append(replica)
        return added

    # --- start --------------------------------------------------------------------------------------------------

    def _open_journal(self, recovered: RecoveredNode) -> None:
        self._journal = Journal(
            self._disk,
            self._options.directory / "journal",
            (recovered.identity.cluster_id, recovered.identity.node_id),
            file_bytes=self._options.journal.file_bytes,
            at=recovered.journal.at,
            files=recovered.journal.files,
            worker=self._options.worker("pixy-journal"),
            on_durable=self._durable,
            on_fault=self._fault,
        )
        self._writer = LogWriter(
            self._options.worker("pixy-writer"),
            tail_cache_bytes=self._options.storage.tail_cache_bytes,
            sync_bytes=self._options.journal.max_unapplied_bytes // 2,
            on_synced=self._synced,
            on_progress=self._wrote,
            on_fault=self._fault,
        )
        self._abandon = [self._writer.abandon, self._journal.abandon]

    async def _restore(self, recovered: RecoveredNode) -> None:
        metadata = await self._restore_state(recovered, _METADATA_GROUP, "metadata", self.metadata)
        self._metadata_replica = metadata
        for topic in self.metadata.topics.values():
            self._add_topic(topic)
        for number in range(self.metadata.groups_count or _GROUPS_COUNT):
            self._groups.append(
                await self._restore_state(
                    recovered, _FIRST_GROUPS_GROUP + number, f"groups-{number}", GroupsState()
                )
            )
        created = self.metadata.next_raft_group
        for raft_group in recovered.journal.groups:
            if raft_group >= created:
                raise CorruptData(
                    f"the journal has records of raft group {raft_group}, but the entry that created it is missing"
                )
        await self._restore_partitions(recovered)

    async def _restore_state(
        self, recovered: RecoveredNode, raft_group: int, name: str, machine: MetadataState | GroupsState
    ) -> StateReplica:
        store = CheckpointStore(self._disk, self._options.directory / "state" / name)
        replica = StateReplica(raft_group, name, machine, store)
        self._replicas[raft_group] = replica
        checkpoint, ids = await run_on(self._files, store.load)
        if checkpoint is not None:
            machine.restore(checkpoint.records)
            replica.applied = LogPosition(checkpoint.id.epoch, checkpoint.id.end_offset)
        replica.set_checkpoints(ids)
        for entry in recovered.entries_after(raft_group, replica.applied.index):
            replica.apply(LogPosition(entry.term, entry.index), entry.entry_type, bytes(entry.payload))
        replica.last = replica.applied
        replica.hard_state_file = recovered.group(raft_group).hard_state_file
        return replica

    async def _restore_partitions(self, recovered: RecoveredNode) -> None:
        partitions = list(self._partitions.values())
        positions = [recovered.group(replica.raft_group).applied for replica in partitions]
        # All of this is known to be there before anything is cut.
        tails = [
            list(recovered.entries_after(replica.raft_group, position.index if position else 0))
            for replica, position in zip(partitions, positions, strict=True)
        ]

        def open_logs() -> None:
            for replica, position, tail in zip(partitions, positions, tails, strict=True):
                replica.log.open(position, replayed=bool(tail))

        await run_on(self._files, open_logs)
        for replica, position, tail in zip(partitions, positions, tails, strict=True):
            group = recovered.group(replica.raft_group)
            if position is not None:
                replica.applied = LogPosition(position.term, position.index)
                replica.durable_index = position.index
                replica.position, replica.position_file = position, group.applied_file
            replica.hard_state_file = group.hard_state_file
            for entry in tail:
                if entry.entry_type is EntryType.RECORD_BATCH:
                    at = LogPosition(entry.term, entry.index)
                    self._append_batch(replica, at, bytearray(entry.payload))
            replica.last = replica.applied

    async def _write_what_is_missing(self) -> None:
        """What the first start writes, and what a crash right behind the creation of a topic left out."""
        for replica in self._replicas.values():
            if not replica.hard_state_file:
                self._write_hard_state(replica)
        if not self.metadata.groups_count:
            command = MetadataCommand(init_cluster=InitCluster(groups_count=_GROUPS_COUNT))
            written = self._first_entry = asyncio.get_running_loop().create_future()

            def done(_: None) -> None:
                if not written.done():
                    written.set_result(None)

            payload = command.SerializeToString()
            self._propose(self._metadata_replica, EntryType.COMMAND, payload, done)
            await written

    # --- what may be forgotten ----------------------------------------------------------------------------------

    def _wrote(self) -> None:
        if self._writer.unwritten_bytes <= self._options.journal.max_unapplied_bytes:
            self._journal.release()

    def _synced(self, synced: list[SyncedLog]) -> None:
        """Segments are on stable storage: say so in the journal."""
        positions = []
        for entry in synced:
            assert isinstance(entry.mark, _Mark)
            positions.append(_applied_position(entry.mark.replica, entry.mark.applied, entry))
        self._write_positions(positions, self._collect)

    def _write_positions(self, positions: list[AppliedPosition], then: Callable[[], None]) -> None:
        replicas = [self._replicas[position.raft_group] for position in positions]
        for replica, position in zip(replicas, positions, strict=True):
            assert isinstance(replica, PartitionReplica)
            replica.position = position

        def durable() -> None:
            for replica, position in zip(replicas, positions, strict=True):
                assert isinstance(replica, PartitionReplica)
                replica.durable_index = max(replica.durable_index, position.index)
                replica.position_file = self._journal.files[-1].number
            then()

        payload = AppliedPositions(positions=positions).SerializeToString()
        self._journal.append(RecordKind.APPLIED_POSITIONS, 0, 0, 0, 0, payload, durable)

    def _write_hard_state(self, replica: Replica) -> None:
        def durable() -> None:
            replica.hard_state_file = self._journal.files[-1].number

        state = HardState(term=_TERM, vote=self.node_id, commit=replica.applied.index, voters=[self.node_id])
        self._journal.append(
            RecordKind.HARD_STATE, 0, replica.raft_group, 0, _TERM, state.SerializeToString(), durable
        )

    def _collect(self) -> None:
        """Let the oldest journal files go that nobody needs."""
        if self._collecting or self._stopped or self._broken:
            return
        files = self._journal.files
        if len(files) < 2:
            return
        oldest = files[0]
        needed_by = [
            self._replicas[raft_group]
            for raft_group, index in oldest.last_index.items()
            if self._replicas[raft_group].durable_index < index
        ]
        if not needed_by:
            self._collecting = True
            self._carry_over(oldest)
        elif len(files) > _FILES_BEFORE_CHECKPOINT:
            for replica in needed_by:
                if isinstance(replica, StateReplica):
                    self._checkpoint(replica)

    def _carry_over(self, oldest: JournalFile) -> None:
        """Write again what only the oldest file says, then unlink it."""
        positions = []
        for replica in self._replicas.values():
            if replica.hard_state_file == oldest.number:
                self._write_hard_state(replica)
            if isinstance(replica, PartitionReplica) and replica.position_file == oldest.number:
                assert replica.position is not None
                positions.append(replica.position)

        def forget() -> None:
            self._collecting = False
            self._journal.forget([oldest])
            self._collect()

        self._write_positions(positions, forget)

    # --- checkpoints --------------------------------------------------------------------------------------------

    def _maybe_checkpoint(self, replica: StateReplica) -> None:
        storage = self._options.storage
        if (
            replica.entries_since >= storage.checkpoint_entries
            or replica.bytes_since >= storage.checkpoint_bytes
        ):
            self._checkpoint(replica)

    def _checkpoint(self, replica: StateReplica) -> None:
        """Write a snapshot of a state group, unless that is under way."""
        if replica.checkpointing:
            return
        replica.checkpointing = True
        if replica.checkpoints and replica.checkpoints[-1].end_offset == replica.applied.index:
            # Two checkpoints must differ, so that the journal can be cut below the older: an empty entry makes the difference.
            self._propose(replica, EntryType.EMPTY, b"", lambda _: self._begin_checkpoint(replica))
        else:
            self._begin_checkpoint(replica)

    def _begin_checkpoint(self, replica: StateReplica) -> None:
        id = CheckpointId(replica.applied.term, replica.applied.index)
        replica.entries_since = replica.bytes_since = 0
        records = replica.machine.snapshot()
        self._files.submit(
            partial(replica.store.write, id, records, self._clock.wall_ms()),
            partial(self._checkpointed, replica),
        )

    def _checkpointed(
        self, replica: StateReplica, ids: list[CheckpointId] | None, error: BaseException | None
    ) -> None:
        replica.checkpointing = False
        if error is not None or ids is None:
            log.error("a checkpoint could not be written", state_group=replica.name, error=str(error))
            return
        replica.set_checkpoints(ids)
        self._collect()


def _applied_position(replica: PartitionReplica, at: LogPosition, entry: SyncedLog) -> AppliedPosition:
    return AppliedPosition(
        raft_group=replica.raft_group,
        index=at.index,
        term=at.term,
        log_begin_offset=replica.log.begin_offset,
        end_offset=entry.end_offset,
        segment_base_offset=entry.segment.base_offset,
        segment_bytes=entry.segment.size,
    )
