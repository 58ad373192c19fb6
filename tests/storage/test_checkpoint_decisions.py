"""Decisions about checkpoint files: a test for each row of the table in `docs/storage.md`.

There are two checkpoints, and something happens to the newest. Each test asks a check as well,
which changes nothing.
"""

import shutil
import struct
from pathlib import Path

import pytest

from pixy.cluster.state.nodes import FEATURE_LEVEL
from pixy.errors import CorruptData, DataDirectoryError
from pixy.inspect import ReadOnlyDisk, Report, Verdict, check_checkpoints, check_node
from pixy.multiraft import split_checkpoint
from pixy.multiraft.dedup_table import DedupTable
from pixy.multiraft.group_states import checkpoint_record
from pixy.multiraft.raft_storage import RaftStorage
from pixy.proto.node_calls_pb2 import JoinRequest
from pixy.raft import ConfState
from pixy.records import COMPRESSION, NewRecord, batch_bytes, build_batch, build_control_batch, patch_batch
from pixy.storage import CheckpointDownload, CheckpointId, CheckpointStore, RealDisk, read_checkpoint
from tests.cluster.nodes import Cluster, Sizes

OLD, NEW, NEXT, LAST = CheckpointId(1, 10), CheckpointId(2, 20), CheckpointId(2, 30), CheckpointId(3, 31)
RECORDS = [(b"key %d" % at, b"value %d" % at) for at in range(1200)]
TIME = 1_700_000_000_000


@pytest.fixture
def state(tmp_path: Path) -> Path:
    store = CheckpointStore(RealDisk(), tmp_path)
    store.write(OLD, RECORDS[:5], TIME)
    store.write(NEW, RECORDS, TIME)
    return tmp_path


def batches(path: Path) -> list[bytes]:
    """Header, three batches of records, footer."""
    data, found = path.read_bytes(), []
    while data:
        found.append(data[: batch_bytes(data)])
        data = data[len(found[-1]) :]
    return found


def control(kind: int, value: bytes, offset: int, epoch: int = NEW.epoch) -> bytes:
    batch = build_control_batch(kind, value, TIME)
    patch_batch(batch, offset, epoch)
    return bytes(batch)


def header(version: int) -> bytes:
    return control(3, struct.pack(">hqB", version, TIME, 0), 0)


def footer(version: int, offset: int) -> bytes:
    return control(4, struct.pack(">hB", version, 0), offset)


def patched(batch: bytes, offset: int | None = None, epoch: int | None = None) -> bytes:
    """The batch with another base offset or leader epoch, which are not in its checksum."""
    place = batch[:8] if offset is None else struct.pack(">q", offset)
    term = batch[12:16] if epoch is None else struct.pack(">i", epoch)
    return place + batch[8:12] + term + batch[16:]


def verdict(state: Path) -> Verdict:
    before = sorted(state.glob("*"))
    report = Report(state)
    check_checkpoints(ReadOnlyDisk(), state, report)
    assert sorted(state.glob("*")) == before
    return report.verdict


def used(state: Path) -> list[CheckpointId]:
    """The valid checkpoints, oldest first; asserts that the newest is used, with all records."""
    newest, ids = CheckpointStore(RealDisk(), state).load()
    assert (newest and newest.id) == (ids[-1] if ids else None)
    if newest is not None:
        assert newest.records == (RECORDS[:5] if newest.id == OLD else RECORDS)
    return ids


def refused(state: Path, reason: str) -> None:
    assert verdict(state) is Verdict.DAMAGED
    before = sorted(state.iterdir())
    with pytest.raises(DataDirectoryError, match=reason):
        CheckpointStore(RealDisk(), state).load()
    assert sorted(state.iterdir()) == before


def damaged(state: Path, data: bytes) -> None:
    """Assert that a newest one with this content counts as absent; the next write removes it."""
    (state / NEW.file_name).write_bytes(data)
    assert verdict(state) is Verdict.DAMAGED
    assert used(state) == [OLD]
    copy = shutil.copytree(state, state.parent / "copy", dirs_exist_ok=True)
    store = CheckpointStore(RealDisk(), copy)
    store.load()
    assert store.write(NEXT, RECORDS, TIME) == [OLD, NEXT]
    assert sorted(path.name for path in copy.iterdir()) == [OLD.file_name, NEXT.file_name]
    shutil.rmtree(copy)


