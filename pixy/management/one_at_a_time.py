"""Bounds of dear requests."""

from collections.abc import Iterator
from contextlib import contextmanager

from pixy.web import HttpError


class OneAtATime:
    """Runs one request of a kind at a time, and refuses others meanwhile.

    Args:
        what: names the kind.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._running = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context of a request.

        Raises:
            HttpError: 429, another one is running.
        """
        if self._running:
            raise HttpError(429, f"{self._what} is being made for another request")
        self._running = True
        try:
            yield
        finally:
            self._running = False
