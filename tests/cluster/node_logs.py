"""Logs of nodes for tests: on a disk without threads, with hooks that do nothing."""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from pixy.cluster.log.node_log import LogHooks, LogPeers, NodeLog
from pixy.cluster.log.node_options import NodeOptions
from pixy.cluster.log.recovery import RecoveredNode, recover_node
from pixy.config import JournalConfig, StorageConfig
from pixy.multiraft.raft_group import RaftGroup
from pixy.raft import Message
from tests.cluster.drivers import PROMPT_CONFIG
from tests.fakes.clock import FakeClock
from tests.fakes.disk import RecordingDisk
from tests.fakes.worker import InlineWorker


class OpenedLog(NamedTuple):
    """The log of a node, and everything that it has reported.

    Attributes:
        recovered: contents of the data directory.
        faults: errors after which nothing can be made durable.
    """

    log: NodeLog
    recovered: RecoveredNode
    disk: RecordingDisk
    faults: list[BaseException]


def open_log(
    directory: Path,
    journal: JournalConfig | None = None,
    storage: StorageConfig | None = None,
    send: Callable[[int, Sequence[tuple[int, Message]]], None] = lambda *_: None,
    fetch: Callable[[RaftGroup, Message], None] = lambda *_: None,
) -> OpenedLog:
    """The log of node 1 on what its directory has."""
    disk, faults = RecordingDisk(), list[BaseException]()
    recovered = recover_node(disk, directory, bytes)
    recovered.lock.close()
    nothing = lambda *_: None  # noqa: E731  # the same for all
    log = NodeLog(
        disk,
        FakeClock(),
        NodeOptions(directory, journal or JournalConfig(), storage or StorageConfig(), bytes, InlineWorker),
        recovered,
        InlineWorker(),
        LogHooks(nothing, nothing, nothing, nothing, nothing, faults.append),
        LogPeers(send=send, fetch=fetch, random=Random(1), config=PROMPT_CONFIG, commit_delay_s=0),
    )
    return OpenedLog(log, recovered, disk, faults)