# --- names ----------------------------------------------------------------------------------------


def test_absent(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "none"):
        assert (used(directory), verdict(directory)) == ([], Verdict.OK)


def test_whole(state: Path) -> None:
    assert (used(state), verdict(state)) == ([OLD, NEW], Verdict.OK)


@pytest.mark.parametrize("data", [b"", b"half", bytes(100)])
def test_temporary_file(state: Path, data: bytes) -> None:
    for id in (OLD, NEW, NEXT, LAST):
        (state / id.part_name).write_bytes(data)
    assert (verdict(state), used(state)) == (Verdict.WARNING, [OLD, NEW])
    assert sorted(path.name for path in state.iterdir()) == [OLD.file_name, NEW.file_name, LAST.part_name]
    assert CheckpointStore(RealDisk(), state).write(LAST, RECORDS, TIME) == [NEW, LAST]
    assert sorted(path.name for path in state.iterdir()) == [NEW.file_name, LAST.file_name]


def test_half_a_rename(state: Path) -> None:
    (state / NEW.file_name).rename(state / NEW.part_name)
    assert (verdict(state), used(state)) == (Verdict.WARNING, [OLD])
    store = CheckpointStore(RealDisk(), state)
    assert CheckpointDownload(store, NEW).read().records == RECORDS
    store.remove_parts()
    assert [path.name for path in state.iterdir()] == [OLD.file_name]


async def test_temporary_file_of_a_lone_node(tmp_path: Path) -> None:
    async with Cluster(tmp_path).running() as cluster:
        await cluster.create_topic()
    part = tmp_path / "state" / "metadata" / LAST.part_name
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(b"half")
    async with Cluster(tmp_path).running():
        assert not part.exists()


def test_half_a_removal(state: Path) -> None:
    kept = (state / OLD.file_name).read_bytes()
    store = CheckpointStore(RealDisk(), state)
    store.write(NEXT, RECORDS, TIME)
    (state / OLD.file_name).write_bytes(kept)
    assert (verdict(state), used(state)) == (Verdict.WARNING, [OLD, NEW, NEXT])
    assert store.write(LAST, RECORDS, TIME) == [NEXT, LAST] == used(state)


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "1-1.checkpoint",
        NEW.file_name + ".old",
        f"{2**63:020d}-{1:010d}.checkpoint",
        f"{20:020d}-{2**31:010d}.checkpoint",
    ],
)
def test_foreign_name(state: Path, name: str) -> None:
    (state / name).touch()
    refused(state, f"{name} is not a checkpoint; move it out of the way")


def test_foreign_node(state: Path) -> None:
    other = shutil.copytree(state, state.parent / "other")
    (state / NEW.file_name).unlink()
    shutil.copy(other / NEW.file_name, state)
    assert (verdict(state), used(state)) == (Verdict.OK, [OLD, NEW])


# --- versions -------------------------------------------------------------------------------------


def test_newer_version(state: Path) -> None:
    path = state / NEW.file_name
    _, *records, _ = batches(path)
    newer = f"{NEW.file_name} has format version 1, this release reads up to 0: a newer one wrote it"
    for data in (header(1) + b"".join(records), header(1) + b"what nobody knows", header(1)):
        path.write_bytes(data)
        refused(state, newer)
    path.write_bytes(header(0) + b"".join(records) + footer(1, 1201))
    refused(state, newer)


def test_version_below_0(state: Path) -> None:
    _, *records, end = batches(state / NEW.file_name)
    damaged(state, header(-1) + b"".join(records) + end)
    damaged(state, header(0) + b"".join(records) + footer(-1, 1201))


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_short(state: Path) -> None:
    whole = (state / NEW.file_name).read_bytes()
    for size in (*range(100), *range(100, len(whole), 4999), *range(len(whole) - 80, len(whole))):
        damaged(state, whole[:size])


def test_no_footer(state: Path) -> None:
    found = batches(state / NEW.file_name)
    for count in range(len(found)):
        damaged(state, b"".join(found[:count]))


def test_compressed(state: Path) -> None:
    first, *_, last = batches(state / NEW.file_name)
    packed = build_batch(
        [NewRecord(key, value * 50, (), TIME) for key, value in RECORDS], COMPRESSION["gzip"]
    )
    patch_batch(packed, 1, NEW.epoch)
    damaged(state, first + bytes(packed) + patched(last, offset=len(RECORDS) + 1))


