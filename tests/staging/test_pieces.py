"""Pieces of replicated stages: written once and durably, found by key, bounded, removed."""

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pixy.errors import CorruptData, NotFound, ResourceExhausted, StorageFault, Unavailable
from pixy.records import read_records
from pixy.staging import Pieces
from pixy.staging import pieces as pieces_module
from pixy.storage import ThreadWorker
from tests.fakes.disk import RecordingDisk
from tests.fakes.worker import InlineWorker
from tests.staging.pieces import new_piece
from tests.storage.logs import CLUSTER_ID

FILE = f"{7:020d}.pieces"


class Store:
    """Pieces in a directory, and what they report."""

    def __init__(self, directory: Path, *, bytes_max: int = 1 << 20, threads: bool = False) -> None:
        self.disk = RecordingDisk()
        self.directory = directory
        self.faults: list[BaseException] = []
        self.worker = ThreadWorker("pieces") if threads else InlineWorker("pieces", background=True)
        self.pieces = Pieces(self.disk, directory, self.worker, bytes_max, self.faults.append)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    made = Store(tmp_path / "pieces")
    await made.pieces.recover(CLUSTER_ID)
    yield made
    made.worker.stop()


def values(store: Store, *args: bytes, **kwargs: int) -> list[bytes | None]:
    piece = new_piece(*args, **kwargs)
    part = store.pieces.part(piece.key, len(piece.batches), piece.records)
    part.check(store.disk)
    return [
        record.value
        for batches in part.batches(store.disk)
        for batch in batches
        for record in read_records(batch)
    ]


async def again(store: Store) -> Store:
    """The pieces as the next process finds them."""
    other = Store(store.directory)
    await other.pieces.recover(CLUSTER_ID)
    return other


async def test_pieces_are_found_by_their_key_also_by_the_next_process(store: Store) -> None:
    await store.pieces.put([new_piece(b"a", b"b"), new_piece(b"c", raft_group=1001)])
    await store.pieces.put([new_piece(b"d", number=1)])
    await store.pieces.put([new_piece(b"e", stage=8)])
    for each in (store, await again(store)):
        assert values(each, b"a", b"b") == [b"a", b"b"]
        assert values(each, b"c", raft_group=1001) == [b"c"]
        assert values(each, b"d", number=1) == [b"d"]
        assert values(each, b"e", stage=8) == [b"e"]
        assert not each.pieces.has(new_piece(b"x").key), "other bytes are another piece"
        assert list(each.pieces.stages) == [7, 8]
        assert each.pieces.bytes == sum(path.stat().st_size for path in store.directory.iterdir())


async def test_pieces_that_come_together_are_synced_once_and_the_name_of_a_new_file_too(store: Store) -> None:
    await store.pieces.put([new_piece(b"a"), new_piece(b"b", raft_group=1001)])
    await store.pieces.put([new_piece(b"c", number=1)])
    done = [call.what for call in store.disk.calls if call.name in (FILE, "pieces")]
    assert done == ["make_directory", "create", "write", "sync", "sync_directory", "write", "sync"]


async def test_a_piece_is_written_once_however_often_it_comes(store: Store) -> None:
    piece, other = new_piece(b"a"), new_piece(b"b", raft_group=1001)
    await asyncio.gather(
        store.pieces.put([piece]), store.pieces.put([piece, other]), store.pieces.put([piece])
    )
    size = store.pieces.bytes
    await store.pieces.put([piece, other])
    assert store.pieces.bytes == size
    assert len(store.disk.did("write", FILE)) == 2


async def test_a_piece_that_comes_twice_at_once_is_written_once(store: Store) -> None:
    piece = new_piece(b"a")
    await store.pieces.put([piece, piece])
    await store.pieces.put([])
    assert store.pieces.bytes == store.directory.joinpath(FILE).stat().st_size
    assert values(await again(store), b"a") == [b"a"]


async def test_two_versions_of_a_piece_are_kept_apart(store: Store) -> None:
    await store.pieces.put([new_piece(b"one")])
    await store.pieces.put([new_piece(b"two")])
    assert (values(store, b"one"), values(store, b"two")) == ([b"one"], [b"two"])


async def test_a_full_disk_refuses_a_piece_and_the_next_one_takes_its_place(store: Store) -> None:
    await store.pieces.put([new_piece(b"a")])
    store.disk.fail("write", FILE, errno.ENOSPC)
    with pytest.raises(Unavailable, match="the disk is full"):
        await store.pieces.put([new_piece(b"a long value that does not fit", number=1)])
    store.disk.heal()
    path = store.directory / FILE
    path.write_bytes(path.read_bytes() + b"half of it")
    await store.pieces.put([new_piece(b"b", number=1)])
    for each in (store, await again(store)):
        assert values(each, b"b", number=1) == [b"b"]
    assert store.faults == []


@pytest.mark.parametrize("what", ["sync", "sync_directory"])
async def test_a_failed_sync_is_a_fault_of_the_node(store: Store, what: str) -> None:
    store.disk.fail(what, FILE if what == "sync" else "pieces", errno.ENOSPC)
    with pytest.raises(StorageFault, match="were not written"):
        await store.pieces.put([new_piece(b"a")])
    assert len(store.faults) == 1
    assert not store.pieces.has(new_piece(b"a").key)
    assert not store.pieces.stages


