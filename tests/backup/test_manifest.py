"""pixy/backup/manifest.py: what is written comes back, and nothing else does."""

import json

import pytest

from pixy.backup.manifest import BackedUpPartition, BackedUpTopic, Manifest, decode_manifest, encode_manifest
from pixy.backup.object_names import RangeName, backup_id
from pixy.errors import CorruptData

NAME = RangeName(3, 9, 100, 0xFF)
PARTITIONS = (BackedUpPartition(0, 4, 9, (NAME,)), BackedUpPartition(1, 0, 0, ()))
MANIFEST = Manifest(
    backup_id(0),
    b"\1" * 16,
    "1.0",
    9,
    1234,
    f"state/{'01' * 16}/{backup_id(0)}-50-000000ff",
    (BackedUpTopic("topic", b"\2" * 16, {"a": "1"}, PARTITIONS),),
)


def test_a_manifest_comes_back() -> None:
    assert decode_manifest(encode_manifest(MANIFEST)) == MANIFEST
    assert (MANIFEST.records, MANIFEST.size) == (5, 150)
    assert list(MANIFEST.paths()) == [MANIFEST.state, f"data/{'01' * 16}/{'02' * 16}/0/{NAME}"]


def test_no_part_of_one_is_a_manifest() -> None:
    data = encode_manifest(MANIFEST)
    for size in range(len(data)):
        with pytest.raises(CorruptData, match="no manifest of a backup"):
            decode_manifest(data[:size])


def test_a_changed_one_is_none() -> None:
    whole = json.loads(encode_manifest(MANIFEST))
    whole["backup"]["topics"][0]["partitions"][0]["end"] = 8
    with pytest.raises(CorruptData, match="its checksum is"):
        decode_manifest(json.dumps(whole).encode())


@pytest.mark.parametrize("data", [b"", b"1", b"{}", b'{"backup": {}, "checksum": "0"}', b"\xff", b"[]"])
def test_other_files_are_none(data: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_manifest(data)
