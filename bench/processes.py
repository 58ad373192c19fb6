"""Server processes to measure: a daemon, or the server that does nothing. On 127.0.0.1, on a free port, ended by their own id."""

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

__all__ = ["Server", "daemon", "load_core", "noop", "pinned", "server_core"]

_START_SECONDS_MAX = 30.0
_STOP_SECONDS_MAX = 30.0
_PIN = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); os.execv(sys.argv[2], sys.argv[2:])"


def server_core() -> int:
    """The core that a server gets for itself."""
    return min(os.sched_getaffinity(0))


def load_core() -> int:
    """The core that the load comes from: another one, if there is one."""
    return max(os.sched_getaffinity(0))


def pinned(core: int, command: Sequence[str]) -> list[str]:
    """A command that runs on that core only."""
    return [sys.executable, "-c", _PIN, str(core), *command]


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. `ready_seconds` is how long it took from the start of the process until it said that it serves."""

    address: str
    pid: int
    ready_seconds: float

    def rss_bytes(self) -> int:
        """Resident memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        """Processor time used so far, of all its threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def daemon(folder: Path, config: dict[str, Any] | None = None, core: int | None = None) -> Iterator[Server]:
    """A daemon with its data in `folder`."""
    file = folder / "pixy.yaml"
    settings = {"grpc_addr": "127.0.0.1:0", "data_dir": str(folder / "data"), "shutdown_timeout": "1s"}
    file.write_text(yaml.safe_dump({**settings, **(config or {})}))
    with _server(
        [sys.executable, "-m", "pixy", "serve", "--config", str(file), "--log-level", "warning"], core
    ) as running:
        yield running


@contextmanager
def noop(core: int | None = None) -> Iterator[Server]:
    """The server that does nothing."""
    with _server([sys.executable, "-m", "bench.noop_server"], core) as running:
        yield running


@contextmanager
def _server(command: list[str], core: int | None) -> Iterator[Server]:
    started = time.perf_counter()
    process = subprocess.Popen(
        command if core is None else pinned(core, command), stdout=subprocess.PIPE, text=True
    )
    try:
        line = _first_line(process)
        ready = time.perf_counter() - started
        if "grpc=" not in line:
            raise RuntimeError(f"{command} did not start: {line!r}")
        yield Server(line.split("grpc=")[1].split()[0], process.pid, ready)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _first_line(process: "subprocess.Popen[str]") -> str:
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    stdout = process.stdout
    assert stdout is not None
    threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
    try:
        return lines.get(timeout=_START_SECONDS_MAX)
    except queue.Empty:
        return ""