async def test_more_than_the_limit_is_refused_unless_it_is_needed(tmp_path: Path) -> None:
    store = Store(tmp_path / "pieces", bytes_max=1000)
    await store.pieces.recover(CLUSTER_ID)
    await store.pieces.put([new_piece(bytes(700))])
    with pytest.raises(ResourceExhausted, match=r"staging.max_bytes allows 1000"):
        await store.pieces.put([new_piece(bytes(300), number=1)])
    await store.pieces.put([new_piece(bytes(300), number=1)], must=True)
    store.pieces.remove([7])
    await store.pieces.put([new_piece(bytes(300), stage=8)])


async def test_more_pieces_at_a_time_than_a_start_reads_are_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pixy.staging.pieces.UNIT_PIECES_MAX", 2)
    some = [new_piece(b"a", number=number) for number in range(3)]
    with pytest.raises(ResourceExhausted, match="3 pieces at a time, 2 are allowed"):
        await store.pieces.put(some, must=True)
    assert not store.pieces.stages
    await store.pieces.put(some[:2])
    assert store.pieces.has(some[1].key)


async def test_removed_stages_are_gone_at_once_and_their_files_too(store: Store) -> None:
    await store.pieces.put([new_piece(b"a")])
    await store.pieces.put([new_piece(b"b", stage=8)])
    store.pieces.remove([7, 9])
    assert not store.pieces.has(new_piece(b"a").key)
    with pytest.raises(CorruptData, match=r"07\.pieces, piece 0 is missing"):
        values(store, b"a")
    assert [path.name for path in store.directory.iterdir()] == [f"{8:020d}.pieces"]
    assert store.pieces.bytes == store.pieces.size_of(8) > 0
    store.pieces.remove([8])
    assert store.pieces.bytes == 0


async def test_a_stage_that_is_removed_while_it_is_written_does_not_come_back(tmp_path: Path) -> None:
    store = Store(tmp_path / "pieces", threads=True)
    await store.pieces.recover(CLUSTER_ID)
    writing = asyncio.gather(*(store.pieces.put([new_piece(b"a", number=each)]) for each in range(20)))
    await asyncio.sleep(0)
    store.pieces.remove([7])
    await writing
    await store.pieces.put([new_piece(b"b", stage=8)])
    assert [path.name for path in store.directory.iterdir()] == [f"{8:020d}.pieces"]
    assert list(store.pieces.stages) == [8]
    store.worker.stop()


async def test_a_piece_is_read_from_any_byte_on(store: Store) -> None:
    await store.pieces.put([new_piece(b"x", raft_group=999), new_piece(b"a" * 500)])
    piece = new_piece(b"a" * 500)
    assert await store.pieces.read(piece.key, 0, 1 << 20) == piece.batches
    assert await store.pieces.read(piece.key, 100, 50) == piece.batches[100:150]
    for position in (len(piece.batches), len(piece.batches) + 1, 2**63, 2**64 - 1):
        assert await store.pieces.read(piece.key, position, 50) == b""
    with pytest.raises(NotFound):
        await store.pieces.read(new_piece(b"other").key, 0, 10)
    store.pieces.remove([7])
    with pytest.raises(NotFound):
        await store.pieces.read(piece.key, 0, 10)


async def test_the_pieces_of_a_raft_group_are_found_without_a_look_at_others(store: Store) -> None:
    await store.pieces.put([new_piece(b"1", raft_group=1000), new_piece(b"2", raft_group=1001)])
    await store.pieces.put([new_piece(b"3", stage=8, raft_group=1000)])

    def found(pieces: Pieces, raft_group: int) -> list[int]:
        return sorted(key.stage for key, _ in pieces.of_raft_group(raft_group))

    for pieces in (store.pieces, (await again(store)).pieces):
        assert [found(pieces, each) for each in (1000, 1001, 1002)] == [[7, 8], [7], []]
        assert [len(pieces._by_raft_group[each]) for each in (1000, 1001)] == [2, 1]
        pieces.remove([7])
        assert [found(pieces, each) for each in (1000, 1001)] == [[8], []]
        assert list(pieces._by_raft_group) == [1000]
    await store.pieces.put([new_piece(b"1", raft_group=1001)])
    assert found(store.pieces, 1001) == [7]


async def test_many_pieces_are_forgotten_in_steps_while_others_of_their_stage_come(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces_module, "FORGOTTEN_PER_STEP", 2)
    await store.pieces.put([new_piece(b"1", raft_group=1000 + number) for number in range(7)])
    store.pieces.remove([7])
    assert not any(list(store.pieces.of_raft_group(1000 + number)) for number in range(7))
    assert store.pieces._by_raft_group
    await store.pieces.put([new_piece(b"1", raft_group=1006)])
    for _ in range(5):
        await asyncio.sleep(0)
    assert list(store.pieces._by_raft_group) == [1006]
    assert [key.stage for key, _ in store.pieces.of_raft_group(1006)] == [7]
