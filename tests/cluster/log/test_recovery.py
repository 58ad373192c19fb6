"""The blocking part of a node's start: everything it relies on is made durable first."""

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from pixy.cluster.log.recovery import EnteredDirectory, enter_directory, read_directory, recover_node
from pixy.errors import CorruptData, DataDirectoryError
from pixy.proto.state_pb2 import NodeIdentity
from pixy.storage import load_identity, read_identity, write_identity
from tests.fakes.disk import RecordingDisk
from tests.sim.disk import Ended, SimulatedDisk
from tests.sim.world import DIRECTORY


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


# --- nodes without a cluster ----------------------------------------------------------------------


def enter(directory: Path, seed: int, *, joins: bool) -> NodeIdentity:
    """The identity that a start finds, or makes with random bytes of this seed."""
    entered = enter_directory(RecordingDisk(), directory, Random(seed).randbytes, joins=joins)
    entered.lock.close()
    assert read_identity(RecordingDisk(), directory / "identity") == entered.identity
    return entered.identity


def test_an_empty_directory_becomes_that_of_a_new_cluster(tmp_path: Path) -> None:
    identity = enter(tmp_path, 1, joins=False)
    assert (len(identity.cluster_id), identity.node_id, len(identity.secret)) == (16, 1, 16)
    assert enter(tmp_path, 2, joins=False) == identity
    assert enter(tmp_path, 3, joins=True) == identity, "it belongs to a cluster"


def test_a_node_that_is_to_join_has_a_secret_and_no_cluster(tmp_path: Path) -> None:
    identity = enter(tmp_path, 1, joins=True)
    assert (identity.cluster_id, identity.node_id, len(identity.secret)) == (b"", 0, 16)
    assert enter(tmp_path, 2, joins=True) == identity, "others may have registered the secret"
    assert [path.name for path in tmp_path.iterdir() if path.name != "lock"] == ["identity"]


def test_a_node_that_was_to_join_and_is_alone_now_makes_a_cluster(tmp_path: Path) -> None:
    candidate = enter(tmp_path, 1, joins=True)
    alone = enter(tmp_path, 2, joins=False)
    assert (len(alone.cluster_id), alone.node_id, alone.secret) == (16, 1, candidate.secret)
    assert enter(tmp_path, 3, joins=True) == enter(tmp_path, 4, joins=False) == alone


@pytest.mark.parametrize("joins", [True, False])
def test_an_identity_of_a_release_without_secrets_stays_as_it_is(tmp_path: Path, *, joins: bool) -> None:
    old = NodeIdentity(cluster_id=b"c" * 16, node_id=1)
    write_identity(RecordingDisk(), tmp_path, old)
    assert enter(tmp_path, 1, joins=joins) == old


OPERATIONS = 20


def lives(seed: int, killed_at: int, ignored: str = "") -> tuple[NodeIdentity, NodeIdentity]:
    """Identities of a node with a join list: behind a first start that was killed, and behind a
    power failure after that.
    """
    disk = SimulatedDisk(Random(seed))
    disk.make_directory(DIRECTORY.parent)
    disk.ignored = frozenset({ignored})
    disk.die_at = killed_at
    with suppress(Ended):
        enter_directory(disk, DIRECTORY, Random(1).randbytes, joins=True)
    disk.end()
    disk.restart()
    told = enter_directory(disk, DIRECTORY, Random(2).randbytes, joins=True).identity
    disk.lose_power()
    disk.restart()
    return told, enter_directory(disk, DIRECTORY, Random(3).randbytes, joins=True).identity


@pytest.mark.slow
def test_a_secret_that_others_may_know_outlives_a_kill_and_a_power_failure() -> None:
    for operation in range(1, OPERATIONS):
        for seed in range(10):
            told, found = lives(seed, operation)
            assert told == found, (operation, seed)


@pytest.mark.slow
def test_without_the_sync_of_the_name_a_secret_is_lost() -> None:
    site = "cluster/log/recovery.py:_candidate sync_directory"
    found = [lives(seed, operation, site) for operation in range(1, OPERATIONS) for seed in range(10)]
    assert any(told != later for told, later in found)


@pytest.mark.slow
def test_a_node_that_is_alone_now_makes_one_cluster_whenever_the_power_fails() -> None:
    for operation in range(1, OPERATIONS):
        for seed in range(10):
            disk = SimulatedDisk(Random(seed))
            disk.make_directory(DIRECTORY.parent)
            secret = enter_directory(disk, DIRECTORY, Random(1).randbytes, joins=True).identity.secret
            disk.restart()
            disk.die_at, told = operation, b""
            try:
                told = enter_directory(disk, DIRECTORY, Random(2).randbytes, joins=False).identity.cluster_id
            except Ended:
                disk.lose_power()
            disk.restart()
            found = enter_directory(disk, DIRECTORY, Random(3).randbytes, joins=False).identity
            assert (found.node_id, found.secret) == (1, secret)
            assert told in (b"", found.cluster_id), "whoever was told of a cluster finds it again"


# --- the lock -------------------------------------------------------------------------------------


def test_a_directory_stays_locked_until_its_owner_unlocks_it(tmp_path: Path) -> None:
    disk = RecordingDisk()
    entered = enter_directory(disk, tmp_path, Random(1).randbytes, joins=False)
    with pytest.raises(DataDirectoryError, match="is in use by another process"):
        enter_directory(disk, tmp_path, Random(1).randbytes, joins=False)
    (tmp_path / "topics").mkdir()
    with pytest.raises(DataDirectoryError, match="has no journal files"):
        read_directory(disk, tmp_path, EnteredDirectory(*entered))
    assert disk.lock(tmp_path / "lock") is None, "the owner unlocks it"
    entered.lock.close()


@pytest.mark.parametrize("content", [b"", b"not an identity, whatever else"])
def test_a_directory_that_is_refused_is_unlocked(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "identity").write_bytes(content)
    for _ in range(2):
        with pytest.raises(CorruptData):
            recover_node(RecordingDisk(), tmp_path, Random(1).randbytes)


def test_a_directory_without_its_journal_is_unlocked_when_it_is_refused(tmp_path: Path) -> None:
    recover_node(RecordingDisk(), tmp_path, Random(1).randbytes).lock.close()
    (tmp_path / "topics").mkdir()
    for _ in range(2):
        with pytest.raises(DataDirectoryError, match="has no journal files"):
            recover_node(RecordingDisk(), tmp_path, Random(1).randbytes)
