"""Contents of a real node's files, dumped line by line."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from pixy.cluster import MetadataState
from pixy.errors import DataDirectoryError
from pixy.inspect import DumpLine, ReadOnlyDisk, dump
from pixy.proto.state_pb2 import CreateTopic, InitCluster, MetadataCommand, NodeRecord, StagedPiece
from pixy.raft.messages import ConfChange, ConfChangeSingle, ConfChangeType, ConfChangeV2
from pixy.raft.wire import encode_conf_change
from pixy.records import patch_batch
from pixy.storage import CheckpointId, CheckpointStore, RealDisk
from tests.cluster.stopped import contents, make_stopped
from tests.fakes.batches import batch_of, bomb
from tests.storage.journals import (
    carried_over,
    entry,
    incarnation,
    journal_file,
    peer_starts,
    record,
    reset,
    write_files,
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_stopped(tmp_path_factory.mktemp("cluster") / "default")


@pytest.fixture
def node(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "default")


def dumped(path: Path, *, records: bool = False) -> list[DumpLine]:
    return list(dump(ReadOnlyDisk(), path, records=records))


def of_kind(lines: list[DumpLine], what: str) -> list[dict[str, Any]]:
    return [dict(line.fields) for line in lines if line.what == what]


@pytest.mark.slow
def test_a_directory_is_shown_file_by_file_and_not_changed(node: Path) -> None:
    before = contents(node)
    lines = dumped(node, records=True)
    assert contents(node) == before
    files = [Path(fields["path"]).relative_to(node).parts[0] for fields in of_kind(lines, "file")]
    assert sorted(set(files)) == ["identity", "journal", "state", "topics"]
    assert of_kind(lines, "damage") == []
    assert of_kind(lines, "identity")[0]["node_id"] == 1
    assert {each["raft_group"] for each in of_kind(lines, "partition_identity")} == {1000, 1002}


def test_a_journal_is_shown_with_the_meaning_of_its_records(node: Path) -> None:
    lines = dumped(node / "journal")
    entries = of_kind(lines, "entry")
    commits = [entry["commit_offsets"] for entry in entries if "commit_offsets" in entry]
    assert commits[-1]["group"] == "group"
    [offset] = commits[-1]["offsets"]
    assert (offset["topic"], offset["partition"], offset["offset"]) == ("topic", 0, 40)
    assert (offset["metadata"], len(offset["topic_id"])) == ("m40", 32)
    batches = [entry for entry in entries if entry["type"] == "record_batch"]
    assert (batches[-1]["raft_group"], batches[-1]["index"], batches[-1]["records"]) == (1000, 43, 1)
    assert (batches[-1]["base_offset"], batches[-1]["epoch"], batches[-1]["commit"]) == (41, 1, 42)
    assert batches[-1]["proposal"] == {"node_id": 1, "incarnation": 1, "sequence": 42}
    positions = {fields["raft_group"]: fields for fields in of_kind(lines, "applied_position")}
    assert (positions[1000]["index"], positions[1000]["end_offset"]) == (41, 40)
    assert {fields["raft_group"] for fields in of_kind(lines, "hard_state")} == {1, 2, 1000, 1002}
    assert of_kind(lines, "hard_state")[-1]["voters"] == [1]
    flushes = of_kind(lines, "flush")
    assert [flush["number"] for flush in flushes] == list(
        range(flushes[0]["number"], flushes[-1]["number"] + 1)
    )


def test_a_segment_is_shown_with_or_without_its_records(node: Path) -> None:
    path = sorted((node / "topics" / "topic-0").glob("*.log"))[0]
    lines = dumped(path)
    assert [line.what for line in lines] == ["file"] + ["batch"] * (len(lines) - 1)
    first = of_kind(lines, "batch")[0]
    assert (first["byte"], first["base_offset"], first["records"], first["codec"], first["epoch"]) == (
        0,
        0,
        1,
        "none",
        1,
    )
    records = of_kind(dumped(path, records=True), "record")
    assert [record["offset"] for record in records] == list(range(len(records)))
    assert (records[0]["key"], records[0]["value"][:8]) == (None, b"value-0v")


@pytest.mark.slow
def test_a_decompression_bomb_is_reported_and_later_batches_are_shown(tmp_path: Path) -> None:
    batches = [bytearray(batch) for batch in (batch_of(b"before"), bomb(), batch_of(b"behind"))]
    for offset, batch in enumerate(batches):
        patch_batch(batch, offset, 1)
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"".join(batches))
    lines = dumped(path, records=True)
    shown = ["file", "batch", "record", "batch", "undecodable", "batch", "record"]
    assert [line.what for line in lines] == shown
    assert "record batch at offset 1 cannot be decoded" in lines[4].fields["reason"]
    assert lines[6].fields["value"] == b"behind"


def test_a_journal_shows_records_too(node: Path) -> None:
    values = [record["value"] for record in of_kind(dumped(node / "journal", records=True), "record")]
    assert values[-2:] == [b"last", b"unsynced"]


def test_every_kind_of_record_of_a_journal_is_shown(tmp_path: Path) -> None:
    piece = StagedPiece(
        sink_id="sink", stage_id="stage", number=2, length=9, crc=7, stage_number=3, records=4
    ).SerializeToString()
    change = encode_conf_change(ConfChangeV2((ConfChangeSingle(ConfChangeType.ADD_NODE, 3),)))
    single = encode_conf_change(ConfChange(ConfChangeType.REMOVE_NODE, 2, change_id=4))
    write_files(
        tmp_path,
        journal_file([[entry(1, batch_of(b"old"), version=1)]], version=1),
        journal_file(
            [
                [
                    incarnation(3),
                    peer_starts((2, 7, 99)),
                    reset(5, 2),
                    record(1, 0, index=6, term=2, commit=5),
                ],
                [record(1, 4, index=7, term=3, payload=change, commit=6, proposal=(1, 3, 9))],
                [record(4, 3, 1001, 8, 3, single), record(1, 5, 1001, 9, 3, piece), carried_over(5, 2)],
            ],
            file=2,
            first_flush=2,
        ),
    )
    lines = dumped(tmp_path)
    assert [fields["version"] for fields in of_kind(lines, "journal")] == [1, 2]
    assert of_kind(lines, "incarnation") == [{"number": 3}]
    known = {"node_id": 2, "incarnation": 7, "flush_number": 99}
    assert of_kind(lines, "peer_starts") == [{"starts": [known]}]
    [of_reset], [of_copy] = of_kind(lines, "log_reset"), of_kind(lines, "relocated_log_reset")
    assert of_reset == of_copy
    assert (of_reset["raft_group"], of_reset["index"], of_reset["term"]) == (1000, 5, 2)
    assert (of_reset["configuration"]["voters"], of_reset["configuration"]["learners"]) == ([1, 2], [3])
    old, empty, changed, staged = of_kind(lines, "entry")
    assert ("commit" in old, old["type"], old["records"]) == (False, "record_batch", 1)
    assert (empty["type"], empty["commit"], "proposal" in empty) == ("empty", 5, False)
    assert (changed["type"], changed["commit"]) == ("conf_change_v2", 6)
    assert changed["proposal"] == {"node_id": 1, "incarnation": 3, "sequence": 9}
    assert changed["conf_change_v2"]["changes"] == [{"type": 0, "node_id": 3}]
    fields = {
        "sink_id": "sink",
        "stage_id": "stage",
        "number": 2,
        "length": 9,
        "crc": 7,
        "stage_number": 3,
        "records": 4,
    }
    assert (staged["type"], staged["staged_piece"]) == ("staged_piece", fields)
    [copied] = of_kind(lines, "relocated_entry")
    assert (copied["raft_group"], copied["type"], copied["conf_change"]["node_id"]) == (
        1001,
        "conf_change",
        2,
    )


def test_each_batch_of_an_entry_is_shown(tmp_path: Path) -> None:
    batches = [bytearray(batch_of(b"one", b"two")), bytearray(batch_of(b"three"))]
    for base_offset, batch in zip((7, 9), batches, strict=True):
        patch_batch(batch, base_offset, 3)
    payload = b"".join(batches)
    write_files(tmp_path, journal_file([[record(1, 6, index=4, term=3, commit=2, payload=payload)]]))
    lines = dumped(tmp_path)
    assert [line.what for line in lines] == ["file", "journal", "flush", "entry", "batch", "batch"]
    [shown] = of_kind(lines, "entry")
    assert (shown["type"], shown["records"], shown["batches"], shown["commit"]) == ("record_batches", 3, 2, 2)
    assert (shown["base_offset"], shown["epoch"]) == (7, 3)
    places = [(each["byte"], each["base_offset"], each["records"]) for each in of_kind(lines, "batch")]
    assert places == [(0, 7, 2), (len(batches[0]), 9, 1)]
    lines = dumped(tmp_path, records=True)
    assert [line.what for line in lines[4:]] == ["batch", "record", "record", "batch", "record"]
    assert [fields["offset"] for fields in of_kind(lines, "record")] == [7, 8, 9]


@pytest.mark.parametrize("entry_type", [1, 2, 3, 4, 5, 6])
def test_an_entry_that_cannot_be_decoded_is_shown_with_the_reason(tmp_path: Path, entry_type: int) -> None:
    write_files(tmp_path, journal_file([[record(1, entry_type, index=6, payload=b"\xff")]]))
    lines = dumped(tmp_path)
    assert [line.what for line in lines] == ["file", "journal", "flush", "entry"]
    assert lines[-1].fields["undecodable"]


def test_checkpoints_are_shown_with_their_records(node: Path) -> None:
    lines = dumped(sorted((node / "state" / "groups-0").iterdir())[-1])
    [offset] = of_kind(lines, "offset")
    assert (offset["group"], offset["offset"]["topic"], offset["offset"]["offset"]) == ("group", "topic", 39)
    [state] = of_kind(lines, "group_state")
    [row] = state["rows"]
    assert (row["node_id"], row["incarnation"], row["sequences"][-1]) == (1, 1, 39)
    assert (state["configuration"]["voters"], state["configuration"]["term"]) == ([1], 0)
    assert [group["group"] for group in of_kind(lines, "group")] == ["group"]
    for path in (node / "state" / "metadata").glob("*"):
        lines = dumped(path)
        assert of_kind(lines, "cluster")[0]["groups_count"] == 8
        assert [topic["name"] for topic in of_kind(lines, "topic")][:1] == ["topic"]


def test_a_checkpoint_of_metadata_shows_nodes_and_replicas(tmp_path: Path) -> None:
    state = MetadataState()
    first = NodeRecord(node_id=1, secret=b"\x05" * 16, address="host:1", incarnation=4)
    for command in (
        MetadataCommand(init_cluster=InitCluster(groups_count=8, first_node=first)),
        MetadataCommand(create_topic=CreateTopic(name="t", topic_id=b"i", partitions=2)),
    ):
        state.apply(command.SerializeToString())
    CheckpointStore(RealDisk(), tmp_path / "metadata").write(CheckpointId(1, 2), state.snapshot(), 0)
    lines = dumped(tmp_path)
    [node] = of_kind(lines, "node")
    assert (node["node_id"], node["secret"], node["address"]) == (1, "********", "host:1")
    [topic] = of_kind(lines, "topic")
    assert (topic["replica_sets"], topic["replica_set"]) == ([{"node_ids": [1]}], [0, 0])


@pytest.mark.parametrize(
    ("pattern", "at", "reason"),
    [
        ("identity", 25, "is damaged"),
        ("journal/*", 20, "the file header's checksum is wrong"),
        (
            "journal/*",
            110,
            "corrupt at byte 64: a record's checksum is wrong; a later flush follows at byte ",
        ),
        ("topics/topic-0/*.log", 70, "corrupt at byte 0: record batch at offset 0 has CRC "),
        ("topics/topic-0/*.log", 0, "corrupt at byte 0: a batch with base offset "),
        ("topics/topic-0/*.log", 8, "corrupt at byte 0: a batch that says it has "),
        ("state/groups-0/*", 70, "corrupt at byte 0: record batch at offset 0 has CRC "),
    ],
)
def test_damage_is_shown_in_place_as_the_last_line(node: Path, pattern: str, at: int, reason: str) -> None:
    path = sorted(node.glob(pattern))[0]
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)
    lines = dumped(path)
    assert (lines[-1].what, lines[-1].fields["path"]) == ("damage", str(path))
    assert lines[-1].fields["reason"].startswith(reason)


def test_other_files_are_refused(node: Path, tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryError, match="lock is nothing that can be shown"):
        dumped(node / "lock")
    with pytest.raises(DataDirectoryError, match="nowhere does not exist"):
        dumped(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataDirectoryError, match="empty is nothing that can be shown"):
        dumped(tmp_path / "empty")
