"""Checks of the files of a node that was healthy and idle for a while: the required files exist,
and no others.
"""

from itertools import pairwise
from pathlib import Path

from tests.sim.disk import SimulatedDisk
from tests.sim.model import Model
from tests.sim.model_partition import PartitionModel
from tests.sim.model_topics import TopicModel
from tests.sim.world import DIRECTORY

_ROUNDING_MS = 2
_JOURNAL_FILES_MAX = 8
"""Beyond four, whatever retains the oldest file is made to release it."""


def check_files(disk: SimulatedDisk, model: Model, reserve_bytes: int) -> None:
    """Raise AssertionError if a file or directory is missing or left over."""
    names = set(disk.names(DIRECTORY))
    needed = {"identity", "journal", "lock", *(["reserve"] if reserve_bytes else [])}
    assert needed <= names <= needed | {"staging", "state", "topics"}, f"{DIRECTORY} has {names}"
    if reserve_bytes:
        assert disk.files()[DIRECTORY / "reserve"] == reserve_bytes
    expected = {f"{topic.name}-{number}" for topic, number, of in _partitions(model) if of.end}
    found = set(disk.names(DIRECTORY / "topics"))
    assert found == expected, f"directories of partitions: {found ^ expected} are missing or too many"
    for topic, number, of in _partitions(model):
        if of.end:
            _check_partition(disk, _directory(topic, number), of)
    for state in disk.names(DIRECTORY / "state"):
        _check_state(disk, DIRECTORY / "state" / state)
    numbers = [int(name.removesuffix(".journal")) for name in disk.names(DIRECTORY / "journal")]
    assert all(before + 1 == after for before, after in pairwise(numbers)), f"journal files {numbers}"
    assert len(numbers) <= _JOURNAL_FILES_MAX, f"journal files {numbers}"


def check_retained(disk: SimulatedDisk, model: Model, now_ms: int) -> None:
    """Raise AssertionError if a partition keeps a segment past its retention."""
    for topic, number, of in _partitions(model):
        directory = _directory(topic, number)
        bases = _bases(disk, directory)
        if not bases:
            continue
        options = model.options(topic)
        following = bases[1] if len(bases) > 1 else of.end
        if options.retention_bytes is not None and len(bases) > 1:
            kept = of.bytes_from(following)
            assert kept < options.retention_bytes, (
                f"{directory} keeps a segment and {kept} bytes behind it: {options}"
            )
        if options.retention_ms is not None:
            latest_ms = of.latest_timestamp(bases[0], following)
            oldest_ms = now_ms - options.retention_ms - _ROUNDING_MS
            assert not 0 <= latest_ms < oldest_ms, (
                f"{directory} keeps records of {latest_ms}, {oldest_ms} is kept"
            )


def closed_segments(disk: SimulatedDisk) -> int:
    """Bytes in closed segments, which retention may delete at once."""
    segments = [path for path in disk.files() if path.suffix == ".log"]
    last = {path.parent: path for path in segments}
    return sum(disk.files()[path] for path in segments if path not in last.values())


def _partitions(model: Model) -> list[tuple[TopicModel, int, PartitionModel]]:
    return [
        (topic, number, of)
        for topic in model.topics.live.values()
        for number, of in enumerate(topic.partitions)
    ]


def _directory(topic: TopicModel, number: int) -> Path:
    return DIRECTORY / "topics" / f"{topic.name}-{number}"


def _bases(disk: SimulatedDisk, directory: Path) -> list[int]:
    return [int(name[:20]) for name in disk.names(directory) if name.endswith(".log")]


def _check_partition(disk: SimulatedDisk, directory: Path, of: PartitionModel) -> None:
    bases = _bases(disk, directory)
    if of.begin == of.end:
        assert not bases, f"{directory} is empty, and has segments {bases}"
    else:
        assert bases, f"{directory} has records, and no segments"
        assert bases[0] <= of.begin, f"{directory} begins at {of.begin}, and has segments {bases}"
        assert not bases[1:] or of.begin < bases[1], (
            f"{directory} begins at {of.begin}, and has segments {bases}"
        )
    allowed = {f"{base:020d}.{suffix}" for base in bases for suffix in ("log", "index", "timeindex")}
    names = set(disk.names(directory))
    assert "identity" in names, f"{directory} has no identity"
    assert names <= allowed | {"identity"}, f"{directory} has {names - allowed}"


def _check_state(disk: SimulatedDisk, directory: Path) -> None:
    names = disk.names(directory)
    assert all(name.endswith(".checkpoint") for name in names), f"{directory} has {names}"
    # A crash may have left one file that the last checkpoint replaces; the next checkpoint removes
    # it.
    assert len(names) <= 3, f"{directory} has {names}"
