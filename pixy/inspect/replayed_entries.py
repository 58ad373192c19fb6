"""Entries of a partition that the next start applies again: how many records they have, and whether
these continue the log.

A record batch gets its base offset when it is proposed: it must be the offset behind the records
before it. A batch of format version 1 has none yet.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pixy.cluster import misplaced_batch, published_records
from pixy.inspect.check_journal import CheckedEntry
from pixy.proto.state_pb2 import AppliedPosition
from pixy.storage import EntryType


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
    """Replay the entries behind the applied position of a partition, None without one."""
    begin = end = 0 if applied is None else applied.end_offset
    publication = 0 if applied is None else applied.publication
    fault, count = "", 0
    for entry in entries:
        count += 1
        misplaced = misplaced_batch(entry.batches, end)
        if misplaced is not None and not fault:
            base_offset, expected = misplaced
            fault = f"entry {entry.index} has a batch with base offset {base_offset}, expected {expected}"
        end += entry.offsets
        if entry.entry_type is EntryType.COMMAND:
            publication, records = published_records(entry.command, publication)
            end += records
    return ReplayedEntries(count, end - begin, fault)
