"""The data directory of every release that there was can be read, and goes on."""

import json
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from pixy.cluster import check_node
from pixy.storage import ReadOnlyDisk, Verdict
from tests.cluster.nodes import Cluster
from tests.fixtures.make_release import RELEASES, contents, make

NAMES = sorted(path.stem for path in RELEASES.glob("*.zip"))


def unpacked(name: str, tmp_path: Path) -> Path:
    with zipfile.ZipFile(RELEASES / f"{name}.zip") as archive:
        archive.extractall(tmp_path / name)
    return tmp_path / name


def test_the_present_release_has_its_directory() -> None:
    assert version("pixy") in NAMES


@pytest.mark.parametrize("name", NAMES)
async def test_a_release_is_read_whole_and_goes_on(name: str, tmp_path: Path) -> None:
    directory = unpacked(name, tmp_path)
    expected = json.loads((RELEASES / f"{name}.json").read_text())
    async with Cluster(directory).running() as cluster:
        assert contents(cluster) == expected
        await cluster.append(b"more", topic="plain", partition=2)
        await cluster.commit(20, topic="plain")
        grown = contents(cluster)
    async with Cluster(directory).running() as cluster:
        assert contents(cluster) == grown
        assert cluster.values("plain", 2)[-1] == b"more"


@pytest.mark.parametrize("name", NAMES)
def test_a_release_is_found_whole_by_the_check(name: str, tmp_path: Path) -> None:
    report = check_node(ReadOnlyDisk(), unpacked(name, tmp_path))
    assert [finding for finding in report.findings if finding.verdict is Verdict.DAMAGED] == []


async def test_the_directory_has_everything_that_leaves_a_trace(tmp_path: Path) -> None:
    killed, found = await make(tmp_path)
    names = {path.name for path in killed.rglob("*")}
    assert {"identity", "lock", "reserve", "plain-0", "plain-1", "cut-0"} <= names
    assert "gone-0" not in names
    suffixes = {path.suffix for path in killed.rglob("*")}
    assert {".journal", ".log", ".checkpoint"} <= suffixes
    assert found["cut"]["partitions"][0]["begin"] > 0
    assert len(found["plain"]["partitions"]) == 3
    assert found["plain"]["committed"]["group 2"] == {"0": 11}
