"""Storage on disk: journal, partition logs, indexes, checkpoints. Independent of Raft's rules."""

from pixy.storage.check import CheckedEntry, CheckedJournal, check_checkpoints, check_journal
from pixy.storage.check_partition import ReplayedEntries, check_partition
from pixy.storage.check_staging import check_staging
from pixy.storage.checkpoint import Checkpoint, CheckpointId, CheckpointStore, read_checkpoint
from pixy.storage.disk import Disk, File, RealDisk, is_disk_full
from pixy.storage.identity import (
    load_identity,
    read_identity,
    read_partition_identity,
    read_publication_mark,
    read_stage_record,
)
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
from pixy.storage.log_writer import DamagedLog, LogWriter, SyncedLog, WriterPace
from pixy.storage.partition_directory import (
    DirectoryKind,
    KnownPartitions,
    judge_partition_directory,
    sort_partition_directories,
)
from pixy.storage.partition_log import PartitionLog, RebuiltIndexes, SyncedPosition, TopicLogs
from pixy.storage.publication_marks import MarkName, mark_name, read_marks, remove_mark, write_mark
from pixy.storage.read_only import ReadOnlyDisk
from pixy.storage.recovery import RecoveredGroup, RecoveredJournal, read_entries, recover_journal
from pixy.storage.removal import Removal
from pixy.storage.report import Finding, Report, Verdict
from pixy.storage.retention import LogOptions
from pixy.storage.scan import scan_batches
from pixy.storage.segment import Chunk
from pixy.storage.staged_part import StagedPart
from pixy.storage.staging import (
    STAGE_FILE,
    PieceBatches,
    RecoveredStages,
    SealedStage,
    StageFiles,
    find_fault,
    recover_stages,
    remove_stages,
    staged_part,
)
from pixy.storage.upkeep import Upkeep
from pixy.storage.worker import MakeWorker, ThreadWorker, Worker, run_on

__all__ = [
    "STAGE_FILE",
    "CheckedEntry",
    "CheckedJournal",
    "Checkpoint",
    "CheckpointId",
    "CheckpointStore",
    "Chunk",
    "DamagedLog",
    "DirectoryKind",
    "Disk",
    "EntryType",
    "File",
    "Finding",
    "Journal",
    "JournalFile",
    "JournalPosition",
    "JournalRecord",
    "KnownPartitions",
    "LogOptions",
    "LogWriter",
    "MakeWorker",
    "MarkName",
    "PartitionLog",
    "PieceBatches",
    "ReadOnlyDisk",
    "RealDisk",
    "RebuiltIndexes",
    "RecordKind",
    "RecoveredGroup",
    "RecoveredJournal",
    "RecoveredStages",
    "Removal",
    "ReplayedEntries",
    "Report",
    "SealedStage",
    "StageFiles",
    "StagedPart",
    "SyncedLog",
    "SyncedPosition",
    "ThreadWorker",
    "TopicLogs",
    "Upkeep",
    "Verdict",
    "Worker",
    "WriterPace",
    "check_checkpoints",
    "check_journal",
    "check_partition",
    "check_staging",
    "find_fault",
    "find_later_flush",
    "first_flush_number",
    "is_disk_full",
    "journal_record",
    "judge_partition_directory",
    "load_identity",
    "mark_name",
    "read_checkpoint",
    "read_entries",
    "read_file_header",
    "read_flush",
    "read_identity",
    "read_marks",
    "read_partition_identity",
    "read_publication_mark",
    "read_stage_record",
    "recover_journal",
    "recover_stages",
    "remove_mark",
    "remove_stages",
    "run_on",
    "scan_batches",
    "sort_partition_directories",
    "staged_part",
    "write_mark",
]
