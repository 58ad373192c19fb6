"""Log lines about connections that have proven nothing: so many a minute in all, then one line with
the number of those that were left out.
"""

from collections.abc import Hashable
from typing import Any

import structlog

log = structlog.get_logger(__name__)

LINES_MAX = 30
_MINUTE_S = 60.0


class StrangerLog:
    """Lines of one process; times are seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._began = float("-inf")
        self._lines = 0
        self._left_out = 0
        # The `again` of this minute's lines.
        self._written: set[Hashable] = set()

    def write(
        self, level: str, event: str, now: float, again: Hashable | None = None, /, **fields: Any
    ) -> bool:
        """Write a line, unless there were too many in this minute, or one with the same `again`.

        Returns:
            True if it was written.
        """
        self.tick(now)
        if now - self._began >= _MINUTE_S:
            self._began, self._lines = now, 0
            self._written.clear()
        is_repeated = again is not None and again in self._written
        if self._lines >= LINES_MAX or is_repeated:
            self._left_out += 1
            return False
        self._lines += 1
        self._written.add(again)
        getattr(log, level)(event, **fields)
        return True

    def tick(self, now: float) -> None:
        """Write the number of lines that were left out, once their minute is over."""
        if self._left_out and now - self._began >= _MINUTE_S:
            log.warning(
                "more lines about connections that have proven nothing were left out", lines=self._left_out
            )
            self._left_out = 0
