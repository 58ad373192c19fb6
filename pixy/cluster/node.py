"""One node of the embedded cluster: its raft groups, and the way of an entry from proposal to state.

    propose -> journal (written and synced with everybody else's) -> committed -> applied -> answered

With one voter an entry is committed when the journal has it. Everything a replicated group needs on disk is written from the first
start on: cluster id, node id, hard states with a configuration of one voter, terms from 1, indexes without holes.

What the journal may forget afterwards is the business of `compaction`.

Invariant: a partition's records are applied in the order of their indexes, and a state group's commands likewise.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from pixy.clock import Clock
from pixy.cluster.compaction import TERM, Compaction
from pixy.cluster.groups import FIRST_GROUPS_GROUP, GroupsState, groups_index
from pixy.cluster.metadata import METADATA_GROUP, DeletedTopic, MetadataState, Topic, check_partitions
from pixy.cluster.node_time import NodeTime
from pixy.cluster.partitions import Partitions
from pixy.cluster.recovery import RecoveredNode, recover_node
from pixy.cluster.replica import LogPosition, PartitionReplica, Proposal, Replica, StateReplica
from pixy.cluster.reserve import Reserve
from pixy.cluster.retention import Retention
from pixy.cluster.topic_config import check_topic_config
from pixy.config import JournalConfig, StorageConfig
from pixy.errors import CorruptData, DataDirectoryError, PixyError, Unavailable
from pixy.proto.state_pb2 import (
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    ForgetTopics,
    GroupsCommand,
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
    RecordKind,
    Worker,
    read_entries,
    run_on,
)

__all__ = ["Node", "NodeObserver", "NodeOptions"]

log = structlog.get_logger(__name__)

_GROUPS_COUNT = 1
_UNSYNCED_LOGS_MAX = 2000
"""Each of them holds a file open."""


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


class NodeObserver:
    """Who wants to know of a node's topics; this one does not. Called from the event loop, soon after what it is told of."""

    def topic_changed(self, name: str) -> None:
        """A topic is new, or has other partitions or options, or one of its partitions is not ready any more."""

    def topic_deleted(self, name: str) -> None:
        """A topic is no more; one of the same name may be there already, of which `topic_changed` tells next."""

    def has_members(self, consumer_group: str) -> bool:
        """Whether anybody is in a consumer group."""
        return False


