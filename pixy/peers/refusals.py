"""Log of refused connections: a peer that tries again and again is logged once a minute."""

from collections import OrderedDict

import structlog

__all__ = ["RefusalLog"]

log = structlog.get_logger(__name__)

_LOG_AGAIN_S = 60.0
_REASONS_MAX = 200


class RefusalLog:
    """Refusals by peer and reason."""

    def __init__(self) -> None:
        # Time of the last log entry, oldest first.
        self._logged: OrderedDict[tuple[str, str], float] = OrderedDict()

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
        if now - self._logged.get(key, float("-inf")) < _LOG_AGAIN_S:
            return False
        self._logged[key] = now
        self._logged.move_to_end(key)
        if len(self._logged) > _REASONS_MAX:
            self._logged.popitem(last=False)
        event = "a peer refuses this node" if by_peer else "a peer is refused"
        log.warning(event, peer=peer, at=at, reason=reason)
        return True
