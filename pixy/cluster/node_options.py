"""What a node is told when it is made, and whom it tells of its topics."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pixy.config import JournalConfig, StagingConfig, StorageConfig
from pixy.storage import MakeWorker, WriterPace

__all__ = ["NodeObserver", "NodeOptions", "unsynced_logs_max"]

_UNSYNCED_LOGS_MAX = 2000
_OPEN_FILES_SHARE = 4


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """What a node is told.

    Attributes:
        directory: its data directory.
        journal, storage, staging: the sections of the configuration.
        random_bytes: source of ids.
        worker: makes a worker thread.
        writer_pace: when segments are written.
    """

    directory: Path
    journal: JournalConfig
    storage: StorageConfig
    random_bytes: Callable[[int], bytes]
    worker: MakeWorker
    staging: StagingConfig = field(default_factory=StagingConfig)
    writer_pace: WriterPace = field(default_factory=WriterPace)


class NodeObserver:
    """Who wants to know of a node's topics; this one does not. Called from the event loop, soon after what it is told of."""

    def topic_changed(self, name: str) -> None:
        """A topic is new, or has other partitions or options, or one of its partitions is not ready any more."""

    def topic_deleted(self, name: str) -> None:
        """A topic is no more; one of the same name may be there already, of which `topic_changed` tells next."""

    def has_members(self, consumer_group: str) -> bool:
        """Whether anybody is in a consumer group."""
        return False


def unsynced_logs_max(open_file_limit: int) -> int:
    """Logs that may be unsynced at a time. Each holds a file open: at most a quarter of those that the process may have."""
    return min(_UNSYNCED_LOGS_MAX, open_file_limit // _OPEN_FILES_SHARE)
