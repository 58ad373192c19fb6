"""Log of limits that are reached, or of other mistakes of clients: one line a minute for each, with
who and how often.

The first hit is logged at once, further ones of the same minute with the next line. Memory is
bounded: by `_LIMITS_MAX` limits, and `_CLIENTS_MAX` clients of each that are told apart.
"""

import asyncio
from collections import Counter

import structlog

from pixy.client_address import client_address

log = structlog.get_logger(__name__)

_LIMITS_MAX = 100
_CLIENTS_MAX = 64
_NAMED_MAX = 5
"""Clients in a line of the log: those with most hits."""
_OTHERS = "others"


class LimitLog:
    """Hits of limits, in the running event loop.

    Args:
        event: of all lines.
        key: the field that names the limit.
        interval_s: seconds between two lines of a limit.
    """

    def __init__(
        self, event: str = "a limit is reached", key: str = "limit", *, interval_s: float = 60.0
    ) -> None:
        self._event, self._key = event, key
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        # Hits since the last line by client, and the timer of the next line, by limit.
        self._hits: dict[str, Counter[str]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def hit(self, limit: str, peer: str, times: int = 1) -> None:
        """Note that a limit was reached.

        Args:
            limit: its option, or a fixed text.
            peer: address of the client that was refused or cut off.
            times: how often.
        """
        if limit not in self._hits and len(self._hits) >= _LIMITS_MAX:
            limit = _OTHERS
        hits, client = self._hits.get(limit), client_address(peer)
        if hits is None:
            self._begin_minute(limit)
            self._write(limit, Counter({client: times}))
        else:
            hits[client if client in hits or len(hits) < _CLIENTS_MAX else _OTHERS] += times

    @property
    def reached(self) -> list[str]:
        """The limits that were reached in the last interval or the one before, by name."""
        return sorted(self._hits)

    def stop(self) -> None:
        """Log what was not logged yet."""
        for limit, hits in self._hits.items():
            self._timers[limit].cancel()
            if hits:
                self._write(limit, hits)
        self._hits, self._timers = {}, {}

    def _begin_minute(self, limit: str) -> None:
        self._hits[limit] = Counter()
        self._timers[limit] = self._loop.call_later(self._interval_s, self._end_minute, limit)

    def _end_minute(self, limit: str) -> None:
        hits = self._hits.pop(limit)
        if hits:
            self._begin_minute(limit)
            self._write(limit, hits)
        else:
            del self._timers[limit]

    def _write(self, limit: str, hits: Counter[str]) -> None:
        most = hits.most_common(_NAMED_MAX)
        clients = ", ".join(f"{client} {times}" for client, times in most)
        if len(hits) > len(most):
            clients += f" and {len(hits) - len(most)} more"
        log.warning(self._event, **{self._key: limit}, times=hits.total(), clients=clients)
