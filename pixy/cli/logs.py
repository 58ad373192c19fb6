"""Logging setup: structlog and the standard library's loggers share handlers on standard error."""

import logging
import sys
from collections.abc import Sequence
from typing import TextIO

import structlog

from pixy.config import LoggingConfig

__all__ = ["setup_logging"]

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
        console = structlog.dev.ConsoleRenderer(
            colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
        renderers = [remove_meta, console]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=_SHARED, processors=renderers))
    return handler
