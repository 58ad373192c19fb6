"""A member of the simulated cluster: everything of a node that needs no knowledge of topics.

`Member` is what the simulation asks of one; `LogMember` runs `NodeLog` with state groups of
counters, and partitions of one topic.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random
from typing import Any, Protocol
from zlib import crc32

from pixy.aio.futures import reject, resolve
from pixy.aio.tasks import Tasks
from pixy.clock import Clock
from pixy.cluster.log.checkpoint_state import restored_state
from pixy.cluster.log.node_log import LogHooks, LogPeers, NodeLog
from pixy.cluster.log.node_options import NodeOptions
from pixy.cluster.log.peer_starts import PeerStart
from pixy.cluster.log.recovery import DataDirectory, RecoveredNode, recover_node
from pixy.cluster.log.replica import PartitionReplica, StateReplica
from pixy.cluster.replicas.partitions import Partitions
from pixy.cluster.replicas.state_group_recovery import recover_state_group
from pixy.cluster.snapshots import CopyFetching, CopyFetchingOptions, CopyMethod, CopyServing
from pixy.cluster.snapshots.copy_serving import CopyServingOptions
from pixy.cluster.state.proposable import why_not_batches, why_not_proposable
from pixy.cluster.state.topic import Topic
from pixy.entry_ids import ProposalId
from pixy.errors import CorruptData, DeadlineExceeded, PixyError
from pixy.multiraft.group_rest import RestHooks
from pixy.multiraft.group_states import conf_state_of
from pixy.multiraft.proposals import Done, Forwarded
from pixy.multiraft.raft_group import FIRST_PARTITION_GROUP, RaftGroup
from pixy.peers.failures import decode_failure, encode_failure
from pixy.proto.state_pb2 import AppliedPosition, HardState
from pixy.raft import ConfChangeV2, ConfState, Entry, Message, Snapshot, StateType
from pixy.records import LongCheckError, TopicPartition
from pixy.storage import Checkpoint, DamagedLog, EntryType, MakeWorker, Upkeep, run_on
from tests.fakes.no_pieces import NoPieces
from tests.sim.cluster.counters import Counters
from tests.sim.cluster.packets import (
    ClaimOfRest,
    CopyAnswer,
    CopyQuestion,
    ForwardedProposal,
    Packet,
    RaftMessages,
    SnapshotReport,
)
from tests.sim.cluster.swarm import NODES, TOPIC, Layout, Sizes
from tests.sim.disk import SimulatedDisk
from tests.sim.kit.failure import require
from tests.sim.world import DIRECTORY

_TOPIC_ID = b"topic-id-of-16-b"
_COPY_OPTIONS = CopyFetchingOptions(copies_max=1, chunk_bytes=700, timeout_s=1.0)
_COPY_SERVING = CopyServingOptions(sessions_max=2, idle_s=3.0, chunk_bytes=600)


def state_name(raft_group: int) -> str:
    """Name of a state group."""
    return f"state-{raft_group}"


@dataclass(frozen=True, slots=True)
class Outside:
    """Surroundings of a member.

    Attributes:
        worker: creates a worker thread.
        random: of its election timeouts.
        send: sends a packet to another node.
        fetch: has the data of a snapshot fetched.
        copying: told that a partition is about to be copied.
        is_rotten: tells whether segments on the disk are damaged.
        recovered: told of what a start has found.
        applying: told of each entry that is about to be applied.
        fault: told of the error after which nothing is durable any more.
    """

    disk: SimulatedDisk
    clock: Clock
    worker: MakeWorker
    random: Random
    send: Callable[[int, Packet], None]
    fetch: Callable[[RaftGroup, Message], None]
    copying: Callable[[], None]
    is_rotten: Callable[[], bool]
    recovered: Callable[[RecoveredNode], None]
    applying: Callable[[RaftGroup, Entry], None]
    fault: Callable[[BaseException], None]


class Member(Protocol):
    """A node, for the time of one process.

    Attributes:
        node_id: its id.
    """

    node_id: int

    async def start(self) -> None:
        """Recover everything from the disk."""

    async def stop(self) -> None:
        """Make everything durable."""

    @property
    def online(self) -> bool:
        """True once it may talk to others."""

    @property
    def groups(self) -> Mapping[int, RaftGroup]:
        """Its raft groups by id."""

    def replica(self, raft_group: int) -> StateReplica | PartitionReplica:
        """The application of a raft group."""

    def start_of(self) -> PeerStart:
        """The start that it tells of at a handshake."""

    def receive(self, sender: int, packet: Packet) -> None:
        """Process a packet."""

    def tick(self) -> None:
        """Advance the clock of its raft groups."""

    def check_at_rest(self) -> None:
        """Check what only holds while nothing is being written."""

    def lost_peer(self, node_id: int) -> None:
        """The connection to another node broke."""

    def propose(self, raft_group: int, kind: EntryType, payload: bytearray, done: Done, by: float) -> None:
        """Propose an entry, with a deadline."""

    def waits_for_room(self, raft_group: int) -> bool:
        """True if proposals to a raft group wait for room in the node's budget."""

    def read(self, raft_group: int, done: Callable[[], None]) -> None:
        """Begin a linearizable read."""

    def transfer(self, raft_group: int, node_id: int) -> None:
        """Hand a leadership over."""

    def change_members(self, raft_group: int, change: ConfChangeV2) -> None:
        """Propose a change of the configuration."""

    def install(self, raft_group: int, checkpoint: Checkpoint) -> None:
        """The data of a snapshot has arrived."""

    def snapshot_failed(self, raft_group: int, snapshot: Snapshot) -> None:
        """The data of a snapshot does not come."""


