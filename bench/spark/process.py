"""The process of a Spark session (`bench.spark.session`), and the processor time of all
participants.
"""

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_ROOT = Path(__file__).parents[2]
_ANSWER_SECONDS_MAX = 300.0
_STOP_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of a session, and the processor time of all participating processes, in seconds."""

    value: float
    cpu_s: float


class SparkProcess:
    """A running session.

    Args:
        process: its Python process, the parent of the JVM and the Python workers.
        server_pids: process ids of the daemon and the broker behind it.
        folder: directory of the server's data, in files `*.log`.
        errors: its output, reported if it fails.
    """

    def __init__(
        self, process: "subprocess.Popen[str]", server_pids: Sequence[int], folder: Path, errors: Path
    ) -> None:
        self._process = process
        self._pids = [process.pid, *server_pids]
        self._folder = folder
        self._errors = errors

    def measure(self, method: str, *arguments: object) -> Measured:
        """Run a method of the session.

        Raises:
            RuntimeError: the session failed, or took more than 300 s.
        """
        before = _cpu_seconds(self._pids)
        _pipe(self._process.stdin).write(json.dumps([method, *arguments]) + "\n")
        _pipe(self._process.stdin).flush()
        value = json.loads(self.read_answer())
        measured = Measured(value, _cpu_seconds(self._pids) - before)
        self._sync_segments()
        return measured

    def _sync_segments(self) -> None:
        """Flush outstanding writes, so that the next measurement does not pay for them."""
        for path in self._folder.rglob("*.log"):
            with path.open("rb") as file:
                os.fsync(file.fileno())

    def read_answer(self) -> str:
        """The next line of its output."""
        watchdog = threading.Timer(_ANSWER_SECONDS_MAX, self._process.kill)
        watchdog.start()
        try:
            line = _pipe(self._process.stdout).readline()
        finally:
            watchdog.cancel()
        if not line:
            tail = self._errors.read_text()[-4000:]
            raise RuntimeError(
                f"the Spark session did not answer within {_ANSWER_SECONDS_MAX:.0f} s or ended:\n{tail}"
            )
        return line


@contextmanager
def spark_process(
    python: str, arguments: dict[str, object], server_pids: Sequence[int], folder: Path
) -> Iterator[SparkProcess]:
    """A started session, stopped at the end of the context.

    Args:
        python: its interpreter.
        arguments: arguments of `bench.spark_session.Session`.
        server_pids: process ids of the daemon, the broker, or both.
        folder: directory of its output, and parent of the servers' data.
    """
    errors = folder / f"{arguments['connector']}-session.log"
    with errors.open("w") as log:
        process = subprocess.Popen(
            [python, "-m", "bench.spark.session", json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
        )
    try:
        session = SparkProcess(process, server_pids, folder, errors)
        session.read_answer()
        yield session
    finally:
        _pipe(process.stdin).close()
        try:
            process.wait(_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _pipe(process.stdout).close()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def _cpu_seconds(roots: list[int]) -> float:
    """Processor time of these processes, their descendants, and the children that those have waited
    for.
    """
    fields = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields[int(stat.parent.name)] = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # The process has exited.
    family = set(roots)
    grown = True
    while grown:
        more = {pid for pid, each in fields.items() if int(each[1]) in family} - family
        family |= more
        grown = bool(more)
    ticks = sum(sum(map(int, fields[pid][11:15])) for pid in family if pid in fields)
    return ticks / os.sysconf("SC_CLK_TCK")
