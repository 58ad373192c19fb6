"""Backups of running clusters: objects in a target, and what becomes of them.

It reads a cluster as any client does, and writes the directory of a node that no daemon uses. It
knows nothing of a daemon's inside, and never changes a cluster.
"""

from pixy.backup.create import Backup, BackupOptions, BackupProgress
from pixy.backup.manifest import BackedUpPartition, BackedUpTopic, Manifest
from pixy.backup.restore import Restore, Restored, RestoreOptions
from pixy.backup.source import ClusterSource
from pixy.backup.target import Target, open_target
from pixy.backup.upkeep import (
    FoundBackups,
    Pruning,
    find_backup,
    find_backups,
    plan_pruning,
    prune,
    verify_backup,
)

__all__ = [
    "BackedUpPartition",
    "BackedUpTopic",
    "Backup",
    "BackupOptions",
    "BackupProgress",
    "ClusterSource",
    "FoundBackups",
    "Manifest",
    "Pruning",
    "Restore",
    "RestoreOptions",
    "Restored",
    "Target",
    "find_backup",
    "find_backups",
    "open_target",
    "plan_pruning",
    "prune",
    "verify_backup",
]
