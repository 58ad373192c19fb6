"""Entries of a partition that the next start applies again: how many records they have, and whether
these continue the log.

A record batch gets its base offset when it is proposed: it must be the offset behind the records
before it. A batch of format version 1 has none yet.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pixy.inspect.check_journal import CheckedEntry
from pixy.proto.state_pb2 import AppliedPosition, PartitionCommand
from pixy.storage import EntryType

__all__ = ["ReplayedEntries", "replay"]


@dataclass(frozen=True, slots=True)
class ReplayedEntries:
    """Entries in the journal behind the applied position of a partition.

    Attributes:
        entries: number of entries.
        records: number of their records.
        fault: the first batch that does not continue the log, empty if all do.
    """

    entries: int = 0
    records: int = 0
    fault: str = ""


def replay(applied: AppliedPosition | None, entries: Iterable[CheckedEntry]) -> ReplayedEntries:
    """Replay the entries behind the applied position of a partition, None without one.

    Raises:
        DecodeError: a command cannot be decoded.
    """
    begin = end = 0 if applied is None else applied.end_offset
    publication = 0 if applied is None else applied.publication
    fault, count = "", 0
    for entry in entries:
        count += 1
        fault = fault or _misplaced(entry, end)
        end += entry.offsets
        if entry.entry_type is EntryType.COMMAND:
            command = PartitionCommand.FromString(entry.command).publish_parts
            if command.publication > publication:
                publication = command.publication
                end += sum(part.records for part in command.parts)
    return ReplayedEntries(count, end - begin, fault)


def _misplaced(entry: CheckedEntry, end: int) -> str:
    """The first batch of an entry that does not continue a log that ends at `end`."""
    for base_offset, next_offset in entry.batches:
        if base_offset != end:
            return f"entry {entry.index} has a batch with base offset {base_offset}, expected {end}"
        end = next_offset
    return ""
