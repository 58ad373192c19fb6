"""Checks a stopped daemon's directory of stages for a Kafka cluster, and changes nothing.

    <cluster>/kafka/lock           held while a daemon uses the directory
    <cluster>/kafka/staging/       stages, checked by `check_staging` like those of an embedded node
    <cluster>/kafka/publishing/    a mark for each publication with an outcome unknown to the daemon

Kafka is not asked for these outcomes; the next start asks.
"""

from pathlib import Path

from google.protobuf.message import DecodeError

from pixy.errors import CorruptData, DataDirectoryError
from pixy.inspect.check_staging import check_staging
from pixy.inspect.report import Report
from pixy.staging import KAFKA_CLUSTER_ID, MarkName, mark_name
from pixy.storage import Disk, read_publication_mark

_DIRECTORIES = ("staging", "publishing")
_OF_A_NODE = ("identity", "identity.part", "journal", "state", "topics")


def is_kafka_stages_directory(directory: Path) -> bool:
    """True if a directory is that of stages for a Kafka cluster, perhaps an empty one."""
    if any((directory / name).exists() for name in _OF_A_NODE):
        return False
    made = directory.name == "kafka" and (directory / "lock").is_file()
    return made or any((directory / name).is_dir() for name in _DIRECTORIES)


def check_kafka_stages(disk: Disk, directory: Path, report: Report) -> None:
    """Check the whole directory, which is locked or not in use. Blocks.

    Raises:
        OSError: it cannot be read.
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
