"""Comparison of the segments on a disk with the history of their partition, byte by byte."""

from itertools import pairwise
from pathlib import Path

from pixy.proto.state_pb2 import AppliedPosition
from tests.sim.cluster.history import GroupHistory
from tests.sim.disk import SimulatedDisk
from tests.sim.kit.failure import require
from tests.sim.world import DIRECTORY


def check_segments(disk: SimulatedDisk, name: str, history: GroupHistory) -> None:
    """Check every segment of a running node: it has the bytes of the history, as many as it is
    long.
    """
    for base, path in _segments(disk, name):
        _compare(disk, path, base, history, len(disk.inode(path).data))


def check_synced(disk: SimulatedDisk, name: str, history: GroupHistory, position: AppliedPosition) -> None:
    """Check that the segments of a durable applied position are there, and have the bytes of the
    history.
    """
    require(position.end_offset == history.ends[position.index], f"{name}: {position} ends elsewhere")
    begin, end = position.log_begin_offset, position.end_offset
    segments = [(base, path) for base, path in _segments(disk, name) if base <= position.segment_base_offset]
    if begin == end:
        return
    bases = [base for base, _ in segments]
    require(bases and bases[0] <= begin, f"{name}: segments {bases}, log begin offset {begin}")
    require(bases[-1] == position.segment_base_offset, f"{name}: segments {bases}, applied {position}")
    for (base, path), following in zip(segments, [*bases[1:], end], strict=True):
        if following <= begin:
            continue  # about to be removed
        at = history.places[base]
        behind = history.places.get(following, len(history.records))
        _compare(disk, path, base, history, behind - at)


def durable_segments(disk: SimulatedDisk, name: str, end_offset: int) -> list[Path]:
    """Segments that end at an offset or before, and that a power failure does not change."""
    segments = sorted(_segments(disk, name))
    found = [path for (_, path), (end, _) in pairwise(segments) if end <= end_offset]
    return [path for path in found if disk.is_durable(path) and disk.inode(path).data]


def _segments(disk: SimulatedDisk, name: str) -> list[tuple[int, Path]]:
    directory = DIRECTORY / "topics" / name
    names = [each for each in disk.names(directory) if each.endswith(".log")]
    return [(int(each.removesuffix(".log")), directory / each) for each in names]


def _compare(disk: SimulatedDisk, path: Path, base: int, history: GroupHistory, size: int) -> None:
    found = bytes(disk.inode(path).data[:size])
    if not size:
        return
    expected = history.records_from(base, size)
    require(len(found) == size, f"{path} has {len(found)} bytes, expected {size}")
    require(found == expected, f"{path} differs from the log that was committed")
