"""The journal of a node: what all its raft groups append, flush by flush.

Writing, reading, and what a start makes of its end. It knows records and raft groups by number, and
never what an entry does.
"""

from pixy.storage.journal.entry_payloads import why_undecodable
from pixy.storage.journal.journal import Journal, JournalOptions
from pixy.storage.journal.journal_entries import entries_after
from pixy.storage.journal.journal_files import (
    FilePart,
    JournalFile,
    JournalPosition,
    Span,
    journal_path,
    parts_with,
)
from pixy.storage.journal.journal_format import (
    FORMAT_VERSION,
    VERSION_WITH_OFFSETS,
    EntryType,
    JournalRecord,
    RecordKind,
    RecordPlace,
    UnitRecord,
    find_later_flush,
    first_flush_number,
    journal_record,
    read_file_header,
    read_flush,
)
from pixy.storage.journal.journal_groups import LogReset, batches_of
from pixy.storage.journal.journal_reader import EntriesRead, EntryRange, JournalReader
from pixy.storage.journal.journal_scan import JournalScan, RefusedStart, ScannedFile, TornTail, UnfinishedFile
from pixy.storage.journal.recovery import RecoveredGroup, RecoveredJournal, recover_journal
from pixy.storage.journal.term_runs import TermRun

__all__ = [
    "FORMAT_VERSION",
    "VERSION_WITH_OFFSETS",
    "EntriesRead",
    "EntryRange",
    "EntryType",
    "FilePart",
    "Journal",
    "JournalFile",
    "JournalOptions",
    "JournalPosition",
    "JournalReader",
    "JournalRecord",
    "JournalScan",
    "LogReset",
    "RecordKind",
    "RecordPlace",
    "RecoveredGroup",
    "RecoveredJournal",
    "RefusedStart",
    "ScannedFile",
    "Span",
    "TermRun",
    "TornTail",
    "UnfinishedFile",
    "UnitRecord",
    "batches_of",
    "entries_after",
    "find_later_flush",
    "first_flush_number",
    "journal_path",
    "journal_record",
    "parts_with",
    "read_file_header",
    "read_flush",
    "recover_journal",
    "why_undecodable",
]
