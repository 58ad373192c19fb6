"""Blocks of code on the pages for users, and a terminal that runs their commands."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

_SECONDS_MAX = 60.0
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_ASKED = re.compile(r"Type (\S+) to go on: $")
_VARYING = (
    (re.compile(r"[^\n]*\r"), ""),  # a line of progress
    (re.compile(r" in [\d.]+ s, \d+/s"), " in T s, R/s"),
    (re.compile(r"partition=\d+ offset=(\d+) time=\S+"), r"partition=P offset=\1 time=T"),
    (re.compile(r'"partition": \d+, "offset": (\d{2,})'), r'"partition": P, "offset": \1'),
    (re.compile(r'"timestamp_ms":\d+'), '"timestamp_ms":T'),
)
"""Parts of the output that are different each time."""


class Command(NamedTuple):
    """A command, and its output on the page; empty: the page does not show it."""

    line: str
    output: str


class Block(NamedTuple):
    """A block of code."""

    page: str
    language: str
    text: str

    @property
    def first(self) -> str:
        """Its first line."""
        return self.text.partition("\n")[0]

    def commands(self) -> list[Command]:
        """Commands of a block of a shell; in a console they have a prompt, and maybe output."""
        found: list[Command] = []
        for line in self.text.replace("\\\n", "").splitlines():
            if self.language == "sh" or line.startswith("$ "):
                found.append(Command(line.removeprefix("$ "), ""))
            else:
                found[-1] = found[-1]._replace(output=found[-1].output + line + "\n")
        return found


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page, in order."""
    return [Block(page, *found.groups()) for found in _BLOCK.finditer((ROOT / page).read_text())]


class Terminal:
    """Runs commands in a directory, as a user types them.

    Args:
        folder: working directory. The files of the user are in a new one within.
        replaced: addresses and paths of the page, and those of the test in their place.
        variables: of the environment.
    """

    def __init__(self, folder: Path, replaced: Mapping[str, str], variables: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._replaced = replaced
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("PIXY_", "MAKE"))
        }
        tools = folder / "tools"
        tools.mkdir(exist_ok=True)
        # As users type it, curl ends well after any answer.
        (tools / "curl").write_text(f'#!/bin/sh\nexec {shutil.which("curl")} --fail-with-body "$@"\n')
        (tools / "curl").chmod(0o755)
        path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
        home = tempfile.mkdtemp(prefix="home-", dir=folder)
        own = {"PATH": path, "HOME": home, "XDG_CONFIG_HOME": home, "COLUMNS": "120"}
        self._environment = {**inherited, **own, "PYTHONPATH": str(ROOT), **variables}
        self._services: list[subprocess.Popen[str]] = []

    def written(self, text: str) -> str:
        """Text of the page with the addresses and paths of the test."""
        for there, here in self._replaced.items():
            text = text.replace(there, here)
        return text

    def run(self, command: Command) -> None:
        """Run a command, and compare its output; commits are looked for until they are there."""
        is_of_commits = command.line.startswith("pixy offsets")
        until = time.monotonic() + _SECONDS_MAX
        while True:
            code, output = self._run(self.written(command.line))
            assert code == 0, f"{command.line} ended with {code}:\n{output}"
            if not command.output or _masked(output).rstrip() == _masked(command.output).rstrip():
                return
            assert is_of_commits, f"{command.line} printed\n{output!r}"
            assert time.monotonic() < until, f"{command.line} printed\n{output!r}"

    def run_until(self, line: str, text: str) -> None:
        """Run a command that does not end by itself, until a line of its output has this text."""
        with subprocess.Popen(
            ["bash", "-c", f"exec {self.written(line)}"],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            watchdog = threading.Timer(_SECONDS_MAX, process.kill)
            watchdog.start()
            try:
                assert process.stdout is not None
                assert any(text in shown for shown in process.stdout), f"{line} never printed {text}"
            finally:
                watchdog.cancel()
                process.kill()

    def serve(self, *commands: str, **variables: str) -> None:
        """Start daemons that run until `close`, and wait until they are ready."""
        services = [self._start(command, variables) for command in commands]
        for service in services:
            assert service.stdout is not None
            is_ready = any("pixy ready grpc=" in line for line in service.stdout)
            assert is_ready, (self._folder / "log").read_text()

    def _start(self, command: str, variables: Mapping[str, str]) -> "subprocess.Popen[str]":
        with (self._folder / "log").open("ab") as log:
            service = subprocess.Popen(
                ["bash", "-c", f"exec {self.written(command)}"],
                cwd=self._folder,
                env={**self._environment, **variables},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._services.append(service)
        return service

    def close(self) -> None:
        """End the daemons."""
        for service in self._services:
            service.terminate()
        for service in self._services:
            service.communicate()

    def run_program(self, program: str) -> None:
        """Run a program in Python, which must end well."""
        subprocess.run(
            [sys.executable, "-c", self.written(program)], cwd=self._folder, check=True, timeout=_SECONDS_MAX
        )

    def _run(self, line: str) -> tuple[int, str]:
        """A file, so that no other process has the command in its arguments."""
        script = self._folder / "command.sh"
        script.write_text(f"set -o pipefail\n{line}\n")
        ours, theirs = pty.openpty()
        try:
            process = subprocess.Popen(
                ["bash", script.name],
                cwd=self._folder,
                env=self._environment,
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                start_new_session=True,
            )
            os.close(theirs)
            output = "".join(_read(ours))
            return process.wait(_SECONDS_MAX), output.replace("\r\n", "\n")
        finally:
            os.close(ours)


def _read(terminal: int) -> Iterator[str]:
    """The output of a terminal; questions are answered with y, or the word that they want."""
    until = time.monotonic() + _SECONDS_MAX
    with suppress(OSError):  # the end of a terminal
        while select.select([terminal], [], [], max(until - time.monotonic(), 0))[0]:
            part = os.read(terminal, 65_536).decode()
            if not part:
                return
            yield part
            if part.endswith("[y/N] "):
                os.write(terminal, b"y\n")
            elif asked := _ASKED.search(part):
                os.write(terminal, f"{asked[1]}\n".encode())


def _masked(output: str) -> str:
    for varying, mask in _VARYING:
        output = varying.sub(mask, output)
    return output
