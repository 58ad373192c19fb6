"""Bytes on disk: the journal, partition logs with their indexes, checkpoints. Knows nothing of Raft's rules."""

from pixy.storage.check import CheckedEntry, CheckedJournal, check_checkpoints, check_journal
from pixy.storage.check_partition import ReplayedEntries, check_partition
from pixy.storage.checkpoint import Checkpoint, CheckpointId, CheckpointStore, read_checkpoint
from pixy.storage.disk import Disk, File, RealDisk
from pixy.storage.identity import load_identity, read_identity, read_partition_identity
from pixy.storage.journal import Journal, JournalFile, JournalPosition
from pixy.storage.journal_format import (
    EntryType,
    JournalRecord,
    RecordKind,
    find_later_flush,
    first_flush_number,
    journal_record,
    read_file_header,
    read_flush,
)
from pixy.storage.log_writer import LogWriter, SyncedLog
from pixy.storage.partition_directory import sort_partition_directories
from pixy.storage.partition_log import PartitionLog, SyncedPosition
from pixy.storage.read_only import ReadOnlyDisk
from pixy.storage.recovery import RecoveredGroup, RecoveredJournal, read_entries, recover_journal
from pixy.storage.report import Finding, Report, Verdict
from pixy.storage.retention import LogOptions
from pixy.storage.scan import scan_batches
from pixy.storage.segment import Chunk
from pixy.storage.worker import ThreadWorker, Worker, run_on

__all__ = [
    "CheckedEntry",
    "CheckedJournal",
    "Checkpoint",
    "CheckpointId",
    "CheckpointStore",
    "Chunk",
    "Disk",
    "EntryType",
    "File",
    "Finding",
    "Journal",
    "JournalFile",
    "JournalPosition",
    "JournalRecord",
    "LogOptions",
    "LogWriter",
    "PartitionLog",
    "ReadOnlyDisk",
    "RealDisk",
    "RecordKind",
    "RecoveredGroup",
    "RecoveredJournal",
    "ReplayedEntries",
    "Report",
    "SyncedLog",
    "SyncedPosition",
    "ThreadWorker",
    "Verdict",
    "Worker",
    "check_checkpoints",
    "check_journal",
    "check_partition",
    "find_later_flush",
    "first_flush_number",
    "journal_record",
    "load_identity",
    "read_checkpoint",
    "read_entries",
    "read_file_header",
    "read_flush",
    "read_identity",
    "read_partition_identity",
    "recover_journal",
    "run_on",
    "scan_batches",
    "sort_partition_directories",
]
