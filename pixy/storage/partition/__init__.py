"""The log of one partition: segments, indexes, and the records that are in none yet."""

from pixy.storage.partition.applied_position import why_no_position
from pixy.storage.partition.damage_mark import DAMAGE_MARK, mark_directory
from pixy.storage.partition.index import INDEX_INTERVAL_BYTES, OffsetIndex, TimeIndex
from pixy.storage.partition.log_segments import COPY_MANIFEST, AgedSegments, RebuiltIndexes, TopicLogs
from pixy.storage.partition.log_writer import DamagedLog, LogWriter, LogWriterOptions, SyncedLog, WriterPace
from pixy.storage.partition.partition_directory import (
    DirectoryKind,
    KnownPartitions,
    copy_directory,
    deleted_directory,
    judge_partition_directory,
    replaced_directory,
    sort_partition_directories,
)
from pixy.storage.partition.partition_log import PartitionLog, SegmentExtent, SyncedPosition
from pixy.storage.partition.producers_file import PRODUCERS_FILE, PRODUCERS_PART, read_table, write_table
from pixy.storage.partition.retention import LogOptions
from pixy.storage.partition.segment import RETIRED, Chunk, segment_path
from pixy.storage.partition.staged_part import StagedPart

__all__ = [
    "COPY_MANIFEST",
    "DAMAGE_MARK",
    "INDEX_INTERVAL_BYTES",
    "PRODUCERS_FILE",
    "PRODUCERS_PART",
    "RETIRED",
    "AgedSegments",
    "Chunk",
    "DamagedLog",
    "DirectoryKind",
    "KnownPartitions",
    "LogOptions",
    "LogWriter",
    "LogWriterOptions",
    "OffsetIndex",
    "PartitionLog",
    "RebuiltIndexes",
    "SegmentExtent",
    "StagedPart",
    "SyncedLog",
    "SyncedPosition",
    "TimeIndex",
    "TopicLogs",
    "WriterPace",
    "copy_directory",
    "deleted_directory",
    "judge_partition_directory",
    "mark_directory",
    "read_table",
    "replaced_directory",
    "segment_path",
    "sort_partition_directories",
    "why_no_position",
    "write_table",
]
