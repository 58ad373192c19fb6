"""Options of a node, and the observer of its topics."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from pixy.cluster.log.cluster_options import ClusterOptions
from pixy.config import JournalConfig, LimitsConfig, StagingConfig, StorageConfig
from pixy.storage import MakeWorker, WriterPace

_UNSYNCED_LOGS_MAX = 2000
_OPEN_FILES_SHARE = 4


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Options of a node.

    Attributes:
        directory: its data directory.
        journal, storage, staging, limits: the sections of the configuration.
        random_bytes: source of ids.
        worker: creates a worker thread.
        writer_pace: when segments are written.
        cluster: its place among other nodes.
    """

    directory: Path
    journal: JournalConfig
    storage: StorageConfig
    random_bytes: Callable[[int], bytes]
    worker: MakeWorker
    staging: StagingConfig = field(default_factory=StagingConfig)
    writer_pace: WriterPace = field(default_factory=WriterPace)
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    limits: LimitsConfig = field(default_factory=LimitsConfig)


class NodeObserver:
    """Observer of a node's topics; this one ignores every change.

    Called from the event loop, shortly after the change.
    """

    def topic_changed(self, name: str) -> None:
        """A topic is new, its partitions or options changed, or one of its partitions is not ready
        any more.
        """

    def topic_deleted(self, name: str) -> None:
        """A topic was deleted.

        One of the same name may exist already; `topic_changed` follows for it.
        """

    def leaders_changed(self, topics: Collection[str]) -> None:
        """Partitions of these topics have other leaders, or none."""

    def nodes_changed(self) -> None:
        """A node is new in the cluster or has left it, can be reached again, or cannot be reached
        any more.
        """

    def readiness_changed(self) -> None:
        """The node has become ready or unready."""

    def groups_changed(self, names: Collection[str]) -> None:
        """Members of these consumer groups have changed, or owners or epochs of partitions."""

    def groups_replaced(self) -> None:
        """Consumer groups have changed in any way: those of a state group were replaced."""


def unsynced_logs_max(open_file_limit: int) -> int:
    """Number of logs that may be unsynced at a time.

    Each keeps a file open: at most a quarter of the process's limit of open files.
    """
    return min(_UNSYNCED_LOGS_MAX, open_file_limit // _OPEN_FILES_SHARE)
