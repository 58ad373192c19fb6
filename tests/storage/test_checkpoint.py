"""Checkpoint files: byte format and order of writes. `test_checkpoint_decisions` tests damage."""

import errno
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixy.errors import CorruptData
from pixy.records import read_control_record, read_header, read_records
from pixy.storage import Checkpoint, CheckpointId, CheckpointStore, RealDisk, read_checkpoint
from pixy.storage.checkpoints.checkpoint import _split
from tests.fakes.disk import RecordingDisk

RECORDS = [(b"key %d" % at, b"value %d" % at) for at in range(3)]
A, B, C = CheckpointId(1, 10), CheckpointId(1, 20), CheckpointId(1, 30)
TIME = 1_700_000_000_000

Store = CheckpointStore


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return CheckpointStore(RealDisk(), tmp_path / "state")


def files(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "state").iterdir())


def test_names_are_those_of_kip_630_and_a_later_checkpoint_is_greater() -> None:
    assert CheckpointId(7, 123).file_name == "00000000000000000123-0000000007.checkpoint"
    assert CheckpointId(2, 5) > CheckpointId(1, 900) > CheckpointId(1, 80)


def test_the_file_is_a_header_batch_the_records_and_a_footer_batch(store: Store, tmp_path: Path) -> None:
    store.write(CheckpointId(7, 10), RECORDS, TIME)
    data = (tmp_path / "state" / CheckpointId(7, 10).file_name).read_bytes()
    batches = [batch for _, batch in _split(data, 7)]
    headers = [read_header(batch) for batch in batches]
    assert [header.is_control for header in headers] == [True, False, True]
    assert [header.base_offset for header in headers] == [0, 1, 4]
    assert {header.leader_epoch for header in headers} == {7}
    # KIP-630: version int16, last contained log timestamp int64, no tagged fields; the footer has a
    # version alone.
    assert read_control_record(batches[0]) == (3, bytes.fromhex("0000 0000018bcfe56800 00"))
    assert read_control_record(batches[2]) == (4, bytes.fromhex("0000 00"))
    assert [(record.key, record.value) for record in read_records(batches[1])] == RECORDS


@settings(max_examples=20)
@given(count=st.sampled_from([0, 1, 499, 500, 501, 1001]))
def test_records_survive_a_round_trip(tmp_path_factory: pytest.TempPathFactory, count: int) -> None:
    store = CheckpointStore(RealDisk(), tmp_path_factory.mktemp("store"))
    records = [(b"%d" % at, b"v" * (at % 50)) for at in range(count)]
    assert store.write(A, iter(records), TIME) == [A]
    assert store.load() == (Checkpoint(A, records), [A])


def test_a_directory_without_checkpoints_has_none(store: Store) -> None:
    assert store.load() == (None, [])


def test_the_newest_two_checkpoints_are_kept(store: Store, tmp_path: Path) -> None:
    assert store.write(A, RECORDS, TIME) == [A]
    assert store.write(B, RECORDS, TIME) == [A, B]
    assert store.write(C, [], TIME) == [B, C]
    assert files(tmp_path) == sorted([B.file_name, C.file_name])
    assert store.load() == (Checkpoint(C, []), [B, C])


def test_a_file_is_synced_before_its_rename_and_an_older_one_removed_after_that(tmp_path: Path) -> None:
    disk = RecordingDisk()
    store = CheckpointStore(disk, tmp_path / "state")
    store.write(A, RECORDS, TIME)
    store.write(B, RECORDS, TIME)
    disk.calls.clear()
    store.write(C, RECORDS, TIME)
    assert [(call.what, call.name) for call in disk.calls if call.what not in ("write", "truncate")] == [
        ("create", C.file_name + ".part"),
        ("sync", C.file_name + ".part"),
        ("rename", C.file_name),
        ("sync_directory", "state"),
        ("unlink", A.file_name),
        ("sync_directory", "state"),
    ]


@pytest.mark.parametrize("what", ["create", "write", "sync", "rename"])
def test_a_failed_write_keeps_the_other_checkpoints_and_leaves_no_bytes(tmp_path: Path, what: str) -> None:
    disk = RecordingDisk()
    store = CheckpointStore(disk, tmp_path / "state")
    store.write(A, RECORDS, TIME)
    store.write(B, RECORDS, TIME)
    disk.fail(what, C.file_name if what == "rename" else ".part", errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        store.write(C, RECORDS, TIME)
    assert files(tmp_path) == [A.file_name, B.file_name]
    disk.heal()
    assert store.load() == (Checkpoint(B, RECORDS), [A, B])
    assert store.write(C, RECORDS, TIME) == [B, C]


# --- damage ---------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_does_not_count_as_one_of_the_two_kept(store: Store, tmp_path: Path) -> None:
    store.write(A, RECORDS, TIME)
    store.write(B, RECORDS, TIME)
    path = tmp_path / "state" / B.file_name
    path.write_bytes(path.read_bytes()[:-1])
    assert store.load()[1] == [A]
    assert store.write(C, RECORDS, TIME) == [A, C]
    assert files(tmp_path) == [A.file_name, C.file_name]


def test_of_a_checkpoint_with_a_bad_sector_the_one_before_is_used(tmp_path: Path) -> None:
    disk = RecordingDisk()
    store = CheckpointStore(disk, tmp_path / "state")
    store.write(A, RECORDS, TIME)
    store.write(B, RECORDS, TIME)
    disk.unreadable = {tmp_path / "state" / B.file_name}
    assert store.load() == (Checkpoint(A, RECORDS), [A])


def test_a_damaged_checkpoint_that_is_written_again_counts(store: Store, tmp_path: Path) -> None:
    store.write(A, RECORDS, TIME)
    store.write(B, RECORDS, TIME)
    (tmp_path / "state" / B.file_name).write_bytes(b"")
    store.load()
    assert store.write(B, RECORDS, TIME) == [A, B]
    assert store.load() == (Checkpoint(B, RECORDS), [A, B])


def test_the_damage_of_a_checkpoint_is_logged(store: Store, tmp_path: Path) -> None:
    store.write(A, RECORDS, TIME)
    path = tmp_path / "state" / A.file_name
    whole = path.read_bytes()
    for damaged, reason in [
        (whole[:60], "cut off at byte 0"),
        (whole[:-1], r"a batch at byte \d+ ends at byte \d+, the file at byte \d+"),
        (b"", "cut off at byte 0: no snapshot footer"),
        (whole[:15] + b"\2" + whole[16:], "corrupt at byte 0: offset 0 and epoch 2, expected 0 and 1"),
    ]:
        path.write_bytes(damaged)
        with pytest.raises(CorruptData, match=reason):
            read_checkpoint(RealDisk(), path)


def test_a_foreign_file_is_not_a_checkpoint(store: Store, tmp_path: Path) -> None:
    store.write(A, RECORDS, TIME)
    with pytest.raises(CorruptData, match="its name is not a checkpoint's"):
        read_checkpoint(RealDisk(), (tmp_path / "state" / A.file_name).rename(tmp_path / "x.checkpoint"))
