"""Decisions of a start about the directory `pieces`: a test for each row of the table in
`docs/storage.md`, with its name.

There is a file with two units, and another one.
"""

import struct
from pathlib import Path

import pytest

from pixy.errors import DataDirectoryError
from pixy.inspect import Report, Verdict, check_pieces
from pixy.staging.piece_files import NewPiece, PieceFile, PieceKey, recover_pieces
from pixy.storage import RealDisk
from tests.fakes.disk import RecordingDisk
from tests.staging.pieces import new_piece
from tests.storage.logs import CLUSTER_ID

DISK = RealDisk()
ONE, TWO, OTHER = new_piece(b"one"), new_piece(b"two", number=1), new_piece(b"other", stage=8)


@pytest.fixture
def pieces(tmp_path: Path) -> Path:
    directory = tmp_path / "pieces"
    file = PieceFile(DISK, directory, CLUSTER_ID, 7)
    file.write([ONE])
    file.write([TWO])
    PieceFile(DISK, directory, CLUSTER_ID, 8).write([OTHER])
    return directory


def first(pieces: Path) -> Path:
    return pieces / f"{7:020d}.pieces"


def found(pieces: Path) -> set[PieceKey]:
    recovered = recover_pieces(DISK, pieces, CLUSTER_ID)
    for number, (size, places) in recovered.items():
        path = pieces / f"{number:020d}.pieces"
        assert path.stat().st_size == size
        assert max(place.begin + place.size for place in places.values()) == size
    return {key for _, places in recovered.values() for key in places}


def verdict(pieces: Path, cluster_id: bytes = CLUSTER_ID) -> Verdict:
    report = Report(pieces)
    check_pieces(DISK, pieces, cluster_id, report)
    return report.verdict


def taken(pieces: Path, *expected: object, says: Verdict = Verdict.OK) -> None:
    assert verdict(pieces) is says
    assert found(pieces) == {each.key for each in (ONE, TWO, OTHER) if each in expected}
    assert found(pieces) == {each.key for each in (ONE, TWO, OTHER) if each in expected}


def refused(pieces: Path, reason: str) -> None:
    assert verdict(pieces) is Verdict.DAMAGED
    with pytest.raises(DataDirectoryError, match=reason):
        recover_pieces(DISK, pieces, CLUSTER_ID)


def change(path: Path, at: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)


def second_unit(pieces: Path) -> int:
    """Position of the second unit."""
    return 40 + first(pieces).read_bytes()[40:].index(b"UNIT", 1)


def test_absent(tmp_path: Path) -> None:
    assert recover_pieces(DISK, tmp_path / "pieces", CLUSTER_ID) == {}


def test_whole(pieces: Path) -> None:
    taken(pieces, ONE, TWO, OTHER)


def test_torn(pieces: Path) -> None:
    path, end = first(pieces), first(pieces).stat().st_size
    change(path, end - 10, bytes(10))
    taken(pieces, ONE, OTHER, says=Verdict.WARNING)


@pytest.mark.slow
def test_short(pieces: Path) -> None:
    path, content = first(pieces), first(pieces).read_bytes()
    second = second_unit(pieces)
    for end in range(second + 1, len(content)):
        path.write_bytes(content[:end])
        taken(pieces, ONE, OTHER, says=Verdict.WARNING)


def test_zero_tail(pieces: Path) -> None:
    path = first(pieces)
    path.write_bytes(path.read_bytes() + bytes(1000))
    taken(pieces, ONE, TWO, OTHER, says=Verdict.WARNING)


def test_damaged_head(pieces: Path) -> None:
    change(first(pieces), 50, b"\xff")
    taken(pieces, OTHER, says=Verdict.WARNING)


def test_damaged_batch(pieces: Path) -> None:
    path = first(pieces)
    change(path, path.read_bytes().index(b"one"), b"ONE")
    assert verdict(pieces) is Verdict.DAMAGED
    assert found(pieces) == {ONE.key, TWO.key, OTHER.key}


@pytest.mark.slow
def test_unborn(pieces: Path) -> None:
    content = first(pieces).read_bytes()
    for end in range(second_unit(pieces)):
        first(pieces).write_bytes(content[:end])
        assert verdict(pieces) is Verdict.WARNING
        assert found(pieces) == {OTHER.key}
        assert not first(pieces).exists()


def first_is(pieces: Path, disk: RecordingDisk, *expected: NewPiece) -> None:
    """These are what is left of the first file on a disk that has lost some of it."""
    report = Report(pieces)
    check_pieces(disk, pieces, CLUSTER_ID, report)
    assert report.verdict is Verdict.WARNING
    kept = {key for _, places in recover_pieces(disk, pieces, CLUSTER_ID).values() for key in places}
    assert kept == {each.key for each in (*expected, OTHER)}
    assert first(pieces).exists() is bool(expected)
    disk.bad_bytes.clear()
    taken(pieces, *expected, OTHER)


def test_bad_sector(pieces: Path) -> None:
    whole = first(pieces).read_bytes()
    second = second_unit(pieces)
    for at in (second, second + 25, whole.index(b"two"), 50, 70, 10):
        disk = RecordingDisk()
        disk.bad_bytes[first(pieces)] = at
        first(pieces).write_bytes(whole)
        first_is(pieces, disk, *([ONE] if at >= second else []))


def test_lost_file(pieces: Path) -> None:
    disk = RecordingDisk()
    disk.lost.add(first(pieces))
    first_is(pieces, disk)


def test_come_back(pieces: Path) -> None:
    # The start removes what belongs to no stage once it knows the stages.
    taken(pieces, ONE, TWO, OTHER)


def test_renamed(pieces: Path) -> None:
    first(pieces).rename(pieces / f"{9:020d}.pieces")
    taken(pieces, OTHER, says=Verdict.WARNING)


def test_newer_version(pieces: Path) -> None:
    change(first(pieces), 8, struct.pack("<I", 2))
    refused(pieces, "has format version 2, this release reads 1")


def test_foreign_cluster(pieces: Path) -> None:
    other = bytes(16)
    PieceFile(DISK, pieces, other, 9).write([new_piece(b"a", stage=9)])
    refused(pieces, f"belongs to cluster {other.hex()}")


def test_stray_file(pieces: Path) -> None:
    (pieces / "notes").touch()
    refused(pieces, "has no pieces of a stage")


def test_stray_directory(pieces: Path) -> None:
    (pieces / f"{9:020d}.pieces").mkdir()
    refused(pieces, "is a directory")
