"""One segment: reads from any offset, indexes that are only hints, damage that is always found."""

import random
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pixy.errors import CorruptData
from pixy.records import BatchHeader, check_batch, patch_batch, read_header
from pixy.storage import RealDisk
from pixy.storage.disk.disk import File
from pixy.storage.disk.scan import scan_headers
from pixy.storage.partition import segment
from pixy.storage.partition.index import INDEX_INTERVAL_BYTES
from pixy.storage.partition.segment import Segment, segment_path
from tests.fakes.disk import RecordingDisk, full
from tests.sim.disk import SimulatedDisk
from tests.storage.batches import batch

DISK = RealDisk()
SIMULATED = Path("/topics/topic-0")
BASE = 100
LARGE = 7000


class Written:
    """A segment, and the batches that a reader must find in it."""

    def __init__(self, directory: Path, count: int = 40, size: int = LARGE, seed: int = 1) -> None:
        rng = random.Random(seed)
        self.segment = Segment(DISK, directory, BASE)
        self.batches: list[bytes] = []
        self.bases: list[int] = []
        self.timestamps: list[int] = []
        self.end = BASE
        for _ in range(count):
            # Ascending timestamps, except some that are far ahead or behind.
            timestamp = len(self.batches) * 10 + rng.choice([0, 0, 0, 55, -35])
            self.add(batch(rng.randint(1, 3), size // 2, timestamp))
        self.segment.sync()

    def add(self, new: bytearray) -> None:
        patch_batch(new, self.end, 1)
        self.segment.write([new])
        self.batches.append(bytes(new))
        self.bases.append(self.end)
        self.timestamps.append(read_header(new).max_timestamp)
        self.end = read_header(new).next_offset

    def reopened(self, size: int | None = None) -> Segment:
        segment = Segment(DISK, self.segment.path.parent, BASE)
        segment.measure(self.segment.size if size is None else size)
        segment.cut()
        return segment

    def check(self, segment: Segment) -> None:
        """Assert that every offset and every timestamp is found at its position."""
        for base, after, stored in zip(self.bases, [*self.bases[1:], self.end], self.batches, strict=True):
            for offset in (base, after - 1):
                chunk = segment.read(offset, 1, segment.size)
                assert ([bytes(each) for each in chunk.batches], chunk.next_offset) == ([stored], after)
        for timestamp in range(-40, max(self.timestamps) + 2, 5):
            found = segment.offset_for_timestamp(timestamp, segment.size)
            expected = next(
                (b for b, t in zip(self.bases, self.timestamps, strict=True) if t >= timestamp), None
            )
            assert (None if found is None else found[1]) == expected, timestamp


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def test_the_file_holds_the_batches_and_nothing_else(written: Written) -> None:
    assert written.segment.path.name == "00000000000000000100.log"
    assert written.segment.path.read_bytes() == b"".join(written.batches)
    assert written.segment.size == sum(map(len, written.batches))
    assert not written.segment.is_unsynced


def test_every_offset_and_timestamp_is_found(written: Written) -> None:
    assert written.segment.path.with_suffix(".index").stat().st_size >= 8 * 3
    written.check(written.segment)


def test_a_read_returns_whole_batches_up_to_its_limit_but_at_least_one(written: Written) -> None:
    size = written.segment.size
    for bound in (0, 1, 61, LARGE, 3 * LARGE, 10 * LARGE, 1 << 30):
        chunk = written.segment.read(BASE, bound, size)
        assert chunk.batches
        total = sum(map(len, chunk.batches))
        assert total <= bound or len(chunk.batches) == 1
        count = len(chunk.batches)
        assert count == len(written.batches) or count == 1 or total + len(written.batches[count]) > bound
        assert [bytes(each) for each in chunk.batches] == written.batches[:count]
        assert chunk.next_offset == [*written.bases, written.end][count]


def test_a_read_never_goes_beyond_the_given_size(written: Written) -> None:
    size = sum(map(len, written.batches[:3]))
    assert len(written.segment.read(BASE, 1 << 30, size).batches) == 3
    assert written.segment.read(written.bases[3], 1 << 30, size) == ([], written.bases[3])
    assert written.segment.offset_for_timestamp(2**40, size) is None


def test_the_indexes_have_an_entry_every_so_many_bytes(written: Written) -> None:
    entries = list(struct.iter_unpack(">II", written.segment.path.with_suffix(".index").read_bytes()))
    positions = [position for _, position in entries]
    assert all(after - before >= INDEX_INTERVAL_BYTES for before, after in pairwise(positions))
    stored = written.segment.path.read_bytes()
    for last, position in entries:
        header = read_header(stored, position)
        assert header.base_offset in written.bases
        assert header.next_offset - 1 == BASE + last
    times = list(struct.iter_unpack(">qI", written.segment.path.with_suffix(".timeindex").read_bytes()))
    for timestamp, last in times:
        upto = [t for b, t in zip(written.bases, written.timestamps, strict=True) if b <= BASE + last]
        assert timestamp == max(upto) == upto[-1]


def test_however_many_batches_are_written_at_once_the_indexes_are_the_same(
    written: Written, tmp_path: Path
) -> None:
    again = Segment(DISK, tmp_path / "again", BASE)
    again.path.parent.mkdir()
    for first, last in ((0, 17), (17, 18), (18, 40)):
        again.write([bytearray(each) for each in written.batches[first:last]])
    again.sync()
    for suffix in (".log", ".index", ".timeindex"):
        expected = written.segment.path.with_suffix(suffix).read_bytes()
        assert again.path.with_suffix(suffix).read_bytes() == expected, suffix


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_deleting_truncating_or_scribbling_over_an_index_changes_no_answer(
    written: Written, suffix: str
) -> None:
    path = written.segment.path.with_suffix(suffix)
    whole = path.read_bytes()
    rng = random.Random(7)
    damages = [b"", whole[:5], whole[:-3], bytes(len(whole)), b"\xff" * len(whole), whole[::-1], whole * 2]
    for _ in range(10):
        scribbled = bytearray(whole)
        at = rng.randrange(len(whole))
        scribbled[at : at + 6] = rng.randbytes(6)
        damages.append(bytes(scribbled))
    for damage in damages:
        path.write_bytes(damage)
        written.check(written.segment)
    path.unlink()
    written.check(written.segment)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["missing", "empty", "short", "zeros", "ones"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_was_damaged_before_a_restart_changes_no_answer_when_the_segment_grows(
    written: Written, suffix: str, damage: str
) -> None:
    path = written.segment.path.with_suffix(suffix)
    whole = path.read_bytes()
    path.write_bytes(
        {"short": whole[:13], "zeros": bytes(len(whole)), "ones": b"\xff" * len(whole)}.get(damage, b"")
    )
    if damage == "missing":
        path.unlink()
    written.segment = written.reopened()
    for number in range(20):
        written.add(batch(1, LARGE, 100 + number))
    written.segment.sync()
    written.check(written.segment)


def test_cutting_a_segment_cuts_its_indexes_and_what_comes_next_is_found(written: Written) -> None:
    size = sum(map(len, written.batches[:20]))
    written.end = written.bases[20]
    del written.batches[20:], written.bases[20:], written.timestamps[20:]
    written.segment = written.reopened(size)
    assert written.segment.path.stat().st_size == size
    entries = list(struct.iter_unpack(">II", written.segment.path.with_suffix(".index").read_bytes()))
    assert entries
    assert all(position < size for _, position in entries)
    for _ in range(20):
        written.add(batch(2, LARGE, 20))
    written.segment.sync()
    written.check(written.segment)


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True])
def test_a_search_for_a_timestamp_scans_a_bounded_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Also behind a large timestamp at the front, which all entries of the index name."""
    written = Written(tmp_path, 0)
    written.add(batch(1, 100, 1000))
    for _ in range(2000):
        written.add(batch(1, 100, 1))
    written.add(batch(1, 100, 2000))
    written.segment.sync()
    found = written.reopened() if again else written.segment
    scanned = 0

    def counted(*args: Any) -> Iterator[tuple[int, BatchHeader]]:
        nonlocal scanned
        for each in scan_headers(*args):
            scanned += 1
            yield each

    monkeypatch.setattr(segment, "scan_headers", counted)
    assert found.offset_for_timestamp(3000, found.size) is None
    assert scanned == 0
    last = found.offset_for_timestamp(1500, found.size)
    assert last is not None
    assert last[1] == written.bases[-1]
    assert scanned <= 2 * INDEX_INTERVAL_BYTES // len(written.batches[0])


def test_a_timestamp_behind_the_last_index_entry_counts_after_a_restart(tmp_path: Path) -> None:
    written = Written(tmp_path, 12, 3000)
    written.add(batch(1, 10, 5000))  # far ahead, and not in the index yet
    written.segment.sync()
    written.segment = written.reopened()
    for _ in range(30):
        written.add(batch(1, 3000, 200))
    written.segment.sync()
    written.check(written.segment)


def test_a_file_that_is_shorter_than_what_was_synced_is_corrupt(written: Written) -> None:
    size = written.segment.size
    with pytest.raises(CorruptData, match=rf"100\.log has {size} bytes, {size + 1} were synced"):
        written.reopened(size + 1)


def test_a_batch_out_of_range_of_the_index_is_not_a_fault(tmp_path: Path) -> None:
    segment = Segment(DISK, tmp_path, 0)
    for number in range(4):
        huge = batch(1, INDEX_INTERVAL_BYTES)
        patch_batch(huge, number * 2**31, 1)
        struct.pack_into(">i", huge, 23, 2**31 - 1)
        segment.write([huge])
    segment.sync()
    assert segment.size == sum(len(huge) for _ in range(4))


@pytest.mark.slow
def test_every_flipped_byte_is_found_and_named(tmp_path: Path) -> None:
    written = Written(tmp_path, 3, 40)
    whole = b"".join(written.batches)
    starts = [0, len(written.batches[0]), len(written.batches[0] + written.batches[1])]
    for at in range(len(whole)):
        start = max(each for each in starts if each <= at)
        if at - start in range(12, 16):
            continue  # the leader epoch lies outside the checksum, and is not used to find anything
        flipped = bytearray(whole)
        flipped[at] ^= 0x41
        written.segment.path.write_bytes(flipped)
        found: list[bytes] = []
        with pytest.raises(CorruptData, match=r"100\.log (is corrupt at|ends at) byte \d+"):
            read_all(written, found)
        assert found == written.batches[: len(found)], at


def read_all(written: Written, found: list[bytes]) -> None:
    offset = BASE
    while offset < written.end:
        chunk = written.segment.read(offset, 1, written.segment.size)
        found += map(bytes, chunk.batches)
        offset = chunk.next_offset


@pytest.mark.slow
def test_a_file_that_became_shorter_is_found(tmp_path: Path) -> None:
    written = Written(tmp_path, 3, 40)
    whole = b"".join(written.batches)
    for size in range(len(whole)):
        written.segment.path.write_bytes(whole[:size])
        with pytest.raises(CorruptData, match=r"100\.log"):
            written.segment.read(written.bases[2], 1, len(whole))


def test_closing_without_a_sync_releases_the_descriptor(tmp_path: Path) -> None:
    segment = Segment(DISK, tmp_path, 0)
    segment.write([batch()])
    before = segment.is_unsynced
    segment.close()
    segment.close()
    assert (before, segment.is_unsynced) == (True, False)
    check_batch(segment_path(tmp_path, 0).read_bytes())


# --- measuring ------------------------------------------------------------------------------------


def facts(segment: Segment) -> tuple[int, int, int, int]:
    return segment.size, segment.end_offset, segment.first_timestamp, segment.max_timestamp


@pytest.mark.parametrize("seed", range(10))
def test_measuring_agrees_with_writing_also_for_a_prefix(tmp_path: Path, seed: int) -> None:
    written = Written(tmp_path, 40, seed=seed)
    told = []
    size = 0
    for count, stored in enumerate(written.batches, 1):
        size += len(stored)
        timestamps = written.timestamps[:count]
        first = read_header(written.batches[0]).base_timestamp
        told.append((size, [*written.bases, written.end][count], first, max(timestamps)))
    for expected in told:
        segment = Segment(DISK, tmp_path, BASE)
        segment.measure(expected[0])
        assert facts(segment) == expected
    whole = Segment(DISK, tmp_path, BASE)
    whole.measure()
    assert facts(whole) == facts(written.segment) == told[-1]


def test_measuring_reads_only_the_end(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    headers = Segment._headers

    def watched(self: Segment, file: File, position: int, size: int) -> Iterator[tuple[int, BatchHeader]]:
        for at, header in headers(self, file, position, size):
            looked.append(at)
            yield at, header

    monkeypatch.setattr(Segment, "_headers", watched)
    Segment(DISK, written.segment.path.parent, BASE).measure()
    assert written.segment.size > 4 * INDEX_INTERVAL_BYTES
    # Finding the batch of an entry may begin at the entry before it.
    assert len(set(looked)) * LARGE // 2 < 3 * (INDEX_INTERVAL_BYTES + 3 * LARGE)


def early_peak(directory: Path) -> Segment:
    """A segment that begins in 1970, with its largest timestamp near the front."""
    segment = Segment(DISK, directory, 0)
    for number in range(30):
        new = batch(1, LARGE, 9_000 if number == 3 else number)
        patch_batch(new, number, 1)
        segment.write([new])
    segment.sync()
    assert segment.max_timestamp == 9_000
    return segment


@pytest.mark.parametrize("entry", [(0, 0), (0, 5), (4, 7), (-1, 0), (1 << 62, 3)])
def test_a_time_index_without_the_largest_timestamp_hides_no_records(
    tmp_path: Path, entry: tuple[int, int]
) -> None:
    segment = early_peak(tmp_path)
    times = segment.path.with_suffix(".timeindex")
    count = times.stat().st_size // 12
    assert count >= 4
    times.write_bytes(struct.pack(">qI", *entry) * count)
    again = Segment(DISK, tmp_path, 0)
    again.measure()
    assert facts(again) == facts(segment)


def test_an_empty_segment_has_no_timestamps(tmp_path: Path) -> None:
    segment_path(tmp_path, 7).touch()
    segment = Segment(DISK, tmp_path, 7)
    segment.measure()
    assert (segment.size, segment.end_offset) == (0, 7)
    assert segment.max_timestamp < 0


def test_an_unwritable_index_is_not_a_fault_and_its_valid_entries_are_used(
    tmp_path: Path,
) -> None:
    disk = RecordingDisk()
    segment = Segment(disk, tmp_path, 0)
    for number in range(60):
        full(disk, "write", (".timeindex", ".index", ".nothing")[number // 10 % 3])
        new = batch(1, LARGE, 1000 + number)
        patch_batch(new, number, 1)
        segment.write([new])
    segment.sync()
    for size in range(segment.size // 60, segment.size + 1, segment.size // 60):
        again = Segment(disk, tmp_path, 0)
        again.measure(size)
        assert again.max_timestamp == 1000 + again.end_offset - 1
    for number in range(60):
        assert segment.read(number, 1, segment.size).next_offset == number + 1
        assert segment.offset_for_timestamp(1000 + number, segment.size) == (number * len(new), number)


def test_a_retired_segment_has_other_names_and_may_be_retired_again(written: Written) -> None:
    directory = written.segment.path.parent
    names = {f"{path.name}.deleted" for path in directory.iterdir()}
    assert {path.name for path in written.segment.retire()} == names
    assert {path.name for path in directory.iterdir()} == names
    assert written.segment.retire() == []


@pytest.mark.parametrize("smaller", [True, False])
def test_no_byte_of_a_failed_write_outlives_the_next_sync(smaller: bool) -> None:
    torn = 0
    for seed in range(20):
        disk = SimulatedDisk(random.Random(seed))
        disk.make_directory(SIMULATED)
        segment = Segment(disk, SIMULATED, 0)
        first, second = batch(1, 100), batch(1, LARGE)
        segment.write([first])
        disk.room = LARGE // 2
        with pytest.raises(OSError, match=r"No space left|quota"):
            segment.write([second])
        torn += disk.files()[segment.path] > segment.size
        disk.room = None
        if smaller:  # what comes next need not be what has failed
            third = batch(1, 100)
            patch_batch(third, 1, 1)
            segment.write([third])
        segment.sync()
        again = Segment(disk, SIMULATED, 0)
        again.measure()
        assert again.size == disk.files()[segment.path] == segment.size
    assert torn > 0
