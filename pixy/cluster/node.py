"""A node of the embedded cluster: its raft groups, and the path of an entry from proposal to state.

    propose -> Raft -> journal (one sync for all groups) -> committed -> applied -> answered

It owns the life of a node, its start, its end and its faults, wires its parts together, and hands
out what belongs to partitions. The rest is with the parts:

    node_log            the path of an entry
    state_groups        topics, nodes, offsets and publications, and their recovery
    state_reactions     what follows when one of them changes
    node_commands       the commands that change them
    partitions          the partitions and their recovery
    node_peers          the other nodes
    node_status         the status
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import structlog

from pixy.aio.futures import reject, resolve
from pixy.classic_groups import ClassicOptions
from pixy.clock import Clock
from pixy.cluster.bootstrap import Bootstrap
from pixy.cluster.consumer_groups import ClassicCoordinator, GroupCoordinator
from pixy.cluster.log import (
    LogCounters,
    LogPeers,
    NodeLog,
    NodeObserver,
    NodeOptions,
    PartitionReplica,
    RecoveredNode,
    Replica,
    StateReplica,
    cluster_id_of,
)
from pixy.cluster.node_commands import NodeCommands, OtherNodes
from pixy.cluster.node_storage import NodeStorage, StorageHooks
from pixy.cluster.peering import (
    AppliedElsewhere,
    ForwardedCommands,
    ForwardedProposals,
    Handler,
    LeaderWatch,
    NodePeers,
    OpenChannel,
    PeerDependencies,
    PeerMethod,
    ProposalForwarder,
    ProposeAnswers,
    ReplicaCalls,
    ReplicaDepartures,
)
from pixy.cluster.publications import LonePublisher, Sideloading, SinksGroup, StagingNode, StagingRouter
from pixy.cluster.replicas import (
    GROUPS_COUNT,
    CommandProposals,
    NodeTime,
    Partitions,
    Retention,
    StateGroups,
    group_name,
)
from pixy.cluster.snapshots import TransferCounts
from pixy.cluster.state import (
    APPLIED_LEVEL,
    MOVES_LEVEL,
    ClusterLimits,
    ExportedState,
    Process,
    export_records,
)
from pixy.cluster.state_listener import StateListener
from pixy.cluster.status import (
    ClusterStatus,
    DiskSpace,
    SelfReports,
    StatusReports,
    counted,
    reasons_to_keep,
    status_of_nobody,
)
from pixy.errors import DataDirectoryError, PixyError, Unavailable
from pixy.faults import report_to_loop
from pixy.multiraft import NEVER, RaftGroup, ReadBatcher, entry_bytes_max
from pixy.proto.node_calls_pb2 import GiveUpRequest, JoinRequest
from pixy.proto.state_pb2 import InitCluster, MetadataCommand, NodeIdentity
from pixy.raft import NONE
from pixy.raft.quorum import is_majority
from pixy.records import TopicPartition
from pixy.storage import Disk, EntryType, Worker

log = structlog.get_logger(__name__)

_STALL_S = 2.0
"""Longest write of a disk that does not stall; leaders give up their leadership before that."""
_CLOCKS_S = 0.5
"""Interval of looks at the clocks of the nodes."""

_STUCK_TICKS = 30
"""Ticks that a start waits for a node that has left before the log says so."""

_GIVE_UP_S = 2.0
_CONFIRM_S = 5.0
_FINISHED_S = 60.0
"""Longest waits of an export of state: for leaders, and for publications."""

T = TypeVar("T")


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
        directory: with all its files.
        node_id, cluster_id: its id and that of its cluster, from `start` on.
        time: its clock, as far as others agree.
        state_groups: the state machines in memory.
        commands: changes of topics, nodes and consumer groups, from `start` on.
        partitions: the partitions, from `start` on.
        staging: staged writes, from `start` on.
        classic_groups: coordinator of groups of Kafka's classic protocol, from `start` on.
        publisher: the part of these that only this node has.
        observer: receives changes of topics.
        peers: the other nodes, from `start` on; None if it never has any.
        has_started: True once `start` has returned.
        left: reason why nothing is answered any more: the cluster goes on without this node, and no
            other one lets it in. Empty before.
        waits_for_others: set when `start` waits for other nodes: it may take any time from then on.
        methods: handlers of other nodes' calls; the layers above add theirs before `start`.
        reads: linearizable reads, from `start` on.
        leaders: what is noticed of leaders, from `start` on.
        troubles, disk: tell what the process knows to be wrong with itself, and what is left of its
            disk, for the status.
        calls, remote: calls and proposals to nodes with replicas of partitions that this one has
            none of, from `start` on; None without peers.
        on_fault: as given.
    """

    _loop: asyncio.AbstractEventLoop
    _entry: Bootstrap
    _storage: NodeStorage
    _log: NodeLog
    _proposals: CommandProposals
    _reactions: StateListener
    _retention: Retention
    _group_coordinator: GroupCoordinator
    _applied_elsewhere: AppliedElsewhere
    reads: ReadBatcher
    leaders: LeaderWatch
    partitions: Partitions
    publisher: LonePublisher
    staging: StagingRouter
    commands: NodeCommands
    classic_groups: ClassicCoordinator

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
        # `metadata.next_node_id` when no raft group had another member.
        self._alone_since = -1
        # Ticks for which the start has waited for a node that has left.
        self._stuck_ticks = 0
        self.time = NodeTime(clock, has_peers=open_channel is not None)
        self._time_timer: asyncio.TimerHandle | None = None
        self._options = options
        self.on_fault = on_fault
        self._open_channel = open_channel
        self._abandon: Callable[[], None] | None = None
        self._reports: StatusReports | None = None
        # Until state groups and partitions are restored: other nodes get no answers.
        self._starting = True
        self._stopped = False
        self._broken: DataDirectoryError | None = None
        self._first_entry: asyncio.Future[None] | None = None
        self.peers: NodePeers | None = None
        self.has_started = False
        self.left = ""
        self.waits_for_others = asyncio.Event()
        self.methods: dict[int, Handler] = {}
        self.calls: ReplicaCalls | None = None
        self.remote: ProposalForwarder | None = None
        self._departures: ReplicaDepartures | None = None
        self._sideloading: Sideloading | None = None
        self.state_groups = StateGroups()
        self.metadata = self.state_groups.metadata
        self._limits = ClusterLimits(options.limits, self.metadata, lambda: self.state_groups.feature_level)
        self.node_id = 0
        self.cluster_id = b""
        self.directory = options.directory
        self.observer: NodeObserver = NodeObserver()
        self.troubles: Callable[[], Sequence[str]] = tuple
        self.disk: Callable[[], DiskSpace] = DiskSpace

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover everything, then begin to accept proposals.

        Raises:
            DataDirectoryError, CorruptData: the data directory cannot be used.
        """
        self._loop = asyncio.get_running_loop()
        self._follow_clocks()
        make_peers = None if self._open_channel is None else partial(self._make_peers, self._open_channel)
        self._entry = Bootstrap(self._disk, self._options, make_peers, self.waits_for_others.set)
        try:
            await self._start(await self._entry.recover(), self._entry.files)
        except BaseException:
            if self.peers is not None:
                await self.peers.stop()
            self._release()
            raise
        self.has_started = True

    async def _start(self, recovered: RecoveredNode, files: Worker) -> None:
        self.node_id, self.cluster_id = recovered.identity.node_id, cluster_id_of(recovered.identity)
        self._open(recovered, files)
        await self._restore(recovered)
        self._log.retention.start()
        self._starting = False
        self._reactions.begin(self.staging, self._group_coordinator)
        self._group_coordinator.tick()
        self.classic_groups.look()
        await self._write_first_entry()
        if self.peers is not None:
            await self._register(self.peers)
        self._reactions.forget_offsets()
        self.staging.start()
        self._storage.start()
        self._retention.start()

    def _follow_clocks(self) -> None:
        self.time.refresh()
        self._time_timer = self._loop.call_later(_CLOCKS_S, self._follow_clocks)

    async def stop(self) -> None:
        """Make everything durable and release the data directory. No proposal may follow.

        Entries that cannot be written, after a fault or on a full disk, are left to the next start.
        """
        if self._stopped or not self.has_started:
            return
        self._stopped = True
        self._proposals.stop()
        self._group_coordinator.stop()
        await self.classic_groups.stop()
        if self.peers is not None and self._broken is None:
            await self.peers.hand_over()
        await self.staging.stop()
        self._retention.stop()
        self._storage.begin_stop()
        await self._stop_peers()
        if self._broken is None:
            await self._log.stop()
            self._log.driver.end_proposals()
        self._release()

    async def _stop_peers(self) -> None:
        """Ask other nodes for nothing more, and answer nothing."""
        if self._departures is not None:
            await self._departures.stop()
        self.reads.stop()
        if self.calls is not None:
            self.calls.stop()
        if self.remote is not None:
            await self.remote.stop()
        if self.peers is not None:
            await self.peers.stop()

    def _release(self) -> None:
        if self._abandon is not None:
            self._abandon()
        if self._time_timer is not None:
            self._time_timer.cancel()
        self._entry.release()

    def _fault(self, error: BaseException) -> None:
        if self._broken is not None:
            return
        self._broken = DataDirectoryError(f"data directory {self._options.directory} cannot be used: {error}")
        self._storage.give_up(self._broken)
        self._retention.stop()
        if self._first_entry is not None:
            reject(self._first_entry, self._broken)
        self.on_fault(error)

    # --- start ------------------------------------------------------------------------------------

    def _make_peers(self, open_channel: OpenChannel, identity: NodeIdentity) -> NodePeers:
        options = self._options
        self.peers = NodePeers(
            options.cluster, open_channel, self._clock, self.time, options.random_bytes, self._fault
        )
        self.peers.identify(identity)
        return self.peers

    def _open(self, recovered: RecoveredNode, files: Worker) -> None:
        """Make everything that recovery needs."""
        hooks = StorageHooks(
            on_restored=self._on_restored,
            on_positions=self._on_positions,
            on_fault=self._fault,
            on_readiness=lambda topic: self._loop.call_soon(self.observer.topic_changed, topic),
            file_time_ms=self.time.file_time_ms,
        )
        self.leaders = LeaderWatch(lambda: self.observer)
        peers = LogPeers()
        if self.peers is not None:
            self._sideloading = Sideloading(self.node_id, self.peers.relays, report_to_loop)
            peers = replace(
                self.peers.log_peers(),
                leader_changed=self._leader_changed,
                sideloads=self._sideloading,
            )
        self._storage = NodeStorage(self._disk, self._clock, self._options, recovered, files, hooks, peers)
        self._abandon = self._storage.abandon
        self._log, self.partitions = self._storage.log, self._storage.partitions
        self._log.driver.entry_bytes_max = entry_bytes_max(self._options.cluster.max_message_bytes)
        self.reads = ReadBatcher(self._log.driver, group_name, lambda: self.why_left, self._why_leaderless)
        self._proposals = CommandProposals(self._log, self.partitions, self._why_leaderless)
        self._reports = StatusReports(
            recovered.identity,
            self.incarnation,
            self.state_groups,
            self.partitions,
            self.peers,
            SelfReports(
                self._why_not_ready,
                self._why_blocked,
                self._own_troubles,
                self.disk,
                self._needs_only_replicas,
            ),
        )
        if self.peers is not None:
            self.calls = ReplicaCalls(self.peers.relays, self._is_up)
            self.remote = ProposalForwarder(
                self.node_id, self.incarnation, self.calls, report_to_loop, self._log.driver.sequences
            )
            self._departures = ReplicaDepartures(
                self._log,
                self.partitions,
                self.remote,
                self.confirm_metadata,
                lambda: self.metadata.feature_level >= MOVES_LEVEL and not self.has_left,
                self._fault,
            )
        self._applied_elsewhere = AppliedElsewhere(
            self._log.driver,
            self.reads,
            self.partitions,
            self.calls,
            self._is_reachable,
            self._tells_applied,
        )
        self._group_coordinator = GroupCoordinator(
            self.state_groups,
            Process(self.node_id, self.incarnation),
            self._proposals.propose_if_room,
            self._heard_at,
            self.starts_of_others,
        )
        self.classic_groups = ClassicCoordinator(
            self,
            self._proposals.propose_if_room,
            self._limits,
            ClassicOptions(
                members_max=self._options.limits.max_group_members,
                member_bytes_max=self._options.limits.max_group_member_bytes,
                initial_delay_ms=round(self._options.storage.group_initial_rebalance_delay * 1000),
            ),
            self._options.random_bytes,
        )
        self._reactions = StateListener(
            self.state_groups,
            self._log,
            self.partitions,
            self._proposals,
            lambda: self.observer,
            self.peers,
            self.remote,
        )
        self._retention = Retention(
            self.time,
            self._options.storage,
            self.partitions,
            self.state_groups.groups,
            self._proposals.propose,
            self._clean_up,
            self.classic_groups.is_joined,
        )
        if self.peers is not None:
            self._attach(self.peers, recovered.identity, self._reports)

    def _leader_changed(self, group: RaftGroup) -> None:
        self.leaders.leader_changed(group)
        self.partitions.opening.leader_changed(group)

    async def _restore(self, recovered: RecoveredNode) -> None:
        start_peers = None if self.peers is None else partial(self._start_peers, self.peers)
        await self.state_groups.restore(
            recovered, self._log, self._reactions.apply, start_peers, self._waits_for
        )
        await self._storage.restore_partitions(
            recovered, self.state_groups, self._sideloading, lambda: self.is_alone
        )
        self.publisher = LonePublisher(
            SinksGroup(self.state_groups.sinks, self.state_groups.sinks_replica),
            self._storage.stages,
            self.metadata,
            self.partitions,
            self._options.staging,
            self.time,
            self._proposals.propose_and_tell,
        )
        self.staging = self._make_staging()
        self.commands = NodeCommands(
            self._proposals,
            self.state_groups,
            self.staging,
            self._options.random_bytes,
            self._limits,
            OtherNodes(self._is_reachable, self.confirm_metadata, self._applied_elsewhere),
        )

    def _make_staging(self) -> StagingRouter:
        node = StagingNode(
            driver=self._log.driver,
            state_groups=self.state_groups,
            publisher=self.publisher,
            retention=self._storage.retention,
            reads=self.reads,
            remote=self.remote,
            channel=None if self.peers is None else self.peers.relays,
            sideloading=self._sideloading,
            command=partial(self._proposals.run, self.state_groups.sinks_replica),
            is_alone=lambda: self.is_alone,
            now_ms=self.time.wall_ms,
        )
        return StagingRouter(node, self._options.staging.expiry)

    def _check_started(self) -> None:
        if self._starting:
            raise Unavailable(f"node {self.node_id} is starting")

    async def _write_first_entry(self) -> None:
        """Write the first entry of a new cluster."""
        if self._broken is not None:
            raise self._broken
        if not self.metadata.groups_count:
            command = MetadataCommand(init_cluster=InitCluster(groups_count=GROUPS_COUNT))
            if self.peers is not None:
                command.init_cluster.first_node.CopyFrom(self.peers.own_record())
            written = self._first_entry = self._loop.create_future()
            replica, payload = self.state_groups.metadata_replica, command.SerializeToString()
            self._proposals.propose_and_tell(replica, payload, partial(resolve, written))
            await written

    async def _register(self, peers: NodePeers) -> None:
        """Tell the cluster of this start, and wait until there are as many nodes as the answers of
        a new cluster are durable on.
        """
        await self.commands.start_node(peers.own_record())
        if self._options.cluster.has_join_list:
            self.waits_for_others.set()
        await peers.wait_for_founders()
        await peers.clocks.wait()

    @property
    def why_not_started(self) -> str:
        """Reason why `start` has not returned yet."""
        return "the node is starting" if self.peers is None else self.peers.why_not_started

    def _why_not_ready(self) -> str:
        """Reason why the node answers nothing yet, empty once it does."""
        return self.why_not_started if self._starting else ""

    def _why_blocked(self) -> str:
        """Reason why the node writes no messages, empty if it does."""
        blocked = self.blocked if self.has_started else None
        return "" if blocked is None else str(blocked)

    def _own_troubles(self) -> list[str]:
        """Troubles of the node and of its process, beside `_why_blocked`."""
        since = self._log.journal.oldest_unsynced_at
        stalled_s = 0.0 if since is None else self._loop.time() - since
        stalls = [f"its disk has not finished a write for {stalled_s:.0f} s"] if stalled_s > _STALL_S else []
        waiting = self._log.writer.waiting_for_space
        waits = [f"copied partitions that wait for room on its disk: {waiting}"] if waiting else []
        return [*stalls, *waits, *self._storage.stages.troubles, *self.troubles()]

    def _on_restored(self, replica: StateReplica) -> None:
        self._reactions.restored(replica)

    def _on_positions(self) -> None:
        """Applied positions have become durable: published stages may go."""
        if not self._starting:
            self.staging.positions_durable()

    def _clean_up(self, age_ms: int) -> None:
        self._reactions.clean_up()
        if self._log.stalled is None:
            self.staging.expire(age_ms)

    # --- other nodes ------------------------------------------------------------------------------

    def _attach(self, peers: NodePeers, identity: NodeIdentity, reports: StatusReports) -> None:
        driver = self._log.driver
        commands = ForwardedCommands(
            self._limits,
            self.state_groups.sinks,
            self.partitions,
            self._confirm_sinks,
            self._is_reachable,
            self._reasons_to_keep,
            self.now_ms,
        )
        forwarded = ForwardedProposals(driver, commands, peers.refuse, self._fault)
        answers = ProposeAnswers(driver, forwarded, self._find_group)
        assert self.remote is not None
        assert self._sideloading is not None
        self.remote.answer = answers.answer
        duties = PeerDependencies(
            register=self._register_peer,
            find_group=self._find_group,
            methods={
                PeerMethod.PROPOSE: answers.answer,
                PeerMethod.STATUS: reports.answer,
                PeerMethod.PUT_PIECES: self._put_pieces,
                PeerMethod.GET_PIECE: self._get_piece,
                PeerMethod.GIVE_UP: self._given_up,
                PeerMethod.APPLIED: self._has_applied,
                **self.methods,
            },
            forwarded=forwarded,
            confirm_metadata=self.confirm_metadata,
            nodes_seen=self._reactions.nodes_seen,
            ticked=self._ticked,
            has_all_groups=lambda: not self._starting,
            partitions=self.partitions,
            pieces=self._sideloading,
            propose_to_metadata=self._propose_to_metadata,
            needs_only_replicas=self._needs_only_replicas,
        )
        peers.attach(self._log, identity, self.state_groups, duties)
        self.partitions.elect = peers.elect

    def _propose_to_metadata(self, payload: bytes, done: Callable[[Any], None]) -> None:
        self._proposals.propose_if_room(self.state_groups.metadata_replica, payload, done)

    def _needs_only_replicas(self, topic_id: bytes) -> bool:
        return self._starting or self.staging.needs_only_replicas(topic_id)

    async def _confirm_sinks(self) -> None:
        """See `ForwardedCommands`."""
        if self._starting:
            raise Unavailable("the node is starting")
        await self.staging.confirm()

    async def _reasons_to_keep(self, node_id: int) -> Sequence[str]:
        """See `ForwardedCommands`."""
        if self._starting:
            raise Unavailable("the node is starting")
        return reasons_to_keep(await self.status(), node_id)

    async def _start_peers(self, peers: NodePeers) -> None:
        """Begin the exchange with other nodes, once metadata is restored as far as it is here."""
        metadata = self.state_groups.metadata_replica.group
        self._waits_for([metadata])
        await peers.start()
        self._log.driver.reads.begin(metadata, self._reactions.nodes_are_current)

    def _waits_for(self, groups: Sequence[RaftGroup]) -> None:
        """The start waits for what leaders of these groups have."""
        if not all(map(self.reads.is_alone, groups)):
            self.waits_for_others.set()

    async def _register_peer(self, request: JoinRequest) -> int:
        """Register a node that wants to join; returns its id."""
        self._check_started()
        return await self.commands.register_node(request)

    async def _put_pieces(self, caller: int, payload: bytes) -> bytes:
        self._check_started()
        return await self.staging.calls.put(caller, payload)

    async def _get_piece(self, caller: int, payload: bytes) -> bytes:
        self._check_started()
        return await self.staging.calls.get(caller, payload)

    async def _given_up(self, caller: int, payload: bytes) -> bytes:
        self._check_started()
        request = GiveUpRequest.FromString(payload)
        process = Process(caller, request.incarnation)
        self._group_coordinator.given_up(request.raft_group, process, request.newest_member)
        return b""

    async def _has_applied(self, _: int, payload: bytes) -> bytes:
        self._check_started()
        return await self._applied_elsewhere.answer(payload)

    def _tells_applied(self, node_id: int) -> bool:
        """See `AppliedElsewhere`."""
        node = self.metadata.nodes.get(node_id)
        return node is not None and not node.lost and node.feature_level >= APPLIED_LEVEL

    def _find_group(self, raft_group: int) -> RaftGroup | None:
        return None if self._starting else self.partitions.find_group(raft_group)

    def _ticked(self) -> None:
        if self._starting:
            self._look_for_left_voters()
        elif self.peers is not None:
            is_out = self.has_left and not self.peers.members.is_connected
            self.left = self.peers.why_left if is_out else ""
            self.leaders.look(self.state_groups.metadata_replica.group, self.unreachable)
            self.peers.leave_gone()
            if self._departures is not None:
                self._departures.look()
            self._group_coordinator.tick()
            self.classic_groups.look()
            self.staging.look()

    def _look_for_left_voters(self) -> None:
        """Log why the start may never end, once that has lasted."""
        reason = self.state_groups.why_stuck
        self._stuck_ticks = self._stuck_ticks + 1 if reason else 0
        if self._stuck_ticks == _STUCK_TICKS:
            log.warning("the start waits for a node that has left the cluster", reason=reason)

    def _heard_at(self) -> dict[int, float | None]:
        """Loop times at which the other nodes were last heard of, by whatever way."""
        if self.peers is None:
            return {}
        relayed = self.peers.relays.heard_at
        return {
            each.node_id: max(each.heard_at or 0.0, relayed.get(each.node_id, 0.0)) or None
            for each in self.peers.members
        }

    def starts_of_others(self) -> dict[int, int]:
        """Incarnations with which the other nodes have come here last."""
        return {} if self.peers is None else self.peers.members.starts()

    def unreachable(self) -> list[int]:
        """Ids of the nodes that cannot be reached."""
        return [each for each in self.metadata.registered if not self._is_up(each)]

    def _is_up(self, node_id: int) -> bool:
        return node_id == self.node_id if self.peers is None else self.peers.members.is_up(node_id)

    def _is_reachable(self, node_id: int) -> bool:
        return node_id == self.node_id if self.peers is None else self.peers.members.is_reachable(node_id)

    # --- what others ask for ----------------------------------------------------------------------

    @property
    def blocked(self) -> Unavailable | None:
        """Reason why no messages can be written at the moment, None if they can."""
        return Unavailable(self.left) if self.left else self._storage.blocked

    async def read(self, read: Callable[[], T]) -> T:
        """Run a read of a partition's segments on another thread."""
        return await self._storage.read(read)

    def partition(self, partition: TopicPartition) -> PartitionReplica | None:
        """A partition, None if it does not exist."""
        return self.partitions.get(partition)

    def find_partition(self, raft_group: int) -> PartitionReplica | None:
        """The partition of a raft group that this node has a replica of, None if it has none."""
        group = self._find_group(raft_group)
        replica = None if group is None else group.application
        return replica if isinstance(replica, PartitionReplica) else None

    @property
    def is_alone(self) -> bool:
        """True if there is no other node in the cluster, nor in its raft groups. One that is
        removed leaves them some time later: until then it may have committed what is not applied
        here, and would have to have the stages that are published.
        """
        if self.peers is None:
            return True
        if self.metadata.registered != [self.node_id]:
            return False
        # Groups get other members only after another node has joined, with an id of its own.
        nodes = self.metadata.next_node_id
        if self._alone_since != nodes and not any(
            group.has_peers for group in self._log.driver.groups.values()
        ):
            self._alone_since = nodes
        return self._alone_since == nodes

    @property
    def has_left(self) -> bool:
        """True if this node was removed from the cluster."""
        own = self.metadata.nodes.get(self.node_id)
        return own is not None and own.removed

    @property
    def why_left(self) -> str:
        """See `NodePeers.why_left`."""
        return "" if self.peers is None else self.peers.why_left

    @property
    def why_no_majority(self) -> str:
        """Reason why the cluster decides nothing, as far as is known here; empty while it does."""
        reason = self.leaders.reason
        return reason and (self.why_left or reason)

    def _why_leaderless(self, group: RaftGroup) -> str:
        """Reason why no leader of a raft group can be elected for now, empty while one may."""
        voters = group.storage.conf_state.voters
        reached = [each for each in voters if self._is_reachable(each)]
        if is_majority(reached, voters):
            return ""
        if self.why_no_majority:
            return self.why_no_majority
        replica = group.application
        if not isinstance(replica, PartitionReplica):
            return ""
        self.leaders.note(replica)
        if not self.leaders.is_leaderless(replica):
            return ""
        lost = sorted({*voters}.difference(reached))
        return f"no leader of {group_name(group)}: {counted('node', [*map(str, lost)])} cannot be reached"

    @property
    def incarnation(self) -> int:
        """Number of this start."""
        return self._log.incarnation.number

    async def confirm_metadata(self, timeout: float) -> None:
        """Wait until metadata has everything here that was committed before.

        Raises:
            Unavailable: it has no leader that answers in time, or this node is behind.
        """
        await self.reads.wait([self.state_groups.metadata_replica.group], timeout)

    async def confirm(self, replicas: Iterable[Replica], timeout: float) -> None:
        """Wait until partitions or state groups have everything here that was committed before.

        Raises:
            Unavailable: one has no leader that answers in time, or this node is behind.
        """
        groups = [self._group_of(each) for each in replicas]
        await self.reads.wait(groups, timeout)
        departed = next((each.removed for each in groups if isinstance(each.removed, Unavailable)), None)
        if departed is not None:
            raise Unavailable(str(departed))

    async def confirm_each(
        self, replicas: Iterable[PartitionReplica], timeout: float
    ) -> dict[PartitionReplica, Unavailable]:
        """As `confirm`, for each partition on its own; returns the errors of those that fail."""
        groups = {self._group_of(each): each for each in replicas}
        failed = await self.reads.wait_each(groups, timeout)
        errors = {groups[group]: Unavailable(reason) for group, reason in failed.items()}
        for group, replica in groups.items():
            if isinstance(group.removed, Unavailable):
                errors[replica] = Unavailable(str(group.removed))
        return errors

    def _group_of(self, replica: Replica) -> RaftGroup:
        if isinstance(replica, PartitionReplica):
            return replica.group or self.partitions.group_of(replica)
        return replica.group

    def is_behind(self, replica: StateReplica) -> bool:
        """True if `confirm` waits for entries of a state group that this node does not apply."""
        return self.reads.is_behind(replica.group)

    async def give_up_members(self, replica: StateReplica, newest_member: int) -> None:
        """Have the leader of a state group put out the members of this process, up to a number.

        A proposal would wait for those before it, whose results this node does not learn.

        Raises:
            PixyError: the leader does not answer, or there is none.
        """
        leader = replica.group.leader
        if self.calls is None or leader in (NONE, self.node_id):
            raise Unavailable(f"{replica.name} has no leader elsewhere")
        request = GiveUpRequest(
            raft_group=replica.group.raft_group, incarnation=self.incarnation, newest_member=newest_member
        )
        await self.calls.ask(leader, PeerMethod.GIVE_UP, request.SerializeToString(), _GIVE_UP_S)

    async def export_state(self) -> ExportedState:
        """The state beside the records, as of a moment behind everything that was committed before.
        On return all records are visible that it speaks of.

        Raises:
            Unavailable: no leader answers, or publications are not finished in time.
        """
        replicas = self.state_groups.replicas()
        await self.confirm(replicas, _CONFIRM_S)
        # In one turn of the loop, so that it is the state of one moment.
        snapshots = {each.name: each.machine.snapshot() for each in replicas}
        taken = ExportedState(
            self.cluster_id, self.state_groups.feature_level, self.now_ms(), export_records(snapshots)
        )
        unfinished = len(self.state_groups.sinks.publications)
        try:
            async with asyncio.timeout(_FINISHED_S):
                await self.staging.wait_finished()
        except TimeoutError as error:
            raise Unavailable(
                f"{unfinished} publications of staged writes are not finished within {_FINISHED_S:.0f} s"
            ) from error
        return taken

    @property
    def disk_stalls(self) -> bool:
        """True if a write takes so long that other nodes go on without this one."""
        since = self._log.journal.oldest_unsynced_at
        return not self.is_alone and since is not None and self._loop.time() - since > _STALL_S

    def monotonic(self) -> float:
        """Seconds of the monotonic clock."""
        return self._clock.monotonic()

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, to stamp with: see `NodeTime`."""
        return self.time.wall_ms()

    def propose_batch(
        self,
        replica: PartitionReplica,
        batch: bytearray,
        done: Callable[[int | PixyError], None],
        timeout_s: float = NEVER,
    ) -> None:
        """Append a record batch to a partition, by its raft group.

        Args:
            done: gets the offset of its first record once it is durable, or an error.
            timeout_s: seconds until the answer is `DeadlineExceeded` in any case, if the partition
                has replicas on other nodes. Alone, this node knows what becomes of it.
        """
        try:
            group = replica.group or self.partitions.group_of(replica)
        except Unavailable as error:
            done(error)
            return
        deadline = self._loop.time() + timeout_s if group.has_peers else NEVER
        self._log.driver.propose(group, EntryType.RECORD_BATCH, batch, done, deadline)

    @property
    def log_counters(self) -> LogCounters | None:
        """Numbers of the journal and of the raft groups, None until they are there."""
        return None if self._reports is None else self._log.counters

    @property
    def transfers(self) -> dict[str, TransferCounts]:
        """See `NodePeers`, empty for a node that never has peers."""
        return {} if self.peers is None else self.peers.transfers

    async def status(self) -> ClusterStatus:
        """Status of the cluster, with what the other nodes know of raft groups."""
        if self._reports is None:
            return status_of_nobody(self._why_not_ready())
        return await self._reports.merged()
