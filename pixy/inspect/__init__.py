"""Check and dump of a stopped node's files. Changes nothing on the disk but marks of damage."""

from pixy.inspect.check_checkpoints import check_checkpoints
from pixy.inspect.check_journal import check_journal
from pixy.inspect.check_node import check_directory, check_node, mark_damaged, node_directories
from pixy.inspect.check_partition import check_partition
from pixy.inspect.check_pieces import check_pieces
from pixy.inspect.check_staging import check_staging
from pixy.inspect.dump import DumpLine, dump
from pixy.inspect.read_only_disk import ReadOnlyDisk
from pixy.inspect.report import Report, Verdict

__all__ = [
    "DumpLine",
    "ReadOnlyDisk",
    "Report",
    "Verdict",
    "check_checkpoints",
    "check_directory",
    "check_journal",
    "check_node",
    "check_partition",
    "check_pieces",
    "check_staging",
    "dump",
    "mark_damaged",
    "node_directories",
]
