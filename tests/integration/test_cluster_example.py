"""examples/cluster.py: three daemons start, and none outlives the script."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.fakes.waiting import until_blocking

ROOT = Path(__file__).parents[2]
SECONDS = 60.0
PORTS = range(21_091, 28_091, 400)

pytestmark = pytest.mark.process


def free_port() -> int:
    """First of the ports that the three nodes and a further one need, four each."""
    for first in PORTS:
        with suppress(OSError):
            for port in (first + 100 * node + each for node in range(4) for each in range(4)):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first
    raise AssertionError("no free ports")


@contextmanager
def running(folder: Path) -> Iterator[tuple["subprocess.Popen[str]", list[int]]]:
    """The script once its nodes are ready, and the process ids of the nodes."""
    command = [sys.executable, "examples/cluster.py", "--port", str(free_port()), "--folder", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as script:
        assert script.stdout is not None
        try:
            ready: set[str] = set()
            told: list[str] = []
            while len(ready) < 3:
                line = script.stdout.readline()
                assert line, "a node has ended"
                if "| is process " in line:
                    told.append(line.rstrip())
                if "| pixy ready grpc=127.0.0.1:" in line:
                    ready.add(line[0])
            assert ready == {"1", "2", "3"}
            children = Path(f"/proc/{script.pid}/task/{script.pid}/children").read_text().split()
            assert told == [f"{number}| is process {pid}" for number, pid in enumerate(children, 1)]
            yield script, list(map(int, children))
        finally:
            script.kill()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_ctrl_c_stops_all_nodes_in_good_order(tmp_path: Path) -> None:
    with running(tmp_path) as (script, nodes):
        assert len(nodes) == 3
        script.send_signal(signal.SIGINT)
        output, _ = script.communicate(timeout=SECONDS)
        assert script.returncode == 0, output
        assert output.count("ended with exit code 0") == 3
        assert not any(map(is_alive, nodes))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "cluster-1",
        "cluster-2",
        "cluster-3",
        "peers.secret",
    ]


def test_no_node_outlives_a_script_that_is_killed(tmp_path: Path) -> None:
    with running(tmp_path) as (script, nodes):
        script.kill()
        until_blocking(lambda: not any(map(is_alive, nodes)))


def test_nothing_starts_if_a_port_is_in_use(tmp_path: Path) -> None:
    first = free_port()
    with socket.create_server(("127.0.0.1", first + 101)):
        command = [sys.executable, "examples/cluster.py", "--port", str(first), "--folder", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=SECONDS, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"node 2 cannot listen on 127.0.0.1:{first + 101}: Address already in use")


def test_a_node_may_end_alone(tmp_path: Path) -> None:
    with running(tmp_path) as (script, nodes):
        os.kill(nodes[1], signal.SIGKILL)
        assert script.stdout is not None
        while (
            "2| ended with exit code -9; start it again: env PIXY_CLUSTER__SECRET_FILE="
            not in script.stdout.readline()
        ):
            pass
        assert is_alive(nodes[0])
        assert is_alive(nodes[2])
