"""The data directory of a node that begins a cluster with the state and records of another one.

    1  the marker `restoring`: no start takes the directory from here on
    2  identity, with a new cluster id
    3  records of each partition in segments; durable
    4  checkpoints of the state groups, as of a new cluster (`exported_state`)
    5  one unit of the journal, from which every raft group goes on
    6  the marker goes

What was broken off leaves its marker. The next attempt in the same directory removes what is there,
and begins anew.

Each raft group has one entry behind it, whose term is the highest leader epoch of its records:
epochs that come are above. A partition that never had records is as one that was just made.
Idempotent producers are those of which there are records; of others any batch is taken.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from pixy.cluster.log import RESTORING, RecoveredNode, positions_record, recover_node
from pixy.cluster.state import (
    FIRST_GROUPS_GROUP,
    FIRST_NODE,
    METADATA_GROUP,
    SINKS_GROUP,
    FoundedCluster,
    StateToFound,
    Topic,
    found_cluster,
    log_options,
)
from pixy.cluster.unsafe_recovery.offline_unit import write_unit
from pixy.config import StorageConfig
from pixy.errors import DataDirectoryError
from pixy.multiraft import DedupTable, RaftStorage, checkpoint_record, hard_state_record, reset_record
from pixy.proto.state_pb2 import AppliedPosition, PartitionIdentity
from pixy.raft import ConfState, HardState, Snapshot
from pixy.records import ANY_FORGOTTEN, ProducerTable, has_producer, producer_batch
from pixy.storage import (
    AgedSegments,
    CheckpointId,
    CheckpointStore,
    Disk,
    MakeWorker,
    PartitionLog,
    TopicLogs,
    UnitRecord,
)

_INDEX, _TERM = 1, 1
"""The entry behind which every raft group goes on, and its term in a state group."""
_ALONE = ConfState((FIRST_NODE,))
_POSITIONS_PER_RECORD = 1000


class FoundedNode:
    """A directory on its way. All methods block, and are called by one thread at a time.

    Args:
        disk: of the directory.
        directory: empty or absent, or left by an attempt that was broken off.
        random_bytes: makes ids and secrets.

    Raises:
        DataDirectoryError: the directory has other files, or is in use.
    """

    def __init__(self, disk: Disk, directory: Path, random_bytes: Callable[[int], bytes]) -> None:
        self._disk = disk
        self._directory = directory
        self._positions: list[AppliedPosition] = []
        self._empty_directory()
        self._node: RecoveredNode = recover_node(disk, directory, random_bytes, restores=True)
        try:
            disk.make_directory(directory / "topics")
        except BaseException:
            self.close()
            raise

    @property
    def cluster_id(self) -> bytes:
        """Id of the new cluster."""
        return self._node.identity.cluster_id

    @property
    def secret(self) -> bytes:
        """Secret of the node."""
        return self._node.identity.secret

    def _empty_directory(self) -> None:
        directory = self._directory
        names = self._disk.names(directory) if directory.is_dir() else []
        if names and RESTORING not in names:
            raise DataDirectoryError(f"{directory} is not empty: restore into another directory")
        self._disk.make_directory(directory)
        self._disk.open(directory / RESTORING, create=True).close()
        self._disk.sync_directory(directory)
        for path in [directory / name for name in names if name != RESTORING]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def write_partition(self, topic: Topic, number: int, begin: int) -> "FoundedPartition":
        """A partition, whose records are to be written.

        Args:
            begin: its log begin offset.
        """
        identity = PartitionIdentity(
            cluster_id=self.cluster_id,
            topic_id=topic.topic_id,
            partition=number,
            raft_group=topic.raft_groups[number],
        )
        logs = TopicLogs(log_options(StorageConfig(), topic.config))
        directory = self._directory / "topics" / f"{topic.name}-{number}"
        log = PartitionLog(self._disk, directory, identity, logs, direct=True)
        return FoundedPartition(log, begin, self._positions.append)

    async def finish(self, state: StateToFound, founded: FoundedCluster, make_worker: MakeWorker) -> None:
        """Make the directory one that a start takes; durable on return.

        Args:
            state: of the former cluster.
            founded: the new one.
            make_worker: makes the thread that writes the journal, which is stopped on return.

        Raises:
            ValueError: no commands lead to such state.
        """
        self._disk.sync_directory(self._directory / "topics")
        records: list[UnitRecord] = []
        for name, contents in found_cluster(state, founded).items():
            records += _group_records(_raft_group(name), _TERM)
            store = CheckpointStore(self._disk, self._directory / "state" / name)
            own = checkpoint_record(DedupTable().snapshot(), RaftStorage(_ALONE, _INDEX))
            store.write(CheckpointId(_TERM, _INDEX), [own, *contents], founded.now_ms)
        for position in self._positions:
            records += _group_records(position.raft_group, position.term)
        for at in range(0, len(self._positions), _POSITIONS_PER_RECORD):
            records.append(positions_record(self._positions[at : at + _POSITIONS_PER_RECORD]))
        await write_unit(self._disk, self._directory, self._node, records, make_worker)
        self._disk.unlink(self._directory / RESTORING)
        self._disk.sync_directory(self._directory)

    def close(self) -> None:
        """Unlock the directory."""
        self._node.lock.close()


class FoundedPartition:
    """The log of one partition.

    Args:
        log: without files.
        begin: its log begin offset.
        ended: gets its applied position, unless it never had records.
    """

    def __init__(self, log: PartitionLog, begin: int, ended: Callable[[AppliedPosition], None]) -> None:
        self._log = log
        self._begin = begin
        self._ended = ended
        self._opened = False
        self._producers = ProducerTable(ANY_FORGOTTEN)

    def write(self, batches: Sequence[bytes | bytearray | memoryview], first: int) -> None:
        """Write the next batches, which are verified.

        Args:
            first: where the very first one begins.
        """
        if not self._opened:
            self._opened = True
            start = AppliedPosition(
                raft_group=self._log.identity.raft_group,
                log_begin_offset=first,
                end_offset=first,
                segment_base_offset=first,
            )
            self._log.open(start, exists=False)
        self._log.write(batches, AgedSegments())
        for batch in batches:
            if has_producer(batch):
                self._producers.apply(producer_batch(batch), -1)

    def end(self, end: int, epoch: int) -> None:
        """Make all records durable, and the log end at an offset.

        Args:
            epoch: of the last batch.
        """
        position = AppliedPosition(
            raft_group=self._log.identity.raft_group,
            index=_INDEX,
            term=max(1, epoch),
            log_begin_offset=min(self._begin, end),
            end_offset=end,
            segment_base_offset=end,
        )
        if len(self._producers):
            self._log.keep_producers(self._producers.kept(end))
            self._log.write_producers()
            position.producers = True
        if self._opened:
            _, base, size = self._log.sync()
            if position.log_begin_offset < end:
                position.segment_base_offset, position.segment_bytes = base, size
        self._log.close()
        if end:
            self._ended(position)


def _group_records(raft_group: int, term: int) -> list[UnitRecord]:
    """A raft group with one member, and a log that begins behind its first entry."""
    storage = RaftStorage(_ALONE, _INDEX)
    storage.hard_state = HardState(term, FIRST_NODE, _INDEX)
    return [
        reset_record(raft_group, Snapshot(_INDEX, term, _ALONE)),
        hard_state_record(raft_group, storage),
    ]


def _raft_group(name: str) -> int:
    """The raft group of a state group."""
    if name == "metadata":
        return METADATA_GROUP
    return SINKS_GROUP if name == "sinks" else FIRST_GROUPS_GROUP + int(name.removeprefix("groups-"))