def _why_not_proposable(raft_group: int, kind: int, payload: bytes | bytearray, sender: int) -> str:
    is_state = raft_group < FIRST_PARTITION_GROUP and kind == EntryType.COMMAND
    try:
        return "" if is_state else why_not_proposable(raft_group, kind, payload, sender)
    except LongCheckError:
        return why_not_batches(kind, payload)  # here nobody waits


class _Copies:
    """Copies of partitions, over packets.

    Args:
        log, partitions: of the member.
        send: sends a packet to another node.
        fault: told of an unexpected exception.
    """

    def __init__(
        self,
        log: NodeLog,
        partitions: Partitions,
        send: Callable[[int, Packet], None],
        fault: Callable[[BaseException], None],
    ) -> None:
        self.fetching = CopyFetching(
            log, partitions, NoPieces(), self._call, lambda _: True, fault, _COPY_OPTIONS
        )
        self.serving = CopyServing(log, partitions, lambda *_: None, _COPY_SERVING)
        self._send = send
        self._tasks = Tasks(fault)
        self._open: dict[int, asyncio.Future[bytes]] = {}
        self._numbers = count(1)

    async def _call(self, node_id: int, method: CopyMethod, payload: bytes, timeout: float) -> bytes:
        number = next(self._numbers)
        answer = self._open[number] = asyncio.get_running_loop().create_future()
        self._send(node_id, CopyQuestion(number, method, payload))
        try:
            return await asyncio.wait_for(answer, timeout)
        except TimeoutError:
            raise DeadlineExceeded(f"node {node_id} does not answer") from None
        finally:
            del self._open[number]

    def asked(self, sender: int, question: CopyQuestion) -> None:
        """Another node calls."""
        self._tasks.spawn(self._answer(sender, question), "answer of a copy")

    async def _answer(self, sender: int, question: CopyQuestion) -> None:
        methods = {
            CopyMethod.BEGIN: self.serving.begin,
            CopyMethod.CHECK: self.serving.check,
            CopyMethod.FETCH: self.serving.fetch,
            CopyMethod.END: self.serving.end,
        }
        try:
            answer = await methods[question.method](sender, question.payload)
            payload, failed = answer if isinstance(answer, bytes) else b"".join(answer), False
        except PixyError as error:
            payload, failed = encode_failure(error), True
        self._send(sender, CopyAnswer(question.number, payload, failed))

    def answered(self, answer: CopyAnswer) -> None:
        """The answer of a call has come."""
        waiting = self._open.get(answer.number)
        if waiting is None:
            return
        if answer.failed:
            reject(waiting, decode_failure(answer.payload))
        else:
            resolve(waiting, answer.payload)

    async def stop(self) -> None:
        """End everything."""
        self.serving.stop()
        await self.fetching.stop()
        await self._tasks.cancel_all()


