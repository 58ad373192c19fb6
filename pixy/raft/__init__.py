"""The Raft core: a pure state machine for one replica of one group, with the behavior of etcd's
raft.

A driver creates a `RaftNode` per group and does its `Work`. `docs/raft.md` has the
guarantees and the driver's duties; `pixy.raft.raft` maps sections of the Raft paper to modules.
"""

from pixy.entry_ids import LogPosition
from pixy.raft.config import RaftConfig, RandomSource, ReadOnlyOption
from pixy.raft.errors import (
    Compacted,
    ConfChangeError,
    EntriesNotLoaded,
    EntryUnavailable,
    MalformedMessage,
    ProposalDropped,
    RaftBug,
    RaftConfigError,
    RaftError,
    SnapshotTemporarilyUnavailable,
    StepLocalMessage,
    StepPeerNotFound,
    StorageError,
)
from pixy.raft.messages import (
    NONE,
    ConfChange,
    ConfChangeSingle,
    ConfChangeTransition,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
    Entry,
    HardState,
    Message,
    MessageType,
    RaftEntryType,
    ReadState,
    Snapshot,
    SoftState,
    StateType,
)
from pixy.raft.node import RaftNode
from pixy.raft.proposals import NotAppended
from pixy.raft.sizes import NO_LIMIT
from pixy.raft.storage import InitialState, Storage
from pixy.raft.trace import NULL_TRACE, Trace
from pixy.raft.wire import decode_conf_change
from pixy.raft.work import StorageAppend, Work

__all__ = [
    "NONE",
    "NO_LIMIT",
    "NULL_TRACE",
    "Compacted",
    "ConfChange",
    "ConfChangeError",
    "ConfChangeSingle",
    "ConfChangeTransition",
    "ConfChangeType",
    "ConfChangeV2",
    "ConfState",
    "EntriesNotLoaded",
    "Entry",
    "EntryUnavailable",
    "HardState",
    "InitialState",
    "LogPosition",
    "MalformedMessage",
    "Message",
    "MessageType",
    "NotAppended",
    "ProposalDropped",
    "RaftBug",
    "RaftConfig",
    "RaftConfigError",
    "RaftEntryType",
    "RaftError",
    "RaftNode",
    "RandomSource",
    "ReadOnlyOption",
    "ReadState",
    "Snapshot",
    "SnapshotTemporarilyUnavailable",
    "SoftState",
    "StateType",
    "StepLocalMessage",
    "StepPeerNotFound",
    "Storage",
    "StorageAppend",
    "StorageError",
    "Trace",
    "Work",
    "decode_conf_change",
]
