"""Output of the commands: lines and tables for people, JSON for programs, errors and progress on
standard error.

Text for people is escaped (`pixy.escaping`), whoever chose it: a line that is printed is one line,
and gives no commands to the terminal. Bytes that are not UTF-8 are printed as `base64:...` for
people and as `{"base64": "..."}` in JSON.
"""

import base64
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import click

from pixy.escaping import escape, escape_json

_PROGRESS_SECONDS = 0.2


def report_error(message: str) -> None:
    """Prints an error, one line `pixy: ...` for each of its lines, on standard error."""
    for line in message.rstrip("\n").split("\n"):
        click.echo(f"pixy: {escape(line)}".encode(), err=True)


def print_line(line: str) -> None:
    """Prints one line and flushes, so that the reader of a pipe receives it at once."""
    click.echo(escape(line, keep="\t").encode())


def counted(number: int, what: str) -> str:
    """A number of things in words."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def print_document(text: str) -> None:
    """Prints text of several lines, of which none can come from outside."""
    for line in text.split("\n"):
        print_line(line)


def print_json(value: Any, *, indent: int | None = None) -> None:
    """Prints a value as JSON: on one line, or indented."""
    click.echo(json_line(value, indent=indent).encode())


def json_line(value: Any, *, indent: int | None = None) -> str:
    """A value as JSON without unsafe characters."""
    return escape_json(json.dumps(value, ensure_ascii=False, indent=indent))


def print_table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints rows in columns with titles; numbers are right-aligned."""
    texts = [[escape(str(cell)) for cell in row] for row in rows]
    numeric = [bool(rows) and all(isinstance(row[i], int) for row in rows) for i in range(len(titles))]
    widths = [max(len(line[i]) for line in [list(titles), *texts]) for i in range(len(titles))]
    for line in [list(titles), *texts]:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        print_line("  ".join(cells).rstrip())


def readable_bytes(value: bytes) -> str:
    """Bytes for people: their text if they are UTF-8, else `base64:...`."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode()


def json_bytes(value: bytes) -> str | dict[str, str]:
    """Bytes for JSON: a string if they are UTF-8, else `{"base64": "..."}`."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def message_line(partition: int, offset: int, fields: Sequence[str], value: bytes) -> str:
    """A message on one line: its fields, the only tab outside of the value, and the value."""
    known = [f"partition={partition} offset={offset}", *map(escape, fields)]
    return " ".join(known) + "\t" + readable_bytes(value)


class MessageProgress:
    """Counts messages, and optionally shows count and rate on standard error while it runs.

    Args:
        shown: True to show progress before the end.
        clock: seconds, monotonic.
    """

    def __init__(self, *, shown: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._shown = shown
        self._clock = clock
        self._started = clock()
        self._drawn = self._started

    def add(self, count: int) -> None:
        """Count further messages."""
        self.count += count
        if self._shown and self._clock() - self._drawn >= _PROGRESS_SECONDS:
            self._drawn = self._clock()
            click.echo(f"\r{self.count} messages, {self._rate()}/s ", nl=False, err=True)

    def finish(self) -> None:
        """Prints the summary: count, duration, messages per second."""
        if self._shown:
            click.echo("\r", nl=False, err=True)
        seconds = self._clock() - self._started
        noun = "message" if self.count == 1 else "messages"
        click.echo(f"{self.count} {noun} in {seconds:.2f} s, {self._rate()}/s", err=True)

    def _rate(self) -> int:
        return round(self.count / max(self._clock() - self._started, 1e-9))
