"""Decisions about a node's identity: a test for each row of the table in `docs/storage.md`."""

from pathlib import Path

import pytest

from pixy.errors import CorruptData, DataDirectoryError
from pixy.proto.state_pb2 import NodeIdentity, PartitionIdentity
from pixy.storage import RealDisk, load_identity
from pixy.storage.disk.identity import write_partition_identity

OURS = NodeIdentity(cluster_id=b"0123456789abcdef", node_id=1)
NEW = NodeIdentity(cluster_id=b"x" * 16, node_id=2)


@pytest.fixture
def whole(tmp_path: Path) -> bytes:
    load_identity(RealDisk(), tmp_path, OURS)
    return (tmp_path / "identity").read_bytes()


def taken(directory: Path, expected: NodeIdentity) -> None:
    """Assert that the node starts with that identity, twice."""
    assert load_identity(RealDisk(), directory, NEW) == expected
    assert load_identity(RealDisk(), directory, OURS) == expected
    assert [path.name for path in directory.iterdir() if path.is_file()] == ["identity"]


def refused(directory: Path, content: bytes, reason: str, error: type[Exception] = CorruptData) -> None:
    """Assert that the start is refused with that reason and changes nothing."""
    (directory / "identity").write_bytes(content)
    with pytest.raises(error, match=reason):
        load_identity(RealDisk(), directory, NEW)
    assert (directory / "identity").read_bytes() == content


def test_absent(tmp_path: Path) -> None:
    taken(tmp_path, NEW)


def test_lost(tmp_path: Path) -> None:
    for other in ("journal", "topics", "state"):
        (tmp_path / other).mkdir()
        with pytest.raises(DataDirectoryError, match=f"identity is missing, although .* has '{other}'"):
            load_identity(RealDisk(), tmp_path, NEW)
        (tmp_path / other).rmdir()
    assert list(tmp_path.iterdir()) == []


def test_own(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "journal").mkdir()
    taken(tmp_path, OURS)
    assert (tmp_path / "identity").read_bytes() == whole


def test_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "identity.part").write_bytes(b"x" * 500)
    taken(tmp_path, NEW)


def test_half_a_rename(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "identity").rename(tmp_path / "identity.part")
    taken(tmp_path, NEW)


def test_short(tmp_path: Path, whole: bytes) -> None:
    for size in range(len(whole)):
        refused(tmp_path, whole[:size], "identity (has [0-9]+ bytes, expected 20 at least|is damaged)")


def test_torn(tmp_path: Path, whole: bytes) -> None:
    for at in range(13, len(whole)):
        refused(tmp_path, whole[:at] + bytes(len(whole) - at), "identity is damaged")


def test_bad_checksum(tmp_path: Path, whole: bytes) -> None:
    for at in (*range(8), *range(12, len(whole))):
        refused(tmp_path, whole[:at] + bytes([whole[at] ^ 0x81]) + whole[at + 1 :], "identity is damaged")


def test_zero_tail(tmp_path: Path, whole: bytes) -> None:
    refused(tmp_path, whole + bytes(4), "identity is damaged")


def test_identity_of_a_partition(tmp_path: Path) -> None:
    write_partition_identity(
        RealDisk(), tmp_path / "identity", PartitionIdentity(cluster_id=b"0123456789abcdef")
    )
    refused(tmp_path, (tmp_path / "identity").read_bytes(), "identity is damaged")


def test_newer_version(tmp_path: Path, whole: bytes) -> None:
    newer = whole[:8] + (2).to_bytes(4, "little") + whole[12:] + b"and more"
    refused(
        tmp_path, newer, "format version 2, this release reads 1: a newer one wrote it", DataDirectoryError
    )


def test_version_0(tmp_path: Path, whole: bytes) -> None:
    refused(tmp_path, whole[:8] + bytes(4) + whole[12:], "identity is damaged")


def test_foreign_node(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "identity").unlink()
    load_identity(RealDisk(), tmp_path, NEW)
    taken(tmp_path, NEW)
