"""Trace hook of the core.

The methods have the signatures of `logging.Logger`'s, so a logger can be passed as is; the texts
are etcd's, so its traces can be reproduced. The receiver formats the texts: with `NullTrace` they
cost one call, and none is on the path of an entry that is replicated without incident.
"""

from typing import Protocol

__all__ = ["NULL_TRACE", "NullTrace", "Trace"]


class Trace(Protocol):
    """Trace sink."""

    def debug(self, msg: str, *args: object) -> None: ...
    def info(self, msg: str, *args: object) -> None: ...
    def warning(self, msg: str, *args: object) -> None: ...
    def error(self, msg: str, *args: object) -> None: ...
    def critical(self, msg: str, *args: object) -> None: ...


class NullTrace:
    """Discards everything."""

    __slots__ = ()

    def debug(self, msg: str, *args: object) -> None:
        pass

    info = warning = error = critical = debug


NULL_TRACE = NullTrace()
