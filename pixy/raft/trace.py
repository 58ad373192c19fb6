"""The hook through which the core tells what it does.

The methods have the form of `logging.Logger`'s, so that a logger can be passed as it is; their texts are etcd's, so that
its traces can be reproduced. Texts are formatted by the receiver: with `NullTrace` they cost one call, and none of them
stands on the way of an entry that is replicated without trouble.
"""

from typing import Protocol

__all__ = ["NULL_TRACE", "NullTrace", "Trace"]


class Trace(Protocol):
    """Who listens."""

    def debug(self, msg: str, *args: object) -> None: ...
    def info(self, msg: str, *args: object) -> None: ...
    def warning(self, msg: str, *args: object) -> None: ...
    def error(self, msg: str, *args: object) -> None: ...
    def critical(self, msg: str, *args: object) -> None: ...


class NullTrace:
    """Nobody listens."""

    __slots__ = ()

    def debug(self, msg: str, *args: object) -> None:
        pass

    info = warning = error = critical = debug


NULL_TRACE = NullTrace()
