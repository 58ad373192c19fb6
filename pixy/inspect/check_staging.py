"""Checks the files of stages of a stopped node, described in `staging`, and changes nothing.

found                                      verdict
-----------------------------------------  ------------------------------
unsealed stage, unfinished removal         warning
files in a stage that its record lacks     ok, removed with the stage
anything else for which a start is refused damaged
invalid record, bad sector in a directory  damaged
missing or short file                      damaged
invalid batch                              damaged
"""

import re
from pathlib import Path

from google.protobuf.message import DecodeError

from pixy.errors import CorruptData, DataDirectoryError
from pixy.inspect.report import Report
from pixy.proto.state_pb2 import StageRecord
from pixy.staging import STAGE_FILE, find_fault, stage_directory, staged_part
from pixy.storage import Disk, StagedPart, lost_is_corrupt, read_stage_record, scan_batches

_NAME = re.compile(r"\d{20}")
_DELETED = re.compile(r"\d{20}-deleted")

StageKey = tuple[str, str]
"""Sink and stage."""


def check_staging(disk: Disk, directory: Path, cluster_id: bytes, report: Report) -> dict[StageKey, bool]:
    """Check every stage. Blocks.

    Args:
        directory: parent directory of the stages.
        cluster_id: the cluster that they should belong to; empty if it is unknown.

    Returns:
        For each sealed stage, True if it is whole.
    """
    found: dict[StageKey, bool] = {}
    for name in disk.names(directory):
        path = directory / name
        record = _record(disk, path, report)
        if record is None:
            continue
        key = (record.sink_id, record.stage_id)
        if cluster_id and record.cluster_id != cluster_id:
            report.damaged("stage", path, "belongs to another cluster: the next start is refused")
        elif key in found:
            report.damaged(
                "stage",
                path,
                f"stage {key[1]} of sink {key[0]} is there more than once: the next start is refused",
            )
        else:
            found[key] = _check_parts(disk, directory, int(name), record, report)
    return found


def _record(disk: Disk, path: Path, report: Report) -> StageRecord | None:
    """Record of a sealed stage; None if it is not one, which is reported."""
    unlisted = ""
    try:
        with lost_is_corrupt(path):
            files = disk.names(path)
    except NotADirectoryError:
        report.damaged("file", path, "not a directory: the next start is refused")
        return None
    except CorruptData as error:
        unlisted = str(error)
    if _DELETED.fullmatch(path.name):
        report.warn("stage", path, "left from a removal: removed by the next start")
    elif _NAME.fullmatch(path.name) is None:
        report.damaged("stage", path, "not a stage: the next start is refused")
    elif unlisted:
        report.damaged("stage", path, unlisted.removeprefix(f"{path} "))
    elif STAGE_FILE not in files:
        report.warn("stage", path, "never sealed: removed by the next start")
    else:
        try:
            with lost_is_corrupt(path / STAGE_FILE):
                return read_stage_record(disk, path / STAGE_FILE)
        except (CorruptData, DataDirectoryError, DecodeError) as error:
            report.damaged("stage", path / STAGE_FILE, str(error).removeprefix(f"{path / STAGE_FILE} "))
    return None


def _check_parts(disk: Disk, directory: Path, number: int, record: StageRecord, report: Report) -> bool:
    path = stage_directory(directory, number)
    fault = find_fault(disk, path, record)
    if fault is not None:
        report.damaged("stage", path, str(fault).removeprefix(f"{path}/"))
        return False
    whole = True
    for part in record.parts:
        whole &= _check_part(disk, staged_part(directory, number, part), report)
    if whole:
        size = sum(part.bytes for part in record.parts)
        records = sum(part.records for part in record.parts)
        report.add(
            "stage",
            path,
            f"stage {record.stage_id} of sink {record.sink_id}: {records} records, {size} bytes",
        )
    return whole


def _check_part(disk: Disk, part: StagedPart, report: Report) -> bool:
    records = 0
    try:
        with lost_is_corrupt(part.path):
            for position, header, _, damage in scan_batches(disk, part.path, part.size):
                if damage:
                    raise CorruptData(f"corrupt at byte {position}: {damage}")
                records += header.last_offset_delta + 1
        if records != part.records:
            raise CorruptData(f"has {records} records, {part.records} were sealed")
    except CorruptData as error:
        report.damaged("stage", part.path, str(error))
        return False
    report.bytes += part.size
    return True
