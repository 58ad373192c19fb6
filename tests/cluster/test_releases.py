"""Data directories of all past releases can be read and written."""

import json
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from pixy.inspect import ReadOnlyDisk, Verdict, check_node
from pixy.records import TopicPartition
from tests.cluster.nodes import Cluster
from tests.cluster.staging import finished, publish, staged
from tests.fixtures.make_release import RELEASES, contents, make

NAMES = sorted(path.stem for path in RELEASES.glob("*.zip"))


def unpacked(name: str, tmp_path: Path) -> Path:
    with zipfile.ZipFile(RELEASES / f"{name}.zip") as archive:
        archive.extractall(tmp_path / name)
    return tmp_path / name


def test_the_present_release_has_its_directory() -> None:
    assert version("pixy") in NAMES


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


@pytest.mark.parametrize("name", NAMES)
async def test_indexes_of_a_release_are_used(name: str, tmp_path: Path) -> None:
    directory = unpacked(name, tmp_path)
    [index] = (directory / "topics" / "indexed-0").glob("*.index")
    before = index.read_bytes()
    async with Cluster(directory).running() as cluster:
        replica = cluster.node.partition(TopicPartition("indexed", 0))
        assert replica is not None
        assert [segment._entries for segment in replica.log._files.segments] == [len(before) // 8]
        await cluster.append(b"x" * 60_000, b"y", topic="indexed")
        await cluster.sync()
        assert index.read_bytes().startswith(before)
        assert len(index.read_bytes()) > len(before) >= 16


@pytest.mark.parametrize("name", NAMES)
def test_a_check_finds_a_directory_of_a_release_intact(name: str, tmp_path: Path) -> None:
    report = check_node(ReadOnlyDisk(), unpacked(name, tmp_path))
    assert [finding for finding in report.findings if finding.verdict is Verdict.DAMAGED] == []


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
