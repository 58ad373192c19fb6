"""The Raft core: a pure state machine for one replica of one group, with the behaviour of etcd's raft.

A driver makes a `RaftNode` per group and does what its `Ready` says. `docs/raft.md` tells what is promised and what the driver
must do; `pixy.raft.raft` says which section of the Raft paper is where.
"""

from pixy.raft.config import Config, RandomSource, ReadOnlyOption
from pixy.raft.errors import (
    Compacted,
    ConfChangeError,
    ConfigError,
    MalformedMessage,
    ProposalDropped,
    RaftBug,
    RaftError,
    SnapshotOutOfDate,
    SnapshotTemporarilyUnavailable,
    StepLocalMessage,
    StepPeerNotFound,
    StorageError,
    Unavailable,
)
from pixy.raft.messages import (
    APPEND_THREAD,
    APPLY_THREAD,
    NONE,
    ConfChange,
    ConfChangeSingle,
    ConfChangeTransition,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
    Entry,
    EntryType,
    HardState,
    LogPosition,
    Message,
    MessageType,
    ReadState,
    Snapshot,
    SoftState,
    StateType,
    is_local_thread,
)
from pixy.raft.node import RaftNode
from pixy.raft.ready import Ready
from pixy.raft.sizes import NO_LIMIT
from pixy.raft.status import Status
from pixy.raft.storage import InitialState, MemoryStorage, Storage
from pixy.raft.trace import SILENT, Trace

__all__ = [
    "APPEND_THREAD",
    "APPLY_THREAD",
    "NONE",
    "NO_LIMIT",
    "SILENT",
    "Compacted",
    "ConfChange",
    "ConfChangeError",
    "ConfChangeSingle",
    "ConfChangeTransition",
    "ConfChangeType",
    "ConfChangeV2",
    "ConfState",
    "Config",
    "ConfigError",
    "Entry",
    "EntryType",
    "HardState",
    "InitialState",
    "LogPosition",
    "MalformedMessage",
    "MemoryStorage",
    "Message",
    "MessageType",
    "ProposalDropped",
    "RaftBug",
    "RaftError",
    "RaftNode",
    "RandomSource",
    "ReadOnlyOption",
    "ReadState",
    "Ready",
    "Snapshot",
    "SnapshotOutOfDate",
    "SnapshotTemporarilyUnavailable",
    "SoftState",
    "StateType",
    "Status",
    "StepLocalMessage",
    "StepPeerNotFound",
    "Storage",
    "StorageError",
    "Trace",
    "Unavailable",
    "is_local_thread",
]
