"""Calls of commands that go on when their daemon restarts, or the node that they use is lost.

A failed call is repeated after a growing pause, at the first address of the list that accepts a
connection, if the daemon had answered before: a wrong address is an error at once. The first
failure of an outage is a line on standard error.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Generic, TypeVar

from pixy.cli.connection import DaemonConnection, status_name
from pixy.cli.output import report_error

if TYPE_CHECKING:
    from types import TracebackType

    import grpc

S = TypeVar("S")

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0


class ReconnectingStub(Generic[S]):
    """The stub of a service at one of the addresses of a connection; a context manager.

    Args:
        make: makes the stub of a channel.
        reconnects: False to end with the first failure.
        sleep: pauses between attempts.

    Attributes:
        stub: valid until the next `again`.
    """

    def __init__(
        self,
        connection: DaemonConnection,
        make: "Callable[[grpc.Channel], S]",
        *,
        reconnects: bool,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        from pixy.aio.retries import Backoff  # imports asyncio

        self._connection = connection
        self._make = make
        self._reconnects = reconnects
        self._sleep = sleep
        self._backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        # A call was answered, by any address.
        self._known = False
        # The outage was reported.
        self._reported = False
        self._open = ExitStack()
        self.stub: S

    def __enter__(self) -> "ReconnectingStub[S]":
        self._connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        import grpc

        self._open.close()
        if isinstance(error, grpc.RpcError):
            raise self._connection.failure(error) from error

    def answered(self) -> None:
        """Note that the daemon has answered."""
        if not self._known or self._reported:
            self._known, self._reported = True, False
            self._backoff.reset()

    def again(self, error: "grpc.RpcError | str", until: float | None = None) -> bool:
        """Wait before a failed call is repeated, and connect anew.

        Args:
            error: of the call, or a reason why the daemon is unavailable.
            until: time on the monotonic clock at which it is too late; None: never.

        Returns:
            False if the call is not to be repeated.
        """
        unavailable = isinstance(error, str) or status_name(error) == "UNAVAILABLE"
        if not (unavailable and self._known and self._reconnects):
            return False
        if until is not None and time.monotonic() + self._backoff.pause >= until:
            return False
        if not self._reported:
            self._reported = True
            why = error if isinstance(error, str) else self._connection.failure(error)
            report_error(f"{why}; trying again until it answers (not with --no-reconnect)")
        self._sleep(self._backoff.grow())
        self._connect()
        return True

    def _connect(self) -> None:
        self._open.close()
        self.stub = self._make(self._open.enter_context(self._connection.channel()))
