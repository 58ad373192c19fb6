"""The recovery of one partition at a start."""

from pathlib import Path

from pixy.cluster.recovery import RecoveredNode
from pixy.cluster.replica import PartitionReplica
from pixy.errors import CorruptData
from pixy.proto.state_pb2 import PartitionCommand
from pixy.storage import Disk, EntryType, StagedPart

__all__ = ["PartitionRecovery"]


class PartitionRecovery:
    """A partition at a start.

    Args:
        replica: the partition, with nothing applied.
        recovered: the node's journal.

    Attributes:
        position: its applied position, None if there is none.
        tail: the journal's entries behind it.
        publications: commands of the tail that publish stages.
        parts: parts of these stages, set by the caller; None for a missing one.
        damage: damage of its files, from `open` on.
    """

    __slots__ = ("damage", "parts", "position", "publications", "replica", "tail")

    def __init__(self, replica: PartitionReplica, recovered: RecoveredNode) -> None:
        self.replica = replica
        self.position = recovered.group(replica.raft_group).applied
        index = 0 if self.position is None else self.position.index
        self.tail = recovered.group(replica.raft_group).entries_after(index)
        self.damage: CorruptData | None = None
        publication = 0 if self.position is None else self.position.publication
        commands = [
            PartitionCommand.FromString(bytes(entry.payload))
            for entry in self.tail
            if entry.entry_type is EntryType.COMMAND
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
