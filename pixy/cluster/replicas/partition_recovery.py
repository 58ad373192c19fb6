"""The recovery of one partition at a start."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pixy.cluster.log import PartitionReplica, RecoveredNode
from pixy.cluster.state import misplaced_batch, publication_in, takes_publication
from pixy.errors import CorruptData
from pixy.multiraft import entry_of
from pixy.proto.state_pb2 import AppliedPosition, PublishParts
from pixy.raft import Entry
from pixy.records import ProducerTable, offsets_of
from pixy.storage import (
    VERSION_WITH_OFFSETS,
    Disk,
    EntryType,
    JournalRecord,
    StagedPart,
    batches_of,
    why_no_position,
    why_undecodable,
)


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
        parts: parts of these stages, set by the caller.
        damage: damage of its files, from `open` on.
        found: damage that a check has found, and a start does not see; empty if there is none,
            from `open` on.
        waits: True if its files wait for room to get their names, from `open` on.
        counts: True if the tail follows the applied position, so that offsets can be counted.
    """

    __slots__ = (
        "_damage",
        "counts",
        "damage",
        "found",
        "parts",
        "position",
        "publications",
        "replica",
        "tail",
        "waits",
    )

    def __init__(self, replica: PartitionReplica, recovered: RecoveredNode) -> None:
        self.replica = replica
        self.position = recovered.group(replica.raft_group).applied
        index = 0 if self.position is None else self.position.index
        tail = recovered.group(replica.raft_group).entries_after(index)
        self.damage: CorruptData | None = None
        self.tail, self._damage = _followed(replica, self.position, tail)
        # As of the applied position: the tail is applied again.
        replica.producers = None
        self.counts = self._damage is None
        publication = 0 if self.position is None else self.position.publication
        self.publications: list[PublishParts] = []
        for entry in self.tail:
            if entry.kind == EntryType.COMMAND:
                command = publication_in(entry.data)
                if len(replica.replicas) > 1 and not all(part.stage_number for part in command.parts):
                    continue  # it has no effect
                if takes_publication(command, publication):
                    self.publications.append(command)
                    publication = command.publication
        self.parts: list[StagedPart] = []
        self.found = ""
        self.waits = False

    def open(self, found: dict[str, CorruptData | None], disk: Disk, *, waits: bool) -> list[Path]:
        """Open the log's files, and check every byte of the parts that become part of it. Blocks.

        Args:
            found: directories of partitions by name, with the damage of each.
            waits: True if the files of the log are not in their place yet.

        Returns:
            Files that are to be removed.
        """
        if waits:
            self.damage, self.waits = self._damage, self._damage is None
            return []
        name = "{}-{}".format(*self.replica.partition)
        self.damage = found.get(name) or self._damage
        if self.damage is None:
            try:
                for part in self.parts:
                    part.check(disk)
                left = self.replica.log.open(self.position, exists=name in found, replayed=bool(self.tail))
                if self.position is not None:
                    self.replica.producers = self.replica.log.read_producers(self.position)
                if len(self.replica.replicas) > 1:
                    self.found = self.replica.log.found_damage()
                return left
            except CorruptData as error:
                self.damage = error
        if self.position is not None and self.position.producers:
            self.replica.producers = ProducerTable(is_known=False)
        return []


def _followed(
    replica: PartitionReplica, position: AppliedPosition | None, tail: Sequence[JournalRecord]
) -> tuple[list[Entry], CorruptData | None]:
    """As `_stamped`; with damage if the tail does not follow for a reason that is known."""
    reason = "" if position is None else why_no_position(position)
    if reason:
        topic, partition = replica.partition
        return list(map(entry_of, tail)), CorruptData(f"{topic}-{partition}: {reason}")
    try:
        return _stamped(replica, position, tail), None
    except CorruptData as error:
        # Batches behind garbage that a release before has counted as records: the garbage has no
        # effect any more, and their offsets do not follow.
        if not any(why_undecodable(record.entry_type, record.payload) for record in tail):
            raise
        return list(map(entry_of, tail)), error


def _stamped(
    replica: PartitionReplica, position: AppliedPosition | None, tail: Sequence[JournalRecord]
) -> list[Entry]:
    """The entries of a tail, with offset and epoch in every batch.

    The first release journalled batches before it gave them an offset: that of the order in which
    they were applied.

    Raises:
        CorruptData: a batch with an offset does not continue the log; names raft group and entry.
    """
    if position is not None:
        replica.proposed_end, replica.proposed_publication = position.end_offset, position.publication
    entries = []
    for record in tail:
        entry = entry_of(record)
        if why_undecodable(record.entry_type, record.payload):
            entries.append(entry)  # it has no effect
            continue
        if record.version < VERSION_WITH_OFFSETS and entry.kind == EntryType.RECORD_BATCH:
            _, batch = replica.stamp(EntryType.RECORD_BATCH, bytearray(entry.data), entry.term)
            entry = replace(entry, data=batch)
        else:
            _check_offsets(record, replica.proposed_end)
            replica.follow(entry)
        entries.append(entry)
    return entries


def _check_offsets(record: JournalRecord, end: int) -> None:
    misplaced = misplaced_batch(map(offsets_of, batches_of(record)), end)
    if misplaced is not None:
        base_offset, expected = misplaced
        raise CorruptData(
            f"raft group {record.raft_group}, entry {record.index}: a batch with base offset {base_offset} "
            f"behind records up to offset {expected}"
        )
