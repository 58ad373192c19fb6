"""Trace hook of the core.

The methods have the signatures of `logging.Logger`'s, so a logger can be passed as is; the texts
are etcd's, so its traces can be reproduced. The receiver formats the texts, and the description of
an argument (`Described`): with `NullTrace` no text is made, a line costs one call, and none is on
the path of an entry that is replicated without incident.
"""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

_Value = TypeVar("_Value")


class Trace(Protocol):
    """Trace sink."""

    def debug(self, msg: str, *args: object) -> None: ...
    def info(self, msg: str, *args: object) -> None: ...
    def warning(self, msg: str, *args: object) -> None: ...
    def error(self, msg: str, *args: object) -> None: ...
    def critical(self, msg: str, *args: object) -> None: ...


class Described(Generic[_Value]):
    """Argument of a text, described when the text is formatted.

    Args:
        describe: returns the description.
        value: never changed afterwards, because a receiver may format later.
    """

    __slots__ = ("_describe", "_value")

    def __init__(self, describe: Callable[[_Value], str], value: _Value) -> None:
        self._describe = describe
        self._value = value

    def __str__(self) -> str:
        return self._describe(self._value)


class NullTrace:
    """Discards everything."""

    __slots__ = ()

    def debug(self, msg: str, *args: object) -> None:
        pass

    info = warning = error = critical = debug


NULL_TRACE = NullTrace()
