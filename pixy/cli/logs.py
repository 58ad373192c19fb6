"""Logging setup: structlog and the standard library's loggers share handlers on standard error.

Texts in a record may come from clients, peers and files. JSON escapes them by itself; for people
every text of a record is escaped, so that it cannot forge a line or give commands to a terminal.
And clients may cause records: a text is cut where it is long, and of one event a minute has so many
lines, the last of which says that others are left out. Errors are never left out, nor is what the
operator has asked for by a signal.
"""

import logging
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TextIO

import structlog

from pixy.cli.log_stream import LogStream
from pixy.config import LoggingConfig
from pixy.escaping import escape, escape_lines

_BETWEEN_TRACEBACKS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)

_TEXT_CHARS_MAX = 2000
_LINES_MAX = 200
_MINUTE_S = 60.0
_EVENTS_MAX = 1000
_ERRORS = ("error", "critical", "exception")
_ASKED_FOR = "counts"
"""The event that answers a signal."""

_SHARED: tuple[structlog.typing.Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.stdlib.PositionalArgumentsFormatter(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
)


def setup_logging(entries: Sequence[LoggingConfig], stream: TextIO | LogStream | None = None) -> None:
    """Configures the handlers of all log records of this process; may be called again.

    Args:
        entries: one handler each; it takes records of its severity and above.
        stream: output stream; None: standard error.
    """
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    for entry in entries:
        root.addHandler(_handler(entry, stream or sys.stderr))
    root.setLevel(min(_level(entry) for entry in entries))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            FewLines(),
            *_SHARED,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _level(entry: LoggingConfig) -> int:
    return logging.getLevelNamesMapping()[entry.severity.upper()]


def _handler(entry: LoggingConfig, stream: TextIO | LogStream) -> logging.Handler:
    handler = logging.StreamHandler(stream)
    handler.setLevel(_level(entry))
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    tell_left_out = partial(_tell_left_out, stream)
    renderers: list[structlog.typing.Processor]
    if entry.name == "json":
        renderers = [
            remove_meta,
            tell_left_out,
            _cut_texts,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ]
    else:
        console = structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=_write_traceback)
        renderers = [remove_meta, tell_left_out, _cut_texts, _escape_texts, console]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=_SHARED, processors=renderers))
    return handler


class _Lines(NamedTuple):
    """Lines of an event in the minute that began then, written and left out."""

    began: float
    written: int = 0
    left_out: int = 0


class FewLines:
    """Processor: leaves out lines of an event of which a minute has had `_LINES_MAX`. The next line
    has their number.

    Args:
        monotonic: time in seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        # By event, of which there may be as many as `_EVENTS_MAX`.
        self._lines: dict[str, _Lines] = {}

    def __call__(
        self, logger: structlog.typing.WrappedLogger, method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        """See `structlog.typing.Processor`."""
        name, now = str(event.get("event")), self._monotonic()
        if method in _ERRORS or name == _ASKED_FOR:
            return event
        lines = self._lines.get(name)
        if lines is None or now - lines.began >= _MINUTE_S:
            if lines is not None and lines.left_out:
                event["left_out"] = lines.left_out
            if len(self._lines) >= _EVENTS_MAX:
                self._lines.clear()
            lines = _Lines(now)
        elif lines.written == _LINES_MAX:
            self._lines[name] = lines._replace(left_out=lines.left_out + 1)
            raise structlog.DropEvent
        elif lines.written == _LINES_MAX - 1:
            event["more"] = "left out for a minute"
        self._lines[name] = lines._replace(written=lines.written + 1)
        return event


def _tell_left_out(
    stream: TextIO | LogStream,
    logger: structlog.typing.WrappedLogger,
    method: str,
    event: structlog.typing.EventDict,
) -> structlog.typing.EventDict:
    """Processor: the first line that is written again has the number of those that nobody read."""
    if isinstance(stream, LogStream) and (unread := stream.take_left_out()):
        event["unread_lines_left_out"] = unread
    return event


def _cut_texts(
    logger: structlog.typing.WrappedLogger, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Processor: cuts the texts of a record that are long."""
    for name, value in event.items():
        if isinstance(value, str) and name != "stack":
            event[name] = _cut(value)
    return event


def _cut(text: str) -> str:
    if len(text) <= _TEXT_CHARS_MAX:
        return text
    return f"{text[:_TEXT_CHARS_MAX]}... ({len(text)} characters)"


def _escape_texts(
    logger: structlog.typing.WrappedLogger, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Processor: escapes the texts of a record. Other values are shown by `repr`, which does so."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = escape_lines(value) if name == "stack" else escape(value)
    return event


def _write_traceback(stream: TextIO, exc_info: structlog.typing.ExcInfo) -> None:
    """Write a traceback in which each message of an exception is one line."""
    kind, error, frames = exc_info
    written = []
    for part in traceback.TracebackException(kind, error, frames).format():
        inside = part.strip(" |\n")  # without the margin of an exception group
        if inside.startswith("File ") or inside in _BETWEEN_TRACEBACKS:
            written.append(escape_lines(part))
        else:
            written.append(escape(_cut(part.removesuffix("\n"))) + "\n")
    stream.write("\n" + "".join(written).removesuffix("\n"))
