"""Decisions about directories of partitions: a test for each row of a table in `docs/storage.md`.

There are two partitions, `topic-0` and `other-0`; the tests change the first.
"""

from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from pixy.errors import CorruptData, DataDirectoryError
from pixy.proto.state_pb2 import PartitionIdentity
from pixy.storage import KnownPartitions, RealDisk
from pixy.storage.disk.identity import write_partition_identity
from tests.fakes.disk import RecordingDisk
from tests.storage.logs import CLUSTER_ID, applied_position, fill, identity, partition_log, sort_directories

GONE, TOPIC, OTHER, NEXT = range(1000, 1004)
LIVE = {"topic-0": identity(TOPIC), "other-0": identity(OTHER)}
DISK = RealDisk()
SEGMENT = "00000000000000000000.log"


@pytest.fixture
def topics(tmp_path: Path) -> Path:
    for name, raft_group in (("topic-0", TOPIC), ("other-0", OTHER)):
        log = partition_log(DISK, tmp_path / name, raft_group=raft_group)
        fill(log, 3)
        applied_position(log, raft_group)
    return tmp_path


def contents(topics: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(topics)): None if path.is_dir() else path.read_bytes()
        for path in topics.rglob("*")
    }


def sort(topics: Path, departed: Collection[int] = ()) -> dict[str, CorruptData | None]:
    return sort_directories(DISK, topics, KnownPartitions(LIVE, CLUSTER_ID, NEXT, departed))


def taken(topics: Path) -> None:
    """Assert that both directories are accepted and unchanged."""
    before = contents(topics)
    assert sort(topics) == {"topic-0": None, "other-0": None}
    assert contents(topics) == before


def removed(topics: Path, name: str) -> dict[str, CorruptData | None]:
    """Assert that only that directory is removed, and the next start changes nothing."""
    before = {path: data for path, data in contents(topics).items() if not path.startswith(name)}
    found = sort(topics)
    assert contents(topics) == before
    assert sort(topics) == found
    return found


def not_ready(topics: Path, reason: str) -> None:
    """Assert that `topic-0` is not ready for that reason, the other is, and nothing is changed.

    Without a topic of its name the directory is refused.
    """
    before = contents(topics)
    found = sort(topics)
    assert found["other-0"] is None
    with pytest.raises(CorruptData, match=reason):
        raise found["topic-0"] or AssertionError("it is taken")
    (topics / "topic-0").rename(topics / "nobody-0")
    refused(topics, "no topic has a partition nobody-0; move it out of the way")
    (topics / "nobody-0").rename(topics / "topic-0")
    assert contents(topics) == before


def refused(topics: Path, reason: str) -> None:
    """Assert that the start is refused with that reason and changes nothing."""
    before = contents(topics)
    with pytest.raises(DataDirectoryError, match=reason):
        sort(topics)
    assert contents(topics) == before


def damage_identity(topics: Path, damage: Callable[[bytes], bytes]) -> None:
    path = topics / "topic-0" / "identity"
    path.write_bytes(damage(path.read_bytes()))


def empty(topics: Path) -> None:
    """Remove all files of `topic-0`."""
    for path in (topics / "topic-0").iterdir():
        path.unlink()


def identify(topics: Path, owner: PartitionIdentity) -> None:
    write_partition_identity(DISK, topics / "topic-0" / "identity", owner)


def test_absent(topics: Path) -> None:
    empty(topics)
    (topics / "topic-0").rmdir()
    assert sort(topics) == {"other-0": None}
    fill(partition_log(DISK, topics / "topic-0", raft_group=TOPIC), 1)
    taken(topics)


def test_own(topics: Path) -> None:
    taken(topics)


def test_own_without_segments(topics: Path) -> None:
    (topics / "topic-0" / SEGMENT).unlink()
    taken(topics)


def test_temporary_file(topics: Path) -> None:
    (topics / "topic-0" / "identity.part").write_bytes(b"torn")
    taken(topics)


def test_deleted(topics: Path, capsys: pytest.CaptureFixture[str]) -> None:
    identify(topics, identity(GONE))
    assert removed(topics, "topic-0") == {"other-0": None}
    assert "removing what deleted topics and departed replicas have left" in capsys.readouterr().out


