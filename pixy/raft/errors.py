"""What the core refuses, and what its storage answers.

A refusal changes nothing. `RaftBug` is different: a rule of Raft, or the contract between core and driver, was broken;
the node must stop, because what it says afterwards cannot be trusted.
"""

from typing import ClassVar, NoReturn

from pixy.raft.trace import Trace

__all__ = [
    "Compacted",
    "ConfChangeError",
    "EntryUnavailable",
    "MalformedMessage",
    "ProposalDropped",
    "RaftBug",
    "RaftConfigError",
    "RaftError",
    "SnapshotOutOfDate",
    "SnapshotTemporarilyUnavailable",
    "StepLocalMessage",
    "StepPeerNotFound",
    "StorageError",
    "panic",
]


class RaftError(Exception):
    """Root of what the core refuses; `text` is the message if none is given."""

    text: ClassVar[str] = ""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or self.text)


class RaftConfigError(RaftError):
    """The options of a node contradict each other."""


class MalformedMessage(RaftError):
    """Bytes or a message from a peer that no correct node sends."""


class ProposalDropped(RaftError):
    """The proposal was not taken; the proposer may try again, here or at the leader."""

    text = "raft proposal dropped"


class StepLocalMessage(RaftError):
    """A message that only a node itself may send came from elsewhere."""

    text = "raft: cannot step raft local message"


class StepPeerNotFound(RaftError):
    """An answer came from a node that is not in the configuration."""

    text = "raft: cannot step as peer not found"


class ConfChangeError(RaftError):
    """The configuration change does not fit the configuration."""


class StorageError(RaftError):
    """What was asked of the storage cannot be had."""


class Compacted(StorageError):
    """The entry was compacted away."""

    text = "requested index is unavailable due to compaction"


class EntryUnavailable(StorageError):
    """There is no such entry yet."""

    text = "requested entry at index is unavailable"


class SnapshotOutOfDate(StorageError):
    """There is a newer snapshot already."""

    text = "requested index is older than the existing snapshot"


class SnapshotTemporarilyUnavailable(StorageError):
    """A snapshot is being made; it is asked for again later."""

    text = "snapshot is temporarily unavailable"


class RaftBug(AssertionError):
    """What can only happen if the core, its driver or its storage is wrong."""


def panic(trace: Trace, text: str, *args: object) -> NoReturn:
    """Tells the trace and raises `RaftBug`; `text` is formatted as in `logging`."""
    trace.critical(text, *args)
    raise RaftBug(text % args if args else text)
