"""Messages as `pixy consume` and `pixy peek` print them: lines, JSON, or bytes as they are.

They are gathered, and written by `flush`: a flush for each message takes longer than all else.
"""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import click

from pixy.cli.output import json_bytes, json_line, message_line, readable_bytes
from pixy.escaping import escape

_GATHERED_MAX = 256
"""Messages that are gathered before they are written."""
_ESCAPES = {"t": "\t", "n": "\n", "0": "\0", "\\": "\\"}


class ShownMessage(NamedTuple):
    """A message of a topic. `timestamp_ms` None: not known."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int | None = None


@dataclass(slots=True)
class MessageOutput:
    """Prints messages in one form.

    Args:
        as_json: as an object of JSON each.
        fields: makes the fields that stand before each value, with partition and offset; None: only
            the value.
        key_separator: key and separator before each value; None: no key.
        raw: bytes as they are, else text for people.
        end: after each message.
    """

    as_json: bool
    fields: Callable[[ShownMessage], Sequence[str]] | None
    key_separator: bytes | None = None
    raw: bool = False
    end: bytes = b"\n"
    _gathered: list[bytes] = field(default_factory=list, init=False)

    def add(self, message: ShownMessage) -> None:
        """Print a message, with the next flush at the latest."""
        gathered = self._gathered
        gathered.append(self._encode(message))
        gathered.append(self.end)
        if len(gathered) >= 2 * _GATHERED_MAX:
            self.flush()

    def flush(self) -> None:
        """Write what was added, so that the reader of a pipe receives it."""
        if self._gathered:
            written, self._gathered = b"".join(self._gathered), []
            sys.stdout.buffer.write(written)
            sys.stdout.buffer.flush()

    def _encode(self, message: ShownMessage) -> bytes:
        if self.as_json:
            return json_line(_json(message)).encode()
        if self.raw:
            value = message.value or b""
            return value if self.key_separator is None else (message.key or b"") + self.key_separator + value
        if self.fields is not None:
            fields = list(self.fields(message))
            if message.value is None:
                fields.append("value=null")
            line = message_line(message.partition, message.offset, fields, message.value or b"")
        else:
            line = readable_bytes(message.value or b"")
            if self.key_separator is not None:
                line = readable_bytes(message.key or b"") + self.key_separator.decode(errors="replace") + line
        return escape(line, keep="\t").encode()


def _json(message: ShownMessage) -> dict[str, Any]:
    values: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
    }
    if message.timestamp_ms is not None:
        values["timestamp_ms"] = message.timestamp_ms
    values["key"] = None if message.key is None else json_bytes(message.key)
    values["value"] = None if message.value is None else json_bytes(message.value)
    values["headers"] = [
        {"key": name, "value": None if value is None else json_bytes(value)}
        for name, value in message.headers
    ]
    return values


def separator_of(text: str | None) -> bytes | None:
    """The bytes of a separator, in which `\\t`, `\\n`, `\\0` and `\\\\` are escapes."""
    if text is None:
        return None
    text = re.sub(r"\\([tn0\\])", lambda found: _ESCAPES[found[1]], text)
    if not text:
        raise click.UsageError("--key-separator must not be empty")
    return text.encode(errors="surrogateescape")


def output_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of the form of messages: `key_separator`, `raw`, `null_separated`."""
    for option in (
        click.option(
            "--null-separated",
            "-0",
            is_flag=True,
            help="A null byte after each message instead of a newline.",
        ),
        click.option("--raw", is_flag=True, help="Print the bytes of values as they are."),
        click.option(
            "--key-separator",
            "-K",
            metavar="TEXT",
            help="Print the key and TEXT before each value; \\t is a tab.",
        ),
    ):
        function = option(function)
    return function
