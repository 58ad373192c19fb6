"""Checks the directory in which a stopped daemon has its stages for a cluster of Kafka, and changes nothing.

    <cluster>/kafka/lock           held while a daemon uses it
    <cluster>/kafka/staging/       the stages: judged by `check_staging`, as an embedded node's
    <cluster>/kafka/publishing/    a mark for each publication whose outcome this daemon does not know yet

What Kafka says of those publications is not asked for: the next start does that.
"""

from pathlib import Path

from google.protobuf.message import DecodeError

from pixy.errors import CorruptData, DataDirectoryError
from pixy.inspect.check_staging import check_staging
from pixy.inspect.report import Report
from pixy.staging import KAFKA_CLUSTER_ID, MarkName, mark_name
from pixy.storage import Disk, read_publication_mark

__all__ = ["check_kafka_stages", "is_kafka_stages_directory"]

_DIRECTORIES = ("staging", "publishing")
_OF_A_NODE = ("identity", "identity.part", "journal", "state", "topics")


def is_kafka_stages_directory(directory: Path) -> bool:
    """True if a directory is that of stages for a Kafka cluster, perhaps an empty one."""
    if any((directory / name).exists() for name in _OF_A_NODE):
        return False
    made = directory.name == "kafka" and (directory / "lock").is_file()
    return made or any((directory / name).is_dir() for name in _DIRECTORIES)


def check_kafka_stages(disk: Disk, directory: Path, report: Report) -> None:
    """Check everything there. Blocks. The directory is locked, or nobody uses it.

    Raises:
        OSError: it may not be read.
    """
    staged = check_staging(disk, directory / "staging", KAFKA_CLUSTER_ID, report)
    for name in disk.names(directory / "publishing"):
        _check_mark(disk, directory / "publishing" / name, staged, report)
    for name in disk.names(directory):
        if name not in ("lock", *_DIRECTORIES):
            report.warn("file", directory / name, "does not belong here")


def _check_mark(disk: Disk, path: Path, staged: dict[tuple[str, str], bool], report: Report) -> None:
    match mark_name(path.name):
        case MarkName.UNFINISHED:
            report.warn("publication", path, "left from a crash: nothing of it has left the daemon")
            return
        case MarkName.FOREIGN:
            report.damaged("publication", path, "not a publication: the next start is refused")
            return
        case MarkName.MARK:
            pass
    try:
        mark = read_publication_mark(disk, path)
    except (CorruptData, DataDirectoryError, DecodeError) as error:
        found = str(error).removeprefix(f"{path} ")
        report.damaged("publication", path, f"{found}: the next start is refused")
        return
    name = f"epoch {mark.epoch} of sink {mark.sink_id}"
    damaged = [stage for stage in mark.stage_ids if staged.get((mark.sink_id, stage)) is False]
    if damaged:
        found = f"{name} is not settled, and its stages {', '.join(damaged)} are damaged: if Kafka has not got them, they are lost"
        report.damaged("publication", path, found)
    else:
        report.add("publication", path, f"{name} is not settled: the next start asks Kafka")
