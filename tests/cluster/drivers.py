"""Drivers of raft groups for tests: over journals that a test flushes, and with a network whose
messages wait until the test delivers them.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast

from pixy.cluster.peering.forwarded_commands import ForwardedCommands
from pixy.cluster.peering.forwarded_proposals import ForwardedProposals
from pixy.cluster.peering.peer_messages import RefusedProposal
from pixy.cluster.replicas.partitions import Partitions
from pixy.cluster.state.cluster_limits import ClusterLimits
from pixy.cluster.state.metadata import MetadataState
from pixy.cluster.state.nodes import FEATURE_LEVEL
from pixy.cluster.state.proposable import why_not_proposable
from pixy.cluster.state.publications import SinksState
from pixy.config import LimitsConfig
from pixy.entry_ids import LogPosition, ProposalId
from pixy.multiraft.dedup_table import DedupTable
from pixy.multiraft.driver import Driver
from pixy.multiraft.driver_options import RAFT_CONFIG, DriverHooks, DriverOptions, DriverPeers
from pixy.multiraft.group_recovery import entry_of, recovered_group
from pixy.multiraft.group_rest import RestHooks
from pixy.multiraft.proposals import NEVER, Forwarded
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.raft_storage import WantedEntries
from pixy.multiraft.resting_groups import RestClaim
from pixy.proto.state_pb2 import HardState
from pixy.raft import ConfState, Entry, Message, MessageType, Snapshot
from pixy.records import NewRecord, build_batch, offsets_of, patch_batch, read_records, split_batches
from pixy.storage import (
    EntryType,
    Journal,
    JournalOptions,
    RecordKind,
    RecoveredJournal,
    UnitRecord,
    recover_journal,
)
from tests.fakes.disk import RecordingDisk
from tests.fakes.worker import StepWorker
from tests.storage.journals import CLUSTER

GROUP = 1000
"""Raft group of a partition, which every node of these tests has."""
BATCH, BATCHES, COMMAND = EntryType.RECORD_BATCH, EntryType.RECORD_BATCHES, EntryType.COMMAND


PROMPT_CONFIG = replace(RAFT_CONFIG, heartbeat_tick=1)
"""One tick is enough for a leader to be heard."""


def batch_of(*values: bytes) -> bytearray:
    """A batch with these records."""
    return build_batch([NewRecord(None, value, (), 1) for value in values])


def kinds_of(unit: Sequence[UnitRecord]) -> list[RecordKind]:
    """Kinds of the records of a unit."""
    return [RecordKind(record[0]) for record in unit]


class PayloadLog:
    """Application that keeps what is applied: commands, and values of record batches, which get
    offsets as in a partition.
    """

    def __init__(self) -> None:
        self.rows = DedupTable()
        self.applied: list[bytes] = []
        self.conf_changes = 0
        # Indexes of the unapplied entries at each begin of a leadership.
        self.tails: list[list[int]] = []
        self._end = 0
        self._proposed_end = 0

    def may_have_replica(self, node_id: int) -> bool:
        return True

    def lead(self, tail: Sequence[Entry]) -> None:
        self.tails.append([entry.index for entry in tail])
        self._proposed_end = self._end
        for entry in tail:
            if entry.kind in (BATCH, BATCHES):
                _, self._proposed_end = offsets_of(split_batches(memoryview(entry.data))[-1])

    def stamp(
        self, kind: EntryType, payload: bytes | bytearray, term: int
    ) -> tuple[EntryType, bytes | bytearray]:
        if kind in (BATCH, BATCHES):
            for batch in split_batches(memoryview(payload)):
                self._proposed_end = patch_batch(batch, self._proposed_end, term)
        return kind, payload

    def apply(self, entry: Entry) -> int | None:
        self.conf_changes += bool(entry.type)
        if entry.kind == COMMAND:
            self.applied.append(bytes(entry.data))
        if entry.kind not in (BATCH, BATCHES):
            return None
        first = self._end
        for batch in split_batches(memoryview(entry.data)):
            begin, end = offsets_of(batch)
            assert begin == self._end, f"a batch of offset {begin} is applied at {self._end}"
            self._end = end
            self.applied += [record.value or b"" for record in read_records(batch)]
        return first


class UnitJournal(Journal):
    """A journal that keeps the units that it is given."""

    units: list[list[UnitRecord]]

    def append(self, records: Sequence[UnitRecord], token: Any) -> None:
        self.units.append(list(records))
        super().append(records, token)


class Letter(NamedTuple):
    """A message on its way."""

    sender: int
    to: int
    raft_group: int
    message: Message


@dataclass
class NodeSetup:
    """Parts of a `DriverNode`, beside its directory.

    Attributes:
        voters: of its groups.
        recovered: what a start has found in the journal.
        incarnation: number of its start.
        cache_bytes, tick_s, commit_delay_s: see `DriverOptions`.
        rests: its groups may rest.
        wire, claims: where its messages go, and its claims, with sender and receiver.
    """

    voters: tuple[int, ...] = (1,)
    recovered: RecoveredJournal = field(default_factory=RecoveredJournal)
    incarnation: int = 1
    cache_bytes: int = 1 << 20
    tick_s: float = 0.1
    commit_delay_s: float = 0.0
    rests: bool = False
    wire: list[Letter] = field(default_factory=list)
    claims: list[tuple[int, int, RestClaim]] = field(default_factory=list)


class DriverNode:
    """A driver with the raft group `GROUP`, over a journal on a manual worker. Its commands are any
    bytes.

    Attributes:
        application: applies the entries of `group`, once it is bound.
        room: answer of `DriverHooks.room`.
        wanted, fetches, restored, forwarded, faults: calls of the hooks of these names.
        refused: proposals of other nodes that `forwarded_to` has refused.
        results: results of proposals, by the names given to `propose`.
        holds_writes: the journal's worker does nothing.
        down: nodes without a connection to it.
    """

    def __init__(self, directory: Path, node_id: int = 1, setup: NodeSetup | None = None) -> None:
        self.node_id = node_id
        self.directory = directory
        self.setup = setup = setup or NodeSetup()
        self.room = 1 << 30
        self.wanted: list[tuple[RaftGroup, WantedEntries]] = []
        self.fetches: list[tuple[RaftGroup, Snapshot]] = []
        self.restored: list[Snapshot] = []
        self.forwarded: list[tuple[EntryType, bytes | bytearray, ProposalId]] = []
        self.faults: list[BaseException] = []
        self.refused: list[RefusedProposal] = []
        self.results: dict[bytes, Any] = {}
        self.holds_writes = False
        self.down: set[int] = set()
        self.worker = StepWorker()
        directory.mkdir(exist_ok=True)
        self.journal = self._make_journal()
        self.journal.units = []
        options = DriverOptions(
            node_id,
            setup.incarnation,
            Random(node_id),
            setup.cache_bytes,
            setup.tick_s,
            PROMPT_CONFIG,
            setup.commit_delay_s,
        )
        self.driver = Driver(self.journal, self._hooks(), options)
        self.application = PayloadLog()
        self.group = self._open()

    def _make_journal(self) -> UnitJournal:
        recovered = self.setup.recovered
        return UnitJournal(
            RecordingDisk(),
            self.worker,
            JournalOptions(self.directory, self._owner, 1 << 16, at=recovered.at, files=recovered.files),
            on_durable=self._durable,
            on_fault=self.faults.append,
        )

    def _durable(self, tokens: list[Any]) -> None:
        self.driver.durable(tokens)

    @property
    def _owner(self) -> tuple[bytes, int]:
        return CLUSTER, self.node_id

    def _hooks(self) -> DriverHooks:
        wire = self.setup.wire

        def send(peer: int, messages: Sequence[tuple[int, Message]]) -> None:
            wire.extend(Letter(self.node_id, peer, group, message) for group, message in messages)

        def fetch(group: RaftGroup, message: Message) -> None:
            assert message.snapshot is not None
            self.fetches.append((group, message.snapshot))

        def claim(peer: int, made: RestClaim) -> None:
            self.setup.claims.append((self.node_id, peer, made))

        return DriverHooks(
            room=lambda: self.room,
            keeps_up=lambda: self.room >= 0,
            fault=self.faults.append,
            load=lambda group, wanted, _: self.wanted.append((group, wanted)),
            reset_records=lambda *_: [],
            restore=lambda _, snapshot: self.restored.append(snapshot),
            peers=DriverPeers(
                send=send,
                fetch=fetch,
                rest=RestHooks(lambda peer: peer not in self.down, claim) if self.setup.rests else None,
                forward=lambda _, *proposal: self.forwarded.append(proposal[:3]),
                why_not_proposable=lambda raft_group, kind, payload, sender: (
                    "" if kind is COMMAND else why_not_proposable(raft_group, kind, payload, sender)
                ),
            ),
        )

    def _open(self) -> RaftGroup:
        found = self.setup.recovered.groups.get(GROUP)
        if found is None:
            return self.driver.group(GROUP, ConfState(self.setup.voters))
        tail = [entry_of(record) for record in found.entries_after(0)]
        configuration = HardState(voters=self.setup.voters)
        group = recovered_group(self.node_id, GROUP, found, LogPosition(0, 0), tail, configuration)
        self.driver.add(group)
        return group

    def bind(self) -> "DriverNode":
        """Bind the application."""
        self.driver.bind(self.group, self.application, PayloadLog.apply)
        return self

    def other_group(self, raft_group: int = GROUP + 1) -> tuple[RaftGroup, PayloadLog]:
        """Another group, with its application."""
        group, application = self.driver.group(raft_group, ConfState(self.setup.voters)), PayloadLog()
        self.driver.bind(group, application, PayloadLog.apply)
        return group, application

    def propose(
        self,
        name: bytes,
        kind: EntryType = COMMAND,
        *,
        deadline: float = NEVER,
        group: RaftGroup | None = None,
    ) -> bytes | bytearray:
        """Propose a command of this name, or a batch with one record of it."""
        payload = batch_of(name) if kind is BATCH else name

        def done(result: Any) -> None:
            self.results[name] = result

        self.driver.propose(group or self.group, kind, payload, done, deadline)
        return payload

    def write(self) -> bool:
        """Run the journal's worker; True if there was something to do."""
        if self.holds_writes or not self.worker:
            return False
        while self.worker:
            self.worker.step()
        return True

    async def settle(self) -> None:
        """Write and apply everything."""
        quiet = 0
        while quiet < 3:
            await asyncio.sleep(0)
            quiet = 0 if self.write() else quiet + 1

    async def lead(self) -> None:
        """Make a node with the only vote the leader."""
        self.driver.seek_leader(self.group)
        await self.settle()
        assert self.group.leads

    def restarted(self) -> "DriverNode":
        """The node after a restart, not bound."""
        self.close()
        recovered = recover_journal(RecordingDisk(), self.directory, self._owner)
        setup = NodeSetup(self.setup.voters, recovered, self.setup.incarnation + 1)
        return DriverNode(self.directory, self.node_id, setup)

    def close(self) -> None:
        """End the node as a crash does."""
        self.driver.stop()
        self.journal.abandon()


