"""Files and how they become durable: system calls, threads, identities, removal.

Nothing here knows what is in a file, but for those that say whose a directory is.
"""

from pixy.storage.disk.direct_writes import DIRECT_BYTES_MIN
from pixy.storage.disk.disk import (
    Buffer,
    Disk,
    File,
    RealDisk,
    RealFile,
    is_disk_full,
    is_unreadable,
    lost_is_corrupt,
    sync_is_final,
)
from pixy.storage.disk.identity import (
    IDENTITY_PART,
    load_identity,
    read_copy_manifest,
    read_damage_mark,
    read_identity,
    read_partition_identity,
    read_producers,
    read_publication_mark,
    read_stage_record,
    write_copy_manifest,
    write_damage_mark,
    write_identity,
    write_partition_identity,
    write_producers,
    write_publication_mark,
    write_stage_record,
)
from pixy.storage.disk.regular_file import regular_file
from pixy.storage.disk.removal import Removal, retire_file, unlink_directories
from pixy.storage.disk.scan import check_bounds, scan_batches, scan_headers
from pixy.storage.disk.upkeep import Steps, StepsEnd, Upkeep, next_step, run_steps
from pixy.storage.disk.whole_file import CHECKPOINT_BYTES_MAX, read_whole
from pixy.storage.disk.worker import Done, MakeWorker, ThreadWorker, Worker, run_on

__all__ = [
    "CHECKPOINT_BYTES_MAX",
    "DIRECT_BYTES_MIN",
    "IDENTITY_PART",
    "Buffer",
    "Disk",
    "Done",
    "File",
    "MakeWorker",
    "RealDisk",
    "RealFile",
    "Removal",
    "Steps",
    "StepsEnd",
    "ThreadWorker",
    "Upkeep",
    "Worker",
    "check_bounds",
    "is_disk_full",
    "is_unreadable",
    "load_identity",
    "lost_is_corrupt",
    "next_step",
    "read_copy_manifest",
    "read_damage_mark",
    "read_identity",
    "read_partition_identity",
    "read_producers",
    "read_publication_mark",
    "read_stage_record",
    "read_whole",
    "regular_file",
    "retire_file",
    "run_on",
    "run_steps",
    "scan_batches",
    "scan_headers",
    "sync_is_final",
    "unlink_directories",
    "write_copy_manifest",
    "write_damage_mark",
    "write_identity",
    "write_partition_identity",
    "write_producers",
    "write_publication_mark",
    "write_stage_record",
]