class Node:
    """Owns the data directory, the journal and every raft group.

    Args:
        disk, clock, options: what it stands on.
        on_fault: called once with what broke when nothing can be made durable any more. Nothing is answered after that.

    Attributes:
        metadata: the topics.
        node_id: known from `start` on.
        observer: who is told of topics.
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
        self._writer: LogWriter
        self._compaction: Compaction
        self._partitions: Partitions
        self._reserve: Reserve
        self._retention: Retention
        self._time: NodeTime
        self._stopped = False
        self._broken = False
        self._first_entry: asyncio.Future[None] | None = None
        self._abandon: list[Callable[[], None]] = []
        self._groups: list[StateReplica] = []
        self._metadata_replica: StateReplica
        self._replicas: dict[int, Replica] = {}
        self.metadata = MetadataState()
        self.node_id = 0
        self.observer: NodeObserver = NodeObserver()

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover everything, then begin to take proposals.

        Raises:
            DataDirectoryError, CorruptData: the data directory cannot be used.
        """
        self._files = self._options.worker("pixy-files")
        self._loop = asyncio.get_running_loop()
        self._time = NodeTime(self._clock)
        try:
            recovered = await run_on(self._files, self._recover)
            self.node_id = recovered.identity.node_id
            self._open_journal(recovered)
            await self._restore(recovered)
            await self._write_what_is_missing()
            self._reserve.start()
            self._retention.start()
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
        self._reserve.stop()
        self._retention.stop()
        for replica in self._partitions:
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
        self._reserve.stop()
        self._retention.stop()
        if self._first_entry is not None and not self._first_entry.done():
            reason = f"data directory {self._options.directory} cannot be used: {error}"
            self._first_entry.set_exception(DataDirectoryError(reason))
        self._on_fault(error)

    # --- what others ask for ------------------------------------------------------------------------------------

    @property
    def blocked(self) -> Unavailable | None:
        """Why no messages can be written at the moment, None if all is well."""
        reason = self._journal.blocked or self._writer.blocked or self._reserve.blocked
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

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, ascending."""
        return self._time.now_ms()

    def set_fault(self, replica: PartitionReplica, error: CorruptData) -> None:
        """A read has found that a partition is damaged."""
        self._partitions.set_fault(replica, error)

    def append(
        self, replica: PartitionReplica, batch: bytearray, done: Callable[[int | PixyError], None]
    ) -> None:
        """Append a record batch to a partition; `done` gets the offset of its first record once it is durable, or an error."""
        self._propose(replica, EntryType.RECORD_BATCH, batch, done)

    async def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> Topic:
        """Create a topic.

        Raises:
            InvalidTopic, InvalidArgument, TopicExists.
        """
        check_topic_config(config)
        check_partitions(partitions)
        topic_id = self._options.random_bytes(16)
        command = CreateTopic(name=name, topic_id=topic_id, partitions=partitions, config=config)
        return await self._topic_command(MetadataCommand(create_topic=command))

    async def alter_topic(self, name: str, partitions: int | None, config: Mapping[str, str | None]) -> Topic:
        """Give a topic more partitions, or other options.

        Raises:
            UnknownTopic, InvalidArgument.
        """
        wanted = {option: value for option, value in config.items() if value is not None}
        check_topic_config(wanted)
        if partitions is not None:
            check_partitions(partitions)
        unset = [option for option, value in config.items() if value is None]
        check_topic_config(dict.fromkeys(unset, "1"))
        command = AlterTopic(name=name, partitions=partitions or 0, set_config=wanted, unset_config=unset)
        return await self._topic_command(MetadataCommand(alter_topic=command))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with all that is in it.

        Raises:
            UnknownTopic.
        """
        command = MetadataCommand(delete_topic=DeleteTopic(name=name))
        await self._command(self._metadata_replica, command.SerializeToString())

    async def _topic_command(self, command: MetadataCommand) -> Topic:
        topic = await self._command(self._metadata_replica, command.SerializeToString())
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

    def _propose_command(self, replica: Replica, payload: bytes) -> None:
        """Propose a command that nobody waits for; not while the journal has no room."""
        if self._journal.blocked is None and not self._stopped:
            self._propose(replica, EntryType.COMMAND, payload, lambda _: None)

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
            self._compaction.applied(replica)
        proposal.done(result)

    def _topic_changed(self, topic: Topic) -> None:
        self._compaction.write_hard_states(self._partitions.put_topic(topic))
        self._loop.call_soon(self.observer.topic_changed, topic.name)

    def _topic_deleted(self, topic: Topic) -> None:
        self._partitions.drop_topic(topic)
        self._compaction.topic_deleted()
        self._loop.call_soon(self.observer.topic_deleted, topic.name)
        self._forget_offsets([topic.topic_id])

    def _forget_offsets(self, topic_ids: list[bytes]) -> None:
        command = GroupsCommand(forget_topics=ForgetTopics(topic_ids=topic_ids))
        for replica in self._groups:
            self._propose_command(replica, command.SerializeToString())

    # --- start --------------------------------------------------------------------------------------------------

    def _open_journal(self, recovered: RecoveredNode) -> None:
        directory = self._options.directory / "journal"
        owner = (recovered.identity.cluster_id, recovered.identity.node_id)
        self._journal = Journal(
            self._disk,
            directory,
            owner,
            file_bytes=self._options.journal.file_bytes,
            at=recovered.journal.at,
            files=recovered.journal.files,
            worker=self._options.worker("pixy-journal"),
            on_durable=self._durable,
            on_fault=self._fault,
            on_full=self._disk_is_full,
        )
        self._compaction = Compaction(
            self._journal,
            self._replicas,
            node_id=self.node_id,
            file_bytes=self._options.journal.file_bytes,
            storage=self._options.storage,
            clock=self._clock,
            files=self._files,
            propose_empty=self._propose_empty,
            read_journal=partial(read_entries, self._disk, directory, owner),
            run_on_segments=self._run_on_segments,
            on_full=self._disk_is_full,
            on_fault=self._fault,
        )
        self._writer = LogWriter(
            self._options.worker("pixy-writer"),
            tail_cache_bytes=self._options.storage.tail_cache_bytes,
            sync_bytes=self._options.journal.max_unapplied_bytes // 2,
            sync_logs=_UNSYNCED_LOGS_MAX,
            on_synced=self._compaction.synced,
            on_progress=self._wrote,
            on_full=self._disk_is_full,
            on_fault=self._fault,
        )
        self._abandon = [self._writer.abandon, self._journal.abandon]
        self._partitions = Partitions(
            self._disk,
            self._options.directory,
            recovered.identity.cluster_id,
            self._options.storage,
            self._replicas,
            self._writer,
            lambda topic: self._loop.call_soon(self.observer.topic_changed, topic),
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
            self._groups,
            self._has_members,
            self._propose_command,
        )

    async def _restore(self, recovered: RecoveredNode) -> None:
        metadata = await self._restore_state(recovered, METADATA_GROUP, "metadata", self.metadata)
        self._metadata_replica = metadata
        topics = list(self.metadata.topics.values())
        for topic in topics:
            self._partitions.put_topic(topic)
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
        await self._partitions.restore(recovered, topics, created, self._files)

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
        for entry in recovered.group(raft_group).entries_after(replica.applied.index):
            replica.apply(LogPosition(entry.term, entry.index), entry.entry_type, bytes(entry.payload))
        replica.last = replica.applied
        replica.hard_state_file = recovered.group(raft_group).hard_state_file
        return replica

    async def _write_what_is_missing(self) -> None:
        """What the first start writes, and what a crash right behind the creation or deletion of a topic left out."""
        self._compaction.write_hard_states(
            [replica for replica in self._replicas.values() if not replica.hard_state_file]
        )
        live = {topic.topic_id for topic in self.metadata.topics.values()}
        for group in self._groups:
            assert isinstance(group.machine, GroupsState)
            if gone := group.machine.topic_ids() - live:
                self._forget_offsets(sorted(gone))
        if not self.metadata.groups_count:
            command = MetadataCommand(init_cluster=InitCluster(groups_count=_GROUPS_COUNT))
            written = self._first_entry = asyncio.get_running_loop().create_future()

            def done(_: None) -> None:
                if not written.done():
                    written.set_result(None)

            payload = command.SerializeToString()
            self._propose(self._metadata_replica, EntryType.COMMAND, payload, done)
            await written

    def _run_on_segments(self, work: Callable[[], None]) -> None:
        self._writer.run(work)

    def _has_members(self, consumer_group: str) -> bool:
        return self.observer.has_members(consumer_group)

    def _disk_is_full(self) -> None:
        self._reserve.release()

    def _wrote(self) -> None:
        if self._writer.unwritten_bytes <= self._options.journal.max_unapplied_bytes:
            self._journal.release()
