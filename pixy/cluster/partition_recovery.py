"""The recovery of one partition at a start."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pixy.cluster.group_recovery import entry_of
from pixy.cluster.recovery import RecoveredNode
from pixy.cluster.replica import PartitionReplica
from pixy.errors import CorruptData
from pixy.proto.state_pb2 import AppliedPosition, PartitionCommand
from pixy.raft import Entry
from pixy.storage import Disk, EntryType, JournalRecord, StagedPart

__all__ = ["PartitionRecovery"]

_VERSION_WITH_OFFSETS = 2
"""Format of journal files in which batches have their offsets."""


class PartitionRecovery:
    """A partition at a start.

    Args:
        replica: the partition, with nothing applied.
        recovered: the node's journal.

    Attributes:
        position: its applied position, None if there is none.
        tail: the journal's entries behind it. Their batches have offsets, also those that the first
            release wrote without.
        publications: commands of the tail that publish stages.
        parts: parts of these stages, set by the caller; None for a missing one.
        damage: damage of its files, from `open` on.
    """

    __slots__ = ("damage", "parts", "position", "publications", "replica", "tail")

    def __init__(self, replica: PartitionReplica, recovered: RecoveredNode) -> None:
        self.replica = replica
        self.position = recovered.group(replica.raft_group).applied
        index = 0 if self.position is None else self.position.index
        tail = recovered.group(replica.raft_group).entries_after(index)
        self.tail = _stamped(replica, self.position, tail)
        self.damage: CorruptData | None = None
        publication = 0 if self.position is None else self.position.publication
        commands = [
            PartitionCommand.FromString(bytes(entry.data))
            for entry in self.tail
            if entry.kind == EntryType.COMMAND
        ]
        self.publications = [
            command.publish_parts
            for command in commands
            if command.HasField("publish_parts") and command.publish_parts.publication > publication
        ]
        self.parts: list[StagedPart | None] = []

    def open(self, found: dict[str, CorruptData | None], disk: Disk) -> list[Path]:
        """Open the log's files, and check every byte of the parts that become part of it. Blocks.

        Args:
            found: directories of partitions by name, with the damage of each.

        Returns:
            Files that are to be removed.
        """
        name = "{}-{}".format(*self.replica.partition)
        self.damage = found.get(name)
        if self.damage is None:
            try:
                for part in self.parts:
                    if part is None:
                        raise CorruptData(f"a stage was published in {name}, and is missing")
                    part.check(disk)
                return self.replica.log.open(self.position, exists=name in found, replayed=bool(self.tail))
            except CorruptData as error:
                self.damage = error
        return []


def _stamped(
    replica: PartitionReplica, position: AppliedPosition | None, tail: Sequence[JournalRecord]
) -> list[Entry]:
    """The entries of a tail, with offset and epoch in every batch.

    The first release journalled batches before it gave them an offset: that of the order in which
    they were applied.
    """
    entries = [entry_of(record) for record in tail]
    if not any(record.version < _VERSION_WITH_OFFSETS for record in tail):
        return entries
    if position is not None:
        replica.proposed_end, replica.proposed_publication = position.end_offset, position.publication
    for at, (record, entry) in enumerate(zip(tail, entries, strict=True)):
        if record.version < _VERSION_WITH_OFFSETS and entry.kind == EntryType.RECORD_BATCH:
            batch = replica.stamp(EntryType.RECORD_BATCH, bytearray(entry.data), entry.term)
            entries[at] = replace(entry, data=batch)
        else:
            replica.follow(entry)
    return entries
