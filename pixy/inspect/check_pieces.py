"""Checks the files of replicated stages of a stopped node, described in `staging.piece_files`, and
changes nothing.

found                                      verdict
-----------------------------------------  ------------------------------
torn last unit, no valid header, bad       warning: other replicas have what was confirmed
sector where a start reads
unit with a wrong head                     warning: cut off, other replicas have it
anything else for which a start is refused damaged
invalid batches                            damaged
"""

from pathlib import Path

from pixy.errors import DataDirectoryError
from pixy.inspect.report import Report
from pixy.staging import FoundUnit, PieceKey, find_units, is_piece_file, read_piece_header, unit_damage
from pixy.storage import Disk, File, is_unreadable


def check_pieces(disk: Disk, directory: Path, cluster_id: bytes, report: Report) -> set[PieceKey]:
    """Check every file. Blocks.

    Args:
        directory: parent directory of the files.
        cluster_id: the cluster that they should belong to; empty if it is unknown.

    Returns:
        The pieces that are whole.
    """
    found: set[PieceKey] = set()
    for name in disk.names(directory):
        path = directory / name
        if not is_piece_file(name):
            report.damaged("pieces", path, "not a file of pieces: the next start is refused")
            continue
        try:
            file = disk.open(path)
        except IsADirectoryError:
            report.damaged("pieces", path, "a directory: the next start is refused")
            continue
        except OSError as error:
            if not is_unreadable(error):
                raise
            report.warn("pieces", path, f"{error.strerror}: removed by the next start")
            continue
        try:
            found |= _check(file, path, cluster_id, report)
        finally:
            file.close()
    return found


def _check(file: File, path: Path, cluster_id: bytes, report: Report) -> set[PieceKey]:
    try:
        owner = read_piece_header(file, path)
    except DataDirectoryError as error:
        report.damaged("pieces", path, str(error).removeprefix(f"{path} "))
        return set()
    if owner is None:
        report.warn("pieces", path, "never written: removed by the next start")
        return set()
    if cluster_id and owner != cluster_id:
        report.damaged("pieces", path, "belongs to another cluster: the next start is refused")
        return set()
    return _check_units(file, path, list(find_units(file, path)), report)


def _check_units(file: File, path: Path, units: list[FoundUnit], report: Report) -> set[PieceKey]:
    whole: set[PieceKey] = set()
    for unit in units:
        damage = unit_damage(file, unit)
        if damage and unit is not units[-1]:
            report.damaged("pieces", path, damage)
        elif damage:
            report.warn("pieces", path, f"the last write is torn, and cut off by the next start: {damage}")
        else:
            whole.update(unit.pieces)
            report.bytes += sum(place.size for place in unit.pieces.values())
    end = units[-1].end if units else 0
    if file.size() > end:
        report.warn("pieces", path, f"no pieces from byte {end} on: cut off by the next start")
    report.add(
        "pieces", path, f"{len(whole)} pieces, {sum(unit.pieces.keys() <= whole for unit in units)} writes"
    )
    return whole
