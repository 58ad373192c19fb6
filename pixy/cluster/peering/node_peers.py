"""A node among others: the exchange with its peers, and the leaders of its raft groups.

    before its data directory is read    `find_cluster`: found one, or join
    once its log is open                 `attach`: its raft groups send and receive
    once it has a new incarnation        `start`: handshakes, clocks

It wires `cluster_search`, `cluster_nodes`, `failover`, `leader_balancer`, `voter_reconciler`,
`move_controller` and `ticker` together, and decides nothing itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, TypeVar

import structlog
from google.protobuf.message import DecodeError

from pixy.clock import Clock
from pixy.cluster.log import ClusterOptions, LogPeers, NodeLog, PeerStart, cluster_id_of
from pixy.cluster.peering.call_maxima import why_too_large
from pixy.cluster.peering.cluster_nodes import ClusterNodes
from pixy.cluster.peering.cluster_search import ClusterSearch
from pixy.cluster.peering.departures import Departures
from pixy.cluster.peering.failover import Failover
from pixy.cluster.peering.forwarded_proposals import ForwardedProposals
from pixy.cluster.peering.leader_balancer import LeaderBalancer
from pixy.cluster.peering.move_controller import MoveController
from pixy.cluster.peering.newcomer_checks import NewcomerChecks
from pixy.cluster.peering.node_lookup import NodeLookup
from pixy.cluster.peering.peer_clocks import PeerClocks
from pixy.cluster.peering.peer_messages import (
    MessageKind,
    PeerMethod,
    RefusedProposal,
    decode_beat,
    decode_claim,
    decode_proposals,
    decode_raft,
    decode_refusals,
    decode_steady_time,
    flush_number_of,
)
from pixy.cluster.peering.relays import Relays, sender_of
from pixy.cluster.peering.ticker import Ticker
from pixy.cluster.peering.told_refusals import decode_starts
from pixy.cluster.peering.voter_reconciler import MoveHooks, VoterReconciler
from pixy.cluster.replicas import NodeTime, Partitions, StateGroups
from pixy.cluster.snapshots import (
    CopyFetching,
    CopyMethod,
    CopyServing,
    FetchingOptions,
    SnapshotFetching,
    SnapshotServing,
    StagedPieces,
    TransferCounts,
    transfer_counts,
)
from pixy.cluster.state import (
    COPIES_LEVEL,
    FEATURE_LEVEL,
    SECOND_PROTOCOL_LEVEL,
    NodeInfo,
    check_join,
    check_place,
    node_record,
    why_left,
)
from pixy.copies import CopyProgress
from pixy.entry_ids import ProposalId
from pixy.errors import FailedPrecondition, PixyError, ResourceExhausted, StartError, Unavailable
from pixy.multiraft import (
    Driver,
    Forwarded,
    RaftGroup,
    RestClaim,
    RestHooks,
    entry_bytes_max,
    frame_bytes_max,
)
from pixy.peers import Answer, Claim, FrameDamage, Hello, NextSlice, NotYet, PeerChannel, PeerHooks
from pixy.proto.node_calls_pb2 import JoinRequest, JoinResponse, NodeAddress, NodesResponse, Relayed
from pixy.proto.state_pb2 import NodeIdentity, NodeRecord
from pixy.raft import NONE, MalformedMessage, Message, StateType
from pixy.storage import EntryType

log = structlog.get_logger(__name__)

OpenChannel = Callable[[str, PeerHooks], PeerChannel]
"""Opens the channel to the peers of the cluster of a name."""

Handler = Callable[[int, bytes], Awaitable[Answer]]
"""Answers a call of a node: its id, 0 for one that belongs to no cluster yet, and the payload."""

T = TypeVar("T")

_CONFIRM_S = 1.0
_HAND_OVER_S = 2.0
_HAND_OVER_STEP_S = 0.02
_BEAT_EVERY_TICKS = 5
_LOOK_EVERY_TICKS = 20
_COPY_METHODS = {
    CopyMethod.BEGIN: PeerMethod.BEGIN_COPY,
    CopyMethod.CHECK: PeerMethod.CHECK_COPY,
    CopyMethod.FETCH: PeerMethod.FETCH_COPY,
    CopyMethod.END: PeerMethod.END_COPY,
}
_RAFT, _PROPOSALS = MessageKind.RAFT, MessageKind.PROPOSALS
_RAFT_SLICE = 100
"""Raft messages and entries of other nodes that are processed at once: about a millisecond."""
_PROPOSALS_SLICE = 8
"""Proposals of other nodes that are taken at once, each checked for half a millisecond at most."""
_PROPOSAL_BYTES = 16 << 10
"""A larger proposal counts as several."""


@dataclass(frozen=True, slots=True)
class PeerDependencies:
    """Functions of its node that the peers ask for.

    Attributes:
        register: registers a node that wants to join; returns its id.
        find_group: makes the raft group of a partition, None if this node has no replica of it.
        methods: the handlers of all other calls.
        forwarded: takes proposals of other nodes.
        confirm_metadata: waits for that many seconds until metadata has everything that was
            committed before, or raises `PixyError`.
        nodes_seen: called when a node can be reached again, or cannot be reached any more.
        ticked: called at the end of each tick.
        has_all_groups: False while the start has not opened all raft groups.
        partitions: the partitions of this node.
        pieces: pieces of stages of this node.
        propose_to_metadata: proposes a command, and calls back with its result.
        needs_only_replicas: true of a topic whose partitions cannot get other replicas yet.
    """

    register: Callable[[JoinRequest], Awaitable[int]]
    find_group: Callable[[int], RaftGroup | None]
    methods: Mapping[int, Handler]
    forwarded: ForwardedProposals
    confirm_metadata: Callable[[float], Awaitable[None]]
    nodes_seen: Callable[[], None]
    ticked: Callable[[], None]
    has_all_groups: Callable[[], bool]
    partitions: Partitions
    pieces: StagedPieces
    propose_to_metadata: Callable[[bytes, Callable[[Any], None]], None]
    needs_only_replicas: Callable[[bytes], bool]


class NodePeers:
    """The peers of one node.

    Args:
        options: its place in the cluster.
        open_channel: see `OpenChannel`.
        clock: the clock that it runs on.
        time: the time that the nodes agree on.
        random_bytes: source of ids.
        on_fault: called with an unexpected exception.

    Attributes:
        channel: to the peers.
        relays: to those that there is no connection to.
        members: the other nodes, from `attach` on.
        clocks: theirs, from `attach` on.
        stopping: True from the beginning of `hand_over` on.
    """

    members: ClusterNodes
    clocks: PeerClocks

    def __init__(
        self,
        options: ClusterOptions,
        open_channel: OpenChannel,
        clock: Clock,
        time: NodeTime,
        random_bytes: Callable[[int], bytes],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._options = options
        self._on_fault = on_fault
        self._clock = clock
        self._time = time
        self._process = random_bytes(8)
        self._random = Random(int.from_bytes(random_bytes(8), "little"))
        self._loop = asyncio.get_running_loop()
        self._secret = b""
        self._cluster_id = b""
        # Feature level of the cluster when this node came to it, 0 if nobody said so.
        self._level_at_first = 0
        # Set once handshakes may name this node: its incarnation is durable.
        self._node_id = 0
        self._log: NodeLog | None = None
        self._driver: Driver
        self._duties: PeerDependencies
        self._failover: Failover
        self._placement: LeaderBalancer
        self._departures: Departures
        self._newcomers: NewcomerChecks
        self._keeper: VoterReconciler
        self._controller: MoveController
        self._lookup: NodeLookup
        self._ticker = Ticker(self._tick, self._on_pause)
        self._ticks = 0
        self._listening: asyncio.Task[None] | None = None
        self._up_since: dict[int, float] = {}
        # Removed nodes that no raft group here has as a member any more, nor ever will.
        self._gone: set[int] = set()
        # The nodes of metadata that `_known` is made of; every message asks for it.
        self._nodes_of: dict[int, NodeInfo] | None = None
        self._known: dict[int, NodeInfo] = {}
        self.stopping = False
        # The nodes that could be reached when the node was told last.
        self._reached = frozenset[int]()
        hooks = PeerHooks(
            hello=self._hello,
            falls_back=self._falls_back,
            why_not_first=self._why_not_first,
            recognize=self._recognize,
            admit=self._admit,
            on_message=self._on_message,
            on_call=self._on_call,
            on_up=self._on_up,
            on_down=self._on_down,
            on_visit=self._on_visit,
        )
        self.channel = open_channel(options.name, hooks)
        self.relays = Relays(self.channel, self._relayed_hello)
        self._search = ClusterSearch(options, self.channel, self._hello)

    # --- identity ---------------------------------------------------------------------------------

    def identify(self, identity: NodeIdentity) -> None:
        """Say from here on whose node this is, also while it starts: a node of the join list that
        has lost its disk must not take this one for new, and found a second cluster.
        """
        self._secret, self._cluster_id = identity.secret, cluster_id_of(identity)
        self._level_at_first = identity.feature_level

    def _hello(self) -> Hello:
        started = self._log if self._node_id else None
        return Hello(
            cluster=self._options.name,
            cluster_id=self._cluster_id,
            node_id=self._node_id,
            secret=self._secret,
            incarnation=0 if started is None else started.incarnation.number,
            flush_number=0 if started is None else started.journal.flush_number,
            process=self._process,
            # The list is for the first start: a node that belongs to a cluster does without.
            join_hash=b"" if self._cluster_id else self._options.join_hash,
            address=self._options.address,
            version=self._options.version,
            found_flush_number=0 if started is None else started.journal.found_flush_number,
            max_message_bytes=self._options.max_message_bytes,
        )

    async def find_cluster(self, secret: bytes, new_cluster_id: bytes) -> NodeIdentity:
        """Identity of a node at its first start; see `ClusterSearch.find`."""
        self._secret = secret
        return await self._search.find(secret, new_cluster_id)

    @property
    def waiting_for(self) -> str:
        """Reason why a first start waits, empty if it does not."""
        return self._search.waiting_for

    @property
    def transfers(self) -> dict[str, TransferCounts]:
        """Counts of `snapshots` and of `copies` of partitions, none until there is a log."""
        if self._log is None:
            return {}
        return {
            "snapshots": transfer_counts(self._serving, self._fetching),
            "copies": transfer_counts(self._copies, self._fetched_copies),
        }

    def copy_progress(self, raft_group: int) -> tuple[CopyProgress | None, str]:
        """See `CopyFetching.progress`."""
        return self._fetched_copies.progress(raft_group)

    @property
    def why_not_started(self) -> str:
        """Reason why the node has not started, with the nodes that have left and are needed yet, or
        with the first reason why another node is not connected: that one may refuse it for good.
        """
        if self.waiting_for or not self._node_id:
            return self.waiting_for or "the node is starting"
        own = self._groups.metadata.nodes.get(self._node_id)
        if own is not None and own.removed:
            return why_left(own.node_id)
        trouble = self._groups.why_stuck
        if not trouble:
            trouble = next(filter(None, (self.channel.trouble(each.node_id) for each in self.members)), "")
        return f"the node is catching up with its cluster{trouble and f': {trouble}'}"

    @property
    def why_left(self) -> str:
        """Reason why the cluster goes on without this node, empty as long as it may be a member.

        The removal may be missing in its metadata: nobody sends it entries any more. Then the
        refusals of the others tell.
        """
        if not self._node_id:
            return ""
        own, reason = self._groups.metadata.nodes.get(self._node_id), why_left(self._node_id)
        if own is not None and own.removed:
            return reason
        if self.members.is_connected:
            return ""
        troubles = (self.channel.trouble(each.node_id) for each in self.members)
        return reason if any(reason in trouble for trouble in troubles) else ""

    # --- life -------------------------------------------------------------------------------------

    def log_peers(self) -> LogPeers:
        """The peers, for the node's log."""
        return LogPeers(
            send=self._send,
            fetch=self._fetch,
            forward=self._forward,
            rest=RestHooks(is_up=self._is_up, claim=self._claim),
            random=self._random,
        )

    def attach(
        self, node_log: NodeLog, identity: NodeIdentity, groups: StateGroups, duties: PeerDependencies
    ) -> None:
        """The node's log is open; nothing is received before `start`."""
        self._driver = node_log.driver
        self._duties = duties
        self.identify(identity)
        self.members = ClusterNodes(
            identity.node_id,
            self.channel,
            self.relays,
            node_log.peer_starts,
            self._nodes,
            self._clock,
            self._on_lost,
        )
        self.clocks = PeerClocks(self.members, self._time)
        cluster_id, node_id = self._cluster_id.hex(), identity.node_id
        self._fetching = SnapshotFetching(
            self._call_bulk, FetchingOptions(cluster_id, node_id), self._on_fault
        )
        copies = self._fetched_copies = CopyFetching(
            node_log, duties.partitions, duties.pieces, self._call_copy, self._gives_copies, self._on_fault
        )
        self._fetching.attach(node_log, copies)
        self._serving = SnapshotServing(cluster_id, groups.find, self._driver, node_log.files)
        self._copies = CopyServing(node_log, duties.partitions, self._serving.heard)
        self._serving.sweeps += [self._copies.sweep, copies.sweep]
        self._copy_handlers: dict[int, Handler] = {
            PeerMethod.BEGIN_COPY: self._copies.begin,
            PeerMethod.CHECK_COPY: self._copies.check,
            PeerMethod.FETCH_COPY: self._copies.fetch,
            PeerMethod.END_COPY: self._copies.end,
        }
        self._failover = Failover(self._driver, self.members.is_up, self._random)
        self._placement = LeaderBalancer(
            self._driver, self._up_since.get, self.clocks.is_off, duties.partitions.damaged_groups
        )
        self._groups = groups
        self._departures = Departures(
            self._driver, groups.metadata, self.relays.call, duties.has_all_groups, self._on_fault
        )
        self._newcomers = NewcomerChecks(self.relays.call, self._on_fault)
        moves = MoveHooks(
            duties.partitions, duties.propose_to_metadata, duties.needs_only_replicas, duties.has_all_groups
        )
        self._keeper = VoterReconciler(
            self._driver, groups, moves, self._departures, self._newcomers, self.members.is_reachable
        )
        self._controller = MoveController(
            groups, duties.propose_to_metadata, self.members.is_reachable, self._options.replace_after_s
        )
        self._lookup = NodeLookup(self.members, self.channel.call, self._confirm_metadata)
        self._log = node_log

    async def start(self) -> None:
        """Begin handshakes and clocks, once the incarnation is durable.

        The join list is asked for other nodes as long as none is where metadata says. A node that
        has no join list listens only if others have joined it.

        Raises:
            StartError: others have joined it, and it cannot listen.
        """
        assert self._log is not None
        await self._log.journal.drained()
        if self._has_others:
            await self.channel.listen()
        self._take_messages(self._groups.metadata.largest_message_bytes)
        self._node_id = self._driver.node_id
        for node in self._search.told:
            self.members.take_start(node.node_id, PeerStart(node.incarnation, node.flush_number))
            self.members.add_address(node.node_id, node.address)
        self.members.set_nodes(self._nodes())
        self._ticker.start()
        self._serving.start()
        self._search.learn(self.members, self._cluster_id)

    def elect(self, group: RaftGroup) -> None:
        """Campaign in a group without a leader."""
        self._failover.elect(group)

    def own_record(self) -> NodeRecord:
        """This node, as metadata is to know it."""
        assert self._log is not None
        options = self._options
        return NodeRecord(
            node_id=self._driver.node_id,
            secret=self._secret,
            address=options.address,
            grpc_address=options.grpc_address,
            rack=options.rack,
            incarnation=self._log.incarnation.number,
            process=self._process,
            version=options.version,
            feature_level=FEATURE_LEVEL,
            max_message_bytes=self._options.max_message_bytes,
            largest_message_bytes=self._options.max_message_bytes,
        )

    async def wait_for_founders(self) -> None:
        """Wait until a new cluster has as many nodes as its answers have to be durable on."""
        await self._search.wait_for_founders(self._groups)

    async def hand_over(self) -> None:
        """Hand over all leaderships, as far as others can take them within a bound.

        One that comes back is kept: the other node stops too.
        """
        self.stopping = True
        self._failover.stop()
        deadline = self._loop.time() + _HAND_OVER_S
        # The terms in which this node has led them.
        terms: dict[RaftGroup, int] = {}
        while self._loop.time() < deadline:
            led = [group for group in self._driver.groups.values() if self._has_successor(group)]
            led = [group for group in led if terms.setdefault(group, group.term) == group.term]
            if not led:
                return
            for group in led:
                self._driver.hand_over(group)
            await asyncio.sleep(_HAND_OVER_STEP_S)

    def _has_successor(self, group: RaftGroup) -> bool:
        node = group.node
        return (
            node is not None
            and node.raft.state is StateType.LEADER
            and any(each != node.raft.id and self.members.is_up(each) for each in node.raft.tracker.voters)
        )

    async def stop(self) -> None:
        """Close everything."""
        self.stopping = True
        self._ticker.stop()
        if self._log is not None:
            self._failover.stop()
            self._serving.stop()
            self._copies.stop()
            await self._fetching.stop()
            await self._lookup.stop()
            await self._departures.stop()
            await self._newcomers.stop()
            await self._duties.forwarded.stop()
        self._search.stop()
        if self._listening is not None:
            self._listening.cancel()
        await self.channel.stop()

    def nodes_changed(self) -> None:
        """Metadata has other nodes than before."""
        self._take_messages(self._groups.metadata.largest_message_bytes)
        if self._node_id:
            self.members.set_nodes(self._nodes())
            if self._has_others and self._listening is None:
                self._listening = self._loop.create_task(self._listen(), name="listen for other nodes")

    @property
    def _has_others(self) -> bool:
        """True if other nodes have joined this one, as far as it knows."""
        members = set(self._groups.metadata_replica.group.storage.conf_state.members)
        known = {node_id for node_id, node in self._nodes().items() if not node.lost}
        return not known | members <= {self._driver.node_id}

    async def _listen(self) -> None:
        """Listen, once entries that a start has applied tell of other nodes."""
        try:
            await self.channel.listen()
        except StartError as error:
            self._on_fault(error)

    def leave_gone(self) -> None:
        """Close the connections to removed nodes that are members of no raft group here any more;
        called at each tick, once all raft groups are restored.
        """
        if self._ticks % _LOOK_EVERY_TICKS:
            return
        for node_id, node in self._groups.metadata.nodes.items():
            if node.removed and node_id not in self._gone and not self._departures.are_members({node_id}):
                self._gone.add(node_id)
                self._nodes_of = None
                self.nodes_changed()

    def _nodes(self) -> dict[int, NodeInfo]:
        """The nodes that metadata knows; those that are gone count as lost."""
        nodes = self._groups.metadata.nodes
        if nodes is not self._nodes_of:
            self._nodes_of = nodes
            self._known = {
                id: replace(node, lost=True) if id in self._gone else node for id, node in nodes.items()
            }
        return self._known

    async def _confirm_metadata(self) -> bool:
        """True if metadata has every node that there was before the call."""
        group = self._groups.metadata_replica.group
        if group.has_peers and group.leader == NONE:
            return False
        try:
            await self._duties.confirm_metadata(_CONFIRM_S)
        except PixyError:
            return False
        return True

    # --- clocks -----------------------------------------------------------------------------------

    def _tick(self) -> None:
        assert self._log is not None
        self._driver.tick()
        self._ticks += 1
        if not self._ticks % _BEAT_EVERY_TICKS:
            journal, number = self._log.journal, self._log.incarnation.number
            self.members.beat(number, journal.flush_number, self._time.steady_ms())
            self._lookup.tick()
            self._look_at_ways()
        if not self.stopping:
            self._placement.tick()
            self._keeper.tick()
            self._controller.tick()
        self._duties.ticked()

    def _look_at_ways(self) -> None:
        """Tell of nodes that can be reached through others, or not any more: no connection of this
        node says so.
        """
        reached = frozenset(filter(self.members.is_reachable, self._nodes()))
        if reached != self._reached:
            self._reached = reached
            self._duties.nodes_seen()

    def _on_pause(self, seconds: float) -> None:
        log.warning("this process was paused", seconds=round(seconds, 1))

    # --- connections ------------------------------------------------------------------------------

    def _falls_back(self) -> bool:
        """True while nodes of the cluster may speak protocol 1 alone.

        Of a node that has just joined metadata is empty: it was told the level when it joined. One
        without a cluster may ask any node, in passing: that shows neither id nor secret.
        """
        if self._level_at_first >= SECOND_PROTOCOL_LEVEL:
            return False
        return not self._node_id or self._groups.feature_level < SECOND_PROTOCOL_LEVEL

    def _why_not_first(self) -> str | None:
        if not self._node_id or self._node_id not in self._groups.metadata.nodes:
            return NotYet(f"node {self._options.address} is starting, and speaks peer protocol 2")
        if self._falls_back():
            return None
        return (
            "peer protocol 1 is spoken here no more: a node that speaks it has no shared secret (cluster.secret_file), "
            "or an earlier release than all nodes of the cluster"
        )

    def _relayed_hello(self) -> Hello:
        """The greeting for a node without a connection; protocol 1 wants the secret in it."""
        hello = self._hello()
        return hello if self._falls_back() else replace(hello, secret=b"")

    def _recognize(self, claim: Claim) -> str | None:
        if not self._node_id:
            return NotYet(f"node {self._options.address} is starting")
        return self.members.recognize(claim)

    def _admit(self, claim: Claim) -> str | None:
        reason = self.members.admit(claim)
        if reason is None:
            # Metadata may not have its start yet.
            self._take_messages(claim.hello.max_message_bytes)
        return reason

    def _take_messages(self, largest: int) -> None:
        """Take frames and entries as a node sends them whose largest message is this."""
        self.channel.take_frames(frame_bytes_max(largest))
        self._driver.entry_bytes_max = max(self._driver.entry_bytes_max, entry_bytes_max(largest))

    def _on_visit(self, host: str) -> None:
        self._search.visited(host)

    def _on_up(self, node_id: int, hello: Hello) -> None:
        if self._node_id:
            if not self.members.knows(node_id):
                self._lookup.ask(node_id)
            self._up_since.setdefault(node_id, self._loop.time())
            self._serving.lost(node_id)
            self.members.on_up(node_id, hello)
            self._driver.rest.node_changed(node_id)
            if self._log is not None:
                journal, number = self._log.journal, self._log.incarnation.number
                self.members.beat_first(node_id, number, journal.flush_number, self._time.steady_ms())
            self._duties.nodes_seen()

    def _on_down(self, node_id: int, closed: bool) -> None:
        if self._node_id:
            self._up_since.pop(node_id, None)
            self._serving.lost(node_id)
            self._driver.rest.node_changed(node_id)
            self.members.on_down(node_id, closed)
            self._duties.nodes_seen()

    def _on_lost(self, node_id: int) -> None:
        if not self.stopping:
            self._failover.lost(node_id)

    # --- messages out -----------------------------------------------------------------------------

    def _send(self, node_id: int, messages: Sequence[tuple[int, Message]]) -> None:
        assert self._log is not None
        self.members.send_raft(node_id, messages, self._log.journal.flush_number)

    def _is_up(self, node_id: int) -> bool:
        return self.members.is_up(node_id)

    def _claim(self, node_id: int, claim: RestClaim) -> None:
        self.members.claim(node_id, claim)

    def _fetch(self, group: RaftGroup, message: Message) -> None:
        self._fetching.fetch(group, message)

    async def _call_bulk(self, node_id: int, payload: bytes, timeout: float) -> bytes:
        return await self.relays.call(node_id, PeerMethod.FETCH_SNAPSHOT, payload, timeout, bulk=True)

    async def _call_copy(
        self, node_id: int, method: CopyMethod, payload: bytes, timeout: float
    ) -> bytes | memoryview:
        return await self.relays.call_view(node_id, _COPY_METHODS[method], payload, timeout)

    def _gives_copies(self, node_id: int) -> bool:
        node = self._groups.metadata.nodes.get(node_id)
        return node is not None and node.feature_level >= COPIES_LEVEL

    def _forward(
        self, group: RaftGroup, kind: EntryType, payload: bytes | bytearray, proposal: ProposalId, after: int
    ) -> None:
        leader = group.leader
        if leader != NONE:
            self.members.forward(leader, Forwarded(group.raft_group, kind, payload, proposal, after))

    def refuse(self, refusal: RefusedProposal) -> None:
        """Tell a node that its proposal is refused."""
        self.members.refuse(refusal)

    # --- messages in ------------------------------------------------------------------------------

    def _on_message(
        self, node_id: int, kind: int, payload: bytes | memoryview, *, relayed: bool = False
    ) -> NextSlice | None:
        if not self._node_id or not self.members.knows(node_id):
            return None
        try:
            return self._take(node_id, kind, payload, relayed=relayed)
        except MalformedMessage as error:
            raise FrameDamage(f"message {kind} is malformed: {error}") from error

    def _take(
        self, node_id: int, kind: int, payload: bytes | memoryview, *, relayed: bool
    ) -> NextSlice | None:
        if kind == _RAFT:
            flush_number = flush_number_of(payload)
            if not relayed:
                self.members.flushed(node_id, flush_number)
            messages = decode_raft(payload, node_id, self._node_id)
            return None if self._step(messages) else partial(self._go_on, self._step, messages)
        if kind == _PROPOSALS:
            proposals = decode_proposals(payload, node_id)
            return None if self._propose(proposals) else partial(self._go_on, self._propose, proposals)
        if kind == MessageKind.BEAT:
            self.members.heard(node_id, decode_beat(payload), relayed=relayed)
        elif kind == MessageKind.OLDER_SELVES:
            if not relayed:
                self.members.told_older(node_id, decode_starts(payload))
        elif kind == MessageKind.STEADY_TIME:
            if not relayed:
                self.members.heard_steady_time(node_id, decode_steady_time(payload))
        elif kind == MessageKind.CLAIM:
            self._driver.rest.heard(node_id, decode_claim(payload))
        elif kind == MessageKind.REFUSALS:
            self._refused(node_id, payload)
        elif kind == MessageKind.RELAYED:
            return self._on_relayed(node_id, Relayed.FromString(bytes(payload)))
        return None

    def _go_on(self, take: Callable[[Iterator[T]], bool], rest: Iterator[T]) -> bool:
        """Take the next slice of a message; see `NextSlice`."""
        try:
            return take(rest)
        except MalformedMessage as error:
            raise FrameDamage(f"a message is malformed: {error}") from error

    def _propose(self, proposals: Iterator[Forwarded]) -> bool:
        """Take a slice of proposals; True if those were all."""
        groups, left = self._driver.groups, _PROPOSALS_SLICE
        for forwarded in proposals:
            group = groups.get(forwarded.raft_group)
            if group is not None:
                self._duties.forwarded.propose_nowait(group, forwarded)
            left -= 1 + len(forwarded.payload) // _PROPOSAL_BYTES
            if left <= 0:
                return False
        return True

    def _refused(self, node_id: int, payload: bytes | memoryview) -> None:
        for raft_group, term, proposal, reason in decode_refusals(payload, self._node_id):
            group = self._driver.groups.get(raft_group)
            if group is not None:
                self._driver.refused(group, node_id, term, proposal, reason)

    def _on_relayed(self, node_id: int, relayed: Relayed) -> NextSlice | None:
        if relayed.target != self._node_id:
            self.relays.pass_on(node_id, relayed)
            return None
        try:
            sender = Hello.from_message(relayed.sender)
            if relayed.kind == MessageKind.RELAYED or self._why_not_relayed(sender) is not None:
                return None
            self.relays.heard_at[sender.node_id] = asyncio.get_running_loop().time()
            rest = self._on_message(sender.node_id, relayed.kind, relayed.payload, relayed=True)
        except FrameDamage as error:
            self._drop_relayed(node_id, error)
            return None
        return rest and partial(self._go_on_relayed, node_id, rest)

    def _go_on_relayed(self, through: int, rest: NextSlice) -> bool:
        try:
            return rest()
        except FrameDamage as error:
            self._drop_relayed(through, error)
            return True

    def _drop_relayed(self, through: int, error: FrameDamage) -> None:
        """Not the fault of the node that has passed it on, whose connection this is."""
        log.debug("a message that was passed on is dropped", through=through, reason=str(error))

    def _why_not_relayed(self, sender: Hello) -> str | None:
        """Reason to refuse what another node has passed on, which has the sender's proofs."""
        if not self._node_id:
            return NotYet(f"node {self._options.address} is starting")
        return self.members.why_not_vouched(sender)

    def _step(self, messages: Iterator[tuple[int, Message]]) -> bool:
        """Process a slice of Raft messages; True if those were all."""
        driver, left = self._driver, _RAFT_SLICE
        for raft_group, message in messages:
            if raft_group in driver.groups or self._duties.find_group(raft_group) is not None:
                try:
                    driver.step(raft_group, message)
                except Exception as error:
                    # Not a fault of the connection: the state of the raft group is unknown.
                    self._on_fault(error)
                    return True
            left -= 1 + len(message.entries)
            if left <= 0:
                return False
        return True

    def _on_call(self, caller: Hello, method: int, payload: bytes) -> Awaitable[Answer]:
        """See `PeerHooks`. Thousands of questions of consumer groups wait, without a coroutine."""
        # A node that starts has no methods yet.
        handler = self._duties.methods.get(method) if self._node_id else None
        if method != PeerMethod.CONSUME or handler is None:
            return self._answer_call(caller, method, payload)
        self._check_call(caller, method, payload)
        return handler(caller.node_id, payload)

    def _check_call(self, caller: Hello, method: int, payload: bytes) -> None:
        if not self.members.knows(caller.node_id):
            raise FailedPrecondition("only nodes of this cluster may call, and others to join it")
        reason = why_too_large(method, payload)
        if reason:
            raise ResourceExhausted(reason).at_limit("elements of a call between nodes")

    async def _answer_call(self, caller: Hello, method: int, payload: bytes) -> Answer:
        if not self._node_id:
            raise Unavailable(f"node {self._options.address} is starting")
        if method == PeerMethod.JOIN:
            return await self._register(JoinRequest.FromString(payload))
        self._check_call(caller, method, payload)
        if method == PeerMethod.NODES:
            nodes = [node_record(each) for each in self._nodes().values() if not each.lost]
            return NodesResponse(nodes=nodes).SerializeToString()
        if method == PeerMethod.IS_MEMBER:
            return self._departures.answer(payload)
        if method == PeerMethod.FETCH_SNAPSHOT:
            return await self._serving.answer(caller.node_id, payload)
        if method == PeerMethod.RELAY:
            return await self._answer_relayed(caller.node_id, Relayed.FromString(payload))
        handler = self._duties.methods.get(method) or self._copy_handlers.get(method)
        if handler is None:
            raise FailedPrecondition(f"call {method} is not known to this release ({self._options.version})")
        try:
            return await handler(caller.node_id, payload)
        except MalformedMessage as error:
            raise FrameDamage(str(error)) from error

    async def _answer_relayed(self, caller: int, relayed: Relayed) -> Answer:
        if relayed.target != self._node_id:
            return await self.relays.pass_call_on(caller, relayed)
        if relayed.kind == PeerMethod.RELAY:
            raise FailedPrecondition("a call is passed on once")
        sender = sender_of(relayed)
        reason = self._why_not_relayed(sender)
        if reason is not None:
            raise Unavailable(reason)
        self.relays.heard_at[sender.node_id] = asyncio.get_running_loop().time()
        try:
            return await self._on_call(sender, relayed.kind, relayed.payload)
        except (FrameDamage, DecodeError) as error:
            # No fault of the node that has passed it on.
            raise FailedPrecondition(f"call {relayed.kind} is malformed: {error}") from error

    async def _register(self, request: JoinRequest) -> bytes:
        check_join(request)
        present = [each for each in self._nodes().values() if self.members.is_up(each.node_id)]
        check_place(request, present)
        node_id = await self._duties.register(request)
        # Another one that has only joined as well may be anybody, at any address.
        nodes = [
            each
            for each in self._groups.metadata.nodes.values()
            if not each.lost and (each.has_started or each.node_id == node_id)
        ]
        return JoinResponse(
            cluster_id=self._cluster_id,
            node_id=node_id,
            nodes=[self._told_of(each) for each in nodes],
            feature_level=self._groups.metadata.feature_level,
        ).SerializeToString()

    def _told_of(self, node: NodeInfo) -> NodeAddress:
        """A node, for one that joins."""
        assert self._log is not None
        start = self._log.peer_starts.starts.newest(node.node_id) or PeerStart(0, 0)
        return NodeAddress(
            node_id=node.node_id,
            address=node.address,
            incarnation=start.incarnation,
            flush_number=start.flush_number,
        )