def test_half_deleted(topics: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = topics / f"{GONE}-deleted"
    gone.mkdir()
    (gone / SEGMENT).write_bytes(b"the rest")
    assert removed(topics, gone.name) == {"topic-0": None, "other-0": None}
    assert "removing what deleted topics and departed replicas have left" in capsys.readouterr().out


def test_deleted_twice(topics: Path) -> None:
    identify(topics, identity(GONE))
    gone = topics / f"{GONE}-deleted"
    gone.mkdir()
    (gone / SEGMENT).write_bytes(b"the rest")
    sort(topics)
    assert sorted(path.name for path in topics.iterdir()) == ["other-0"]


def test_deletion_that_never_was(topics: Path) -> None:
    for raft_group in (TOPIC, NEXT):
        (topics / "topic-0").rename(topics / f"{raft_group}-deleted")
        refused(topics, "is left from a deletion that never was; no topic has a partition")
        (topics / f"{raft_group}-deleted").rename(topics / "topic-0")


def a_copy(topics: Path, raft_group: int, kind: str) -> Path:
    path = topics / f"{raft_group}-{kind}"
    path.mkdir()
    (path / SEGMENT).write_bytes(b"records")
    return path


def test_copy(topics: Path) -> None:
    a_copy(topics, TOPIC, "copy")
    taken(topics)


def test_replaced(topics: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = a_copy(topics, TOPIC, "replaced")
    assert removed(topics, path.name) == {"topic-0": None, "other-0": None}
    assert "deletion" not in capsys.readouterr().out


@pytest.mark.parametrize("is_back", [True, False])
def test_departed(topics: Path, is_back: bool, capsys: pytest.CaptureFixture[str]) -> None:
    raft_group = TOPIC if is_back else GONE
    identify(topics, identity(raft_group))
    a_copy(topics, raft_group, "replaced")  # of an earlier departure
    assert sort(topics, [raft_group]) == {"other-0": None}
    assert sorted(path.name for path in topics.iterdir()) == ["other-0"]
    assert "removing what deleted topics and departed replicas have left" in capsys.readouterr().out


@pytest.mark.parametrize("is_back", [True, False])
def test_departed_and_cut_off(topics: Path, is_back: bool) -> None:
    """A crash behind the new name: the partition may be here again at the next start."""
    path = a_copy(topics, TOPIC if is_back else GONE, "replaced")
    assert removed(topics, path.name) == {"topic-0": None, "other-0": None}


@pytest.mark.parametrize("kind", ["copy", "replaced"])
def test_copy_of_a_deleted_partition(topics: Path, kind: str) -> None:
    path = a_copy(topics, GONE, kind)
    assert removed(topics, path.name) == {"topic-0": None, "other-0": None}


@pytest.mark.parametrize("kind", ["copy", "replaced"])
def test_copy_that_never_was(topics: Path, kind: str) -> None:
    a_copy(topics, NEXT, kind)
    refused(topics, "left from a copy of a partition that never was")


def test_half_made(topics: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty(topics)
    assert removed(topics, "topic-0") == {"other-0": None}
    assert "removing a partition's directory that a crash left unfinished" in capsys.readouterr().out


def test_half_a_rename(topics: Path) -> None:
    (topics / "topic-0" / SEGMENT).unlink()
    (topics / "topic-0" / "identity").rename(topics / "topic-0" / "identity.part")
    assert removed(topics, "topic-0") == {"other-0": None}


def test_torn(topics: Path) -> None:
    (topics / "topic-0" / SEGMENT).unlink()
    damage_identity(topics, lambda whole: whole[:-3] + bytes(3))
    assert removed(topics, "topic-0") == {"other-0": None}


def test_nameless(topics: Path) -> None:
    (topics / "topic-0" / "identity").unlink()
    not_ready(topics, r"topic-0/identity is missing")


def test_short(topics: Path) -> None:
    damage_identity(topics, lambda whole: whole[:19])
    not_ready(topics, r"topic-0/identity has 19 bytes, expected 20 at least")
    damage_identity(topics, lambda whole: b"")
    not_ready(topics, r"topic-0/identity has 0 bytes, expected 20 at least")


def test_bad_checksum(topics: Path) -> None:
    damage_identity(topics, lambda whole: whole[:-1] + bytes([whole[-1] ^ 1]))
    not_ready(topics, r"topic-0/identity is damaged")


def test_zero_tail(topics: Path) -> None:
    damage_identity(topics, lambda whole: whole + bytes(8))
    not_ready(topics, r"topic-0/identity is damaged")
    damage_identity(topics, lambda whole: bytes(len(whole)))
    not_ready(topics, r"topic-0/identity is damaged")


def test_identity_of_a_node(topics: Path) -> None:
    damage_identity(topics, lambda whole: whole.replace(b"PIXYPART", b"PIXYNODE"))
    not_ready(topics, r"topic-0/identity is damaged")


def test_other_files(topics: Path) -> None:
    empty(topics)
    (topics / "topic-0" / "notes").write_bytes(b"mine")
    not_ready(topics, r"topic-0/identity is missing")


def test_unlisted(topics: Path) -> None:
    disk = RecordingDisk()
    disk.unreadable.add(topics / "topic-0")
    before = contents(topics)
    found = sort_directories(disk, topics, KnownPartitions(LIVE, CLUSTER_ID, NEXT))
    assert "topic-0 cannot be read" in str(found.pop("topic-0"))
    assert found == {"other-0": None}
    assert contents(topics) == before


def test_misplaced(topics: Path) -> None:
    identify(topics, identity(OTHER))
    not_ready(topics, f"topic-0 belongs to raft group {OTHER}, which is not its partition's")


def test_never_made(topics: Path) -> None:
    identify(topics, identity(NEXT))
    not_ready(topics, f"topic-0 belongs to raft group {NEXT}, which is not its partition's")


def test_another_topic(topics: Path) -> None:
    owner = identity(TOPIC)
    owner.topic_id = b"x" * 16
    identify(topics, owner)
    not_ready(topics, f"topic-0 belongs to raft group {TOPIC}, which is not its partition's")


def test_foreign_cluster(topics: Path) -> None:
    owner = identity(TOPIC)
    owner.cluster_id = b"x" * 16
    identify(topics, owner)
    refused(
        topics, f"belongs to cluster {(b'x' * 16).hex()}, this is {CLUSTER_ID.hex()}; move it out of the way"
    )


def test_newer_version(topics: Path) -> None:
    damage_identity(topics, lambda whole: whole[:8] + (2).to_bytes(4, "little") + whole[12:])
    refused(topics, "format version 2, this release reads 1: a newer one wrote it")


def test_stray_file(topics: Path) -> None:
    for name in ("notes.txt", "topic-1", f"{GONE}-deleted"):
        (topics / name).write_bytes(b"mine")
        refused(topics, f"{name} is not a directory; move it out of the way")
        (topics / name).unlink()


def test_stray_directory(topics: Path) -> None:
    for name in ("lost+found", "backup", "topic-", "topic-0.old", "mine-deleted", "-0"):
        (topics / name).mkdir()
        refused(topics, f"{name.replace('+', '.')} is not a partition's directory; move it out of the way")
        (topics / name).rmdir()
