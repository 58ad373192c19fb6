"""Downloads of checkpoints: what a restart goes on from, and what is verified before a checkpoint
is taken over.
"""

import errno
import struct
from pathlib import Path

import pytest

from pixy.errors import CorruptData, DataDirectoryError
from pixy.records import batch_bytes, build_control_batch, patch_batch
from pixy.storage import CheckpointDownload, CheckpointId, CheckpointStore
from pixy.storage.checkpoints import DownloadedBytes
from tests.fakes.disk import Call, RecordingDisk, full

RECORDS = [(b"key %d" % at, b"value %d" % at) for at in range(1200)]
OWN, ID, LATER = CheckpointId(1, 10), CheckpointId(2, 20), CheckpointId(2, 30)
TIME = 1_700_000_000_000
NOTHING = DownloadedBytes(0, 0)


class Follower:
    """A directory with a checkpoint of its own, to which another one is fetched.

    Attributes:
        content: the file of the leader.
    """

    def __init__(self, directory: Path) -> None:
        self.content = file_of(directory, "leader", RECORDS)
        self.disk = RecordingDisk()
        self.directory = directory / "follower"
        self.store = CheckpointStore(self.disk, self.directory)
        self.store.write(OWN, RECORDS[:2], TIME)
        self.disk.calls.clear()
        self.download = CheckpointDownload(self.store, ID)
        self.part = self.directory / ID.part_name

    def write(self, size: int, begin: int = 0) -> None:
        """Bytes up to `size` arrive."""
        self.download.write(self.content[begin:size], begin, len(self.content))

    def names(self) -> list[str]:
        return self.disk.names(self.directory)


def file_of(
    directory: Path, name: str, records: list[tuple[bytes, bytes]], id: CheckpointId = ID, ms: int = TIME
) -> bytes:
    """The checkpoint of a node."""
    store = CheckpointStore(RecordingDisk(), directory / name)
    store.write(id, records, ms)
    return (directory / name / id.file_name).read_bytes()


def ends(content: bytes) -> list[int]:
    """Ends of the batches of a checkpoint."""
    found = [0]
    while found[-1] < len(content):
        found.append(found[-1] + batch_bytes(content, found[-1]))
    return found


@pytest.fixture
def follower(tmp_path: Path) -> Follower:
    return Follower(tmp_path)


# --- writing --------------------------------------------------------------------------------------


def test_nothing_is_there_at_first(follower: Follower) -> None:
    assert follower.download.resume() == NOTHING
    assert follower.names() == [OWN.file_name]


def test_the_file_has_its_size_before_it_has_any_content(follower: Follower) -> None:
    follower.write(100)
    assert [(call.what, call.at) for call in follower.disk.calls] == [
        ("create", 0),
        ("truncate", 0),
        ("allocate", len(follower.content)),
        ("write", 0),
    ]
    assert follower.part.read_bytes() == follower.content[:100] + bytes(len(follower.content) - 100)


