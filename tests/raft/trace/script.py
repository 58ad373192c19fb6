r"""The file format of traces.

    # A comment, ended by the next command. Blank lines may stand anywhere between commands. command
    argument key=value key=(value,value) input, any number of lines, may be absent ---- expected
    output, ended by a blank line

A command may continue on the next line after a backslash. Output with blank lines is enclosed in
doubled `----` lines.
"""

from collections.abc import Iterator
from typing import NamedTuple

_SEPARATOR = "----"


class BadScript(Exception):
    """The file, or the arguments of a command, cannot be parsed."""


class Argument(NamedTuple):
    """`key`, `key=value` or `key=(value,value)`."""

    key: str
    values: tuple[str, ...] = ()


class Case(NamedTuple):
    """One command.

    Args:
        line: line number in the file, 1-based.
        head: text from the end of the previous case up to the separator, unchanged.
        command: command name.
        arguments: arguments in order.
        input: lines between command and separator.
        expected: whole lines.
    """

    line: int
    head: str
    command: str
    arguments: tuple[Argument, ...]
    input: str
    expected: str


class Script(NamedTuple):
    """A parsed file; `rest` is the text after the last case."""

    cases: tuple[Case, ...]
    rest: str

    def text(self, outputs: list[str]) -> str:
        """The file with these outputs in place of the expected ones."""
        parts = []
        for case, output in zip(self.cases, outputs, strict=True):
            lines = output.removesuffix("\n").split("\n") if output else []
            fence = f"{_SEPARATOR}\n" if "" in lines else ""
            closing = f"{_SEPARATOR}\n{_SEPARATOR}\n" if fence else ""
            body = "".join([line + "\n" for line in lines])
            parts.append(f"{case.head}{_SEPARATOR}\n{fence}{body}{closing}")
        text = "\n".join(parts)
        return f"{text}\n{self.rest}" if self.rest else text


class _Lines:
    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        if self._lines[-1] == "":
            self._lines.pop()
        self.at = 0

    def peek(self) -> str | None:
        return self._lines[self.at] if self.at < len(self._lines) else None

    def __iter__(self) -> Iterator[str]:
        while self.at < len(self._lines):
            self.at += 1
            yield self._lines[self.at - 1]


def parse_script(text: str) -> Script:
    """Parse a file into cases.

    Raises:
        BadScript: a command has no separator, or its arguments cannot be parsed.
    """
    lines = _Lines(text)
    cases = []
    head = ""
    for line in lines:
        head += line + "\n"
        if not line.strip() or line.startswith("#"):
            continue
        start = lines.at
        directive = line.strip()
        while directive.endswith("\\"):
            continued = next(iter(lines), "")
            head += continued + "\n"
            directive = directive[:-1].rstrip() + " " + continued.strip()
        input_lines = _read_input(lines, start)
        head += "".join([line + "\n" for line in input_lines])
        command, arguments = parse_directive(directive)
        cases.append(Case(start, head, command, arguments, "\n".join(input_lines), _read_expected(lines)))
        head = ""
    return Script(tuple(cases), head)


def _read_input(lines: _Lines, start: int) -> list[str]:
    input_lines: list[str] = []
    for line in lines:
        if line == _SEPARATOR:
            return input_lines
        input_lines.append(line)
    raise BadScript(f"line {start}: no {_SEPARATOR} follows the command")


def _read_expected(lines: _Lines) -> str:
    fenced = lines.peek() == _SEPARATOR
    if fenced:
        lines.at += 1
    expected = ""
    for line in lines:
        if fenced and line == _SEPARATOR and lines.peek() == _SEPARATOR:
            lines.at += 1
            if lines.peek() == "":
                lines.at += 1
            break
        if not fenced and not line.strip():
            break
        expected += line + "\n"
    return expected


def parse_directive(line: str) -> tuple[str, tuple[Argument, ...]]:
    """Parse one line into command and arguments.

    Raises:
        BadScript: unbalanced parentheses.
    """
    words: list[str] = []
    depth = 0
    for char in line:
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        if char.isspace() and depth == 0:
            words.append("")
        elif words:
            words[-1] += char
        else:
            words.append(char)
    words = [word for word in words if word]
    if depth:
        raise BadScript(f"brackets do not match in {line!r}")
    return words[0], tuple([_argument(word) for word in words[1:]])


def _argument(word: str) -> Argument:
    key, equals, value = word.partition("=")
    if not equals:
        return Argument(key)
    if value.startswith("(") and value.endswith(")"):
        value = value[1:-1]
        separated = value.split(",") if "," in value else value.split()
        return Argument(key, tuple([part.strip() for part in separated if part.strip()]))
    return Argument(key, (value,))
