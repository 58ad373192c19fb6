"""`tests.lanes`: every test is in one lane, and failed lanes are reported."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.waiting import PATIENCE_S, until_blocking
from tests.lanes import (
    LANES,
    ROOT,
    SUITES,
    WITH_PROCESSES,
    Lane,
    closing_line,
    lanes_of,
    longest_first,
    run_beside,
)

MARKS = ("process", "kafka", "spark", "long")


def lane(tmp_path: Path, name: str, code: str) -> Lane:
    return Lane(name, (sys.executable, "-c", code), tmp_path / f"{name}.log")


def chooses(expression: str, marks: frozenset[str]) -> bool:
    return bool(eval(expression or "True", {}, {mark: mark in marks for mark in MARKS}))


def test_every_test_is_in_one_lane_and_in_one_of_the_two_suites() -> None:
    for bits in range(2 ** len(MARKS)):
        marks = frozenset(mark for at, mark in enumerate(MARKS) if bits >> at & 1)
        if {"kafka", "spark"} <= marks or (marks & {"kafka", "spark"} and "process" not in marks):
            continue  # marks that never occur together
        lanes = [name for name, (expression, _) in LANES.items() if chooses(expression, marks)]
        assert len(lanes) == 1, (marks, lanes)
        assert [chooses(SUITES[suite], marks) for suite in ("test", "rest")].count(True) == 1
        assert chooses(SUITES["all"], marks)


def test_lanes_of_processes_have_the_directories_of_their_tests() -> None:
    marked = {
        path.relative_to(ROOT / "tests").parts[0]
        for path in (ROOT / "tests").rglob("*.py")
        if "mark.process" in path.read_text() and path.name != Path(__file__).name
    }
    assert marked == {*WITH_PROCESSES, "spark"}


def test_the_checks_are_one_lane_and_run_once() -> None:
    assert [lane.name for lane in lanes_of("test")] == ["check", *LANES]
    assert [lane.name for lane in lanes_of("rest")] == [*LANES]


@pytest.mark.slow
def test_output_of_lanes_is_printed_completely_and_failed_ones_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lanes = [
        lane(tmp_path, "good", "print('one'); print('two')"),
        lane(tmp_path, "bad", "import sys; print('three'); sys.exit(1)"),
        lane(tmp_path, "empty", "import sys; sys.exit(5)"),
        lane(tmp_path, "killed", "import os; os.kill(os.getpid(), 9)"),
    ]
    assert sorted(run_beside(lanes)) == ["bad", "killed"]
    printed = capfd.readouterr().out
    assert "one\ntwo\n--- good: exit code 0 after" in printed
    assert "three\n--- bad: exit code 1 after" in printed
    assert "--- killed: exit code -9 after" in printed


@pytest.mark.slow
def test_a_signal_interrupts_all_lanes(tmp_path: Path) -> None:
    code = "import pathlib, os, signal; pathlib.Path({!r}).write_text(str(os.getpid())); signal.pause()"
    lanes = [lane(tmp_path, name, code.format(str(tmp_path / name))) for name in ("one", "two")]
    program = (
        "from pathlib import PosixPath\nfrom tests.lanes import Lane, interrupt_on_signals, run_beside\n"
        f"interrupt_on_signals()\nrun_beside({lanes!r})"
    )
    runner = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.DEVNULL)
    files = [tmp_path / each.name for each in lanes]
    try:
        until_blocking(lambda: all(file.exists() and file.read_text() for file in files))
        runner.send_signal(signal.SIGTERM)
        assert runner.wait(PATIENCE_S) != 0
    finally:
        runner.kill()
        runner.wait()
    for file in files:
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)


def test_the_closing_line_sums_those_of_the_lanes() -> None:
    outputs = [
        "x 4 passed\n==== 3 failed, 10 passed, 2 deselected, 1 warning in 2.00s ====\n",
        "===== 1 skipped, 5 passed, 1 error in 62.00s (0:01:02) =====\nmore\n",
        "==== 7 deselected in 1.00s ====\n",
        "no pytest at all\n",
    ]
    line = closing_line(outputs, 3723.456)
    assert line == "=== 3 failed, 15 passed, 1 skipped, 1 warning, 1 error in 3723.46s (1:02:03) ==="
    assert closing_line([], 1.0).strip("=") == " no tests ran in 1.00s (0:00:01) "


def test_the_longest_tests_begin_each_workers_part() -> None:
    tests = ["a", "b", "C", "d", "E", "f", "G"]
    assert longest_first(tests, str.isupper, 2) == ["C", "G", "a", "b", "E", "d", "f"]
    assert longest_first(tests, str.isupper, 1) == ["C", "E", "G", "a", "b", "d", "f"]
    assert longest_first(["A", "b"], str.isupper, 4) == ["A", "b"]
    assert longest_first([], str.isupper, 2) == []