@pytest.mark.slow
async def test_records_of_no_node(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    async with Cluster(directory).running() as cluster:
        await cluster.create_topic()
        await cluster.commit(1)
    store = CheckpointStore(RealDisk(), directory / "state" / "groups-0")
    store.write(CheckpointId(1, 1), [(b"group\0g", b"\xff")], TIME)
    assert check_node(ReadOnlyDisk(), directory).verdict is Verdict.DAMAGED
    with pytest.raises(CorruptData, match="checkpoint of groups-0 has records that no node writes"):
        await Cluster(directory).node.start()


def test_no_header(state: Path) -> None:
    first, *records, end = batches(state / NEW.file_name)
    damaged(state, b"".join([*records, end]))
    damaged(state, b"".join([footer(0, 0), *records, end]))
    assert first == header(0)
    damaged(state, b"".join([patched(records[0], 0), patched(records[1], 500), footer(0, 1000)]))


@pytest.mark.slow
def test_zero_tail(state: Path) -> None:
    whole = (state / NEW.file_name).read_bytes()
    for size in (1, 11, 12, 60, 61, 4096):
        damaged(state, whole + bytes(size))


@pytest.mark.slow
def test_torn(state: Path) -> None:
    whole = (state / NEW.file_name).read_bytes()
    for at in range(0, len(whole) - 512, 512):
        damaged(state, whole[:at] + bytes(512) + whole[at + 512 :])


@pytest.mark.slow
def test_bad_checksum(state: Path) -> None:
    CheckpointStore(RealDisk(), state).write(NEW, RECORDS[:5], TIME)
    whole = (state / NEW.file_name).read_bytes()
    for at in range(len(whole)):
        damaged(state, whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])


def test_batch_missing(state: Path) -> None:
    found = batches(state / NEW.file_name)
    for at in range(len(found)):
        damaged(state, b"".join(found[:at] + found[at + 1 :]))


@pytest.mark.slow
def test_batch_twice(state: Path) -> None:
    found = batches(state / NEW.file_name)
    for at in range(len(found)):
        damaged(state, b"".join(found[: at + 1] + found[at:]))


@pytest.mark.slow
def test_other_epoch(state: Path) -> None:
    found = batches(state / NEW.file_name)
    for at in range(len(found)):
        damaged(state, b"".join([*found[:at], patched(found[at], epoch=1), *found[at + 1 :]]))
    damaged(state, (state / OLD.file_name).read_bytes())


def test_control_in_between(state: Path) -> None:
    first, one, *_ = batches(state / NEW.file_name)
    damaged(state, first + patched(header(0), 1) + footer(0, 2))
    damaged(state, first + footer(0, 1) + patched(one, 2) + footer(0, 502))
    damaged(state, first + patched(one, 1) + footer(0, 501) + footer(0, 502))


# --- neighbours -----------------------------------------------------------------------------------


def test_older_neighbour(state: Path) -> None:
    CheckpointStore(RealDisk(), state).write(NEXT, RECORDS, TIME)
    assert used(state) == [NEW, NEXT]
    (state / NEXT.file_name).write_bytes(b"")
    assert (used(state), verdict(state)) == ([NEW], Verdict.DAMAGED)


@pytest.mark.slow
async def test_all_damaged(state: Path, tmp_path: Path) -> None:
    for id in (OLD, NEW):
        (state / id.file_name).write_bytes(b"")
    assert (used(state), verdict(state)) == ([], Verdict.DAMAGED)
    directory = tmp_path / "node"
    async with Cluster(directory, Sizes(checkpoint_entries=2, file_bytes=3000)).running() as cluster:
        await cluster.create_topic()
        for at in range(40):
            await cluster.append(b"v" * 300)
            await cluster.commit(at)
            await cluster.sync()
        await cluster.settle()
    checkpoints = list((directory / "state" / "groups-0").iterdir())
    assert len(checkpoints) == 2
    for path in checkpoints:
        path.write_bytes(b"")
    with pytest.raises(CorruptData, match="applied up to entry 0, but the journal goes on with entry"):
        async with Cluster(directory).running():
            pass


