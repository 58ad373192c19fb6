"""The blocking part of a node's start: everything it relies on is made durable first."""

from pathlib import Path
from random import Random

import pytest

from pixy.cluster.recovery import recover_node
from pixy.errors import DataDirectoryError
from pixy.proto.state_pb2 import NodeIdentity
from pixy.storage import load_identity
from tests.fakes.disk import RecordingDisk


def test_the_names_of_all_parent_directories_are_durable_before_a_first_start_continues(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "made" / "node"
    directory.mkdir(parents=True)  # a start that ended here
    disk = RecordingDisk()
    recover_node(disk, directory, Random(1).randbytes).lock.close()
    before = disk.calls[: [call.name for call in disk.calls].index("identity.part")]
    assert [call.name for call in before] == [path.name for path in directory.parents]
    assert {call.what for call in before} == {"sync_directory"}


def test_a_new_node_gets_a_secret_which_it_keeps(tmp_path: Path) -> None:
    random = Random(1)
    first = recover_node(RecordingDisk(), tmp_path, random.randbytes)
    first.lock.close()
    second = recover_node(RecordingDisk(), tmp_path, random.randbytes)
    second.lock.close()
    assert len(first.identity.secret) == 16
    assert second.identity == first.identity


def test_a_node_of_a_release_without_secrets_has_none(tmp_path: Path) -> None:
    old = NodeIdentity(cluster_id=b"c" * 16, node_id=1)
    load_identity(RecordingDisk(), tmp_path, old)
    recovered = recover_node(RecordingDisk(), tmp_path, Random(1).randbytes)
    recovered.lock.close()
    assert recovered.identity == old


def test_later_starts_do_not_touch_the_parent_directories(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    recover_node(RecordingDisk(), directory, Random(1).randbytes).lock.close()
    disk = RecordingDisk()
    recover_node(disk, directory, Random(1).randbytes).lock.close()
    assert tmp_path.name not in [call.name for call in disk.did("sync_directory")]


def test_files_found_by_a_start_are_made_durable_before_they_are_relied_on(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    recover_node(RecordingDisk(), directory, Random(1).randbytes).lock.close()
    (directory / "journal").rmdir()  # it ended just before
    disk = RecordingDisk()
    recover_node(disk, directory, Random(1).randbytes).lock.close()
    did = [(call.what, call.name) for call in disk.calls]
    assert did.index(("sync_directory", "node")) < did.index(("make_directory", "journal"))


class _NotReadable(RecordingDisk):
    """A disk on which no parent directory can be read, or synced."""

    def __init__(self, directory: Path, error: type[OSError]) -> None:
        super().__init__()
        self._directory = directory
        self._error = error

    def sync_directory(self, path: Path) -> None:
        if not path.is_relative_to(self._directory):
            raise self._error(13 if self._error is PermissionError else 5, "no", str(path))
        super().sync_directory(path)


def test_an_unreadable_parent_directory_is_skipped(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    recover_node(_NotReadable(directory, PermissionError), directory, Random(1).randbytes).lock.close()


def test_a_parent_directory_that_cannot_be_synced_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    with pytest.raises(DataDirectoryError, match=r"cannot be used: .*no"):
        recover_node(_NotReadable(directory, OSError), directory, Random(1).randbytes)
