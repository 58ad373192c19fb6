"""`pixy cluster recover`: on the data directory of node 1 of three."""

import asyncio
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from pixy.cluster import LostMajority
from pixy.cluster.unsafe_recovery import stopped_node
from pixy.errors import FailedPrecondition
from pixy.storage import RealDisk
from tests.cluster.survivors import formed_with_records

from .conftest import Run

SECONDS = 60.0
REPORT = """\
Node 1 of cluster main would go on without nodes 2 and 3.

RAFT GROUP  VOTERS  LAST ENTRY  TERM  COMMITTED  MAY LACK
metadata    1,2,3            7     1          6  yes
groups-0    1,2,3            1     1          0  yes
sinks       1,2,3            1     1          0  yes
topic-0     1,2,3            3     1          2  yes

4 of 4 raft groups may lack entries that the other nodes have confirmed: answered messages, commits or changes of topics \
behind the last entry are lost, unless this node had them all.
Entries behind COMMITTED may be unanswered, or were replaced by others at the other nodes: they are kept.

"""
FIRST = "Are nodes 2 and 3 stopped, and will their data directories never be used again? [y/N] "
SECOND = "Go on with node 1 alone, and lose what is said above? Type main to go on: "
DONE = (
    "node 1 is the only one of cluster main, which has a new cluster id: start it. It refuses nodes 2 and 3, and they "
    "refuse it. Do not start them with their data: several of them may be a majority, and serve the old cluster beside "
    "this one. Empty their data directories first; then they join as new nodes\n"
)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    async def write() -> None:
        (await formed_with_records(tmp_path / "main", b"a", b"b")).end()

    asyncio.run(write())
    return tmp_path


def is_alone(data_dir: Path) -> bool:
    with stopped_node(RealDisk(), data_dir / "main") as node:
        try:
            LostMajority(node)
        except FailedPrecondition:
            return True
    return False


@pytest.mark.slow
def test_with_both_flags_it_goes_on_without_a_question(data_dir: Path, run_alone: Run) -> None:
    flags = ("--other-nodes-are-gone", "--messages-may-be-lost")
    result = run_alone("cluster", "recover", "--data-dir", str(data_dir), "--entry", "main", *flags)
    assert (result.exit_code, result.stdout) == (0, REPORT + DONE)
    assert is_alone(data_dir)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "missing"),
    [
        ((), "--other-nodes-are-gone"),
        (("--other-nodes-are-gone",), "--messages-may-be-lost"),
        (("--messages-may-be-lost",), "--other-nodes-are-gone"),
    ],
)
def test_without_a_terminal_both_flags_are_needed(
    data_dir: Path, run_alone: Run, flags: tuple[str, ...], missing: str
) -> None:
    result = run_alone("cluster", "recover", "--data-dir", str(data_dir), "--entry", "main", *flags)
    assert (result.exit_code, result.stdout) == (2, REPORT)
    assert f"confirm with {missing}" in result.stderr
    assert not is_alone(data_dir)


@pytest.mark.slow
def test_the_report_is_printed_as_json(data_dir: Path, run_alone: Run) -> None:
    result = run_alone("cluster", "recover", "--data-dir", str(data_dir), "--entry", "main", "--json")
    report = json.loads(result.stdout)
    assert (report["node_id"], report["lost_partitions"]) == (1, [])
    assert report["lost_nodes"][1] == {"node_id": 3, "address": "10.0.0.3:19094"}
    assert report["groups"][3] == {
        "raft_group": 1000,
        "name": "topic-0",
        "voters": [1, 2, 3],
        "last_index": 3,
        "last_term": 1,
        "commit": 2,
        "may_lack": True,
    }


def test_any_other_directory_is_an_error(tmp_path: Path, run_alone: Run) -> None:
    result = run_alone("cluster", "recover", "--data-dir", str(tmp_path))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"pixy: {tmp_path / 'default'} is not the data directory of a node\n"


def test_the_directory_of_a_node_is_named(tmp_path: Path, run_alone: Run) -> None:
    node = tmp_path / "default" / "default"
    node.mkdir(parents=True)
    (node / "identity").touch()
    result = run_alone("cluster", "recover", "--data-dir", str(tmp_path))
    assert result.stderr == (
        f"pixy: {tmp_path / 'default'} is not the data directory of a node; {node} may be meant\n"
    )


def answered(data_dir: Path, *answers: bytes) -> tuple[int, str]:
    """Exit code and standard error of the command at a terminal, with these answers."""
    person, terminal = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "pixy",
        "cluster",
        "recover",
        "--data-dir",
        str(data_dir),
        "--entry",
        "main",
    ]
    with subprocess.Popen(
        command,
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        try:
            os.write(person, b"".join(answers))
            _, errors = process.communicate(timeout=SECONDS)
            return process.returncode, errors
        finally:
            process.kill()
            os.close(person)
            os.close(terminal)


@pytest.mark.process
def test_it_asks_twice(data_dir: Path) -> None:
    assert answered(data_dir, b"y\n", b"main\n") == (0, FIRST + SECOND)
    assert is_alone(data_dir)


@pytest.mark.process
@pytest.mark.parametrize(
    ("answers", "asked"),
    [((b"n\n",), FIRST), ((b"y\n", b"y\n"), FIRST + SECOND), ((b"y\n", b"Main\n"), FIRST + SECOND)],
)
def test_any_other_answer_changes_nothing(data_dir: Path, answers: tuple[bytes, ...], asked: str) -> None:
    assert answered(data_dir, *answers) == (1, f"{asked}pixy: nothing was changed\n")
    assert not is_alone(data_dir)
