"""Staged writes of a node, of either kind: requests and events go to those concerned.

    kept by   when                     the stages                    published by
    --------  -----------------------  ----------------------------  -------------------------
    one node  the node is alone:       directories of this node      `publisher`
              nobody else could have   (`staging.stages`)
              a replica
    replicas  there are other nodes    `stage_table`, and pieces on  `replicated_staging`,
                                       the replicas of partitions    `replicated_roll_forward`

A stage stays of the kind that it was begun as. One that a node has begun while it was alone takes
pieces for partitions that have no other replica, and is published there.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from pixy.aio.steps import run_in_steps
from pixy.cluster.log import PartitionReplica
from pixy.cluster.peering import CallPeer, PartitionProposals, ProposalForwarder
from pixy.cluster.publications.lone_publisher import LonePublisher, staged_error
from pixy.cluster.publications.piece_calls import PieceCalls
from pixy.cluster.publications.piece_retention import PieceRetention
from pixy.cluster.publications.replicated_roll_forward import ReplicatedRollForward, RollForwardDependencies
from pixy.cluster.publications.replicated_staging import ReplicatedStaging, StagingDependencies
from pixy.cluster.publications.sideloading import Sideloading
from pixy.cluster.replicas import StateGroups
from pixy.cluster.state import IDENTITY_LEVEL, SINKS_MAX, Finished, GoneStages, Publication, Topic
from pixy.errors import FailedPrecondition, Unavailable
from pixy.faults import report_to_loop
from pixy.multiraft import Driver, ReadBatcher
from pixy.proto.state_pb2 import ExpireStages, PublishStages, SinksCommand
from pixy.raft import Entry
from pixy.records import TopicPartition
from pixy.staging import NO_CLIENT, PieceBatches, Published, StageCall, StageClient, StageName
from pixy.storage import EntryType

log = structlog.get_logger(__name__)

_CONFIRM_S = 5.0
_COMMAND_S = 15.0
_EXPIRED_PER_COMMAND = 500


@dataclass(frozen=True, slots=True)
class StagingNode:
    """The node of staged writes.

    Attributes:
        driver: of its raft groups.
        state_groups: its state groups.
        publisher: of the stages that only this node has.
        retention: of the pieces.
        reads: linearizable reads.
        remote: proposals to leaders elsewhere; None without peers.
        channel: to the other nodes; None without peers.
        sideloading: of its partitions; None without peers.
        command: runs a command of `sinks`, with a limit in seconds.
        is_alone: tells whether there is no other node in the cluster, nor in its raft groups.
        now_ms: its time, to stamp with.
    """

    driver: Driver
    state_groups: StateGroups
    publisher: LonePublisher
    retention: PieceRetention
    reads: ReadBatcher
    remote: ProposalForwarder | None
    channel: CallPeer | None
    sideloading: Sideloading | None
    command: Callable[[bytes, float], Awaitable[object]]
    is_alone: Callable[[], bool]
    now_ms: Callable[[], int]


class StagingRouter:
    """Staged writes of one node.

    Args:
        node: see `StagingNode`.
        expiry_s: seconds after which stages of idle sinks expire.

    Attributes:
        calls: pieces to and from other nodes.
    """

    def __init__(self, node: StagingNode, expiry_s: float) -> None:
        self._node = node
        self._state = node.state_groups.sinks
        self._sinks = node.state_groups.sinks_replica
        self._metadata = node.state_groups.metadata
        self._publisher = node.publisher
        self._retention = node.retention
        self._expiry_ms = round(expiry_s * 1000)
        # Publications by new sinks that are not known yet, by address of the client.
        self._beginning: Counter[str] = Counter()
        # Set, and replaced, when publications are finished, or the node stops.
        self._finished = asyncio.Event()
        partitions = node.publisher.partitions
        pieces = node.retention.pieces
        self.calls = PieceCalls(
            node.driver.node_id,
            pieces,
            node.channel,
            self._state,
            partitions.serves,
            self.confirm,
        )
        proposals = PartitionProposals(node.driver, partitions, node.remote)
        self._replicated = ReplicatedStaging(
            StagingDependencies(
                self._state,
                self._metadata,
                partitions,
                self.calls,
                proposals,
                self._command,
                self.confirm,
                node.now_ms,
                lambda: node.state_groups.feature_level,
            ),
            expiry_s,
            node.publisher.is_deleting,
        )
        self._roll_forward = ReplicatedRollForward(
            RollForwardDependencies(
                self._sinks.group,
                self._state,
                node.publisher.is_of_nobody,
                node.retention.partition_of,
                self.confirm,
                proposals,
                self._ensure,
                self._command,
            ),
            report_to_loop,
        )

    def start(self) -> None:
        """Go on with what earlier processes have left: everything is recovered."""
        self._sinks.group.prepare = self._prepare
        run_in_steps(self._state.release())
        self._publisher.start()
        self._retention.reconcile()
        self._roll_forward.look()

    def _prepare(self, entry: Entry) -> Iterator[None] | None:
        """See `Prepare`."""
        return self._state.prepare(entry.data) if entry.kind == EntryType.COMMAND else None

    async def stop(self) -> None:
        """Finish nothing more; the next start, or another node, does."""
        self._publisher.stop()
        await self._roll_forward.stop()
        if self._node.sideloading is not None:
            await self._node.sideloading.stop()

    # --- requests ---------------------------------------------------------------------------------

    async def stage(self, call: StageCall) -> int:
        """As `StagedWrites.stage`; the partitions are known here."""
        if self._publisher.has(call.name):
            if not self._node.is_alone():
                self._check_only_here(call.name, call.batches)
        elif not self._node.is_alone() or self._replicated.has(call.name):
            return await self._replicated.stage(call)
        return await self._publisher.stage(call)

    def _check_only_here(self, name: StageName, batches: Sequence[PieceBatches]) -> None:
        here = (self._node.driver.node_id,)
        for each in batches:
            replica = self._publisher.partitions.get(TopicPartition(each.topic, each.partition))
            if replica is None or replica.replicas != here or replica.move is not None or replica.has_peers:
                raise FailedPrecondition(
                    f"stage {name.stage_id} was begun while its node was alone, and partition {each.partition} of topic "
                    f"{each.topic} has replicas elsewhere, or is to get some: begin another stage"
                )

    async def publish(self, command: PublishStages, client: StageClient = NO_CLIENT) -> Published:
        """As `StagedWrites.publish`."""
        sink_id = command.sink_id
        names = [StageName(sink_id, stage_id) for stage_id in command.stage_ids]
        here = [name for name in names if self._publisher.has(name)]
        if not here and (not self._node.is_alone() or any(map(self._replicated.has, names))):
            publish = self._replicated.publish
        elif not here or len(here) == len(names):
            publish = self._publisher.publish
        else:
            raise FailedPrecondition(
                f"stage {here[0].stage_id} of sink {sink_id} was begun while its node was alone, and others were not: "
                "publish them one after the other, or stage them anew"
            )
        with self._share(sink_id, client):
            published = await publish(command)
        if not published.published:
            await self._replicated.wait_sink(sink_id)
        return published

    @contextmanager
    def _share(self, sink_id: str, client: StageClient) -> Iterator[None]:
        """Count a sink for a client, if it is new, until it is known.

        Raises:
            ResourceExhausted: it does not fit in its share.
        """
        address = client.address
        if not address or sink_id in self._state.sinks:
            yield
            return
        client.check_sinks(self._state.sinks_of[address] + self._beginning[address], SINKS_MAX)
        self._beginning[address] += 1
        try:
            yield
        finally:
            self._beginning[address] -= 1
            if not self._beginning[address]:
                del self._beginning[address]

    async def discard(self, sink_id: str, stage_ids: Sequence[str]) -> None:
        """As `StagedWrites.discard`."""
        await self._publisher.discard(sink_id, stage_ids)
        names = [StageName(sink_id, stage_id) for stage_id in stage_ids]
        if stage_ids and (not self._node.is_alone() or any(map(self._replicated.has, names))):
            await self._replicated.discard(sink_id, stage_ids, await self._next_stage())
        else:
            await self._replicated.touch(sink_id)

    def touch(self, sink_id: str) -> None:
        """Note activity of a sink, which keeps its stages from expiry."""
        self._publisher.touch(sink_id)

    def needs_only_replicas(self, topic_id: bytes) -> bool:
        """As `LonePublisher.needs_only_replicas`."""
        return self._publisher.needs_only_replicas(topic_id)

    def staged_by(self, topic_id: bytes) -> list[str]:
        """The sinks with records of a topic that are staged or not visible yet, as far as this node
        knows.
        """
        replicated = {stage.name.sink_id for stage in self._state.table.of_topic(topic_id)}
        unfinished = {
            publication.sink_id
            for publication in self._state.publications.values()
            if publication.stages and any(part.topic_id == topic_id for part in publication.parts)
        }
        return sorted({*self._publisher.staged_by(topic_id), *replicated, *unfinished})

    async def _next_stage(self) -> int:
        """Number of the next stage of all nodes; 0 while there are nodes that do not look at it."""
        if self._node.state_groups.feature_level < IDENTITY_LEVEL:
            return 0
        await self.confirm()
        return self._state.table.next_stage

    @contextmanager
    def deleting(self, topic: Topic, *, force: bool) -> Iterator[None]:
        """As `LonePublisher.deleting`."""
        sinks = self.staged_by(topic.topic_id)
        if sinks and not force:
            raise staged_error(topic, sinks)
        with self._publisher.deleting(topic, force=True):
            yield

    async def confirm(self, timeout: float = _CONFIRM_S) -> None:
        """Return once `sinks` and metadata have here what was committed before.

        Raises:
            Unavailable: one of them has no leader that answers in time.
        """
        groups = [self._sinks.group, self._node.state_groups.metadata_replica.group]
        await self._node.reads.wait(groups, timeout)

    async def _command(self, command: SinksCommand) -> object:
        return await self._node.command(command.SerializeToString(), _COMMAND_S)

    async def _ensure(self, replica: PartitionReplica, payload: bytes) -> None:
        """See `RollForwardDependencies`."""
        sideloading, group = self._node.sideloading, replica.group
        if sideloading is None or group is None or group.application is None:
            return
        missing = sideloading.missing(group, EntryType.COMMAND, payload)
        if missing and not await sideloading.fetch(group, missing):
            raise Unavailable(f"pieces for {replica.partition} cannot be fetched")

    async def wait_finished(self) -> None:
        """Wait until the publications that are not finished now are: all of their records are
        durable and visible.
        """
        numbers = {*self._state.publications}
        while not numbers.isdisjoint(self._state.publications):
            await self._finished.wait()

    def _have_finished(self) -> None:
        self._finished.set()
        self._finished = asyncio.Event()

    # --- events -----------------------------------------------------------------------------------

    def applied(self, result: object) -> None:
        """An entry of `sinks` was applied, with this result."""
        if isinstance(result, Publication):
            self._publisher.committed(result)
            self._roll_forward.look()
        elif isinstance(result, Finished):
            self._have_finished()
            self._retention.finished(result.publications)
            self._replicated.look_at_publications()
        elif isinstance(result, GoneStages):
            self._retention.gone(result.numbers)
        else:
            return
        run_in_steps(self._state.release())

    def restored(self) -> None:
        """The state of `sinks` was replaced by that of a leader's checkpoint."""
        self._have_finished()
        self._retention.reconcile()
        self._replicated.look_at_publications()

    def positions_durable(self) -> None:
        """Applied positions of partitions have become durable."""
        self._publisher.maybe_finish()
        self._retention.release()

    def topic_deleted(self, topic_id: bytes) -> None:
        """A topic was deleted."""
        self._publisher.topic_deleted(topic_id)

    def look(self) -> None:
        """Called often: there may be another leader of `sinks`."""
        self._roll_forward.look()

    # --- expiry -----------------------------------------------------------------------------------

    def expire(self, age_ms: int) -> None:
        """Drop stages older than `staging.expiry`, and forget inactive sinks. What is common to all
        nodes is decided by the leader.

        Args:
            age_ms: time to measure ages by.
        """
        self._publisher.expire(age_ms)
        self._retention.reconcile()
        if self._sinks.group.decides:
            self._expire_replicated(age_ms - self._expiry_ms)

    def _expire_replicated(self, before_ms: int) -> None:
        table = self._state.table
        over = [number for number, stage in table.stages.items() if table.is_over_since(stage, before_ms)]
        if over:
            log.warning("stages have expired and are dropped", stages=len(over))
        for at in range(0, len(over), _EXPIRED_PER_COMMAND):
            command = ExpireStages(stages=over[at : at + _EXPIRED_PER_COMMAND], before_ms=before_ms)
            self._publisher.propose_to_sinks(SinksCommand(expire_stages=command))
