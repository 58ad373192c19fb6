"""The data directory of a stopped node, for commands that change it without a daemon."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pixy.cluster.log import RecoveredNode, StateMachine, recover_node, restore_state
from pixy.cluster.state import METADATA_GROUP, MetadataState, published_records
from pixy.cluster.unsafe_recovery.offline_unit import write_unit
from pixy.entry_ids import LogPosition
from pixy.errors import DataDirectoryError
from pixy.multiraft import continues
from pixy.proto.state_pb2 import NodeIdentity
from pixy.records import offsets_of
from pixy.storage import (
    Checkpoint,
    CheckpointStore,
    Disk,
    EntryType,
    MakeWorker,
    UnitRecord,
    batches_of,
    write_identity,
)


class StoppedNode:
    """A data directory that is locked; see `stopped_node`.

    Attributes:
        directory: the data directory.
        recovered: identity and journal.
    """

    def __init__(self, disk: Disk, directory: Path, recovered: RecoveredNode) -> None:
        self._disk = disk
        self.directory = directory
        self.recovered = recovered

    @property
    def node_id(self) -> int:
        """Id of the node."""
        return self.recovered.identity.node_id

    def checkpoint(self, name: str) -> Checkpoint | None:
        """The newest valid checkpoint of a state group, None if there is none. Blocks."""
        checkpoint, _ = CheckpointStore(self._disk, self.directory / "state" / name).load()
        return checkpoint

    def metadata(self) -> MetadataState:
        """Metadata with every entry that is here, committed or not. Blocks."""
        machine = MetadataState()
        self.restore(METADATA_GROUP, "metadata", machine)
        return machine

    def restore(self, raft_group: int, name: str, machine: StateMachine) -> None:
        """Have a state machine become that of a state group, as `metadata`. Blocks."""
        checkpoint = self.checkpoint(name)
        applied = position_of(checkpoint)
        if checkpoint is not None:
            restore_state(name, machine, checkpoint.records)
        journal = self.recovered.group(raft_group)
        for entry in journal.entries_after(applied.index) if continues(journal, applied) else ():
            if entry.entry_type is EntryType.COMMAND:
                machine.apply(bytes(entry.payload))

    def end_offset(self, raft_group: int) -> int:
        """End of a partition's log with every entry that is here, committed or not."""
        journal = self.recovered.group(raft_group)
        index = end = publication = 0
        if journal.applied is not None:
            index, end = journal.applied.index, journal.applied.end_offset
            publication = journal.applied.publication
        for entry in journal.entries_after(index):
            for batch in batches_of(entry):
                first, behind = offsets_of(batch)
                end += behind - first
            if entry.entry_type is EntryType.COMMAND:
                publication, records = published_records(bytes(entry.payload), publication)
                end += records
        return end

    @contextmanager
    def in_another_cluster(self, cluster_id: bytes) -> Iterator[None]:
        """Give the cluster another id for other nodes, durably: they and it refuse each other.

        Taken back if the `with` block fails. Blocks.

        Raises:
            DataDirectoryError: the disk is full, or broken; then nothing has changed.
        """
        before = self.recovered.identity
        after = NodeIdentity()
        after.CopyFrom(before)
        after.new_cluster_id = cluster_id
        try:
            write_identity(self._disk, self.directory, after)
        except OSError as error:
            raise DataDirectoryError(f"{self.directory} cannot be written: {error}") from error
        try:
            yield
        except BaseException:
            with suppress(OSError):
                write_identity(self._disk, self.directory, before)
            raise

    async def write(self, records: Sequence[UnitRecord], make_worker: MakeWorker) -> None:
        """Write records to the journal; see `write_unit`."""
        await write_unit(self._disk, self.directory, self.recovered, records, make_worker)


@contextmanager
def stopped_node(disk: Disk, directory: Path) -> Iterator[StoppedNode]:
    """Lock and read a data directory, with the repairs that every start makes. Blocks.

    Args:
        disk: the disk of the directory.
        directory: the data directory of one node.

    Raises:
        DataDirectoryError: it is in use, not writable, no node's, or of a newer release.
        CorruptData: durable data is damaged.
    """
    if not (directory / "identity").exists():
        inside = sorted(str(each.parent) for each in directory.glob("*/identity"))
        hint = f"; {' and '.join(inside)} may be meant" if inside else ""
        raise DataDirectoryError(f"{directory} is not the data directory of a node{hint}")
    recovered = recover_node(disk, directory, os.urandom)
    try:
        yield StoppedNode(disk, directory, recovered)
    finally:
        recovered.lock.close()


def position_of(checkpoint: Checkpoint | None) -> LogPosition:
    """The last entry in a checkpoint, before the first one if there is none."""
    return LogPosition(0, 0) if checkpoint is None else checkpoint.id.position
