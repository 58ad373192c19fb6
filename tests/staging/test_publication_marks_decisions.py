"""Decisions about marks of publications: a test for each row of the table in `docs/storage.md`.

There are two marks; the tests change the first. Each test also runs a check, which changes nothing.
"""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from pixy.errors import CorruptData, DataDirectoryError
from pixy.inspect import ReadOnlyDisk, Verdict, check_directory
from pixy.proto.state_pb2 import PublishStages
from pixy.records import crc32c
from pixy.staging import read_marks, write_mark
from pixy.storage import RealDisk
from tests.staging.stages import piece_of, seal_stage

DISK = RealDisk()
FIRST = f"{1:020d}"


def mark_of(number: int) -> PublishStages:
    return PublishStages(sink_id="sink", epoch=number, query_id="query", stage_ids=[f"stage-{number}"])


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    directory = tmp_path / "kafka" / "publishing"
    for number in (1, 2):
        write_mark(DISK, directory, number, mark_of(number))
    return directory


def taken(marks: Path, *numbers: int, verdict: Verdict = Verdict.OK) -> None:
    before = {path.name: path.read_bytes() for path in marks.iterdir()}
    assert read_marks(DISK, marks) == {number: mark_of(number) for number in numbers}
    assert {path.name: path.read_bytes() for path in marks.iterdir()} == before
    assert check_directory(ReadOnlyDisk(), marks.parent).verdict is verdict


def refused(marks: Path, error: type[Exception], reason: str) -> None:
    before = {path.name: path.read_bytes() for path in marks.iterdir()}
    with pytest.raises(error, match=reason):
        read_marks(DISK, marks)
    assert {path.name: path.read_bytes() for path in marks.iterdir()} == before
    assert check_directory(ReadOnlyDisk(), marks.parent).verdict is Verdict.DAMAGED


def change(marks: Path, damage: Callable[[bytes], bytes]) -> None:
    (marks / FIRST).write_bytes(damage((marks / FIRST).read_bytes()))


def test_absent(tmp_path: Path) -> None:
    assert read_marks(DISK, tmp_path / "kafka" / "publishing") == {}


def test_whole(marks: Path) -> None:
    taken(marks, 1, 2)


def test_temporary_file(marks: Path) -> None:
    (marks / f"{3:020d}.part").write_bytes(b"half of it")
    taken(marks, 1, 2, verdict=Verdict.WARNING)
    write_mark(DISK, marks, 3, mark_of(3))
    taken(marks, 1, 2, 3)


def test_half_a_rename(marks: Path) -> None:
    (marks / FIRST).rename(marks / f"{FIRST}.part")
    taken(marks, 2, verdict=Verdict.WARNING)


def test_come_back(marks: Path) -> None:
    assert not (marks.parent / "staging").exists()
    taken(marks, 1, 2)


def test_short(marks: Path) -> None:
    whole = (marks / FIRST).read_bytes()
    for size in (30, 19, 0):
        (marks / FIRST).write_bytes(whole[:size])
        refused(marks, CorruptData, FIRST)


def test_torn(marks: Path) -> None:
    change(marks, lambda whole: whole[:-3] + bytes(3))
    refused(marks, CorruptData, f"{FIRST} is damaged")


def test_bad_checksum(marks: Path) -> None:
    change(marks, lambda whole: whole[:-1] + bytes([whole[-1] ^ 1]))
    refused(marks, CorruptData, f"{FIRST} is damaged")


def test_zero_tail(marks: Path) -> None:
    change(marks, lambda whole: whole + bytes(100))
    refused(marks, CorruptData, f"{FIRST} is damaged")


def test_file_of_a_stage(marks: Path) -> None:
    seal_stage(DISK, marks.parent / "other", 1, piece_of(b"1"))
    change(marks, lambda _: (marks.parent / "other" / FIRST / "stage").read_bytes())
    refused(marks, CorruptData, f"{FIRST} is damaged")


def test_newer_version(marks: Path) -> None:
    def newer(whole: bytes) -> bytes:
        data = bytearray(whole)
        struct.pack_into("<I", data, 8, 2)
        struct.pack_into("<I", data, 12, crc32c(data[16:], crc32c(data[:12])))
        return bytes(data)

    change(marks, newer)
    refused(marks, DataDirectoryError, "format version 2, this release reads 1: a newer one wrote it")


def test_foreign_daemon(marks: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    write_mark(DISK, other, 1, mark_of(1))
    change(marks, lambda _: (other / FIRST).read_bytes())
    taken(marks, 1, 2)


def test_stray_file(marks: Path) -> None:
    (marks / "notes").write_bytes(b"mine")
    refused(marks, DataDirectoryError, "notes is not a publication; move it out of the way")
