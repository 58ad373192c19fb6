"""Data directories of all past releases can be read and written."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pixy.cluster import PartitionReplica
from pixy.cluster.log.recovery import recover_node
from pixy.cluster.log.replica import Replica
from pixy.errors import DataDirectoryError
from pixy.inspect import ReadOnlyDisk, Verdict, check_node, dump
from pixy.records import TopicPartition, read_header
from pixy.storage import EntryType, JournalRecord
from tests.cluster.nodes import Cluster, copy_of
from tests.cluster.staging import finished, publish, staged
from tests.fakes.disk import RecordingDisk
from tests.fakes.waiting import until
from tests.fixtures.make_release import RELEASES, contents, make, present_name

FIRST = "0.1.0"
"""Its journal has format version 1."""
NAMES = sorted(path.stem for path in RELEASES.glob("*.zip"))


def unpacked(name: str, tmp_path: Path) -> Path:
    with zipfile.ZipFile(RELEASES / f"{name}.zip") as archive:
        archive.extractall(tmp_path / name)
    return tmp_path / name


def test_the_present_release_has_its_directory() -> None:
    assert {FIRST, present_name()} <= set(NAMES)


def replica_of(cluster: Cluster, topic: str, partition: int = 0) -> PartitionReplica:
    replica = cluster.node.partition(TopicPartition(topic, partition))
    assert replica is not None
    return replica


def dumped(directory: Path, what: str) -> list[dict[str, Any]]:
    """Fields of the lines of a kind."""
    return [dict(line.fields) for line in dump(ReadOnlyDisk(), directory) if line.what == what]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
async def test_a_directory_of_a_release_can_be_read_and_written(name: str, tmp_path: Path) -> None:
    directory = unpacked(name, tmp_path)
    expected = json.loads((RELEASES / f"{name}.json").read_text())
    async with Cluster(directory).running() as cluster:
        assert contents(cluster) == expected
        await finished(cluster)
        await cluster.append(b"more", topic="plain", partition=2)
        await cluster.commit(20, topic="plain")
        await publish(cluster, 0, "sealed-0", "sealed-1", sink="other")
        await finished(cluster)
        assert cluster.values("staged", 0)[-4:] == [b"staged", b"later", b"staged", b"later"]
        grown = contents(cluster)
    async with Cluster(directory).running() as cluster:
        assert contents(cluster) == grown
        assert cluster.values("plain", 2)[-1] == b"more"
        assert staged(cluster) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
async def test_indexes_of_a_release_are_used(name: str, tmp_path: Path) -> None:
    directory = unpacked(name, tmp_path)
    [index] = (directory / "topics" / "indexed-0").glob("*.index")
    before = index.read_bytes()
    async with Cluster(directory).running() as cluster:
        replica = replica_of(cluster, "indexed")
        assert [segment._entries for segment in replica.log._files.segments] == [len(before) // 8]
        await cluster.append(b"x" * 60_000, b"y", topic="indexed")
        await cluster.sync()
        assert index.read_bytes().startswith(before)
        assert len(index.read_bytes()) > len(before) >= 16


@pytest.mark.parametrize("name", NAMES)
def test_a_check_finds_a_directory_of_a_release_intact(name: str, tmp_path: Path) -> None:
    report = check_node(ReadOnlyDisk(), unpacked(name, tmp_path))
    assert [finding for finding in report.findings if finding.verdict is Verdict.DAMAGED] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_dump_shows_a_directory_of_a_release(name: str, tmp_path: Path) -> None:
    directory = unpacked(name, tmp_path)
    assert dumped(directory, "damage") == []
    assert {fields["name"] for fields in dumped(directory, "topic")} >= {"plain", "cut", "indexed"}
    is_first = name == FIRST
    assert {fields["version"] for fields in dumped(directory, "journal")} == {1 if is_first else 2}
    assert bool(dumped(directory, "group_state")) is not is_first


def tail_of(directory: Path, raft_group: int) -> list[JournalRecord]:
    """Entries of a raft group in the journal that have record batches and are not applied."""
    recovered = recover_node(RecordingDisk(), directory, bytes)
    recovered.lock.close()
    entries = recovered.group(raft_group).entries
    return [entry for entry in entries if entry.entry_type is EntryType.RECORD_BATCH]


@pytest.mark.slow
async def test_entries_of_a_journal_of_version_1_get_offset_and_epoch_at_a_start(tmp_path: Path) -> None:
    directory = unpacked(FIRST, tmp_path)
    [raft_group] = json.loads((RELEASES / f"{FIRST}.json").read_text())["cut"]["raft groups"]
    [entry] = tail_of(directory, raft_group)
    header = read_header(entry.payload)
    assert (entry.version, header.base_offset, header.leader_epoch) == (1, 0, -1)
    async with Cluster(directory).running() as cluster:
        chunk = replica_of(cluster, "cut").log.read_memory(30, 1000)
        assert chunk is not None
        header = read_header(chunk.batches[0])
        assert (header.base_offset, header.leader_epoch) == (30, 1)
        await cluster.append(b"more", topic="cut")
        killed = copy_of(directory, "killed")
    # No segment has them yet, so a start applies entries of both versions again.
    old, new = tail_of(killed, raft_group)
    assert (old.version, new.version, new.index) == (1, 2, entry.index + 2)
    header = read_header(new.payload)
    assert (header.base_offset, header.leader_epoch) == (31, new.term)
    assert new.term > entry.term
    report = check_node(ReadOnlyDisk(), killed)
    assert [finding for finding in report.findings if finding.verdict is Verdict.DAMAGED] == []
    async with Cluster(killed).running() as cluster:
        log = replica_of(cluster, "cut").log
        assert log.end_offset == 32
        chunk = log.read_memory(30, 1000)
        assert chunk is not None
        assert [read_header(batch).base_offset for batch in chunk.batches] == [30, 31]


@pytest.mark.parametrize("where", ["state group metadata", "state group groups-n", "partition topic-0"])
async def test_a_command_of_a_newer_release_ends_the_node_and_refuses_its_start(
    tmp_path: Path, where: str
) -> None:
    cluster = Cluster(tmp_path)
    await cluster.node.start()
    await cluster.create_topic()
    groups = cluster.node.state_groups
    target: Replica = {
        "state group metadata": groups.metadata_replica,
        "state group groups-n": groups.groups[0],
    }.get(where, replica_of(cluster, "topic"))
    cluster.node._proposals.propose_and_tell(target, b"\xfa\x07\x01x", lambda _: None)
    await until(lambda: bool(cluster.faults))
    await cluster.node.stop()
    [fault] = cluster.faults
    assert isinstance(fault, DataDirectoryError)
    assert f"{where} has a command that this release does not know: a newer" in str(fault)
    with pytest.raises(DataDirectoryError, match="a newer release wrote it"):
        await Cluster(tmp_path).node.start()


@pytest.mark.slow
async def test_the_directory_contains_every_kind_of_file(tmp_path: Path) -> None:
    killed, found = await make(tmp_path)
    names = {path.name for path in killed.rglob("*")}
    assert {"identity", "lock", "reserve", "plain-0", "plain-1", "cut-0"} <= names
    assert "gone-0" not in names
    suffixes = {path.suffix for path in killed.rglob("*")}
    assert {".journal", ".log", ".checkpoint", ".index", ".timeindex", ".batches"} <= suffixes
    assert len(list((killed / "state" / "sinks").glob("*.checkpoint"))) == 2
    # One stage was published at the last moment, two can be published, one was not sealed.
    assert len(list((killed / "staging").iterdir())) == 4
    assert len(list((killed / "staging").glob("*/stage"))) == 3
    assert found["sinks"]["sink"] == {"query": "query", "epoch": 6, "stages": {}}
    assert set(found["sinks"]["other"]["stages"]) == {"sealed-0", "sealed-1"}
    assert [partition["end"] for partition in found["staged"]["partitions"]] == [7, 6]
    assert found["cut"]["partitions"][0]["begin"] > 0
    assert len(found["plain"]["partitions"]) == 3
    assert found["plain"]["committed"]["group 2"] == {"0": 11}
    assert [partition["end"] for partition in found["relocated"]["partitions"]] == [6]


@pytest.mark.slow
async def test_the_directory_contains_every_kind_of_record(tmp_path: Path) -> None:
    killed, _ = await make(tmp_path)
    kinds = ("entry", "relocated_entry", "hard_state", "applied_position", "incarnation")
    assert [kind for kind in kinds if not dumped(killed / "journal", kind)] == []
    assert dumped(killed / "journal", "incarnation")[-1] == {"number": 2}
    types = {fields["type"] for fields in dumped(killed / "journal", "entry")}
    assert types == {"empty", "command", "record_batch", "record_batches"}
    for name in ("metadata", "groups-0", "sinks"):
        state = dumped(killed / "state" / name, "group_state")[-1]
        assert state["rows"], name
        assert state["configuration"]["voters"] == [1]
