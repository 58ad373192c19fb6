"""Identity files of nodes and partitions: byte format and order of syncs.

`test_identity_decisions` and `test_partition_directory_decisions` test the decisions at startup.
"""

from pathlib import Path
from random import Random

import pytest

from pixy.errors import CorruptData, DataDirectoryError
from pixy.proto.state_pb2 import NodeIdentity, PartitionIdentity
from pixy.records import crc32c
from pixy.storage import RealDisk, load_identity
from pixy.storage.disk.identity import read_identity, read_partition_identity, write_partition_identity
from tests.fakes.disk import RecordingDisk
from tests.sim.disk import Ended, SimulatedDisk
from tests.storage.logs import identity

NEW = NodeIdentity(cluster_id=b"0123456789abcdef", node_id=1)
PAYLOAD = b"\x0a\x10" + b"0123456789abcdef" + b"\x10\x01"
PARTITION = identity(1000, 7)
PARTITION_PAYLOAD = b"\x0a\x10" + b"c" * 16 + b"\x12\x10" + b"t" * 16 + b"\x18\x07" + b"\x20\xe8\x07"


def content(magic: bytes, payload: bytes) -> bytes:
    start, rest = magic + (1).to_bytes(4, "little"), len(payload).to_bytes(4, "little") + payload
    checksum: int = crc32c(start + rest)
    return start + checksum.to_bytes(4, "little") + rest


def test_the_file_of_a_node_has_the_bytes_of_the_table(tmp_path: Path) -> None:
    load_identity(RealDisk(), tmp_path, NEW)
    assert (tmp_path / "identity").read_bytes() == content(b"PIXYNODE", PAYLOAD)


def test_the_file_of_a_partition_has_the_bytes_of_the_table(tmp_path: Path) -> None:
    write_partition_identity(RealDisk(), tmp_path / "identity", PARTITION)
    assert (tmp_path / "identity").read_bytes() == content(b"PIXYPART", PARTITION_PAYLOAD)
    assert read_partition_identity(RealDisk(), tmp_path / "identity") == PARTITION


def test_both_are_written_to_a_temporary_file_synced_renamed_and_synced(tmp_path: Path) -> None:
    node, partition = RecordingDisk(), RecordingDisk()
    load_identity(node, tmp_path, NEW)
    write_partition_identity(partition, tmp_path / "identity", PARTITION)
    for disk in (node, partition):
        assert [(call.what, call.name) for call in disk.calls] == [
            ("create", "identity.part"),
            ("truncate", "identity.part"),
            ("write", "identity.part"),
            ("sync", "identity.part"),
            ("rename", "identity"),
            ("sync_directory", tmp_path.name),
        ]


def test_an_existing_identity_wins_over_a_new_one(tmp_path: Path) -> None:
    load_identity(RealDisk(), tmp_path, NEW)
    disk = RecordingDisk()
    assert load_identity(disk, tmp_path, NodeIdentity(cluster_id=b"x" * 16, node_id=2)) == NEW
    assert read_identity(disk, tmp_path / "identity") == NEW
    assert disk.calls == []


@pytest.mark.slow
def test_a_crash_during_the_first_start_leaves_no_identity_or_that_one() -> None:
    directory = Path("/node")
    for seed in range(40):
        for die_at in range(1, 20):
            disk = SimulatedDisk(Random(seed * 100 + die_at))
            disk.make_directory(directory)
            disk.restart()
            disk.die_at, disk.die_phase = die_at, ("before", "middle", "after")[seed % 3]
            try:
                load_identity(disk, directory, NEW)
            except Ended:
                disk.lose_power()
            else:
                break
            disk.restart()
            other = NodeIdentity(cluster_id=b"x" * 16, node_id=1)
            assert load_identity(disk, directory, other) in (NEW, other)
        else:
            raise AssertionError("it was never written")


@pytest.mark.parametrize("read", [read_identity, read_partition_identity])
def test_every_prefix_and_every_flipped_byte_of_either_is_detected(tmp_path: Path, read: object) -> None:
    path = tmp_path / "identity"
    nodes = read is read_identity
    whole = content(b"PIXYNODE", PAYLOAD) if nodes else content(b"PIXYPART", PARTITION_PAYLOAD)
    damaged = [whole[:size] for size in range(len(whole))]
    damaged += [whole[:at] + bytes([whole[at] ^ 0x81]) + whole[at + 1 :] for at in range(len(whole))]
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises((CorruptData, DataDirectoryError), match="identity"):
            (read_identity if nodes else read_partition_identity)(RealDisk(), path)


def test_a_missing_identity_of_a_partition_is_a_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_partition_identity(RealDisk(), tmp_path / "identity")


def test_the_identity_of_a_partition_survives_a_round_trip(tmp_path: Path) -> None:
    big = PartitionIdentity(cluster_id=b"c" * 16, topic_id=b"t" * 16, partition=9999, raft_group=2**64 - 1)
    write_partition_identity(RealDisk(), tmp_path / "identity", PARTITION)
    write_partition_identity(RealDisk(), tmp_path / "identity", big)
    assert read_partition_identity(RealDisk(), tmp_path / "identity") == big
