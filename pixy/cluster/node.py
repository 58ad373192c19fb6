"""One node of the embedded cluster: its raft groups, and the way of an entry from proposal to state.

    propose -> journal (written and synced with everybody else's) -> committed -> applied -> answered

With one voter an entry is committed when the journal has it. Everything a replicated group needs on disk is written from the first
start on: cluster id, node id, hard states with a configuration of one voter, terms from 1, indexes without holes.

What the journal may forget afterwards is the business of `compaction`.

Invariant: a partition's records are applied in the order of their indexes, and a state group's commands likewise.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from pixy.clock import Clock
from pixy.cluster.compaction import TERM, Compaction, Mark
from pixy.cluster.groups import FIRST_GROUPS_GROUP, GroupsState, groups_index
from pixy.cluster.metadata import METADATA_GROUP, MetadataState, Topic
from pixy.cluster.recovery import RecoveredNode, recover_node
from pixy.cluster.replica import LogPosition, PartitionReplica, Proposal, Replica, StateReplica
from pixy.config import JournalConfig, StorageConfig
from pixy.errors import CorruptData, DataDirectoryError, PixyError, Unavailable
from pixy.proto.state_pb2 import (
    CreateTopic,
    InitCluster,
    MetadataCommand,
)
from pixy.records import TopicPartition
from pixy.storage import (
    CheckpointStore,
    Disk,
    EntryType,
    File,
    Journal,
    LogWriter,
    PartitionLog,
    RecordKind,
    Worker,
    run_on,
)

__all__ = ["Node", "NodeOptions"]

log = structlog.get_logger(__name__)

_GROUPS_COUNT = 1


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
        self._compaction: Compaction
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
        self._compaction.stop()
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
        # What follows is not answered; and the journal may wait for somebody who will never let it go on.
        self._journal.give_up()
        self._compaction.stop()
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
        position = replica.last = LogPosition(TERM, replica.last.index + 1)
        self._journal.append(
            RecordKind.ENTRY,
            entry_type,
            replica.raft_group,
            position.index,
            position.term,
            payload,
            Proposal(replica, position, entry_type, payload, done),
        )

    def _propose_empty(self, replica: StateReplica, applied: Callable[[], None]) -> None:
        self._propose(replica, EntryType.EMPTY, b"", lambda _: applied())

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
                    self._compaction.write_hard_state(partition)
                if self.on_topic_created is not None:
                    asyncio.get_running_loop().call_soon(self.on_topic_created, result.name)
            self._compaction.applied(replica)
        proposal.done(result)

    def _append_batch(self, replica: PartitionReplica, position: LogPosition, batch: bytearray) -> int:
        base = replica.log.append(batch, position.term)
        replica.applied = position
        self._writer.mark_dirty(replica.log, Mark(replica, position), len(batch))
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
        self._compaction = Compaction(
            self._journal,
            self._replicas,
            node_id=self.node_id,
            storage=self._options.storage,
            clock=self._clock,
            files=self._files,
            propose_empty=self._propose_empty,
            on_fault=self._fault,
        )
        self._writer = LogWriter(
            self._options.worker("pixy-writer"),
            tail_cache_bytes=self._options.storage.tail_cache_bytes,
            sync_bytes=self._options.journal.max_unapplied_bytes // 2,
            on_synced=self._compaction.synced,
            on_progress=self._wrote,
            on_fault=self._fault,
        )
        self._abandon = [self._writer.abandon, self._journal.abandon]

    async def _restore(self, recovered: RecoveredNode) -> None:
        metadata = await self._restore_state(recovered, METADATA_GROUP, "metadata", self.metadata)
        self._metadata_replica = metadata
        for topic in self.metadata.topics.values():
            self._add_topic(topic)
        for number in range(self.metadata.groups_count or _GROUPS_COUNT):
            self._groups.append(
                await self._restore_state(
                    recovered, FIRST_GROUPS_GROUP + number, f"groups-{number}", GroupsState()
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
                self._compaction.write_hard_state(replica)
        if not self.metadata.groups_count:
            command = MetadataCommand(init_cluster=InitCluster(groups_count=_GROUPS_COUNT))
            written = self._first_entry = asyncio.get_running_loop().create_future()

            def done(_: None) -> None:
                if not written.done():
                    written.set_result(None)

            payload = command.SerializeToString()
            self._propose(self._metadata_replica, EntryType.COMMAND, payload, done)
            await written

    def _wrote(self) -> None:
        if self._writer.unwritten_bytes <= self._options.journal.max_unapplied_bytes:
            self._journal.release()
