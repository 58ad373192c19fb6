"""Output and exit codes of `pixy storage check` and `pixy storage dump`."""

import asyncio
import json
import re
import shutil
from pathlib import Path

import pytest

from pixy.storage import RealDisk
from tests.cluster.node_clusters import NodeCluster, run_cluster
from tests.cluster.poisoned import WORST, raise_terms
from tests.cluster.stopped import contents, make_stopped

from .conftest import Run


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_stopped(tmp_path_factory.mktemp("cluster") / "default")


@pytest.fixture
def node(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "data" / "default")


def segment(node: Path) -> Path:
    return sorted((node / "topics" / "topic-0").glob("*.log"))[0]


def damage(path: Path, at: int = 70) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.slow
def test_a_whole_directory_is_ok_and_is_not_changed(node: Path, run_alone: Run) -> None:
    before = contents(node)
    result = run_alone("storage", "check", str(node))
    assert (result.exit_code, result.stderr, contents(node)) == (0, "", before)
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["KIND", "WHERE", "FOUND", "VERDICT"]
    assert lines[1].split()[:3] == ["identity", "identity", "node"]
    assert all(line.endswith("ok") for line in lines[1:-2])
    assert re.fullmatch(r"ok: checked \d+ bytes and 43 records in \d+\.\d\d s", lines[-1])


@pytest.mark.slow
def test_a_damaged_partition_with_other_replicas_is_marked_until_it_is_whole(
    tmp_path: Path, run_alone: Run
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].append(b"value")

    run_cluster(scenario, tmp_path)
    node = tmp_path / "1"
    mark = node / "topics" / "topic-0" / "damaged"
    damage(segment(node))
    result = run_alone("storage", "check", str(node))
    assert (result.exit_code, mark.exists()) == (1, False)
    assert "topic-0: with --mark, the next start fetches the partition from another node" in result.stdout
    assert run_alone("storage", "check", "--mark", str(node)).exit_code == 1
    assert mark.exists()
    damage(segment(node))
    result = run_alone("storage", "check", str(node))
    assert (result.exit_code, result.stdout.splitlines()[-1][:8]) == (0, "warning:")
    assert re.search("topics/topic-0/damaged +a check has found damage", result.stdout)
    assert run_alone("storage", "check", "--mark", str(node)).exit_code == 0
    assert not mark.exists()


@pytest.mark.slow
def test_the_only_replica_of_a_partition_is_not_marked(node: Path, run_alone: Run) -> None:
    damage(segment(node))
    before = contents(node)
    result = run_alone("storage", "check", "--mark", str(node))
    assert (result.exit_code, contents(node)) == (1, before)
    assert "--mark" not in result.stdout


@pytest.mark.slow
def test_warnings_exit_with_0_and_damage_with_1(node: Path, run_alone: Run) -> None:
    (node / "notes").write_bytes(b"x")
    result = run_alone("storage", "check", str(node))
    assert (result.exit_code, result.stdout.splitlines()[-1][:8]) == (0, "warning:")
    damage(segment(node))
    result = run_alone("storage", "check", str(node))
    assert (result.exit_code, result.stdout.splitlines()[-1][:8]) == (1, "damaged:")
    assert re.search(rf"topics/topic-0/{segment(node).name} +corrupt at byte 0: record batch", result.stdout)


def test_advice_is_printed_below_the_table(node: Path, run_alone: Run) -> None:
    journal = sorted((node / "journal").iterdir())[-1]
    damage(journal, journal.read_bytes().rindex(b"FLSH") + 60)
    result = run_alone("storage", "check", str(node))
    assert result.exit_code == 1
    [advice] = [
        line for line in result.stdout.splitlines() if line.startswith(f"journal/{journal.name}: flush ")
    ]
    assert re.search(r"the next start is refused\. .*: truncate --size=\d+ ", advice)
    found = json.loads(run_alone("storage", "check", "--json", str(node)).stdout)
    [given] = [each["advice"] for each in found["directories"][0]["findings"] if each["advice"]]
    assert advice == f"journal/{journal.name}: {given}"


