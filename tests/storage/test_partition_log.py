"""Partition logs: offsets, equal reads from memory and segments, rolling, and startup."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixy.errors import CorruptData, DataDirectoryError, StorageFault
from pixy.proto.state_pb2 import AppliedPosition
from pixy.records import read_header, read_records
from pixy.storage import PartitionLog, RealDisk
from pixy.storage.partition import SyncedPosition
from pixy.storage.partition.log_segments import AgedSegments
from tests.fakes.disk import RecordingDisk, full
from tests.storage.batches import batch
from tests.storage.logs import append, partition_log

ONE = len(batch())


class Model:
    """A partition log, and a list of the appended batches."""

    def __init__(
        self, directory: Path, segment_bytes: int = 1 << 20, disk: RealDisk | RecordingDisk | None = None
    ) -> None:
        self.disk = disk or RealDisk()
        self.directory = directory / "topic-0"
        self.segment_bytes = segment_bytes
        self.log = self._new()
        self.batches: list[bytes] = []
        self.bases: list[int] = []
        self.synced = SyncedPosition(0, 0, 0)

    def _new(self) -> PartitionLog:
        return partition_log(self.disk, self.directory, self.segment_bytes)

    def append(self, new: bytearray) -> int:
        base = append(self.log, new)
        self.batches.append(bytes(new))
        self.bases.append(base)
        return base

    def write(self) -> None:
        unwritten = self.log.unwritten()
        self.log.write(unwritten.batches, AgedSegments())
        self.log.wrote(unwritten)

    def sync(self) -> AppliedPosition:
        self.write()
        self.synced = self.log.sync()
        return AppliedPosition(
            log_begin_offset=self.synced.log_begin_offset,
            end_offset=self.log.end_offset,
            segment_base_offset=self.synced.segment_base_offset,
            segment_bytes=self.synced.segment_bytes,
        )

    def reopen(self, applied: AppliedPosition | None) -> None:
        self.log.close()
        self.log = self._new()
        self.log.open(applied, exists=self.directory.exists())

    def read(self, offset: int, max_bytes: int) -> tuple[list[bytes], int]:
        chunk = self.log.read_memory(offset, max_bytes) or self.log.read(offset, max_bytes)
        return [bytes(each) for each in chunk.batches], chunk.next_offset

    def check(self, max_bytes: int = 1 << 30) -> None:
        """Assert that reads from every offset reach the end with the right bytes and sizes."""
        for offset in range(self.log.end_offset):
            got, after = self.read(offset, max_bytes)
            first = max(at for at, base in enumerate(self.bases) if base <= offset)
            assert got, offset
            assert got == self.batches[first : first + len(got)], offset
            assert after == [*self.bases, self.log.end_offset][first + len(got)], offset
            assert len(got) == 1 or sum(map(len, got)) <= max_bytes, offset

    def names(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir() if path.suffix == ".log")


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path)


def test_offsets_start_at_0_and_have_no_holes(model: Model) -> None:
    assert [model.append(batch(records)) for records in (1, 3, 2, 1)] == [0, 1, 4, 6]
    assert (model.log.begin_offset, model.log.end_offset, model.log.written_offset) == (0, 7, 0)
    offsets = [record.offset for each in model.batches for record in read_records(each)]
    assert offsets == list(range(7))
    assert {read_header(each).leader_epoch for each in model.batches} == {1}


def test_nothing_is_made_on_disk_before_the_first_write(model: Model) -> None:
    model.append(batch())
    assert not model.directory.exists()
    model.write()
    assert model.names() == ["00000000000000000000.log"]
    model.log.close()


def test_reading_at_the_end_gives_nothing(model: Model) -> None:
    assert model.log.read_memory(0, 100) == ([], 0)
    model.append(batch(2))
    assert model.log.read_memory(2, 100) == ([], 2)


def test_only_written_batches_are_evicted(model: Model) -> None:
    assert model.log.evict() == 0
    model.append(batch())
    assert model.log.evict() == 0
    model.write()
    model.append(batch())
    assert model.log.evict() == ONE
    assert model.log.evict() == 0
    assert model.log.read_memory(0, 100) is None
    assert model.read(1, 100)[1] == 2
    model.check()
    model.log.close()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 5), st.integers(0, 400)),
            st.tuples(st.just("write"), st.just(0), st.just(0)),
            st.tuples(st.just("sync"), st.just(0), st.just(0)),
            st.tuples(st.just("evict"), st.integers(1, 80), st.just(0)),
        ),
        max_size=40,
    ),
    segment_bytes=st.integers(1, 3000),
    max_bytes=st.integers(0, 2000),
    repeat=st.integers(1, 4),
)
def test_memory_and_segments_have_the_same_batches_after_any_evictions(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, int, int]],
    segment_bytes: int,
    max_bytes: int,
    repeat: int,
) -> None:
    model = Model(tmp_path_factory.mktemp("log"), segment_bytes)
    for what, number, size in steps:
        if what == "append":
            for _ in range(repeat):
                model.append(batch(number, size))
        elif what == "write":
            model.write()
        elif what == "sync":
            model.sync()
        else:
            for _ in range(number):
                model.log.evict()
    model.check(max_bytes)
    model.reopen(model.sync())
    model.check(max_bytes)


@pytest.mark.slow
def test_many_evictions_keep_the_order(model: Model) -> None:
    for _ in range(300):
        model.append(batch(2))
        model.write()
    for _ in range(250):
        assert model.log.evict() == len(batch(2))
    assert model.log.read_memory(499, 1 << 20) is None
    assert model.log.read_memory(500, 1 << 20) is not None
    model.check()
    model.log.close()


# --- segments -------------------------------------------------------------------------------------


def test_a_segment_is_rolled_when_a_batch_does_not_fit(tmp_path: Path) -> None:
    model = Model(tmp_path, segment_bytes=3 * ONE)
    for _ in range(7):
        model.append(batch())
    model.sync()
    assert model.names() == [f"{base:020d}.log" for base in (0, 3, 6)]
    assert model.synced == SyncedPosition(0, 6, ONE)
    model.check()


def test_segment_boundaries_do_not_depend_on_the_grouping_of_writes(tmp_path: Path) -> None:
    at_once, one_by_one = Model(tmp_path / "a", 1000), Model(tmp_path / "b", 1000)
    for number in range(50):
        at_once.append(batch(1, number * 13 % 400))
        one_by_one.append(batch(1, number * 13 % 400))
        one_by_one.sync()
    at_once.sync()
    assert at_once.names() == one_by_one.names()


def test_one_batch_may_be_larger_than_a_segment(tmp_path: Path) -> None:
    model = Model(tmp_path, segment_bytes=100)
    for size in (500, 1, 700):
        model.append(batch(1, size))
    model.sync()
    assert model.names() == [f"{base:020d}.log" for base in (0, 1, 2)]
    model.check(10)


def test_files_are_synced_and_then_the_directory_of_a_new_segment(tmp_path: Path) -> None:
    disk = RecordingDisk()
    model = Model(tmp_path, 2 * ONE, disk)
    for _ in range(4):
        model.append(batch())
    model.sync()
    syncs = [(call.what, call.name) for call in disk.calls if call.what.startswith("sync")]
    assert syncs == [
        ("sync", "identity.part"),
        ("sync_directory", "topic-0"),
        ("sync", "00000000000000000000.log"),
        ("sync", "00000000000000000002.log"),
        ("sync_directory", "topic-0"),
    ]


def test_a_search_skips_a_segment_without_a_file(tmp_path: Path) -> None:
    disk = RecordingDisk()
    model = Model(tmp_path, 2 * ONE, disk)
    for _ in range(2):
        model.append(batch())
    model.write()
    model.append(batch(timestamp_ms=9000))
    full(disk, "create", "02.log")
    with pytest.raises(OSError, match="No space left"):
        model.write()
    assert model.log.find_timestamp(9000) is None
    assert model.log.find_timestamp(0) == 0
    with pytest.raises(CorruptData, match="has no record batch for offset 2"):
        model.log.read(2, 100)
    model.log.close()


@pytest.mark.parametrize("ending", ["00.log", "02.log", "04.log"])
@pytest.mark.parametrize("what", ["create", "write"])
def test_a_retry_after_a_full_disk_writes_nothing_twice(tmp_path: Path, what: str, ending: str) -> None:
    disk = RecordingDisk()
    model = Model(tmp_path, 2 * ONE, disk)
    for _ in range(6):
        model.append(batch())
    full(disk, what, ending)
    unwritten = model.log.unwritten()
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            model.log.write(unwritten.batches, AgedSegments())
    disk.heal()
    model.log.write(unwritten.batches, AgedSegments())
    model.log.wrote(unwritten)
    for _ in range(6):
        model.log.evict()
    model.check()
    assert b"".join((model.directory / name).read_bytes() for name in model.names()) == b"".join(
        model.batches
    )
    model.log.close()


@pytest.mark.slow
def test_timestamps_are_found_in_any_segment(tmp_path: Path) -> None:
    model = Model(tmp_path, segment_bytes=3 * len(batch(2)))
    for number in range(20):
        model.append(batch(2, timestamp_ms=number * 10))
    model.write()
    for timestamp in range(-5, 200):
        at = max(0, (timestamp + 8) // 10)
        assert model.log.find_timestamp(timestamp) == (2 * at if at < 20 else None), timestamp
    model.log.close()


# --- startup --------------------------------------------------------------------------------------


def test_without_an_applied_position_all_segments_are_removed(tmp_path: Path) -> None:
    model = Model(tmp_path, 2 * ONE)
    for _ in range(6):
        model.append(batch())
    model.sync()
    model.reopen(None)
    assert model.names() == []
    assert (model.log.end_offset, model.log.written_offset) == (0, 0)


def test_without_an_applied_position_and_without_entries_segments_are_corruption(model: Model) -> None:
    partition_log(RealDisk(), model.directory).open(None, exists=False, replayed=False)
    model.append(batch())
    model.sync()
    with pytest.raises(CorruptData, match="has segments, but the journal does not know of any record there"):
        partition_log(RealDisk(), model.directory).open(None, exists=True, replayed=False)
    assert model.names() == ["00000000000000000000.log"]


@pytest.mark.slow
@pytest.mark.parametrize("synced", range(1, 9))
def test_batches_behind_the_applied_position_are_cut_and_can_be_replayed(tmp_path: Path, synced: int) -> None:
    model = Model(tmp_path, 3 * ONE)
    for _ in range(synced):
        model.append(batch())
    position = model.sync()
    for _ in range(9 - synced):
        model.append(batch())
    model.sync()
    expected = {name: (model.directory / name).read_bytes() for name in model.names()}
    model.reopen(position)
    assert (model.log.end_offset, model.log.written_offset) == (synced, synced)
    assert sum((model.directory / name).stat().st_size for name in model.names()) == synced * ONE
    del model.batches[synced:], model.bases[synced:]
    for _ in range(9 - synced):
        model.append(batch())
    model.sync()
    model.check()
    assert {name: (model.directory / name).read_bytes() for name in model.names()} == expected


def test_missing_synced_bytes_are_corruption(tmp_path: Path) -> None:
    model = Model(tmp_path, 3 * ONE)
    for _ in range(5):
        model.append(batch())
    position = model.sync()
    path = model.directory / model.names()[-1]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptData, match=rf"03\.log has {2 * ONE - 1} bytes, {2 * ONE} were synced"):
        model.reopen(position)
    path.unlink()
    with pytest.raises(CorruptData, match=r"03\.log is missing, it was synced"):
        model.reopen(position)


def test_a_log_file_with_a_foreign_name_is_refused(model: Model) -> None:
    model.append(batch())
    position = model.sync()
    (model.directory / "debug.log").touch()
    with pytest.raises(DataDirectoryError, match=r"debug\.log is not a segment; move it out of the way"):
        model.reopen(position)


def test_damage_is_named_with_file_and_byte(model: Model) -> None:
    for _ in range(3):
        model.append(batch())
    position = model.sync()
    path = model.directory / model.names()[0]
    damaged = bytearray(path.read_bytes())
    damaged[ONE + 65] ^= 1
    path.write_bytes(damaged)
    model.reopen(position)
    assert model.read(0, 1)[1] == 1
    with pytest.raises(
        CorruptData, match=rf"0000\.log is corrupt at byte {ONE}: record batch at offset 1 has CRC"
    ):
        model.read(1, 1)
    assert model.read(2, 1)[1] == 3


def test_a_failed_read_is_a_storage_fault_that_names_the_file(model: Model) -> None:
    model.append(batch())
    model.reopen(model.sync())
    (model.directory / model.names()[0]).unlink()
    with pytest.raises(StorageFault, match=r"topic-0 cannot be read: .*0000\.log"):
        model.read(0, 1)
    with pytest.raises(StorageFault, match=r"topic-0 cannot be read: .*0000\.log"):
        model.log.find_timestamp(0)


def test_a_cut_is_durable_before_a_position_in_a_later_segment(tmp_path: Path) -> None:
    disk = RecordingDisk()
    model = Model(tmp_path, 10 * ONE, disk)
    model.append(batch())
    position = model.sync()
    model.append(batch())
    model.write()
    model.segment_bytes = (
        ONE  # the next batch begins a segment, so nothing is written to the one that was cut
    )
    model.reopen(position)
    disk.calls.clear()
    model.append(batch())
    model.sync()
    first, second = model.names()
    assert [call.name for call in disk.did("sync")] == [first, second]
