"""Finds trace files, runs them, and reports differences."""

import argparse
import difflib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.raft.trace.conf_change import ConfChangeTrace
from tests.raft.trace.interaction import InteractionTrace
from tests.raft.trace.quorum import QuorumTrace
from tests.raft.trace.script import BadScript, Case, parse_script

_KINDS: dict[str, Callable[[], Callable[[Case], str]]] = {
    "interaction": InteractionTrace,
    "confchange": ConfChangeTrace,
    "quorum": QuorumTrace,
}
_COMMANDS = {
    "committed": "quorum",
    "vote": "quorum",
    "simple": "confchange",
    "enter-joint": "confchange",
    "leave-joint": "confchange",
}


class Outcome(NamedTuple):
    """Result of a file: its text, and the expected text."""

    path: Path
    commands: int
    expected: str
    actual: str

    @property
    def same(self) -> bool:
        """True if the result is the expected one, byte for byte."""
        return self.expected == self.actual

    def diff(self) -> str:
        """Diff from the expected to the actual text."""
        lines = difflib.unified_diff(
            self.expected.splitlines(keepends=True),
            self.actual.splitlines(keepends=True),
            str(self.path),
            "actual",
        )
        return "".join(
            [line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines]
        )


def run_file(path: Path, *, short_way: bool = False) -> Outcome:
    """Run one file.

    Args:
        path: of the file.
        short_way: proposals take `RaftNode.append_payload` wherever a driver may.

    Raises:
        BadScript: the file is not a trace.
    """
    expected = path.read_text(encoding="utf-8")
    script = parse_script(expected)
    if not script.cases:
        raise BadScript("no command in it")
    kind = _kind(path, script.cases)
    run = InteractionTrace(short_way=True) if short_way and kind == "interaction" else _KINDS[kind]()
    outputs = []
    for case in script.cases:
        try:
            output = run(case)
        except BadScript as error:
            raise BadScript(f"line {case.line}: {error}") from error
        outputs.append(output if not output or output.endswith("\n") else output + "\n")
    return Outcome(path, len(script.cases), expected, script.text(outputs))


def _kind(path: Path, cases: tuple[Case, ...]) -> str:
    for part in reversed(path.resolve().parts[:-1]):
        if part in _KINDS:
            return part
    return next((_COMMANDS[case.command] for case in cases if case.command in _COMMANDS), "interaction")


def trace_files(paths: list[Path]) -> Iterator[Path]:
    """All files among the paths, and all `*.txt` in their folders."""
    for path in paths:
        if path.is_dir():
            yield from sorted(path.rglob("*.txt"))
        else:
            yield path


def main(arguments: list[str]) -> int:
    """Command line entry point; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.raft.trace", description="run scripted Raft traces"
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", type=Path, help="a trace, or a folder of traces")
    parser.add_argument("--rewrite", action="store_true", help="write what came out into the files")
    options = parser.parse_args(arguments)
    files = failed = 0
    for path in trace_files(options.paths):
        files += 1
        try:
            outcome = run_file(path)
        except (OSError, UnicodeDecodeError, BadScript) as error:
            failed += 1
            print(f"ERROR   {path}: {error}")
            continue
        if outcome.same:
            print(f"ok      {path} ({outcome.commands} commands)")
        elif options.rewrite:
            path.write_text(outcome.actual, encoding="utf-8")
            print(f"rewrote {path} ({outcome.commands} commands)")
        else:
            failed += 1
            print(f"FAILED  {path}\n{outcome.diff()}", end="")
    print(f"{files - failed} of {files} as expected")
    return 1 if failed or not files else 0
