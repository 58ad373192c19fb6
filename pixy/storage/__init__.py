"""Storage on disk: journal, partition logs, indexes, checkpoints. Knows nothing of Raft's rules."""

from pixy.storage.applied_position import why_no_position
from pixy.storage.checkpoint import Checkpoint, CheckpointId, CheckpointStore, read_checkpoint
from pixy.storage.checkpoint_download import CheckpointDownload, DownloadedBytes
from pixy.storage.disk import Disk, File, RealDisk, RealFile, is_disk_full, sync_is_final
from pixy.storage.entry_payloads import why_undecodable
from pixy.storage.identity import (
    load_identity,
    read_identity,
    read_partition_identity,
    read_publication_mark,
    read_stage_record,
    write_identity,
    write_publication_mark,
    write_stage_record,
)
from pixy.storage.index import INDEX_INTERVAL_BYTES, OffsetIndex, TimeIndex
from pixy.storage.journal import Journal, JournalOptions
from pixy.storage.journal_entries import entries_after
from pixy.storage.journal_files import FilePart, JournalFile, JournalPosition, Span, journal_path, parts_with
from pixy.storage.journal_format import (
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
from pixy.storage.journal_groups import LogReset, batches_of
from pixy.storage.journal_reader import EntriesRead, EntryRange, JournalReader
from pixy.storage.journal_scan import JournalScan, RefusedStart, ScannedFile, TornTail, UnfinishedFile
from pixy.storage.log_segments import RebuiltIndexes, TopicLogs
from pixy.storage.log_writer import DamagedLog, LogWriter, LogWriterOptions, SyncedLog, WriterPace
from pixy.storage.partition_directory import (
    DirectoryKind,
    KnownPartitions,
    judge_partition_directory,
    sort_partition_directories,
)
from pixy.storage.partition_log import PartitionLog, SyncedPosition
from pixy.storage.recovery import RecoveredGroup, RecoveredJournal, recover_journal
from pixy.storage.regular_file import regular_file
from pixy.storage.removal import Removal, unlink_directories
from pixy.storage.retention import LogOptions
from pixy.storage.scan import scan_batches
from pixy.storage.segment import RETIRED, Chunk, segment_path
from pixy.storage.staged_part import StagedPart
from pixy.storage.term_runs import TermRun
from pixy.storage.upkeep import Steps, StepsEnd, Upkeep, next_step, run_steps
from pixy.storage.whole_file import read_whole
from pixy.storage.worker import MakeWorker, ThreadWorker, Worker, run_on

__all__ = [
    "FORMAT_VERSION",
    "INDEX_INTERVAL_BYTES",
    "RETIRED",
    "VERSION_WITH_OFFSETS",
    "Checkpoint",
    "CheckpointDownload",
    "CheckpointId",
    "CheckpointStore",
    "Chunk",
    "DamagedLog",
    "DirectoryKind",
    "Disk",
    "DownloadedBytes",
    "EntriesRead",
    "EntryRange",
    "EntryType",
    "File",
    "FilePart",
    "Journal",
    "JournalFile",
    "JournalOptions",
    "JournalPosition",
    "JournalReader",
    "JournalRecord",
    "JournalScan",
    "KnownPartitions",
    "LogOptions",
    "LogReset",
    "LogWriter",
    "LogWriterOptions",
    "MakeWorker",
    "OffsetIndex",
    "PartitionLog",
    "RealDisk",
    "RealFile",
    "RebuiltIndexes",
    "RecordKind",
    "RecordPlace",
    "RecoveredGroup",
    "RecoveredJournal",
    "RefusedStart",
    "Removal",
    "ScannedFile",
    "Span",
    "StagedPart",
    "Steps",
    "StepsEnd",
    "SyncedLog",
    "SyncedPosition",
    "TermRun",
    "ThreadWorker",
    "TimeIndex",
    "TopicLogs",
    "TornTail",
    "UnfinishedFile",
    "UnitRecord",
    "Upkeep",
    "Worker",
    "WriterPace",
    "batches_of",
    "entries_after",
    "find_later_flush",
    "first_flush_number",
    "is_disk_full",
    "journal_path",
    "journal_record",
    "judge_partition_directory",
    "load_identity",
    "next_step",
    "parts_with",
    "read_checkpoint",
    "read_file_header",
    "read_flush",
    "read_identity",
    "read_partition_identity",
    "read_publication_mark",
    "read_stage_record",
    "read_whole",
    "recover_journal",
    "regular_file",
    "run_on",
    "run_steps",
    "scan_batches",
    "segment_path",
    "sort_partition_directories",
    "sync_is_final",
    "unlink_directories",
    "why_no_position",
    "why_undecodable",
    "write_identity",
    "write_publication_mark",
    "write_stage_record",
]
