"""The file `identity`: its bytes, and the decision table of `pixy.storage.identity`."""

from pathlib import Path

import pytest

from pixy.errors import CorruptData, DataDirectoryError
from pixy.proto.state_pb2 import NodeIdentity
from pixy.records import crc32c
from pixy.storage import RealDisk, load_identity
from tests.fakes.disk import RecordingDisk

NEW = NodeIdentity(cluster_id=b"0123456789abcdef", node_id=1)
PAYLOAD = b"\x0a\x10" + b"0123456789abcdef" + b"\x10\x01"
BYTES = (
    b"PIXYNODE"
    + (1).to_bytes(4, "little")
    + crc32c(PAYLOAD).to_bytes(4, "little")
    + len(PAYLOAD).to_bytes(4, "little")
    + PAYLOAD
)


def test_the_file_has_the_bytes_of_the_table(tmp_path: Path) -> None:
    load_identity(RealDisk(), tmp_path, NEW)
    assert (tmp_path / "identity").read_bytes() == BYTES


def test_absent_and_the_directory_is_empty__a_new_node(tmp_path: Path) -> None:
    disk = RecordingDisk()
    assert load_identity(disk, tmp_path, NEW) == NEW
    assert [(call.what, call.name) for call in disk.calls] == [
        ("create", "identity.part"),
        ("truncate", "identity.part"),
        ("write", "identity.part"),
        ("sync", "identity.part"),
        ("rename", "identity"),
        ("sync_directory", tmp_path.name),
    ]


def test_what_was_written_wins_over_a_new_identity(tmp_path: Path) -> None:
    load_identity(RealDisk(), tmp_path, NEW)
    disk = RecordingDisk()
    assert load_identity(disk, tmp_path, NodeIdentity(cluster_id=b"x" * 16, node_id=2)) == NEW
    assert disk.calls == []


@pytest.mark.parametrize("other", ["journal", "topics", "state"])
def test_absent_and_there_is_a_journal_are_topics_or_states__refused(tmp_path: Path, other: str) -> None:
    (tmp_path / other).mkdir()
    with pytest.raises(DataDirectoryError, match=f"identity is missing, although .* has '{other}'"):
        load_identity(RealDisk(), tmp_path, NEW)


def test_short_wrong_magic_or_checksum__refused_for_every_prefix_and_every_flipped_byte(
    tmp_path: Path,
) -> None:
    path = tmp_path / "identity"
    for size in range(len(BYTES)):
        path.write_bytes(BYTES[:size])
        with pytest.raises(CorruptData, match="identity"):
            load_identity(RealDisk(), tmp_path, NEW)
    for at in range(len(BYTES)):
        flipped = bytearray(BYTES)
        flipped[at] ^= 0x81
        path.write_bytes(flipped)
        with pytest.raises((CorruptData, DataDirectoryError), match="identity"):
            load_identity(RealDisk(), tmp_path, NEW)


def test_a_newer_version__refused(tmp_path: Path) -> None:
    (tmp_path / "identity").write_bytes(BYTES[:8] + (2).to_bytes(4, "little") + BYTES[12:])
    with pytest.raises(DataDirectoryError, match="format version 2, this release reads up to 1"):
        load_identity(RealDisk(), tmp_path, NEW)


def test_identity_part__overwritten(tmp_path: Path) -> None:
    (tmp_path / "identity.part").write_bytes(b"x" * 500)
    assert load_identity(RealDisk(), tmp_path, NEW) == NEW
    assert (tmp_path / "identity").read_bytes() == BYTES
