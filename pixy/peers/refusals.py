"""Log of refused connections, and of those that end because of what a peer has sent: a peer that
tries again and again is logged once a minute.

A refusal that passes by itself (`NotYet`) is a warning only if it lasts longer than that. Whoever
comes with another name or reason each time is bounded by `StrangerLog`.
"""

from collections import OrderedDict
from typing import NamedTuple

import structlog

from pixy.peers.handshake_side import NotYet
from pixy.peers.stranger_log import StrangerLog

log = structlog.get_logger(__name__)

_LOG_AGAIN_S = 60.0
_REASONS_MAX = 200


class _Noted(NamedTuple):
    """Seconds of the first refusal in a row, of the last log entry, and of the last refusal."""

    first: float
    logged: float
    last: float


class RefusalLog:
    """Refusals by peer and reason.

    Attributes:
        strangers: the log, also for other lines about connections in their handshake.
    """

    def __init__(self) -> None:
        self.strangers = StrangerLog()
        # The oldest log entry first.
        self._noted: OrderedDict[tuple[str, str], _Noted] = OrderedDict()
        # Seconds of the last line about what a peer has sent, and connections that have ended so
        # since; by the name of the peer, which has proven it.
        self._damaged: dict[str, tuple[float, int]] = {}

    def note(self, peer: str, at: str, reason: str, now: float, *, by_peer: bool) -> bool:
        """Log a refusal, unless it was logged a moment ago.

        Args:
            peer: the peer as it describes itself.
            at: address that the connection comes from.
            now: seconds on any monotonic clock.
            by_peer: the peer refuses this node.

        Returns:
            True if it was logged.
        """
        key = peer, reason
        noted = self._noted.get(key)
        if noted is None or now - noted.last >= _LOG_AGAIN_S:
            noted = _Noted(now, float("-inf"), now)
        if now - noted.logged < _LOG_AGAIN_S:
            self._noted[key] = noted._replace(last=now)
            return False
        self._noted[key] = noted._replace(logged=now, last=now)
        self._noted.move_to_end(key)
        if len(self._noted) > _REASONS_MAX:
            self._noted.popitem(last=False)
        event = "a peer refuses this node" if by_peer else "a peer is refused"
        passes = isinstance(reason, NotYet) and now - noted.first < _LOG_AGAIN_S
        level = "info" if passes else "warning"
        return self.strangers.write(level, event, now, peer=peer, at=at, reason=reason)

    def damaged(self, peer: str, at: str, reason: str, now: float) -> None:
        """Log that an open connection ends because of what the peer has sent, or count it for the
        next line.

        Args:
            peer: its name; there are few.
        """
        logged, others = self._damaged.get(peer, (float("-inf"), 0))
        if now - logged < _LOG_AGAIN_S:
            self._damaged[peer] = logged, others + 1
            return
        self._damaged[peer] = now, 0
        log.warning(
            "a connection has ended: the peer has sent what no node sends",
            peer=peer,
            at=at,
            reason=reason,
            others_before=others,
        )