@pytest.mark.parametrize("pieces", [1, 7, 100])
def test_the_pieces_make_the_checkpoint(follower: Follower, pieces: int) -> None:
    size = -(-len(follower.content) // pieces)
    for begin in range(0, len(follower.content), size):
        follower.write(begin + size, begin)
    assert follower.download.read() == (ID, RECORDS)


def test_the_first_piece_begins_the_file_anew(follower: Follower) -> None:
    follower.part.write_bytes(b"x" * 2 * len(follower.content))
    follower.write(len(follower.content))
    assert follower.download.read().records == RECORDS


def test_a_piece_for_a_file_that_is_gone_or_another_one_is_not_written(follower: Follower) -> None:
    with pytest.raises(CorruptData, match="part is gone"):
        follower.write(200, 100)
    follower.part.write_bytes(b"short")
    with pytest.raises(CorruptData, match=rf"has 5 bytes, expected {len(follower.content)}"):
        follower.write(200, 100)
    assert follower.part.read_bytes() == b"short"


@pytest.mark.parametrize("what", ["create", "allocate", "write"])
def test_a_full_disk_gets_the_space_back(follower: Follower, what: str) -> None:
    full(follower.disk, what, ".part")
    with pytest.raises(OSError, match="No space left"):
        follower.write(100)
    assert follower.names() == [OWN.file_name]


# --- going on -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_restart_goes_on_behind_the_last_whole_batch_whatever_has_arrived(follower: Follower) -> None:
    bounds = ends(follower.content)
    for size in range(1, len(follower.content) + 1, 97):
        follower.write(size)
        found = follower.download.resume()
        assert found == (len(follower.content), max(end for end in bounds if end <= size))
        if found.position:
            follower.write(len(follower.content), found.position)
            assert follower.download.read().records == RECORDS


def test_a_restart_does_not_go_on_from_what_a_crash_has_lost(follower: Follower) -> None:
    bounds = ends(follower.content)
    torn = bytearray(follower.content)
    torn[bounds[2] + 600 : bounds[2] + 700] = bytes(100)
    follower.part.write_bytes(torn)
    assert follower.download.resume() == (len(torn), bounds[2])


@pytest.mark.parametrize("content", [b"", b"x", bytes(5000)])
def test_other_bytes_are_of_no_use(follower: Follower, content: bytes) -> None:
    follower.part.write_bytes(content)
    assert follower.download.resume() == (len(content), 0)


def test_a_file_that_cannot_be_read_is_of_no_use(follower: Follower) -> None:
    follower.part.mkdir()
    assert follower.download.resume() == NOTHING
    with pytest.raises(CorruptData, match="cannot be read: Is a directory"):
        follower.download.read()


def test_what_is_left_of_other_checkpoints_is_removed(follower: Follower) -> None:
    other = CheckpointDownload(follower.store, LATER)
    other.write(b"part of it", 0, 100)
    assert follower.download.resume() == NOTHING
    assert follower.names() == [OWN.file_name]


def test_a_download_makes_its_directory(tmp_path: Path) -> None:
    download = CheckpointDownload(CheckpointStore(RecordingDisk(), tmp_path / "new" / "state"), ID)
    assert download.resume() == NOTHING
    download.write(b"first", 0, 10)
    assert download.resume() == (10, 0)


def test_a_removed_download_is_gone(follower: Follower) -> None:
    follower.write(100)
    for _ in range(2):
        follower.download.remove()
        assert follower.names() == [OWN.file_name]


# --- verification ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_incomplete_download_is_a_checkpoint(follower: Follower) -> None:
    for size in range(1, len(follower.content), 97):
        follower.write(size)
        with pytest.raises(CorruptData):
            follower.download.read()


@pytest.mark.slow
def test_a_flipped_bit_is_damage(follower: Follower) -> None:
    for at in range(0, len(follower.content), 61):
        damaged = bytearray(follower.content)
        damaged[at] ^= 4
        follower.part.write_bytes(damaged)
        with pytest.raises((CorruptData, DataDirectoryError)):
            follower.download.read()


def test_a_checkpoint_of_a_newer_release_is_named_as_such(follower: Follower) -> None:
    newer = build_control_batch(3, struct.pack(">hqB", 1, TIME, 0), TIME)
    patch_batch(newer, 0, ID.epoch)
    follower.part.write_bytes(newer)
    with pytest.raises(DataDirectoryError, match="has format version 1, this release reads up to 0"):
        follower.download.read()


def test_a_download_that_is_gone_is_damaged(follower: Follower) -> None:
    with pytest.raises(CorruptData, match="cannot be read: No such file"):
        follower.download.read()


def test_files_of_two_nodes_that_fit_each_other_make_the_checkpoint(
    follower: Follower, tmp_path: Path
) -> None:
    other = file_of(tmp_path, "other", RECORDS, ms=TIME + 1)
    bound = ends(other)[2]
    assert len(other) == len(follower.content)
    follower.part.write_bytes(follower.content[:bound] + other[bound:])
    assert follower.download.read().records == RECORDS


def test_files_of_two_nodes_that_hold_the_records_in_another_order_do_not(
    follower: Follower, tmp_path: Path
) -> None:
    """Every batch is valid, and some records are there twice."""
    same = [(b"%04d" % at, b"value") for at in range(1200)]
    one, other = file_of(tmp_path, "one", same), file_of(tmp_path, "other", same[::-1])
    bound = ends(one)[2]
    assert ends(one) == ends(other)
    follower.part.write_bytes(one[:bound] + other[bound:])
    with pytest.raises(CorruptData, match="two records with one key"):
        follower.download.read()


# --- the store ------------------------------------------------------------------------------------


def test_a_verified_download_is_synced_before_it_gets_its_name(follower: Follower) -> None:
    follower.write(len(follower.content))
    follower.disk.calls.clear()
    assert follower.store.adopt(ID) == [OWN, ID]
    assert follower.disk.calls == [
        Call("sync", ID.part_name),
        Call("rename", ID.file_name),
        Call("sync_directory", "follower"),
        Call("sync_directory", "follower"),
    ]
    newest, ids = follower.store.load()
    assert (newest, ids) == ((ID, RECORDS), [OWN, ID])


def test_of_three_the_oldest_is_removed(follower: Follower) -> None:
    follower.store.write(CheckpointId(1, 11), RECORDS[:3], TIME)
    follower.write(len(follower.content))
    assert follower.store.adopt(ID) == [(1, 11), ID]
    assert follower.names() == [CheckpointId(1, 11).file_name, ID.file_name]


def test_a_failed_sync_is_no_lack_of_space(follower: Follower) -> None:
    follower.write(len(follower.content))
    full(follower.disk, "sync", ".part")
    with pytest.raises(OSError, match="cannot be synced") as caught:
        follower.store.adopt(ID)
    assert caught.value.errno == errno.EIO


def test_the_same_checkpoint_may_have_been_written_meanwhile(follower: Follower) -> None:
    follower.write(len(follower.content))
    follower.store.write(ID, RECORDS, TIME)
    assert follower.store.adopt(ID) == [OWN, ID]
    follower.store.write(LATER, RECORDS, TIME)
    follower.store.write(CheckpointId(2, 40), RECORDS, TIME)
    with pytest.raises(FileNotFoundError):
        follower.store.adopt(ID)


def test_a_checkpoint_of_this_node_removes_no_newer_download(follower: Follower) -> None:
    follower.write(100)
    follower.store.write(CheckpointId(1, 15), RECORDS[:2], TIME)
    assert follower.part.exists()
    follower.store.write(LATER, RECORDS, TIME)
    assert not follower.part.exists()


def test_a_start_keeps_the_newest_download_if_it_is_newer_than_all_checkpoints(follower: Follower) -> None:
    follower.write(100)
    later = follower.directory / LATER.part_name
    later.write_bytes(b"x")
    follower.store.load()
    assert follower.names() == [OWN.file_name, LATER.part_name]
    follower.store.write(LATER, RECORDS, TIME)
    later.write_bytes(b"x")
    (follower.directory / "other.checkpoint.part").write_bytes(b"x")
    follower.store.load()
    assert follower.names() == [OWN.file_name, LATER.file_name]


def test_a_node_without_others_keeps_none(follower: Follower) -> None:
    follower.write(100)
    follower.store.remove_parts()
    assert follower.names() == [OWN.file_name]


def test_an_open_checkpoint_stays_readable_when_it_is_removed(follower: Follower) -> None:
    file = follower.store.open(OWN)
    for end in (20, 30):
        follower.store.write(CheckpointId(2, end), RECORDS, TIME)
    assert OWN.file_name not in follower.names()
    assert len(file.read_at(file.size(), 0)) > 100
    file.close()
    with pytest.raises(FileNotFoundError):
        follower.store.open(OWN)
