"""Server processes to measure: a daemon, or the no-op server, on a free port of 127.0.0.1, stopped
by process id.
"""

import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml

_START_SECONDS_MAX = 30.0
_STOP_SECONDS_MAX = 30.0
_PIN = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); os.execv(sys.argv[2], sys.argv[2:])"


def server_core() -> int:
    """Core reserved for the server."""
    return min(os.sched_getaffinity(0))


def load_core() -> int:
    """Core of the load client: another one, if there is one."""
    return max(os.sched_getaffinity(0))


def pinned(core: int, command: Sequence[str]) -> list[str]:
    """The command, pinned to a core."""
    return [sys.executable, "-c", _PIN, str(core), *command]


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 at which nobody listens."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. `ready_seconds` is the time from the start of the process to its ready
    line. The addresses of other protocols are empty without them.
    """

    address: str
    pid: int
    ready_seconds: float
    http_address: str = ""
    kafka_address: str = ""

    def rss_bytes(self) -> int:
        """Resident memory."""
        return rss_bytes(self.pid)

    def cpu_seconds(self) -> float:
        """Processor time used so far by all live threads."""
        return cpu_seconds(self.pid)


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Processor time used so far by all live threads of a process."""
    used = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # it has ended meanwhile
            used += int((thread / "schedstat").read_text().split()[0])
    return used / 1e9


@contextmanager
def daemon(folder: Path, config: dict[str, Any] | None = None, core: int | None = None) -> Iterator[Server]:
    """A daemon with its data in `folder`."""
    file = folder / "pixy.yaml"
    settings = {
        "grpc_addr": "127.0.0.1:0",
        "management_addr": "",
        "tcp_addr": "",
        "kafka_addr": "",
        "data_dir": str(folder / "data"),
        "shutdown_timeout": "1s",
    }
    file.write_text(yaml.safe_dump({**settings, **(config or {})}))
    with _server(
        [sys.executable, "-m", "pixy", "serve", "--config", str(file), "--log-level", "warning"], core
    ) as running:
        yield running


@contextmanager
def noop(core: int | None = None) -> Iterator[Server]:
    """The no-op server."""
    with _server([sys.executable, "-m", "bench.grpc.noop_server"], core) as running:
        yield running


@contextmanager
def noop_core(
    core: int | None = None, certificate: Path | None = None, key: Path | None = None
) -> Iterator[Server]:
    """The no-op server on pixy's core, over TLS if it has a certificate."""
    files = [str(file) for file in (certificate, key) if file is not None]
    with _server([sys.executable, "-m", "bench.grpc.noop_core", *files], core) as running:
        yield running


@contextmanager
def _server(command: list[str], core: int | None) -> Iterator[Server]:
    with started(command if core is None else pinned(core, command), "grpc=") as (pid, line, ready_seconds):
        named = dict(word.split("=") for word in line.split() if "=" in word)
        yield Server(named["grpc"], pid, ready_seconds, named.get("http", ""), named.get("kafka", ""))


@contextmanager
def started(command: list[str], mark: str, stream: str = "stdout") -> Iterator[tuple[int, str, float]]:
    """Run a process until the end of the context.

    Args:
        command: its command line.
        mark: text of the line that reports that it is ready.
        stream: stream of that line, stdout or stderr.

    Returns:
        Its process id, that line, and the seconds that it took.

    Raises:
        RuntimeError: it did not get ready.
    """
    began = time.perf_counter()
    output = {stream: subprocess.PIPE}
    process = subprocess.Popen(command, text=True, **output)  # type: ignore[call-overload]  # stdout or stderr
    pipe: IO[str] = getattr(process, stream)
    try:
        line = _first_line(pipe, mark)
        ready_seconds = time.perf_counter() - began
        if mark not in line:
            raise RuntimeError(f"{command} did not start: {line!r}")
        yield process.pid, line, ready_seconds
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        pipe.close()


def _first_line(pipe: IO[str], mark: str) -> str:
    """The first line with the mark; the last line of a process that exits before; empty after a
    timeout.
    """
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        line = ""
        for line in pipe:
            if mark in line:
                break
        lines.put(line)

    threading.Thread(target=read, daemon=True).start()
    try:
        return lines.get(timeout=_START_SECONDS_MAX)
    except queue.Empty:
        return ""
