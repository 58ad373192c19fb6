"""Runs the tests in parallel lanes: `python -m tests.lanes {test,rest,all}`.

A lane is one run of pytest (or the checks): within it Kafka's brokers, Spark's JVMs and other slow
fixtures are shared, and other lanes use the cores while it waits. No test needs the machine to
itself: tests measure only counts, memory and processor time of single processes.

The output of a lane goes to a file in `.cache/lanes` and is printed when the lane ends. The last
line sums the lanes in pytest's format. The exit code is 1 if any lane failed. SIGINT and SIGTERM
interrupt every lane.
"""

import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from concurrent.futures import wait as wait_for_all
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar

_Test = TypeVar("_Test")

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / ".cache" / "lanes"

SUITES = {"test": "not long", "rest": "long", "all": ""}
"""Names of suites, and their mark expressions within a lane."""

SHARED = ("--numprocesses", "auto", "--dist", "worksteal")
"""Tests that start no processes share the cores."""

TWO_FILES = ("--numprocesses", "2", "--dist", "loadfile")
"""Tests with daemons that are not long mostly wait: those of two files run beside each other."""

WITH_PROCESSES = (
    "backend",
    "cli",
    "conformance",
    "integration",
    "judges",
    "kafka",
    "records",
    "test_deploy.py",
)
"""Directories and files with tests that start processes, beside that of Spark: a collection of all
tests takes ten seconds of a core.
"""

_PROCESSES = [f"tests/{each}" for each in WITH_PROCESSES]

LANES: dict[str, tuple[str, Sequence[str]]] = {
    "kafka": ("process and kafka", _PROCESSES),
    "spark": ("process and spark", ["tests/spark"]),
    "daemons": ("process and not kafka and not spark", _PROCESSES),
    "units": ("not process", SHARED),
}
"""Lanes by name: marks of their tests, further arguments."""

NICE = 5
"""Unit tests take the cores left by other lanes, so that no lane with waits in it ends last."""

GRACE_S = 60.0
"""Time for an interrupted lane to stop its processes."""

NOTHING_CHOSEN = 5
"""Exit code of pytest if the marks select no test."""

_COUNTED = ("failed", "passed", "skipped", "xfailed", "xpassed", "warning", "error")
_COUNT = re.compile(rf"(\d+) ({'|'.join(_COUNTED)})s?\b")
_CLOSING = re.compile(r"=+ .* in [\d.]+s.* =+")


class Lane(NamedTuple):
    """One process with its output in a file."""

    name: str
    command: Sequence[str]
    output: Path


def lanes_of(suite: str) -> list[Lane]:
    """Lanes of a suite."""
    lanes = [_tests(suite, name, *each) for name, each in LANES.items()]
    if suite != "rest":
        lanes.insert(0, Lane("check", ("make", "--no-print-directory", "check"), OUTPUT / "check.log"))
    return lanes


def _tests(suite: str, name: str, marks: str, arguments: Sequence[str]) -> Lane:
    chosen = " and ".join(filter(None, (marks, SUITES[suite])))
    nice = ("nice", "-n", str(NICE)) if name == "units" else ()
    beside = TWO_FILES if (suite, name) == ("test", "daemons") else ()
    command = (*nice, sys.executable, "-m", "pytest", "-m", chosen, "--durations=5", *beside, *arguments)
    return Lane(name, command, OUTPUT / f"{name}.log")


def run_beside(lanes: Sequence[Lane]) -> list[str]:
    """Run lanes in parallel, and print the output of each when it ends.

    Returns:
        names of the failed lanes.
    """
    began = time.monotonic()
    failed = []
    with ThreadPoolExecutor(len(lanes)) as threads:
        running = {}
        try:
            with _interrupts_deferred():
                for lane in lanes:
                    process = _start(lane)
                    running[threads.submit(_wait, process)] = lane, process
            for ended in as_completed(list(running)):
                lane, process = running.pop(ended)
                used_s = ended.result().ru_utime + ended.result().ru_stime
                print(lane.output.read_text(errors="replace"), end="")
                print(f"--- {lane.name}: exit code {process.returncode} after ", end="")
                print(f"{time.monotonic() - began:.0f} s, {used_s:.0f} s of processor time\n", flush=True)
                if process.returncode not in (0, NOTHING_CHOSEN):
                    failed.append(lane.name)
        finally:
            processes = [process for _, process in running.values()]
            _signal(processes, signal.SIGINT)
            wait_for_all(running, GRACE_S)
            _signal(processes, signal.SIGKILL)
    return failed


def longest_first(tests: Sequence[_Test], is_longest: Callable[[_Test], bool], workers: int) -> list[_Test]:
    """An order in which no worker begins a longest test while the others are about to end.

    pytest-xdist gives each worker an equal part of the list. The longest come first in each part.
    """
    longest = [test for test in tests if is_longest(test)]
    others = [test for test in tests if not is_longest(test)]
    ordered: list[_Test] = []
    for worker in range(workers):
        part = longest[worker::workers]
        room = max(0, -(-len(tests) // workers) - len(part))
        ordered += part + others[:room]
        others = others[room:]
    return ordered + others


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Interrupt at the end, so that no process starts that nobody knows of."""
    received: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if received:
        raise KeyboardInterrupt


def _start(lane: Lane) -> "subprocess.Popen[bytes]":
    lane.output.parent.mkdir(parents=True, exist_ok=True)
    # Modules are compiled once for all lanes, whatever the environment says.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONUNBUFFERED": "1"}
    with lane.output.open("wb") as output:
        # In a process session of its own, so that Ctrl-C in a terminal interrupts it once, as other
        # signals do.
        return subprocess.Popen(
            lane.command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait(process: "subprocess.Popen[bytes]") -> resource.struct_rusage:
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage


def _signal(processes: Sequence["subprocess.Popen[bytes]"], number: signal.Signals) -> None:
    for process in processes:
        if process.returncode is None:
            os.killpg(process.pid, number)


def closing_line(outputs: Sequence[str], seconds: float) -> str:
    """The closing line of pytest for several runs together."""
    counts: Counter[str] = Counter()
    for output in outputs:
        closing = [line for line in output.splitlines() if _CLOSING.fullmatch(line)]
        for number, what in _COUNT.findall(closing[-1] if closing else ""):
            counts[what] += int(number)
    parts = [
        f"{counts[what]} {what}{'s' if what in ('warning', 'error') and counts[what] > 1 else ''}"
        for what in _COUNTED
        if counts[what]
    ]
    clock = f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}"
    return f" {', '.join(parts) or 'no tests ran'} in {seconds:.2f}s ({clock}) ".center(80, "=")


def main(suite: str) -> int:
    began = time.monotonic()
    lanes = lanes_of(suite)
    print(
        f"{', '.join(lane.name for lane in lanes)} run beside each other, output in .cache/lanes", flush=True
    )
    failed = run_beside(lanes)
    for name in failed:
        print(f"FAILED {name}: see .cache/lanes/{name}.log")
    outputs = [lane.output.read_text(errors="replace") for lane in lanes]
    print(closing_line(outputs, time.monotonic() - began))
    return 1 if failed else 0


def _interrupted(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def interrupt_on_signals() -> None:
    """Make SIGINT and SIGTERM interrupt the main thread. Child processes then do not ignore SIGINT,
    as they would in the background of a shell.
    """
    signal.signal(signal.SIGTERM, _interrupted)
    signal.signal(signal.SIGINT, _interrupted)


if __name__ == "__main__":
    interrupt_on_signals()
    try:
        sys.exit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
