"""Prevents the stages of a job from expiring while one of its tasks runs, however slowly its rows
arrive.

The daemon presumes a sink dead after `staging.expiry` without a call, and drops its stages, also
those of finished tasks. So every running task keeps the whole sink alive.
"""

from collections.abc import Callable
from threading import Event, Thread
from types import TracebackType
from typing import Self

from pixy.errors import PixyError

KEEP_ALIVE_SECONDS = 10.0


class KeepAlive:
    """A context with a thread that repeats a call. A failed call is ignored: the next one has the
    same effect.

    Args:
        call: keeps the sink alive.
        seconds: interval of the calls; the first one comes after it.
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
        """Make no more calls, without waiting for one in flight."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            try:
                self._call()
            except PixyError:
                continue
