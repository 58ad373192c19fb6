"""Bytes on disk: the journal, partition logs with their indexes, checkpoints. Knows nothing of Raft's rules."""

from pixy.storage.checkpoint import Checkpoint, CheckpointId, CheckpointStore
from pixy.storage.disk import Disk, File, RealDisk
from pixy.storage.identity import load_identity
from pixy.storage.journal import Journal, JournalFile, JournalPosition
from pixy.storage.journal_format import EntryType, JournalRecord, RecordKind
from pixy.storage.log_writer import LogWriter, SyncedLog
from pixy.storage.partition_log import PartitionLog, SegmentPosition
from pixy.storage.recovery import RecoveredGroup, RecoveredJournal, recover_journal
from pixy.storage.segment import Chunk
from pixy.storage.worker import ThreadWorker, Worker, run_on

__all__ = [
    "Checkpoint",
    "CheckpointId",
    "CheckpointStore",
    "Chunk",
    "Disk",
    "EntryType",
    "File",
    "Journal",
    "JournalFile",
    "JournalPosition",
    "JournalRecord",
    "LogWriter",
    "PartitionLog",
    "RealDisk",
    "RecordKind",
    "RecoveredGroup",
    "RecoveredJournal",
    "SegmentPosition",
    "SyncedLog",
    "ThreadWorker",
    "Worker",
    "load_identity",
    "recover_journal",
    "run_on",
]