async def test_newer_than_the_journal(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    async with Cluster(directory, Sizes(checkpoint_entries=2)).running() as cluster:
        await cluster.create_topic()
        await cluster.commit(1)
        older = shutil.copytree(directory / "journal", tmp_path / "older")
        for at in range(10):
            await cluster.commit(at)
        await cluster.settle()
    newest = max((directory / "state" / "groups-0").iterdir())
    shutil.rmtree(directory / "journal")
    shutil.copytree(older, directory / "journal")
    reason = rf"checkpoint of groups-0 goes up to entry {int(newest.name[:20])}, but the journal ends at entry \d: its files"
    with pytest.raises(CorruptData, match=reason):
        async with Cluster(directory).running():
            pass
    assert check_node(ReadOnlyDisk(), directory).verdict is Verdict.DAMAGED
    shutil.rmtree(directory / "state" / "groups-0")
    async with Cluster(directory).running() as cluster:
        assert cluster.committed() == {0: 1}


def rewrite(directory: Path, end_offset: int, voters: tuple[int, ...], term: int = 1) -> None:
    """Replace the checkpoints of the offsets by one with another end and other voters; with none it
    has no record of the raft group.
    """
    state = directory / "state" / "groups-0"
    records: list[tuple[bytes, bytes]] = []
    if state.exists():
        _, records = split_checkpoint(read_checkpoint(RealDisk(), max(state.iterdir())))
        shutil.rmtree(state)
    if voters:
        conf = RaftStorage(ConfState(voters), conf_index=1)
        records.insert(0, checkpoint_record(DedupTable().snapshot(), conf))
    CheckpointStore(RealDisk(), state).write(CheckpointId(term, end_offset), records, TIME)


async def has_had_another_node(cluster: Cluster) -> None:
    request = JoinRequest(secret=bytes(16), address="10.0.0.2:1", version="1", feature_level=FEATURE_LEVEL)
    assert await cluster.node.commands.register_node(request) == 2


@pytest.mark.slow
async def test_without_group_state(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    async with Cluster(directory, Sizes(checkpoint_entries=2)).running() as cluster:
        await cluster.create_topic()
        await cluster.append(b"a", b"b")
        for at in range(3):
            await cluster.commit(at)
        await cluster.settle()
    newest = max((directory / "state" / "groups-0").iterdir())
    rewrite(directory, int(newest.name[:20]), voters=())
    assert check_node(ReadOnlyDisk(), directory).verdict is Verdict.OK
    async with Cluster(directory).running() as cluster:
        assert cluster.committed() == {0: 2}
        group = cluster.node.state_groups.groups[0].group
        assert group.storage.conf_state.voters == (1,)
        await cluster.commit(9)


async def test_ahead_of_the_journal(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    async with Cluster(directory).running() as cluster:
        await cluster.create_topic()
        await has_had_another_node(cluster)
        await cluster.commit(1)
    rewrite(directory, 100, voters=(1, 2))
    found = [each.found for each in check_node(ReadOnlyDisk(), directory).findings if each.verdict]
    assert found == [
        "checkpoint up to entry 100, which the journal does not have: the next start writes the missing log reset"
    ]
    for _ in range(2):
        async with Cluster(directory).running() as cluster:
            group = cluster.node.state_groups.groups[0].group
            assert (group.applied_index, group.storage.conf_state.voters) == (100, (1, 2))
        assert check_node(ReadOnlyDisk(), directory).verdict is Verdict.OK


@pytest.mark.slow
async def test_of_another_term(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    async with Cluster(directory).running() as cluster:
        await cluster.create_topic()
        await has_had_another_node(cluster)
        await cluster.commit(1)
    rewrite(directory, 2, voters=(1,), term=7)
    reason = "groups-0 ends with entry 2 of term 7, but the journal has that entry with term 1: one of them is of another"
    with pytest.raises(CorruptData, match=reason):
        async with Cluster(directory).running():
            pass
    assert check_node(ReadOnlyDisk(), directory).verdict is Verdict.DAMAGED
    rewrite(directory, 2, voters=(1, 2), term=7)
    found = [each.found for each in check_node(ReadOnlyDisk(), directory).findings if each.verdict]
    assert found == [
        "checkpoint up to entry 2, which the journal does not have: the next start writes the missing log reset"
    ]
    async with Cluster(directory).running() as cluster:
        assert cluster.node.state_groups.groups[0].group.applied == (7, 2)
    assert check_node(ReadOnlyDisk(), directory).verdict is Verdict.OK