class _Partitions(Partitions):
    """Partitions of which every node has a replica, whoever is a member at first."""

    conf_state: ConfState

    def _configuration(self, replica: PartitionReplica) -> ConfState:
        return self.conf_state


class LogMember:
    """Runs the log of a node.

    Args:
        node_id: its id; that of the identity on the disk.
        layout, sizes: see `Swarm`.
        outside: see `Outside`.
    """

    def __init__(self, node_id: int, layout: Layout, sizes: Sizes, outside: Outside) -> None:
        self.node_id = node_id
        self._layout = layout
        self._sizes = sizes
        self._outside = outside
        self._states: dict[int, StateReplica] = {}
        self._log: NodeLog
        self._partitions: _Partitions
        self._upkeep: Upkeep
        self._groups: Mapping[int, RaftGroup] = {}
        self._started = False
        self._copies: _Copies
        self._reading = Tasks(self._fault)
        self._options = NodeOptions(
            DIRECTORY,
            sizes.journal,
            sizes.storage,
            outside.random.randbytes,
            outside.worker,
            writer_pace=sizes.pace,
        )
        self._files = outside.worker("pixy-files", background=True)

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        disk, options = self._outside.disk, self._options
        recovered = await run_on(
            self._files, lambda: recover_node(disk, DIRECTORY, self._outside.random.randbytes)
        )
        self._outside.recovered(recovered)
        hooks = LogHooks(
            drop_segments=self._drop_segments,
            on_restored=lambda _: None,
            on_positions=lambda: None,
            on_damaged=self._damaged,
            on_full=lambda: None,
            on_fault=self._fault,
            install=self._install,
        )
        peers = LogPeers(
            send=lambda to, messages: self._outside.send(to, RaftMessages(messages)),
            fetch=self._fetch,
            forward=self._forward,
            # Whatever stands: the claims alone tell.
            rest=RestHooks(
                is_up=lambda _: True, claim=lambda to, claim: self._outside.send(to, ClaimOfRest(claim))
            ),
            random=self._outside.random,
            config=self._sizes.raft,
            cache_bytes=self._sizes.cache_bytes,
            # Commands of the counters are no commands of the product's state groups.
            why_not_proposable=_why_not_proposable,
        )
        self._log = NodeLog(disk, self._outside.clock, options, recovered, self._files, hooks, peers)
        self._groups = self._log.driver.groups
        await self._recover_states(recovered)
        await self._recover_partitions(recovered)
        self._log.retention.start()
        self._started = True

    async def _recover_states(self, recovered: RecoveredNode) -> None:
        conf = self._layout.conf_state
        configuration = HardState(voters=conf.voters, learners=conf.learners)
        for raft_group in self._layout.state_groups:
            self._states[raft_group] = await recover_state_group(
                self._log,
                recovered,
                raft_group,
                state_name(raft_group),
                Counters(),
                configuration,
                self._apply_to_state,
            )

    async def _recover_partitions(self, recovered: RecoveredNode) -> None:
        outside, log = self._outside, self._log
        groups = self._layout.partitions
        self._upkeep = Upkeep(outside.worker("pixy-upkeep", background=True), self._fault)
        self._partitions = _Partitions(
            DataDirectory(outside.disk, DIRECTORY, recovered.identity.cluster_id),
            self._sizes.storage,
            log.driver,
            log.writer,
            self._upkeep,
            find_parts=lambda *_: [],
            on_readiness=self._not_ready,
        )
        self._partitions.conf_state = self._layout.conf_state
        self._copies = _Copies(log, self._partitions, outside.send, self._fault)
        topic = Topic(TOPIC, _TOPIC_ID, 1, {}, groups, (NODES,) * len(groups))
        self._partitions.put_topic(topic)
        self._partitions.apply = self._checked(self._partitions.apply)  # type: ignore[method-assign, assignment]  # to see each entry
        await self._partitions.restore(recovered, [topic], max(groups) + 1, self._files)
        for number in range(len(groups)):
            replica = self._partitions.get(TopicPartition(TOPIC, number))
            assert replica is not None
            self._partitions.group_of(replica)

    async def stop(self) -> None:
        await self._reading.cancel_all()
        await self._copies.stop()
        await self._log.stop()
        self._log.abandon()
        self._upkeep.stop()
        self._files.stop()

    def _fault(self, error: BaseException) -> None:
        self._log.give_up(error)
        self._outside.fault(error)

    def _fetch(self, group: RaftGroup, message: Message) -> None:
        if isinstance(group.application, StateReplica):
            self._outside.fetch(group, message)
            return
        assert message.snapshot is not None
        if isinstance(group.application, PartitionReplica):
            self._outside.copying()
            self._copies.fetching.offered(group, message)
        else:
            self._log.driver.snapshots.failed(group, message.snapshot, silently=True)

    def offer_again(self) -> None:
        """Partition replicas that were offered a position are offered another one."""
        snapshots = self._log.driver.snapshots if self._started else None
        for group in list(snapshots.offered) if snapshots is not None else ():
            if snapshots is not None and isinstance(group.application, PartitionReplica):
                for peer in list(snapshots.waiting(group)):
                    snapshots.report(group, peer, failed=True)

    def _install(self, replica: PartitionReplica, position: AppliedPosition) -> None:
        self._partitions.install(replica, position)

    def read_all(self, raft_group: int) -> None:
        """Read the segments of a partition as consumers do: what is damaged is found."""
        self._reading.spawn(self._read_all(self._replica_of(raft_group)), "reading")

    def _replica_of(self, raft_group: int) -> PartitionReplica:
        replica = self._partitions.find_replica(raft_group)
        assert replica is not None
        return replica

    async def _read_all(self, replica: PartitionReplica) -> None:
        log = replica.log
        at = log.begin_offset
        try:
            while at < log.written_offset:
                chunk = await run_on(self._files, partial(log.read, at, 1 << 16))
                at = chunk.next_offset
        except CorruptData as error:
            if replica.log is log and replica.group is not None and replica.group.held is None:
                self._outside.copying()
                self._partitions.set_fault(replica, error)
        except (PixyError, OSError):
            pass  # read again later

    def _drop_segments(self, replica: PartitionReplica, log_begin_offset: int) -> None:
        self._partitions.drop_segments(replica, log_begin_offset)

    def _not_ready(self, topic: str) -> None:
        """Damage was found: a bit that has rotted, and nothing else, explains that."""
        if not self._outside.is_rotten():
            self._outside.fault(CorruptData(f"a partition of {topic} is damaged"))

    def _damaged(self, damaged: DamagedLog) -> None:
        self._fault(damaged.error)

    # --- entries ----------------------------------------------------------------------------------

    def _checked(self, apply: Callable[[Any, Entry], Any]) -> Callable[[Any, Entry], Any]:
        def checked(replica: PartitionReplica, entry: Entry) -> Any:
            assert replica.group is not None
            self._outside.applying(replica.group, entry)
            return apply(replica, entry)

        return checked

    def _apply_to_state(self, replica: StateReplica, entry: Entry) -> Any:
        self._outside.applying(replica.group, entry)
        result = replica.apply(entry)
        self._log.checkpoints.applied(replica)
        return result

    # --- what others ask for ----------------------------------------------------------------------

    @property
    def online(self) -> bool:
        return self._started and self._log.incarnation.file > 0

    @property
    def groups(self) -> Mapping[int, RaftGroup]:
        return self._groups

    def replica(self, raft_group: int) -> StateReplica | PartitionReplica:
        application = self.groups[raft_group].application
        assert isinstance(application, StateReplica | PartitionReplica)
        return application

    def start_of(self) -> PeerStart:
        return PeerStart(self._log.incarnation.number, self._log.journal.flush_number)

    def receive(self, sender: int, packet: Packet) -> None:
        driver = self._log.driver
        match packet:
            case RaftMessages(messages):
                for raft_group, message in messages:
                    driver.step(raft_group, message)
            case ForwardedProposal(raft_group, kind, _, proposal, after):
                forwarded = Forwarded(raft_group, kind, packet.received(), proposal, after)
                driver.propose_for(self.groups[raft_group], forwarded)
            case SnapshotReport(raft_group, failed):
                driver.snapshots.report(self.groups[raft_group], sender, failed=failed)
            case ClaimOfRest(claim):
                driver.rest.heard(sender, claim)
            case CopyQuestion():
                self._copies.asked(sender, packet)
            case CopyAnswer():
                self._copies.answered(packet)

    def _forward(
        self, group: RaftGroup, kind: EntryType, payload: bytes | bytearray, proposal: ProposalId, after: int
    ) -> None:
        packet = ForwardedProposal(group.raft_group, kind, payload, proposal, after, crc32(payload))
        self._outside.send(group.leader, packet)

    def tick(self) -> None:
        if self._started:
            self._log.driver.tick()
            now = asyncio.get_running_loop().time()
            self._copies.serving.sweep(now)
            if self._partitions.damaged_groups:
                self._copies.fetching.sweep(now)

    def check_at_rest(self) -> None:
        if any(group.writing for group in self.groups.values()):
            return
        tails = [group.storage.memory_bytes(group.applied_index) for group in self.groups.values()]
        counted = self._log.driver.unapplied_bytes
        by_group = [group.unapplied_bytes for group in self.groups.values()]
        require(by_group == tails, f"node {self.node_id}: {by_group} unapplied bytes, found {tails}")
        require(counted == sum(tails), f"node {self.node_id}: {counted} unapplied bytes, found {tails}")

    def lost_peer(self, node_id: int) -> None:
        if not self._started:
            return
        self._log.driver.rest.node_changed(node_id)
        for group in list(self.groups.values()):
            node = group.node
            if node is not None and node.raft.state is StateType.LEADER:
                self._log.driver.snapshots.report(group, node_id, failed=True)

    def propose(self, raft_group: int, kind: EntryType, payload: bytearray, done: Done, by: float) -> None:
        self._log.driver.propose(self.groups[raft_group], kind, payload, done, by)

    def waits_for_room(self, raft_group: int) -> bool:
        return self._log.driver.waits_for_room(self.groups[raft_group])

    def read(self, raft_group: int, done: Callable[[], None]) -> None:
        self._log.driver.reads.begin(self.groups[raft_group], done)

    def transfer(self, raft_group: int, node_id: int) -> None:
        self._log.driver.transfer(self.groups[raft_group], node_id)

    def change_members(self, raft_group: int, change: ConfChangeV2) -> None:
        group = self.groups[raft_group]
        if group.node is not None:
            group.node.propose_conf_change(change)
            self._log.driver.drive(group)

    def install(self, raft_group: int, checkpoint: Checkpoint) -> None:
        replica, (term, index) = self._states[raft_group], checkpoint.id
        restored = restored_state(replica.name, Counters, list(checkpoint.records))
        snapshot = Snapshot(index, term, conf_state_of(restored.configuration))
        self._log.install(replica, snapshot, restored, checkpoint.records)

    def snapshot_failed(self, raft_group: int, snapshot: Snapshot) -> None:
        self._log.driver.snapshots.failed(self.groups[raft_group], snapshot)
