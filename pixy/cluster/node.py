"""A node of the embedded cluster: its raft groups, and the path of an entry from proposal to state.

    propose -> Raft -> journal (one sync for all groups) -> committed -> applied -> answered

`node_log` owns that path. This module gives entries their meaning: it acts on what the state groups
apply (topics that come and go, publications, forgotten offsets), and wires everything together.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import structlog

import pixy
from pixy.clock import Clock
from pixy.cluster.cold_reads import ColdReads
from pixy.cluster.confirmed_reads import ConfirmedReads
from pixy.cluster.disk_reserve import Reserve
from pixy.cluster.group_names import group_name
from pixy.cluster.groups import Forgotten
from pixy.cluster.leader_watch import LeaderWatch
from pixy.cluster.metadata import DeletedTopic, LeftNode, Topic
from pixy.cluster.node_log import LogHooks, LogPeers, NodeLog
from pixy.cluster.node_options import NodeObserver, NodeOptions
from pixy.cluster.node_peers import Handler, NodePeers, OpenChannel, PeerDuties
from pixy.cluster.node_status import raft_group_status
from pixy.cluster.node_time import NodeTime
from pixy.cluster.partitions import Partitions
from pixy.cluster.peer_messages import PeerMethod
from pixy.cluster.proposals import NEVER, Repeated
from pixy.cluster.propose_answers import ProposeAnswers
from pixy.cluster.publisher import Publisher, SinksGroup
from pixy.cluster.raft_group import RaftGroup
from pixy.cluster.recovery import (
    DataDirectory,
    EnteredDirectory,
    RecoveredNode,
    enter_directory,
    read_directory,
)
from pixy.cluster.remote_proposals import RemoteProposals
from pixy.cluster.replica import PartitionReplica, Replica, StateReplica
from pixy.cluster.replica_calls import ReplicaCalls
from pixy.cluster.retention import Retention
from pixy.cluster.sinks import Publication
from pixy.cluster.state_groups import GROUPS_COUNT, StateGroups
from pixy.cluster.status import ClusterStatus, NodeStatus, merged
from pixy.cluster.status_messages import encode_status
from pixy.cluster.topic_commands import alter_command, create_command, delete_command
from pixy.errors import (
    CorruptData,
    DataDirectoryError,
    FailedPrecondition,
    PixyError,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from pixy.faults import report_to_loop
from pixy.futures import reject, resolve
from pixy.proto.node_calls_pb2 import JoinRequest
from pixy.proto.state_pb2 import (
    ForgetNode,
    InitCluster,
    MetadataCommand,
    RegisterNode,
    RemoveNode,
    StartNode,
)
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
    write_identity,
)

__all__ = ["Node"]

log = structlog.get_logger(__name__)

T = TypeVar("T")

_NAMED_MAX = 10
"""Names in a line of the log."""
_WRITING_S = 0.1
"""Seconds after a flush for which the journal counts as being written: shorter than the time
between two commits of offsets.
"""

_COMMAND_S = 15.0
"""Seconds until a request for a command is answered in any case; a change of leaders takes two."""


class Node:
    """Owner of the data directory, the journal and every raft group.

    Args:
        disk, clock: the disk and the clock that it runs on.
        options: its configuration.
        on_fault: called once with the error when nothing can be made durable any more. No request
            is answered after that.
        open_channel: see `OpenChannel`; None for a node that never has peers.

    Attributes:
        metadata: the topics.
        node_id: its id, from `start` on.
        state_groups: the state machines in memory.
        publisher: staged writes, from `start` on.
        observer: receives changes of topics.
        peers: the other nodes, from `start` on; None if it never has any.
        has_started: True once `start` has returned.
        waits_for_others: set when `start` waits for other nodes: it may take any time from then on.
        methods: handlers of other nodes' calls; the layers above add theirs before `start`.
        reads: linearizable reads, from `start` on.
        leaders: what is noticed of leaders, from `start` on.
        calls, remote: calls and proposals to nodes with replicas of partitions that this one has
            none of, from `start` on; None without peers.
        on_fault: as given.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        options: NodeOptions,
        on_fault: Callable[[BaseException], None],
        open_channel: OpenChannel | None = None,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._options = options
        self.on_fault = on_fault
        self._open_channel = open_channel
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
        self.peers: NodePeers | None = None
        self.has_started = False
        self.waits_for_others = asyncio.Event()
        self.methods: dict[int, Handler] = {}
        self.reads: ConfirmedReads
        self.leaders: LeaderWatch
        self.calls: ReplicaCalls | None = None
        self.remote: RemoteProposals | None = None
        self.state_groups = StateGroups()
        # Entries are applied again by the start: others must not hear of their effects.
        self._starting = True
        self.metadata = self.state_groups.metadata
        # The nodes that the peers were told of.
        self._nodes = self.metadata.nodes
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
            recovered = await self._recover()
            self.node_id = recovered.identity.node_id
            self._cluster_id = recovered.identity.cluster_id
            self._open(recovered)
            await self._restore(recovered)
            self._log.retention.start()
            self._starting = False
            self._look_at_topics()
            await self._write_first_entry()
            if self.peers is not None:
                await self._register(self.peers)
            self._forget_offsets()
            self.publisher.start()
            self._reserve.start()
            self._retention.start()
            self.has_started = True
        except BaseException:
            if self.peers is not None:
                await self.peers.stop()
            self._release()
            raise

    async def stop(self) -> None:
        """Make everything durable and release the data directory. No proposal may follow.

        Entries that cannot be written, after a fault or on a full disk, are left to the next start.
        """
        if self._stopped or self._lock is None:
            return
        self._stopped = True
        if self.peers is not None and self._broken is None:
            await self.peers.hand_over()
        self.publisher.stop()
        self._reserve.stop()
        self._retention.stop()
        for replica in self._partitions:
            replica.wake()
        await self._stop_peers()
        if self._broken is None:
            await self._log.stop()
            self._log.driver.end_proposals()
        self._release()

    async def _stop_peers(self) -> None:
        """Ask other nodes for nothing more, and answer nothing."""
        self.reads.stop()
        if self.calls is not None:
            self.calls.stop()
        if self.remote is not None:
            await self.remote.stop()
        if self.peers is not None:
            await self.peers.stop()

    async def _recover(self) -> RecoveredNode:
        """Read the data directory, after a search for the cluster if it is new and there is a join
        list.
        """
        disk, options = self._disk, self._options
        entered = await run_on(
            self._files,
            lambda: enter_directory(disk, options.directory, options.random_bytes, joins=self._joins),
        )
        self._lock = entered.lock
        identity = entered.identity
        if self._open_channel is not None:
            if not identity.secret:
                identity.secret = options.random_bytes(16)
                await run_on(self._files, partial(write_identity, disk, options.directory, identity))
            self.peers = NodePeers(
                options.cluster, self._open_channel, self._clock, options.random_bytes, self._fault
            )
            self.peers.identify(identity)
        if not identity.cluster_id:
            assert self.peers is not None
            self.waits_for_others.set()
            identity = await self.peers.find_cluster(identity.secret, options.random_bytes(16))
            await run_on(self._files, partial(write_identity, disk, options.directory, identity))
        return await run_on(
            self._files,
            lambda: read_directory(disk, options.directory, EnteredDirectory(entered.lock, identity)),
        )

    @property
    def _joins(self) -> bool:
        """True if a new node searches for a cluster."""
        return self._open_channel is not None and len(self._options.cluster.join) > 1

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
        self.on_fault(error)

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

    def has_replica(self, replica: PartitionReplica) -> bool:
        """True if this node is one of a partition's replicas."""
        return self._partitions.has_replica(replica)

    def made_partitions(self, topic: str) -> Sequence[PartitionReplica | None]:
        """The partitions of a topic by number; None for each that was not asked for yet."""
        return self._partitions.made(topic)

    def find_partition(self, raft_group: int) -> PartitionReplica | None:
        """The partition of a raft group that this node has a replica of, None if it has none."""
        group = self._find_group(raft_group)
        replica = None if group is None else group.application
        return replica if isinstance(replica, PartitionReplica) else None

    def knows_partition(self, raft_group: int) -> bool:
        """True if metadata has a partition with this raft group."""
        return self._partitions.knows(raft_group)

    @property
    def is_alone(self) -> bool:
        """True if there is no other node in the cluster."""
        return self.peers is None or self.metadata.registered == [self.node_id]

    @property
    def incarnation(self) -> int:
        """Number of this start."""
        return self._log.incarnation.number

    async def confirm_metadata(self, timeout: float) -> None:
        """Wait until metadata has everything here that was committed before.

        Raises:
            Unavailable: it has no leader that answers in time.
        """
        await self.reads.wait([self.state_groups.metadata_replica.group], timeout)

    async def confirm(self, replicas: Iterable[Replica], timeout: float) -> None:
        """Wait until partitions or state groups have everything here that was committed before.

        Raises:
            Unavailable: one has no leader that answers in time.
        """
        groups = [
            replica.group or self._partitions.group_of(replica)
            if isinstance(replica, PartitionReplica)
            else replica.group
            for replica in replicas
        ]
        await self.reads.wait(groups, timeout)

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, ascending."""
        return self._time.now_ms()

    def set_fault(self, replica: PartitionReplica, error: CorruptData) -> None:
        """Mark a partition as damaged after a read that found it so."""
        self._partitions.set_fault(replica, error)

    def append(
        self,
        replica: PartitionReplica,
        batch: bytearray,
        done: Callable[[int | PixyError], None],
        patience_s: float = NEVER,
    ) -> None:
        """Append a record batch to a partition.

        Args:
            done: gets the offset of its first record once it is durable, or an error.
            patience_s: seconds until the answer is `DeadlineExceeded` in any case, if the partition
                has replicas on other nodes. Alone, this node knows what becomes of it.
        """
        group = replica.group or self._partitions.group_of(replica)
        deadline = self._loop.time() + patience_s if group.has_peers else NEVER
        self._log.driver.propose(group, EntryType.RECORD_BATCH, batch, done, deadline)

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
            await self._command(self.state_groups.metadata_replica, command, _COMMAND_S)
            return
        with self.publisher.deleting(topic, force=force):
            await self._command(self.state_groups.metadata_replica, command, _COMMAND_S)

    async def _topic_command(self, name: str, command: MetadataCommand) -> Topic:
        payload = command.SerializeToString()
        topic = await self._command(self.state_groups.metadata_replica, payload, _COMMAND_S)
        if isinstance(topic, Repeated):
            topic = self.metadata.topics.get(name)
            if topic is None:
                raise UnknownTopic(f"topic {name} was deleted meanwhile")
        assert isinstance(topic, Topic)
        return topic

    async def status(self) -> ClusterStatus:
        """Status of the cluster, with what the other nodes know of raft groups."""
        own = self._own_status()
        if self.peers is None or self._starting:
            return own
        return merged(own, await self.peers.ask_status())

    def _own_status(self) -> ClusterStatus:
        """Status of the cluster as this node knows it by itself."""
        if self._starting:
            reason = "the node is starting" if self.peers is None else self.peers.why_not_started
            return ClusterStatus(self._cluster_id, self._node_statuses(), (), (), reason)
        replicas = self.state_groups.replicas()
        groups = [raft_group_status(each.group, each.name, self.node_id) for each in replicas]
        for partition in self._partitions:
            if partition.group is not None:
                name = "{}-{}".format(*partition.partition)
                groups.append(raft_group_status(partition.group, name, self.node_id))
        return ClusterStatus(
            self._cluster_id,
            self._node_statuses(),
            tuple(sorted(groups, key=lambda group: group.raft_group)),
            tuple(self.metadata.under_replicated()),
            "" if self.peers is None else self.peers.waiting_for,
        )

    def _node_statuses(self) -> tuple[NodeStatus, ...]:
        if self.peers is not None and self.node_id:
            statuses = self.peers.node_statuses()
        else:
            incarnation = 0 if self._starting else self._log.incarnation.number
            version = pixy.__version__
            statuses = (NodeStatus(self.node_id, "", version=version, incarnation=incarnation, is_self=True),)
        blocked = self.blocked if self.has_started else None
        if blocked is None:
            return statuses
        problem = f"it writes no messages: {blocked}"
        return tuple(replace(each, problem=problem) if each.is_self else each for each in statuses)

    async def _answer_status(self, _: int, __: bytes) -> bytes:
        return encode_status(self._own_status()).SerializeToString()

    async def remove_node(self, node_id: int) -> None:
        """Take a node out of the cluster.

        Raises:
            NotFound: there is no such node.
            FailedPrecondition: it is the only one, or has the only replica of a partition.
        """
        await self._metadata_command(MetadataCommand(remove_node=RemoveNode(node_id=node_id)))

    async def forget_node(self, node_id: int) -> None:
        """Give up a node that is lost.

        Raises:
            NotFound: there is no such node.
            FailedPrecondition: it is the only one, or is running.
        """
        if (
            node_id in self.metadata.nodes
            and self.peers is not None
            and self.peers.members.is_reachable(node_id)
        ):
            raise FailedPrecondition(f"node {node_id} is running: only a lost node can be forgotten")
        await self._metadata_command(MetadataCommand(forget_node=ForgetNode(node_id=node_id)))

    async def groups_command(self, consumer_group: str, payload: bytes) -> None:
        """Run a command in the state group of a consumer group; durable and applied on return."""
        await self._command(self.state_groups.group_of(consumer_group), payload, _COMMAND_S)

    async def _command(self, replica: StateReplica, payload: bytes, patience_s: float = NEVER) -> Any:
        stalled = self._log.stalled
        if stalled is not None:
            raise Unavailable(str(stalled))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        deadline = self._loop.time() + patience_s
        done = partial(resolve, future)
        self._log.driver.propose(replica.group, EntryType.COMMAND, payload, done, deadline)
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
        if replica.machine is self.metadata and self.metadata.nodes is not self._nodes:
            self._nodes_changed()
        if self._starting:
            return result
        if isinstance(result, Topic):
            self._topic_changed(result)
        elif isinstance(result, DeletedTopic):
            self._topic_deleted(result.topic)
        elif isinstance(result, LeftNode):
            for topic in result.topics:
                self._topic_changed(topic)
        elif isinstance(result, Publication):
            self.publisher.committed(result)
        elif isinstance(result, Forgotten):
            run_in_steps(result.state.sweep())
        self._log.checkpoints.applied(replica)
        return result

    def _on_restored(self, replica: StateReplica) -> None:
        """The state of a state group was replaced by that of a leader's checkpoint."""
        if self._starting:
            return
        if replica is self.state_groups.metadata_replica:
            self._look_at_topics()
            self._nodes_changed()
        self.state_groups.sweep()

    def _look_at_topics(self) -> None:
        """Act on the differences between metadata and what the partitions were told of it."""
        known, topics = self._partitions.topics, self.metadata.topics
        for name, topic in known.items():
            if name not in topics or topics[name].topic_id != topic.topic_id:
                self._topic_deleted(topic)
        for name, topic in topics.items():
            if known.get(name) is not topic:
                self._topic_changed(topic)

    def _nodes_changed(self) -> None:
        self._nodes = self.metadata.nodes
        if self.peers is not None:
            self.peers.nodes_changed(self.metadata.nodes)
            self._warn_of_missing_replicas()
            self._loop.call_soon(self._nodes_seen)

    def _warn_of_missing_replicas(self) -> None:
        missing = self.metadata.under_replicated()
        if missing and not self._starting and self.state_groups.metadata_replica.group.leads:
            log.warning(
                "topics were made when there were fewer nodes, and have fewer replicas than they should",
                count=len(missing),
                topics=", ".join(missing[:_NAMED_MAX]),
            )

    def _topic_changed(self, topic: Topic) -> None:
        self._partitions.put_topic(topic)
        self._loop.call_soon(self.observer.topic_changed, topic.name)

    def _topic_deleted(self, topic: Topic) -> None:
        self._partitions.drop_topic(topic, self._log.retention.maybe_remove)
        self.publisher.topic_deleted(topic.topic_id)
        if self.remote is not None:
            self.remote.removed(topic.raft_groups, UnknownPartition(f"topic {topic.name} was deleted"))
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
            on_restored=self._on_restored,
            on_positions=self._on_positions,
            on_damaged=self._log_damaged,
            on_full=self._on_full,
            on_fault=self._fault,
        )
        self.leaders = LeaderWatch(lambda: self.observer)
        peers = LogPeers()
        if self.peers is not None:
            peers = replace(self.peers.log_peers(), leader_changed=self.leaders.leader_changed)
        self._log = NodeLog(self._disk, self._clock, self._options, recovered, self._files, hooks, peers)
        if self.peers is not None:
            self._time.is_certain = self.peers.is_clock_certain
            self.peers.attach(self._log, recovered.identity, self.state_groups, self._duties())
            self.calls = ReplicaCalls(self.peers.relays, self.peers.members.is_up)
            self.remote = RemoteProposals(
                self.node_id, self.incarnation, self.calls, report_to_loop, self._log.driver.sequences
            )
        self.reads = ConfirmedReads(self._log.driver, group_name)
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
        if self.peers is not None:
            self._partitions.elect = self.peers.elect
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
        start_peers = None if self.peers is None else partial(self._start_peers, self.peers)
        await self.state_groups.restore(recovered, self._log, self._apply, start_peers)
        topics = list(self.metadata.topics.values())
        for topic in topics:
            self._partitions.put_topic(topic)
        await self._stages.recover(recovered.identity.cluster_id)
        behind = await self._partitions.restore(recovered, topics, self.metadata.next_raft_group, self._files)
        await self._log.driver.reads.catch_up(group for group in behind if not group.has_peers)
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
            if self.peers is not None:
                command.init_cluster.first_node.CopyFrom(self.peers.own_record())
            written = self._first_entry = asyncio.get_running_loop().create_future()
            group, payload = self.state_groups.metadata_replica.group, command.SerializeToString()
            self._propose(group, EntryType.COMMAND, payload, partial(resolve, written))
            await written

    # --- peers ------------------------------------------------------------------------------------

    def _duties(self) -> PeerDuties:
        propose = ProposeAnswers(self._log.driver, self._find_group)
        return PeerDuties(
            register=self._register_peer,
            find_group=self._find_group,
            methods={
                PeerMethod.PROPOSE: propose.answer,
                PeerMethod.STATUS: self._answer_status,
                **self.methods,
            },
            nodes_seen=self._nodes_seen,
            ticked=self._ticked,
        )

    async def _start_peers(self, peers: NodePeers) -> None:
        """Begin the exchange with other nodes, once metadata is restored as far as it is here."""
        if not self.reads.is_alone(self.state_groups.metadata_replica.group):
            self.waits_for_others.set()
        await peers.start()

    def _ticked(self) -> None:
        if not self._starting:
            self.leaders.look(self.state_groups.metadata_replica.group, self.unreachable)

    def unreachable(self) -> list[int]:
        """Ids of the nodes that cannot be reached."""
        assert self.peers is not None
        return [each for each in self.metadata.registered if not self.peers.members.is_up(each)]

    def _nodes_seen(self) -> None:
        """A node is new in the cluster, can be reached again, or cannot be reached any more."""
        if not self._starting:
            self.observer.nodes_changed()

    def _find_group(self, raft_group: int) -> RaftGroup | None:
        return None if self._starting else self._partitions.find_group(raft_group)

    async def _register_peer(self, request: JoinRequest) -> int:
        """Register a node that wants to join; returns its id."""
        if self._starting:
            raise Unavailable(f"node {self.node_id} is starting")
        command = RegisterNode(
            secret=request.secret,
            address=request.address,
            grpc_address=request.grpc_address,
            rack=request.rack,
            version=request.version,
            feature_level=request.feature_level,
        )
        result = await self._metadata_command(MetadataCommand(register_node=command))
        node_id: int = result.value if isinstance(result, Repeated) else result
        return node_id

    async def _register(self, peers: NodePeers) -> None:
        """Tell the cluster of this start, and wait until there are as many nodes as the answers of
        a new cluster are durable on.
        """
        own = peers.own_record()
        start = StartNode(
            node_id=own.node_id,
            secret=own.secret,
            address=own.address,
            grpc_address=own.grpc_address,
            rack=own.rack,
            incarnation=own.incarnation,
            process=own.process,
            version=own.version,
            feature_level=own.feature_level,
        )
        await self._metadata_command(MetadataCommand(start_node=start))
        if self._joins:
            self.waits_for_others.set()
        await peers.wait_for_founders()

    async def _metadata_command(self, command: MetadataCommand) -> Any:
        return await self._command(self.state_groups.metadata_replica, command.SerializeToString())

    def _drop_segments(self, replica: PartitionReplica, log_begin_offset: int) -> None:
        self._partitions.drop_segments(replica, log_begin_offset)

    def _has_members(self, consumer_group: str) -> bool:
        return self.observer.has_members(consumer_group)

    def _find_deleted_topics(self) -> None:
        """Forget the offsets in topics that were deleted under another leader, which is gone.

        Offsets may be here before the topic in which they are committed: what is unknown was
        deleted only if metadata, made current afterwards, does not know it either.
        """
        unknown = self.state_groups.deleted_topic_ids()
        if unknown and self.peers is not None:
            group = self.state_groups.metadata_replica.group
            self._log.driver.reads.begin(group, partial(self._forget_unless_live, unknown))

    def _forget_unless_live(self, topic_ids: Sequence[bytes]) -> None:
        live = {topic.topic_id for topic in self.metadata.topics.values()}
        for topic_id in topic_ids:
            if topic_id not in live:
                self.state_groups.topic_deleted(topic_id)
        self._forget_offsets()

    def _clean_up(self) -> None:
        self._find_deleted_topics()
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
