"""A node of the embedded cluster: its raft groups, and the path of an entry from proposal to state.

    propose -> Raft -> journal (one sync for all groups) -> committed -> applied -> answered

`node_log` owns that path. This module gives entries their meaning: it acts on what the state groups
apply (topics that come and go, publications, forgotten offsets), and wires everything together.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import structlog

import pixy
from pixy.clock import Clock
from pixy.cluster.cold_reads import ColdReads
from pixy.cluster.disk_reserve import Reserve
from pixy.cluster.groups import Forgotten
from pixy.cluster.metadata import DeletedTopic, Topic
from pixy.cluster.node_log import LogHooks, NodeLog
from pixy.cluster.node_options import NodeObserver, NodeOptions
from pixy.cluster.node_status import raft_group_status
from pixy.cluster.node_time import NodeTime
from pixy.cluster.partitions import Partitions
from pixy.cluster.proposals import Repeated
from pixy.cluster.publisher import Publisher, SinksGroup
from pixy.cluster.raft_group import RaftGroup
from pixy.cluster.recovery import DataDirectory, RecoveredNode, recover_node
from pixy.cluster.replica import PartitionReplica, Replica, StateReplica
from pixy.cluster.retention import Retention
from pixy.cluster.sinks import Publication
from pixy.cluster.state_groups import GROUPS_COUNT, StateGroups
from pixy.cluster.status import ClusterStatus, NodeStatus
from pixy.cluster.topic_commands import alter_command, create_command, delete_command
from pixy.errors import (
    CorruptData,
    DataDirectoryError,
    FailedPrecondition,
    NotFound,
    PixyError,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from pixy.futures import reject, resolve
from pixy.proto.state_pb2 import InitCluster, MetadataCommand
from pixy.raft import Entry
from pixy.records import TopicPartition
from pixy.staging import Stages
from pixy.steps import run_in_steps
from pixy.storage import (
    DamagedLog,
    Disk,
    EntryType,
    File,
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
        self._log: NodeLog
        self._cold_reads: ColdReads
        self._partitions: Partitions
        self._reserve: Reserve
        self._retention: Retention
        self._time: NodeTime
        self._stopped = False
        self._broken: DataDirectoryError | None = None
        self._first_entry: asyncio.Future[None] | None = None
        self._abandon: list[Callable[[], None]] = []
        self._stages: Stages
        self.publisher: Publisher
        self.state_groups = StateGroups()
        # Entries are applied again by the start: others must not hear of their effects.
        self._starting = True
        self.metadata = self.state_groups.metadata
        self.node_id = 0
        self._cluster_id = b""
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
            self._cluster_id = recovered.identity.cluster_id
            self._open(recovered)
            await self._restore(recovered)
            self._log.retention.start()
            self._starting = False
            await self._write_first_entry()
            self._forget_offsets()
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
        self._reserve.stop()
        self._retention.stop()
        for replica in self._partitions:
            replica.wake()
        if self._broken is None:
            await self._log.stop()
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
        if self._broken is not None:
            return
        self._broken = DataDirectoryError(f"data directory {self._options.directory} cannot be used: {error}")
        self._log.give_up(self._broken)
        self._reserve.stop()
        self._retention.stop()
        if self._first_entry is not None:
            reject(self._first_entry, self._broken)
        self._on_fault(error)

    # --- what others ask for ----------------------------------------------------------------------

    @property
    def blocked(self) -> Unavailable | None:
        """Reason why no messages can be written at the moment, None if they can."""
        reason = self._log.blocked or self._reserve.blocked
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
        group = replica.group or self._partitions.group_of(replica)
        self._log.driver.propose(group, EntryType.RECORD_BATCH, batch, done)

    async def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> Topic:
        """Create a topic.

        Raises:
            InvalidTopic, InvalidArgument, TopicExists.
        """
        topic_id = self._options.random_bytes(16)
        return await self._topic_command(name, create_command(name, topic_id, partitions, config))

    async def alter_topic(self, name: str, partitions: int | None, config: Mapping[str, str | None]) -> Topic:
        """Add partitions to a topic, or change its options.

        Raises:
            UnknownTopic, InvalidArgument.
        """
        return await self._topic_command(name, alter_command(name, partitions, config))

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

    async def _topic_command(self, name: str, command: MetadataCommand) -> Topic:
        topic = await self._command(self.state_groups.metadata_replica, command.SerializeToString())
        if isinstance(topic, Repeated):
            topic = self.metadata.topics.get(name)
            if topic is None:
                raise UnknownTopic(f"topic {name} was deleted meanwhile")
        assert isinstance(topic, Topic)
        return topic

    async def status(self) -> ClusterStatus:
        """Status of the cluster: of this node and its raft groups."""
        replicas = [
            self.state_groups.metadata_replica,
            *self.state_groups.groups,
            self.state_groups.sinks_replica,
        ]
        groups = [raft_group_status(each.group, each.name, self.node_id) for each in replicas]
        for partition in self._partitions:
            if partition.group is not None:
                name = "{}-{}".format(*partition.partition)
                groups.append(raft_group_status(partition.group, name, self.node_id))
        node = NodeStatus(
            self.node_id,
            address="",
            version=pixy.__version__,
            incarnation=self._log.incarnation.number,
            is_self=True,
        )
        return ClusterStatus(
            self._cluster_id, (node,), tuple(sorted(groups, key=lambda group: group.raft_group))
        )

    async def remove_node(self, node_id: int) -> None:
        """Take a node out of the cluster.

        Raises:
            NotFound: there is no such node.
            FailedPrecondition: it is the only one.
        """
        self._check_may_leave(node_id)

    async def forget_node(self, node_id: int) -> None:
        """Give up a node that is lost.

        Raises:
            NotFound: there is no such node.
            FailedPrecondition: it is the only one.
        """
        self._check_may_leave(node_id)

    def _check_may_leave(self, node_id: int) -> None:
        if node_id != self.node_id:
            raise NotFound(f"the cluster has no node {node_id}")
        raise FailedPrecondition(f"node {node_id} is the only one of the cluster")

    async def groups_command(self, consumer_group: str, payload: bytes) -> None:
        """Run a command in the state group of a consumer group; durable and applied on return."""
        await self._command(self.state_groups.group_of(consumer_group), payload)

    async def _command(self, replica: StateReplica, payload: bytes) -> Any:
        stalled = self._log.stalled
        if stalled is not None:
            raise Unavailable(str(stalled))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._propose(replica.group, EntryType.COMMAND, payload, partial(resolve, future))
        result = await future
        if isinstance(result, PixyError):
            raise result
        return result

    # --- propose, commit, apply -------------------------------------------------------------------

    def _propose(
        self,
        group: RaftGroup,
        kind: EntryType,
        payload: bytearray | bytes,
        done: Callable[[Any], None],
    ) -> None:
        self._log.driver.propose(group, kind, payload, done)

    def _propose_command(self, replica: Replica, payload: bytes) -> None:
        """Propose a command without waiting for its result; skipped while the disk has no room."""
        if self._log.stalled is None and not self._stopped:
            self._propose_and_tell(replica, payload, lambda _: None)

    def _propose_and_tell(self, replica: Replica, payload: bytes, done: Callable[[Any], None]) -> None:
        if isinstance(replica, PartitionReplica):
            if replica.deleted:
                done(UnknownPartition(f"topic {replica.partition.topic} was deleted"))
            else:
                self._propose(self._partitions.group_of(replica), EntryType.COMMAND, payload, done)
        else:
            self._propose(replica.group, EntryType.COMMAND, payload, done)

    def _apply(self, replica: StateReplica, entry: Entry) -> Any:
        """Apply an entry of a state group, and act on its result."""
        result = replica.apply(entry)
        if self._starting:
            return result
        if isinstance(result, Topic):
            self._topic_changed(result)
        elif isinstance(result, DeletedTopic):
            self._topic_deleted(result.topic)
        elif isinstance(result, Publication):
            self.publisher.committed(result)
        elif isinstance(result, Forgotten):
            run_in_steps(result.state.sweep())
        self._log.checkpoints.applied(replica)
        return result

    def _topic_changed(self, topic: Topic) -> None:
        self._partitions.put_topic(topic)
        self._loop.call_soon(self.observer.topic_changed, topic.name)

    def _topic_deleted(self, topic: Topic) -> None:
        self._partitions.drop_topic(topic, self._log.retention.maybe_remove)
        self.publisher.topic_deleted(topic.topic_id)
        self._loop.call_soon(self.observer.topic_deleted, topic.name)
        self.state_groups.topic_deleted(topic.topic_id)
        self._forget_offsets()

    def _forget_offsets(self) -> None:
        """Forget offsets in deleted topics; without room on the disk, at the next `_clean_up`."""
        if self._log.stalled is None:
            self.state_groups.forget_offsets(self._propose_command)

    # --- start ------------------------------------------------------------------------------------

    def _open(self, recovered: RecoveredNode) -> None:
        hooks = LogHooks(
            drop_segments=self._drop_segments,
            on_positions=self._on_positions,
            on_damaged=self._log_damaged,
            on_full=self._on_full,
            on_fault=self._fault,
        )
        self._log = NodeLog(self._disk, self._clock, self._options, recovered, self._files, hooks)
        self._cold_reads = ColdReads(
            self._disk,
            self._files,
            self._options.storage.cold_read_bytes_per_second,
            lambda: self._loop.time() - self._log.journal.flushed_at < _WRITING_S,
        )
        self._stages = Stages(
            self._disk,
            self._options.directory / "staging",
            self._options.worker("pixy-staging", background=True),
            self._options.staging.max_bytes,
            self._fault,
        )
        upkeep = Upkeep(self._options.worker("pixy-upkeep", background=True), self._fault)
        self._abandon = [self._log.abandon, self._stages.stop, upkeep.stop]
        self._partitions = Partitions(
            DataDirectory(self._disk, self._options.directory, recovered.identity.cluster_id),
            self._options.storage,
            self._log.driver,
            self._log.writer,
            upkeep,
            find_part=self._stages.part,
            on_readiness=lambda topic: self._loop.call_soon(self.observer.topic_changed, topic),
        )
        self._reserve = Reserve(
            self._disk,
            self._options.directory,
            self._options.storage.reserve_bytes,
            self._files,
            lambda: self._log.blocked is not None,
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
        await self.state_groups.restore(recovered, self._log, self._apply)
        topics = list(self.metadata.topics.values())
        for topic in topics:
            self._partitions.put_topic(topic)
        await self._stages.recover(recovered.identity.cluster_id)
        behind = await self._partitions.restore(recovered, topics, self.metadata.next_raft_group, self._files)
        await self._log.driver.reads.catch_up(behind)
        self.publisher = Publisher(
            SinksGroup(self.state_groups.sinks, self.state_groups.sinks_replica),
            self._stages,
            self.metadata,
            self._partitions,
            self._options.staging,
            self._time.now_ms,
            self._propose_and_tell,
        )

    async def _write_first_entry(self) -> None:
        """Write the first entry of a new cluster."""
        if self._broken is not None:
            raise self._broken
        if not self.metadata.groups_count:
            command = MetadataCommand(init_cluster=InitCluster(groups_count=GROUPS_COUNT))
            written = self._first_entry = asyncio.get_running_loop().create_future()
            group, payload = self.state_groups.metadata_replica.group, command.SerializeToString()
            self._propose(group, EntryType.COMMAND, payload, partial(resolve, written))
            await written

    def _drop_segments(self, replica: PartitionReplica, log_begin_offset: int) -> None:
        self._partitions.drop_segments(replica, log_begin_offset)

    def _has_members(self, consumer_group: str) -> bool:
        return self.observer.has_members(consumer_group)

    def _clean_up(self) -> None:
        self._forget_offsets()
        if self._log.stalled is None:
            self.publisher.expire()

    def _log_damaged(self, damaged: DamagedLog) -> None:
        self._partitions.log_damaged(damaged)

    def _on_positions(self) -> None:
        """Applied positions have become durable: published stages may go."""
        if not self._starting:
            self.publisher.maybe_finish()

    def _on_full(self) -> None:
        self._reserve.release()
