"""The directory of a partition is replaced by its copy, once the journal says so.

The commit point is the unit of the journal with the applied position that the copy is complete for
(`CopyManifest.complete`). What follows is done by the process that has written it, or by the next
start before it opens the log, whichever comes to it; no later position of the partition is written
before:

    found                                              done
    -------------------------------------------------  ---------------------------------------------
    `<group>-copy`, complete at the applied position,  the partition's directory gets the name
    and the partition's directory                      `<group>-replaced`, durably; then as below
    `<group>-copy`, complete at the applied position   it gets the name of the partition, durably
    `<group>-copy`, anything else                      it stays, for the next copy
    no `<group>-copy`                                  nothing

A directory `<group>-replaced` is removed afterwards. All functions block.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from pixy.copies.staged_copy import read_manifest
from pixy.proto.state_pb2 import AppliedPosition
from pixy.storage import (
    Disk,
    copy_directory,
    is_disk_full,
    replaced_directory,
    sync_is_final,
    unlink_directories,
)

log = structlog.get_logger(__name__)


def swap_directories(disk: Disk, topics: Path, name: str, raft_group: int) -> list[Path]:
    """Replace the directory of a partition by its copy; returns directories to be removed.

    The copy is complete, and the journal has its applied position. What a full disk has ended is
    done anew by another call.

    Raises:
        OSError: the disk is full, or has failed.
    """
    copy, replaced = copy_directory(topics, raft_group), replaced_directory(topics, raft_group)
    names = disk.names(topics)
    if copy.name in names:
        if name in names:
            if replaced.name in names:  # of an earlier copy
                for _ in unlink_directories(disk, [replaced]):
                    pass
            disk.rename(topics / name, replaced)
            _sync(disk, topics)
        disk.rename(copy, topics / name)
        _sync(disk, topics)
    return [replaced] if replaced.name in disk.names(topics) else []


def _sync(disk: Disk, topics: Path) -> None:
    with sync_is_final():
        disk.sync_directory(topics)


def is_due(disk: Disk, topics: Path, raft_group: int, applied: AppliedPosition | None) -> bool:
    """True if the copy of a partition, which is there, has to replace its directory."""
    manifest = read_manifest(disk, copy_directory(topics, raft_group))
    if manifest is None or not manifest.HasField("complete") or applied is None:
        return False
    return _place(manifest.complete) == _place(applied)


def _place(position: AppliedPosition) -> tuple[int, ...]:
    """All of a position that says which files it is about."""
    return (
        position.raft_group,
        position.index,
        position.log_begin_offset,
        position.end_offset,
        position.segment_base_offset,
        position.segment_bytes,
    )


def roll_forward(
    disk: Disk,
    topics: Path,
    partitions: Mapping[int, str],
    applied: Callable[[int], AppliedPosition | None],
) -> set[int]:
    """Finish at a start what the last process has begun.

    Args:
        partitions: directory names of the partitions here, by raft group.
        applied: the applied position in the journal of a raft group.

    Returns:
        Raft groups whose copies are due, and have no room for their names on a full disk.

    Raises:
        DataDirectoryError: a newer release wrote a manifest.
        OSError: the disk has failed.
    """
    waiting = set()
    names = disk.names(topics)
    for raft_group, name in partitions.items() if any(each.endswith("-copy") for each in names) else ():
        if copy_directory(topics, raft_group).name in names and is_due(
            disk, topics, raft_group, applied(raft_group)
        ):
            log.info("a copy replaces the files of a replica", directory=name, raft_group=raft_group)
            try:
                swap_directories(disk, topics, name, raft_group)
            except OSError as error:
                if not is_disk_full(error):
                    raise
                waiting.add(raft_group)
    return waiting