def test_a_check_as_json_is_one_object(node: Path, run_alone: Run) -> None:
    damage(segment(node))
    result = run_alone("storage", "check", "--json", str(node))
    found = json.loads(result.stdout)
    assert (result.exit_code, found["verdict"]) == (1, "damaged")
    assert found["bytes"] > found["records"] > 0 <= found["seconds"]
    [directory] = found["directories"]
    assert (directory["directory"], directory["verdict"]) == (str(node), "damaged")
    worst = [
        each for each in directory["findings"] if each["kind"] == "segment" and each["verdict"] == "damaged"
    ]
    assert [each["where"] for each in worst] == [f"topics/topic-0/{segment(node).name}"]


@pytest.mark.slow
def test_all_clusters_of_a_data_dir_are_checked(node: Path, run_alone: Run) -> None:
    shutil.copytree(node, node.parent / "other")
    damage(segment(node))
    result = run_alone("storage", "check", str(node.parent))
    assert result.exit_code == 1
    headings = [line for line in result.stdout.splitlines() if line.startswith("/")]
    assert headings == [f"{node}:", f"{node.parent / 'other'}:"]


def test_a_directory_that_cannot_be_checked_exits_with_2(node: Path, tmp_path: Path, run_alone: Run) -> None:
    lock = RealDisk().lock(node / "lock")
    assert lock is not None
    (tmp_path / "empty").mkdir()
    for path, reason in [
        (node, "is in use by another process: stop the daemon first"),
        (node / "identity", "is not a directory"),
        (tmp_path / "empty", "is empty: there is no node in it"),
        (tmp_path / "nowhere", "does not exist: there is no node in it"),
    ]:
        result = run_alone("storage", "check", str(path))
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("pixy: ")
        assert result.stderr.endswith(f"{path} {reason}\n")
    lock.close()


def test_a_dump_prints_a_line_per_item(node: Path, run_alone: Run) -> None:
    path = segment(node)
    result = run_alone("storage", "dump", str(path), "--records", "--limit", "3")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert len(lines) == 3
    assert lines[0] == f"file path={path}"
    assert lines[1].startswith("batch byte=0 base_offset=0 last_offset=0 records=1 bytes=")
    assert re.match(r"record offset=0 timestamp=\d+ key=- value=value-0v+ headers=\[\]$", lines[2])


def test_a_dump_as_json_is_one_object_per_line(node: Path, run_alone: Run) -> None:
    result = run_alone("storage", "dump", str(node), "--records", "--json")
    assert result.exit_code == 0
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert lines[1]["what"] == "identity"
    assert {line["what"] for line in lines} >= {
        "journal",
        "flush",
        "entry",
        "hard_state",
        "applied_position",
        "record",
    }
    values = [line["value"] for line in lines if line["what"] == "record"]
    assert "unsynced" in values


def test_a_dump_ends_at_damage_and_exits_with_1(node: Path, run_alone: Run) -> None:
    damage(segment(node))
    result = run_alone("storage", "dump", str(node / "topics" / "topic-0"))
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 2
    assert f"damage path={segment(node)} reason=corrupt at byte 0: record batch" in result.stdout


@pytest.mark.parametrize("args", [["check"], ["dump"], ["dump", "x", "--limit", "0"], ["dump", "/nowhere"]])
def test_wrong_usage_exits_with_2(run_alone: Run, args: list[str]) -> None:
    assert run_alone("storage", *args).exit_code == 2


@pytest.mark.slow
def test_impossible_terms_are_found_and_mended(node: Path, run_alone: Run) -> None:
    asyncio.run(raise_terms(node))
    result = run_alone("storage", "check", str(node))
    assert result.exit_code == 1
    assert f"raft group 1: its hard state has term {WORST}" in result.stdout
    assert "`pixy storage recover` mends it" in result.stdout
    result = run_alone("storage", "recover", str(node))
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"metadata: its hard state has term {WORST}" in result.stdout
    assert run_alone("storage", "check", str(node)).exit_code == 0
    result = run_alone("storage", "recover", str(node), "--json")
    assert json.loads(result.stdout) == {"mended": []}


def test_only_the_directory_of_a_node_is_mended(tmp_path: Path, run_alone: Run) -> None:
    result = run_alone("storage", "recover", str(tmp_path))
    assert result.exit_code == 1
    assert "is not the data directory of a node" in result.stderr
