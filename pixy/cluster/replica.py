"""State of each raft group on a node.

Small, because a node may have ten thousand groups, most of them idle.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from pixy.cluster.partition_condition import PartitionCondition
from pixy.errors import CorruptData
from pixy.futures import resolve
from pixy.log_position import LogPosition
from pixy.proto.state_pb2 import AppliedPosition
from pixy.records import TopicPartition
from pixy.storage import CheckpointId, CheckpointStore, EntryType, PartitionLog

__all__ = ["PartitionReplica", "Proposal", "Replica", "StateMachine", "StateReplica"]


class StateMachine(Protocol):
    """A replicated state machine: pure and deterministic."""

    def apply(self, payload: bytes) -> Any:
        """Apply one command and return its result."""

    def snapshot(self) -> Iterable[tuple[bytes, bytes]]:
        """The whole state as records.

        May be consumed on another thread while commands are applied.
        """

    def restore(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Replace the whole state by a snapshot's records."""


class Replica:
    """One raft group on this node.

    Attributes:
        raft_group: its id.
        last: newest entry, proposed or recovered. Invariant: indexes of a group have no gaps.
        applied: newest applied entry. Invariant: applied <= last.
        durable_index: newest entry that the journal need not keep any more, with all before it.
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
        partition: its topic and number.
        log: the applied records.
        position: newest applied position given to the journal, None if there is none.
        position_file: number of the journal file that holds it, 0 while it is not durable.
        waiters: fetches that wait for the next append, None if there are none.
        condition: its condition. Invariant: it only becomes worse.
        fault: the damage that made it unready, None while it is ready.
        stuck_bytes: approximate size of its entries in the journal while it is unwritable, else 0.
        publication: number of the newest applied publication, 0 for none. Invariant: ascending.
        durable_publication: `publication` as of a durable applied position. Invariant: ascending.
    """

    __slots__ = (
        "condition",
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
        self.condition = PartitionCondition.READY
        self.fault: CorruptData | None = None
        self.stuck_bytes = 0
        self.publication = 0
        self.durable_publication = 0

    @property
    def deleted(self) -> bool:
        """True when its topic was deleted."""
        return self.log.topic.deleted

    def wake(self) -> None:
        """Wake the waiting fetches."""
        waiters, self.waiters = self.waiters, None
        for waiter in waiters or ():
            resolve(waiter, None)


class StateReplica(Replica):
    """A state group: applying an entry changes a state machine in memory.

    Attributes:
        name: `metadata`, `groups-<n>` or `sinks`.
        machine: the state machine.
        store: its checkpoints.
        checkpoints: the valid ones, oldest first.
        entries_since, bytes_since: applied since the newest checkpoint.
        checkpointing: True while a checkpoint is being written.
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
        """Set the checkpoints on disk; the journal is needed from the second newest on."""
        self.checkpoints = checkpoints
        if len(checkpoints) > 1:
            self.durable_index = checkpoints[-2].end_offset


class Proposal(NamedTuple):
    """An entry between `propose` and `applied`.

    `done` gets the result of applying it: the offset of the first record, the result of the
    command, or a `PixyError`.
    """

    replica: Replica
    position: LogPosition
    entry_type: EntryType
    payload: bytearray | bytes
    done: Callable[[Any], None]
