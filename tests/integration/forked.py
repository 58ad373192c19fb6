"""The command `pixy`, forked from a process that has imported it.

The imports take half a second of a core, most of what a test of daemons has to do.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO

_FORK_SERVER = get_context("forkserver")
_FORK_SERVER.set_forkserver_preload(["pixy.cli", "pixy.daemon", "uvloop"])


class ForkedCommand:
    """The command `pixy` in a process of its own, with the interface of `subprocess.Popen`.

    Args:
        arguments: of the command.
        log: file to which its standard error is appended.
        environment: all its variables.
        folder: its working directory.

    Attributes:
        stdout: what it prints, line by line.
    """

    def __init__(
        self, arguments: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path
    ) -> None:
        reader, writer = _FORK_SERVER.Pipe(duplex=False)
        with reader, writer:
            self._process = _FORK_SERVER.Process(
                target=_run,
                args=(list(arguments), log, dict(environment), folder, writer),
                daemon=True,  # ends with the tests, whatever they forget
            )
            self._process.start()
            self.stdout: IO[str] = os.fdopen(os.dup(reader.fileno()))
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        # The exit code can be read once.
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        with self._lock:
            return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """Wait for its exit; returns the exit code."""
        wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(["pixy"], timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, if it runs."""
        self.send_signal(signal.SIGKILL)


def _run(
    arguments: list[str], log: Path, environment: dict[str, str], folder: Path, stdout: Connection
) -> None:
    from pixy.cli import main

    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for descriptor, kept in (
        (os.open(os.devnull, os.O_RDONLY), 0),
        (os.dup(stdout.fileno()), 1),
        (os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), 2),
    ):
        os.dup2(descriptor, kept)
        os.close(descriptor)
    stdout.close()
    sys.argv = ["pixy", *arguments]
    main()
