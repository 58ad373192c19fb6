"""Errors of the core and of its storage.

An error means that nothing was changed. `RaftBug` is different: a rule of Raft, or the contract
between core and driver, was broken. The node must then stop, because its further output cannot be
trusted.
"""

from typing import ClassVar, NoReturn

from pixy.raft.proposals import NotAppended
from pixy.raft.trace import Trace


class RaftError(Exception):
    """Root of the core's errors; `text` is the default message."""

    text: ClassVar[str] = ""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or self.text)


class RaftConfigError(RaftError):
    """The options of a node contradict each other."""


class MalformedMessage(RaftError):
    """Bytes or a message that no correct peer sends."""


class ProposalDropped(RaftError):
    """A forwarded proposal was dropped; the proposer may retry, here or at the leader.

    Attributes:
        reason: reason, never `FORWARDED`.
    """

    text = "raft proposal dropped"

    def __init__(self, reason: NotAppended) -> None:
        super().__init__()
        self.reason = reason


class StepLocalMessage(RaftError):
    """A message that only the node itself may send came from elsewhere."""

    text = "raft: cannot step raft local message"


class StepPeerNotFound(RaftError):
    """A response came from a node that is not a member."""

    text = "raft: cannot step as peer not found"


class ConfChangeError(RaftError):
    """The change is invalid in the current configuration."""


class StorageError(RaftError):
    """Root of the storage's errors."""


class Compacted(StorageError):
    """The requested entry was compacted."""

    text = "requested index is unavailable due to compaction"


class EntryUnavailable(StorageError):
    """The requested entry does not exist yet."""

    text = "requested entry at index is unavailable"


class EntriesNotLoaded(StorageError):
    """The entries are stored but not in memory; the core asks again after `entries_loaded`."""

    text = "requested entries are not in memory"


class SnapshotTemporarilyUnavailable(StorageError):
    """A snapshot is being created; the core asks again later."""

    text = "snapshot is temporarily unavailable"


class RaftBug(AssertionError):
    """A defect of the core, its driver or its storage."""


def panic(trace: Trace, text: str, *args: object) -> NoReturn:
    """Trace the text and raise `RaftBug`; `text` is formatted as in `logging`."""
    trace.critical(text, *args)
    raise RaftBug(text % args if args else text)
