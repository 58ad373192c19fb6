"""Applications of a node's raft groups: partitions, and state machines in memory.

Small, because a node may have ten thousand of them, most of them idle.
"""

import asyncio
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol

from pixy.aio.futures import resolve
from pixy.cluster.log.partition_condition import PartitionCondition
from pixy.cluster.state import Move, answered_batch, published_records, with_target
from pixy.entry_ids import LogPosition
from pixy.errors import CorruptData
from pixy.multiraft import DedupSnapshot, DedupTable, RaftGroup, checkpoint_record
from pixy.proto.state_pb2 import HardState
from pixy.raft import Entry, Snapshot
from pixy.records import (
    NO_PRODUCER_BYTE,
    PRODUCER_AT,
    ProducerTable,
    TopicPartition,
    has_producer,
    offsets_of,
    patch_batch,
    producer_batch,
    split_batches,
)
from pixy.storage import CheckpointId, CheckpointStore, EntryType, PartitionLog, why_undecodable

_RECORD_BATCH = EntryType.RECORD_BATCH
_RECORD_BATCHES = EntryType.RECORD_BATCHES
_COMMAND = EntryType.COMMAND
_UNKEPT_BYTES = 64 << 20
"""Bytes behind the last kept table of producers, which a start goes through."""


class StateMachine(Protocol):
    """A replicated state machine: pure and deterministic."""

    def apply(self, payload: bytes, term: int = 0) -> Any:
        """Apply one command and return its result.

        Args:
            term: of its entry.
        """

    def snapshot(self) -> Iterable[tuple[bytes, bytes]]:
        """The whole state as records.

        May be consumed on another thread while commands are applied.
        """

    def restore(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Replace the whole state by a snapshot's records."""


class RestoredState(NamedTuple):
    """The state of a state group as a checkpoint has it.

    Attributes:
        machine: a state machine with this state, which nobody else has.
        rows: results of the last proposals.
        configuration: of the raft group; without voters in a checkpoint of the first release.
    """

    machine: StateMachine
    rows: DedupTable
    configuration: HardState


class Mark(NamedTuple):
    """State of a partition, returned by the log writer once its segments are synced up to
    `applied`.

    `publication` is the last one in them, `rows` are the results of the proposals; `producers` is
    True if there are some, of which the file beside the segments tells.
    """

    replica: "PartitionReplica"
    applied: LogPosition
    publication: int
    rows: DedupSnapshot
    producers: bool


class PartitionReplica:
    """A partition: applying an entry appends its record batch to the partition log.

    Attributes:
        raft_group: id of its raft group.
        group: the raft group; None before its first use.
        partition: its topic and number.
        replicas: the nodes of its replicas, the preferred leader first.
        move: its move to other nodes that is under way, None if there is none.
        is_departing: True while this node gives its replica up, until all of it is gone.
        log: the applied records.
        rows: results of the last proposals.
        producers: those that have written to it; None if none ever has.
        waiters: fetches that wait for the next append, oldest first, None if there are none.
        condition: its condition. Invariant: it only becomes worse, as long as the log is the same.
        fault: the damage that made it unready, None while it is ready.
        stuck_bytes: approximate size of its entries in the journal while it is unwritable, else 0.
        needs_copy: True while it lacks entries that the journal of its leader does not have any
            more, or knows nothing of its partition: it votes, and gets no records until it is
            copied.
        publication: number of the newest applied publication, 0 for none. Invariant: ascending.
        durable_publication: `publication` as of a durable applied position. Invariant: ascending.
        proposed_end, proposed_publication: end offset and publication behind the entries that are
            proposed and not applied; meaningful while this node leads.
    """

    __slots__ = (
        "condition",
        "durable_publication",
        "fault",
        "group",
        "is_departing",
        "log",
        "move",
        "needs_copy",
        "partition",
        "producers",
        "proposed_end",
        "proposed_publication",
        "publication",
        "raft_group",
        "replicas",
        "rows",
        "stuck_bytes",
        "waiters",
    )

    def __init__(
        self, raft_group: int, partition: TopicPartition, log: PartitionLog, replicas: tuple[int, ...] = (1,)
    ) -> None:
        self.raft_group = raft_group
        self.replicas = replicas
        self.move: Move | None = None
        self.is_departing = False
        self.group: RaftGroup | None = None
        self.partition = partition
        self.log = log
        self.rows = DedupTable()
        self.producers: ProducerTable | None = None
        self.waiters: dict[asyncio.Future[None], None] | None = None
        self.condition = PartitionCondition.READY
        self.fault: CorruptData | None = None
        self.stuck_bytes = 0
        self.needs_copy = False
        self.publication = 0
        self.durable_publication = 0
        self.proposed_end = 0
        self.proposed_publication = 0

    @property
    def has_peers(self) -> bool:
        """True if its raft group has other members, also one that is leaving."""
        return self.group is not None and self.group.has_peers

    @property
    def deleted(self) -> bool:
        """True when its topic was deleted."""
        return self.log.topic.deleted

    @property
    def is_well(self) -> bool:
        """True while it is not damaged and gets its entries."""
        return self.fault is None and not self.needs_copy

    @property
    def nodes(self) -> tuple[int, ...]:
        """As `Topic.nodes`."""
        return self.replicas if self.move is None else with_target(self.replicas, self.move)

    @property
    def is_absent(self) -> bool:
        """True if it knows nothing of its partition: it is new here, or has gone to other nodes."""
        return self.needs_copy and (self.group is None or self.group.is_blank)

    def may_have_replica(self, node_id: int) -> bool:
        """As `Application`. While it moves any node may have one: also that of a former target."""
        return self.move is not None or node_id in self.replicas

    def lead(self, tail: Sequence[Entry]) -> None:
        """As `Application`."""
        self.proposed_end, self.proposed_publication = self.log.end_offset, self.publication
        if self.producers is not None:
            self.producers.lead()
        for entry in tail:
            self.follow(entry)

    def follow(self, entry: Entry) -> None:
        """Count the records of an entry that is proposed and not applied."""
        if entry.kind in (_RECORD_BATCH, _RECORD_BATCHES) and why_undecodable(entry.kind, entry.data):
            return  # it has no effect
        if entry.kind in (_RECORD_BATCH, _RECORD_BATCHES):
            for batch in split_batches(memoryview(entry.data)):
                _, self.proposed_end = offsets_of(batch)
                if has_producer(batch):
                    self.known_producers.follow(producer_batch(batch))
        else:
            self._count_command(entry.kind, entry.data)

    def stamp(
        self, kind: EntryType, payload: bytes | bytearray, term: int
    ) -> tuple[EntryType, bytes | bytearray]:
        """As `Application`: a batch gets its base offset, and the term as its leader epoch. The
        answer to batches of producers takes the place of those that are not to be appended.
        """
        if kind is _RECORD_BATCH:
            assert isinstance(payload, bytearray)
            if payload[PRODUCER_AT] != NO_PRODUCER_BYTE and (answer := self._judge([payload])) is not None:
                return _COMMAND, answer
            self.proposed_end = patch_batch(payload, self.proposed_end, term)
        elif kind is _RECORD_BATCHES:
            batches = split_batches(memoryview(payload))
            if any(map(has_producer, batches)) and (answer := self._judge(batches)) is not None:
                return _COMMAND, answer
            for batch in batches:
                self.proposed_end = patch_batch(batch, self.proposed_end, term)
        else:
            self._count_command(kind, payload)
        return kind, payload

    @property
    def known_producers(self) -> ProducerTable:
        """`producers`, which there are some from here on."""
        if self.producers is None:
            self.producers = ProducerTable()
        return self.producers

    def _judge(self, batches: Sequence[bytearray | memoryview]) -> bytes | None:
        """The command that answers batches of producers which share an entry; None if they are
        appended as the next ones.
        """
        end, judged = self.proposed_end, []
        for batch in batches:
            base_offset, next_offset = offsets_of(batch)
            if has_producer(batch):
                judged.append(producer_batch(batch)._replace(base_offset=end))
            end += next_offset - base_offset
        answer = self.known_producers.judge(judged, shared=len(batches) > 1)
        return None if answer is None else answered_batch(answer)

    def _count_command(self, kind: int, payload: bytes | bytearray) -> None:
        """Count the records of a published stage."""
        if kind == EntryType.COMMAND:
            self.proposed_publication, records = published_records(bytes(payload), self.proposed_publication)
            self.proposed_end += records

    def mark(self) -> Mark:
        """Its state, for the log writer."""
        assert self.group is not None
        log, producers = self.log, self.producers
        kept = producers is not None and not producers.is_blank
        if producers is not None and kept and log.is_keeping_due(_UNKEPT_BYTES):
            log.keep_producers(producers.kept(log.end_offset))
        return Mark(self, self.group.applied, self.publication, self.rows.snapshot(), kept)

    def waiter(self) -> "asyncio.Future[None]":
        """A future that is done when something has been appended or changed."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.add_waiter(waiter)
        return waiter

    def add_waiter(self, waiter: "asyncio.Future[None]") -> None:
        """Have a future done when something has been appended or changed, or `remove_waiter`."""
        if self.waiters is None:
            self.waiters = {}
        self.waiters[waiter] = None

    def remove_waiter(self, waiter: "asyncio.Future[None]") -> None:
        """Undo `add_waiter`."""
        if self.waiters is not None:
            self.waiters.pop(waiter, None)
            self.waiters = self.waiters or None

    async def wait(self, max_wait: float | None) -> None:
        """Wait for the next append or change, for `max_wait` seconds at most, or until the node
        stops.
        """
        waiter = self.waiter()
        timer = None
        if max_wait is not None:
            timer = asyncio.get_running_loop().call_later(max_wait, resolve, waiter, None)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            self.remove_waiter(waiter)

    def wake(self) -> None:
        """Wake the waiting fetches, and whoever else waits."""
        waiters, self.waiters = self.waiters, None
        for waiter in waiters or ():
            resolve(waiter, None)


class StateReplica:
    """A state group: applying an entry changes a state machine in memory.

    Args:
        group: its raft group.
        name: `metadata`, `groups-<n>` or `sinks`.
        machine: the state machine.
        store: its checkpoints.

    Attributes:
        rows: results of the last proposals.
        checkpoints: the valid ones, oldest first.
        snapshot: the newest checkpoint as followers are told of it, None if there is none.
        entries_since, bytes_since: applied since the newest checkpoint.
        checkpointing: True while a checkpoint is being written.
    """

    __slots__ = (
        "bytes_since",
        "checkpointing",
        "checkpoints",
        "entries_since",
        "group",
        "machine",
        "name",
        "rows",
        "snapshot",
        "store",
    )

    def __init__(self, group: RaftGroup, name: str, machine: StateMachine, store: CheckpointStore) -> None:
        self.group = group
        self.name = name
        self.machine = machine
        self.store = store
        self.rows = DedupTable()
        self.checkpoints: list[CheckpointId] = []
        self.snapshot: Snapshot | None = None
        self.entries_since = 0
        self.bytes_since = 0
        self.checkpointing = False

    def may_have_replica(self, node_id: int) -> bool:
        """As `Application`: every node has one."""
        return True

    def lead(self, tail: Sequence[Entry]) -> None:
        """As `Application`: commands depend on the applied state alone."""

    def stamp(
        self, kind: EntryType, payload: bytes | bytearray, term: int
    ) -> tuple[EntryType, bytes | bytearray]:
        """As `Application`."""
        return kind, payload

    def apply(self, entry: Entry) -> Any:
        """Apply one committed entry; returns the result of its command."""
        self.entries_since += 1
        self.bytes_since += len(entry.data)
        if entry.kind != EntryType.COMMAND:
            return None
        return self.machine.apply(bytes(entry.data), entry.term)

    def checkpoint_records(self) -> Iterable[tuple[bytes, bytes]]:
        """Records of a checkpoint of the applied state.

        May be consumed on another thread while entries are applied.
        """
        state = checkpoint_record(self.rows.snapshot(), self.group.storage)
        return chain([state], self.machine.snapshot())

    def take_over(self, restored: RestoredState) -> None:
        """Replace the state by a restored one, however large it is, in a moment.

        Those who know the machine go on with it, so it exchanges its fields with the other one,
        which has the former state then.
        """
        own, other = vars(self.machine), vars(restored.machine)
        former = own.copy()
        own.update(other)
        other.update(former)
        self.rows = restored.rows

    def set_checkpoints(self, checkpoints: list[CheckpointId], written: Snapshot | None) -> None:
        """Set the checkpoints on disk; the journal is needed from the second newest on.

        Args:
            written: position and configuration of the one that was written, or read, last.
        """
        self.checkpoints = checkpoints
        if written is not None and checkpoints[-1] == (written.term, written.index):
            self.snapshot = written
        if len(checkpoints) > 1:
            self.group.durable_index = max(self.group.durable_index, checkpoints[-2].end_offset)

    def lost_checkpoint(self, id: CheckpointId) -> None:
        """A checkpoint is not on disk any more, or damaged: followers are offered another one."""
        self.checkpoints = [each for each in self.checkpoints if each != id]
        if self.snapshot is not None and id == (self.snapshot.term, self.snapshot.index):
            self.snapshot = None


Replica = PartitionReplica | StateReplica
