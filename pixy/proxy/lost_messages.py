"""Counts of asynchronous messages that were not written, which nobody was told of: one line in the
log per topic and interval.

The interval begins with a loss and ends some seconds later, or at the stop.
"""

import asyncio

import structlog

from pixy.errors import PixyError

log = structlog.get_logger(__name__)

_INTERVAL_S = 10.0
_TOPICS_MAX = 100
"""Lines of an interval: topics beyond it share one."""
_OTHERS = "(others)"


class LostMessages:
    """Lost messages of one cluster.

    Args:
        interval_s: length of an interval.

    Attributes:
        total: their number since the start.
    """

    def __init__(self, interval_s: float = _INTERVAL_S) -> None:
        self._interval_s = interval_s
        self.total = 0
        # Of the present interval, by topic: their number, and the reason of the last loss.
        self._topics: dict[str, tuple[int, PixyError]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, topic: str, messages: int, reason: PixyError) -> None:
        """Count messages that are given up."""
        self.total += messages
        if topic not in self._topics and len(self._topics) >= _TOPICS_MAX:
            topic = _OTHERS
        before = self._topics[topic][0] if topic in self._topics else 0
        self._topics[topic] = before + messages, reason
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self.report)

    def report(self) -> None:
        """Log what was lost, and end the interval."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        topics, self._topics = self._topics, {}
        for topic, (messages, reason) in topics.items():
            log.error(
                "asynchronous messages could not be written",
                topic=topic,
                messages=messages,
                total=self.total,
                reason=str(reason),
            )
