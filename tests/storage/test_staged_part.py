"""A part of a stage: reads with the offsets of the log, patched headers, and damage."""

import errno
import sys
from pathlib import Path

import pytest

from pixy.errors import CorruptData
from pixy.records import check_batch, read_header, read_records
from pixy.storage import RealDisk, StagedPart
from pixy.storage.disk.disk import RealFile
from pixy.storage.disk.scan import scan_headers
from tests.staging.stages import batches_of

DISK = RealDisk()
VALUES = [b"%03d" % number * 300 for number in range(100)]


def part_in(directory: Path, before: bytes = b"") -> StagedPart:
    data = batches_of(*VALUES, records=2)
    path = directory / "part.batches"
    path.write_bytes(before + data + b"of a segment behind it")
    return StagedPart(path, len(data), 200, begin=len(before)).placed(1000, 7)


@pytest.fixture
def part(tmp_path: Path) -> StagedPart:
    return part_in(tmp_path)


def read_all(part: StagedPart, from_offset: int, max_bytes: int) -> list[tuple[int, bytes | None]]:
    found: list[tuple[int, bytes | None]] = []
    offset = from_offset
    while offset < part.end_offset:
        chunk = part.read(DISK, offset, max_bytes)
        assert chunk.next_offset > offset
        for batch in chunk.batches:
            check_batch(batch)
            assert read_header(batch).leader_epoch == 7
            found += [(record.offset, record.value) for record in read_records(batch)]
        offset = chunk.next_offset
    return found


EXPECTED = [(1000 + number, VALUES[number // 2]) for number in range(200)]


@pytest.mark.slow
@pytest.mark.parametrize("max_bytes", [0, 1000, 5000, 70_000, 1 << 20])
@pytest.mark.parametrize("first", [0, 1, 2, 99, 199])
def test_a_part_is_read_with_the_offsets_of_its_position(
    part: StagedPart, max_bytes: int, first: int
) -> None:
    assert read_all(part, 1000 + first, max_bytes) == EXPECTED[first - first % 2 :]
    assert [each for batches in part.batches(DISK) for each in batches]


@pytest.mark.parametrize("max_bytes", [0, 5000, 1 << 20])
def test_a_part_among_others_in_a_file_is_read_like_one_alone(tmp_path: Path, max_bytes: int) -> None:
    part = part_in(tmp_path, batches_of(b"of another piece"))
    assert read_all(part, 1000, max_bytes) == EXPECTED
    part.check(DISK)
    copied = [batch for batches in part.batches(DISK) for batch in batches]
    assert [read_header(batch).base_offset for batch in copied] == list(range(1000, 1200, 2))


def test_a_patched_part_has_its_offsets_and_can_be_patched_and_read_again(part: StagedPart) -> None:
    for _ in range(2):
        file = DISK.open(part.path)
        sizes = [(size, header.base_offset) for size, header in part.patch(file)]
        file.close()
        assert [offset for _, offset in sizes] == list(range(1000, 1200, 2))
        at = 0
        data = part.path.read_bytes()
        for size, offset in sizes:
            batch = data[at : at + size]
            check_batch(batch)
            assert (read_header(batch).base_offset, read_header(batch).leader_epoch) == (offset, 7)
            at += size
        assert at == part.size
        assert data[at:] == b"of a segment behind it"
        assert read_all(part, 1000, 5000) == EXPECTED


@pytest.mark.slow
def test_every_flipped_bit_of_a_batch_is_found_or_is_overwritten(part: StagedPart) -> None:
    whole = part.path.read_bytes()
    size = part.size // 100
    for position in [*range(80), size - 1]:
        data = bytearray(whole)
        data[size + position] ^= 1
        part.path.write_bytes(data)
        if position < 8 or 12 <= position < 16:  # base offset and leader epoch
            part.check(DISK)
        else:
            with pytest.raises(CorruptData, match=r"byte \d+|were sealed|ends at"):
                part.check(DISK)


def test_a_truncated_or_missing_file_is_damaged(part: StagedPart) -> None:
    whole = part.path.read_bytes()
    for size in (0, 30, 61, 100, part.size - 1):
        part.path.write_bytes(whole[:size])
        with pytest.raises(CorruptData):
            part.check(DISK)
    part.path.unlink()
    with pytest.raises(CorruptData, match=r"missing"):
        part.check(DISK)
    with pytest.raises(FileNotFoundError):
        part.read(DISK, 1000, 1)


@pytest.mark.parametrize("records", [199, 201])
def test_another_number_of_records_than_was_sealed_is_damage(part: StagedPart, records: int) -> None:
    other = StagedPart(part.path, part.size, records).placed(1000, 7)
    with pytest.raises(CorruptData):
        other.check(DISK)


def test_bytes_behind_its_records_are_damage(part: StagedPart) -> None:
    half = StagedPart(part.path, part.size, 100).placed(1000, 7)
    with pytest.raises(CorruptData, match=r"were sealed"):
        half.check(DISK)


def test_each_byte_is_read_once_to_copy_or_to_check_it(
    part: StagedPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules[StagedPart.__module__]
    monkeypatch.setattr(module, "_COPY_BYTES", 20_000)
    monkeypatch.setattr(sys.modules[scan_headers.__module__], "_HEADERS_BYTES", 500)
    sizes = []
    read_at = RealFile.read_at

    def counted(file: RealFile, size: int, position: int) -> bytes:
        data = read_at(file, size, position)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(RealFile, "read_at", counted)
    copied = [bytes(each) for batches in part.batches(DISK) for each in batches]
    assert [record.value for each in copied for record in read_records(each)][::2] == VALUES
    assert sum(sizes) < 1.5 * part.size


def test_a_header_that_cannot_be_written_is_no_damage(
    part: StagedPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    file = DISK.open(part.path)
    monkeypatch.setattr(RealFile, "write_at", refuse)
    with pytest.raises(OSError, match="broken"):
        list(part.patch(file))
    file.close()