class DriverNetwork:
    """Nodes with one group of which all are voters, and the messages between them.

    Attributes:
        nodes: by id.
        wire: messages on their way, oldest first.
        claims: the same of claims of groups at rest.
        cut: nodes whose messages are lost, in both directions.
        lost: tells of other messages that are lost.
    """

    def __init__(self, directory: Path, *node_ids: int, setup: NodeSetup | None = None) -> None:
        self.wire: list[Letter] = []
        self.claims: list[tuple[int, int, RestClaim]] = []
        self.cut: set[int] = set()
        self.lost: Callable[[Message], bool] = lambda _: False
        self.nodes: dict[int, DriverNode] = {}
        common = setup or NodeSetup()
        for node_id in node_ids:
            own = replace(common, voters=node_ids, wire=self.wire, claims=self.claims)
            self.nodes[node_id] = DriverNode(directory / str(node_id), node_id, own).bind()

    def __getitem__(self, node_id: int) -> DriverNode:
        return self.nodes[node_id]

    def deliver(self) -> bool:
        """Deliver what is on its way; True if there was a message."""
        claims = self.claims[:]
        self.claims.clear()
        for sender, to, claim in claims:
            if not self.cut & {sender, to}:
                self.nodes[to].driver.rest.heard(sender, claim)
        letters = self.wire[:]
        self.wire.clear()
        for sender, to, raft_group, message in letters:
            if not self.cut & {sender, to} and not self.lost(message):
                self.nodes[to].driver.step(raft_group, message)
        return bool(letters)

    async def run(self) -> None:
        """Write and deliver until nothing moves."""
        quiet = 0
        while quiet < 3:
            await asyncio.sleep(0)
            wrote = [node.write() for node in self.nodes.values()]
            quiet = 0 if self.deliver() or any(wrote) else quiet + 1

    async def elect(self, node_id: int) -> DriverNode:
        """Make a node the leader."""
        node = self.nodes[node_id]
        for other in self.nodes.values():
            if other.group.node is not None:
                other.group.node.forget_leader()
        node.driver.open(node.group).campaign()
        node.driver.drive(node.group)
        await self.run()
        assert node.group.leads
        return node

    async def tick(self, count: int = 1) -> None:
        """Advance the clocks of all nodes that are not cut off."""
        for _ in range(count):
            for node_id, node in self.nodes.items():
                if node_id not in self.cut:
                    node.driver.tick()
            await self.run()

    def sent(self, kind: MessageType, sender: int) -> list[Message]:
        """Messages of a type on their way from a node."""
        return [each.message for each in self.wire if (each.message.type, each.sender) == (kind, sender)]

    def close(self) -> None:
        """End all nodes."""
        for node in self.nodes.values():
            node.close()


def forwarded_proposal(
    group: RaftGroup, kind: EntryType, payload: bytes | bytearray, proposal: ProposalId, after: int = 0
) -> tuple[RaftGroup, Forwarded]:
    """Arguments of `Driver.propose_for` and of `ForwardedProposals`."""
    return group, Forwarded(group.raft_group, kind, payload, proposal, after)


def forwarded_to(node: DriverNode) -> ForwardedProposals:
    """Proposals of other nodes to the group of a node, which has no partitions."""

    async def confirm() -> None:
        return

    async def reasons_to_keep(_: int) -> list[str]:
        return []

    commands = ForwardedCommands(
        ClusterLimits(LimitsConfig(), MetadataState(), lambda: FEATURE_LEVEL),
        SinksState(),
        cast(Partitions, None),
        confirm,
        lambda _: False,
        reasons_to_keep,
        lambda: 1_000_000,
    )
    return ForwardedProposals(node.driver, commands, node.refused.append, node.faults.append)
