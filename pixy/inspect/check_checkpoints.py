"""Checks the checkpoints of one state group of a stopped node, and changes nothing.

found                                                             verdict
----------------------------------------------------------------  -------
a valid checkpoint                                                ok
`.checkpoint.part`, more than two checkpoints                     warning
a checkpoint that recovery skips or refuses                       damaged
any other name: the next start is refused                         damaged

`storage.checkpoint` decides what each file is to recovery.
"""

from pathlib import Path

from pixy.errors import CorruptData, DataDirectoryError
from pixy.inspect.report import Report
from pixy.storage import Checkpoint, CheckpointId, Disk, read_checkpoint

_CHECKPOINTS_KEPT = 2
_PART = ".checkpoint.part"


def check_checkpoints(disk: Disk, directory: Path, report: Report) -> Checkpoint | None:
    """Check every checkpoint of one state group; returns the newest valid one. Blocks."""
    newest: Checkpoint | None = None
    valid = 0
    for name in disk.names(directory):
        path = directory / name
        id = CheckpointId.from_file_name(name)
        if name.endswith(_PART):
            report.warn(
                "checkpoint", path, "unfinished: the next start goes on with its download, or removes it"
            )
            continue
        if id is None:
            report.damaged("checkpoint", path, "not a checkpoint: the next start is refused")
            continue
        report.bytes += _size(disk, path)
        try:
            checkpoint = Checkpoint(id, read_checkpoint(disk, path))
        except (CorruptData, DataDirectoryError) as error:
            report.damaged("checkpoint", path, f"{error}")
            continue
        valid += 1
        report.add("checkpoint", path, f"{len(checkpoint.records)} records up to entry {id.end_offset}")
        newest = checkpoint if newest is None else max(newest, checkpoint, key=lambda each: each.id)
    if valid > _CHECKPOINTS_KEPT:
        report.warn("checkpoint", directory, f"{valid} checkpoints: the next one removes all but two")
    return newest


def _size(disk: Disk, path: Path) -> int:
    file = disk.open(path)
    try:
        return file.size()
    finally:
        file.close()
