"""Keeps what a job has staged from expiring while one of its tasks runs, however long its rows take to come.

The daemon takes a sink that does nothing for `staging.expiry` for dead and drops its stages, also those of tasks that have ended. So every
task that runs speaks for the whole sink.
"""

from collections.abc import Callable
from threading import Event, Thread
from types import TracebackType
from typing import Self

from pixy.errors import PixyError

__all__ = ["KEEP_ALIVE_SECONDS", "KeepAlive"]

KEEP_ALIVE_SECONDS = 10.0


class KeepAlive:
    """A context in which a thread makes a call again and again. One that fails is not missed: the next one does as well.

    Args:
        call: touches the sink.
        seconds: the time between two calls, and before the first.
    """

    def __init__(self, call: Callable[[], None], seconds: float) -> None:
        self._call = call
        self._seconds = seconds
        self._ended = Event()
        self._thread = Thread(target=self._run, name="pixy-keep-alive", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Make no more calls; one that is under way is not waited for."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            try:
                self._call()
            except PixyError:
                continue
