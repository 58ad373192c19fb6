"""Logging setup: structlog and the standard library's loggers share handlers on standard error.

Texts in a record may come from clients, peers and files. JSON escapes them by itself; for people
every text of a record is escaped, so that it cannot forge a line or give commands to a terminal.
"""

import logging
import sys
import traceback
from collections.abc import Sequence
from typing import TextIO

import structlog

from pixy.config import LoggingConfig
from pixy.escaping import escape, escape_lines

__all__ = ["setup_logging"]

_BETWEEN_TRACEBACKS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)

_SHARED: tuple[structlog.typing.Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.stdlib.PositionalArgumentsFormatter(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
)


def setup_logging(entries: Sequence[LoggingConfig], stream: TextIO | None = None) -> None:
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
            *_SHARED,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _level(entry: LoggingConfig) -> int:
    return logging.getLevelNamesMapping()[entry.severity.upper()]


def _handler(entry: LoggingConfig, stream: TextIO) -> logging.Handler:
    handler = logging.StreamHandler(stream)
    handler.setLevel(_level(entry))
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    renderers: list[structlog.typing.Processor]
    if entry.name == "json":
        renderers = [remove_meta, structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        console = structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=_write_traceback)
        renderers = [remove_meta, _escape_texts, console]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=_SHARED, processors=renderers))
    return handler


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
            written.append(escape(part.removesuffix("\n")) + "\n")
    stream.write("\n" + "".join(written).removesuffix("\n"))
