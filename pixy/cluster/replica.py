"""What a node keeps of each raft group: small, because a node may have ten thousand of them, most of them idle."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from pixy.errors import CorruptData
from pixy.futures import resolve
from pixy.proto.state_pb2 import AppliedPosition
from pixy.records import TopicPartition
from pixy.storage import CheckpointId, CheckpointStore, EntryType, PartitionLog

__all__ = ["LogPosition", "PartitionReplica", "Proposal", "Replica", "StateMachine", "StateReplica"]


class LogPosition(NamedTuple):
    """The place of an entry in a Raft log; the later one is greater."""

    term: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls on a position


class StateMachine(Protocol):
    """A replicated state machine: pure and deterministic."""

    def apply(self, payload: bytes) -> Any:
        """Apply one command and return its result."""

    def snapshot(self) -> Iterable[tuple[bytes, bytes]]:
        """The whole state as records; may be consumed on another thread while commands are applied."""

    def restore(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Replace the whole state by a snapshot's records."""


class Replica:
    """One raft group on this node.

    Attributes:
        raft_group: its id.
        last: newest entry, proposed or recovered. Invariant: indexes of a group have no holes.
        applied: newest entry that was applied. Invariant: applied <= last.
        durable_index: entries up to it are needed from the journal no more.
        hard_state_file: number of the journal file that holds its newest hard state, 0 for none.
    """

    __slots__ = ("applied", "durable_index", "hard_state_file", "last", "raft_group")

    def __init__(self, raft_group: int) -> None:
        self.raft_group = raft_group
        self.last = LogPosition(0, 0)
        self.applied = LogPosition(0, 0)
        self.durable_index = 0
        self.hard_state_file = 0


class PartitionReplica(Replica):
    """A partition: applying an entry appends its record batch to the partition log.

    Attributes:
        partition: which one it is.
        log: what has been applied.
        position: newest applied position that went to the journal, None if there is none.
        position_file: number of the journal file that holds it, 0 while it is not durable.
        waiters: fetches that wait for the next append, None if there are none.
        fault: what is damaged, None if all is well: such a partition takes and gives nothing.
        stuck_bytes: about what its entries in the journal have that cannot get into segments, because it was damaged at the start or
            its log was given up; 0 of every other.
        publication: number of the last publication that was applied, 0 for none; `durable_publication` is that of an applied
            position. Invariant: ascending.
    """

    __slots__ = (
        "durable_publication",
        "fault",
        "log",
        "partition",
        "position",
        "position_file",
        "publication",
        "stuck_bytes",
        "waiters",
    )

    def __init__(self, raft_group: int, partition: TopicPartition, log: PartitionLog) -> None:
        super().__init__(raft_group)
        self.partition = partition
        self.log = log
        self.position: AppliedPosition | None = None
        self.position_file = 0
        self.waiters: set[asyncio.Future[None]] | None = None
        self.fault: CorruptData | None = None
        self.stuck_bytes = 0
        self.publication = 0
        self.durable_publication = 0

    @property
    def deleted(self) -> bool:
        """True when its topic is no more."""
        return self.log.topic.deleted

    def wake(self) -> None:
        """Let the waiting fetches look again."""
        waiters, self.waiters = self.waiters, None
        for waiter in waiters or ():
            resolve(waiter, None)


class StateReplica(Replica):
    """A state group: applying an entry changes a state machine in memory.

    Attributes:
        name: `metadata` or `groups-<n>`.
        machine: the state.
        store: its checkpoints.
        checkpoints: the valid ones, oldest first.
        entries_since, bytes_since: applied since the newest checkpoint.
        checkpointing: whether one is being written.
    """

    __slots__ = ("bytes_since", "checkpointing", "checkpoints", "entries_since", "machine", "name", "store")

    def __init__(self, raft_group: int, name: str, machine: StateMachine, store: CheckpointStore) -> None:
        super().__init__(raft_group)
        self.name = name
        self.machine = machine
        self.store = store
        self.checkpoints: list[CheckpointId] = []
        self.entries_since = 0
        self.bytes_since = 0
        self.checkpointing = False

    def apply(self, position: LogPosition, entry_type: EntryType, payload: bytes) -> Any:
        """Apply one committed entry; returns the result of its command."""
        self.applied = position
        self.entries_since += 1
        self.bytes_since += len(payload)
        return self.machine.apply(payload) if entry_type is EntryType.COMMAND else None

    def set_checkpoints(self, checkpoints: list[CheckpointId]) -> None:
        """Take note of the checkpoints on disk; the journal is needed behind the older of two."""
        self.checkpoints = checkpoints
        if len(checkpoints) > 1:
            self.durable_index = checkpoints[-2].end_offset


class Proposal(NamedTuple):
    """An entry on its way from `propose` to `applied`.

    `done` gets what applying it gave: the offset of the first record, the result of the command, or a `PixyError`.
    """

    replica: Replica
    position: LogPosition
    entry_type: EntryType
    payload: bytearray | bytes
    done: Callable[[Any], None]
