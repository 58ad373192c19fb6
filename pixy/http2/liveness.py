"""Timeouts of a connection. Pure: time is an argument.

    condition                                                   action
    ----------------------------------------------------------  ------------------------------
    handshake_s without preface and SETTINGS, or without an     close with SETTINGS_TIMEOUT
        acknowledgement of ours
    header block open for header_block_s                        close with ENHANCE_YOUR_CALM
    no complete frame received for keepalive_s                  send PING
    no complete frame for another keepalive_timeout_s           close with NO_ERROR
    no call for idle_s                                          drain
    PING of a drain unanswered for drain_ping_s                 continue the drain without it

A peer that trickles single bytes of a frame counts as silent.
"""

from enum import Enum, auto

from pixy.http2.options import Options


class Due(Enum):
    """Action to be taken."""

    NOTHING = auto()
    HANDSHAKE_TIMEOUT = auto()
    HEADER_BLOCK_TIMEOUT = auto()
    PING = auto()
    DEAD = auto()
    IDLE = auto()
    DRAIN_TIMEOUT = auto()


class Liveness:
    """Timeouts of one connection.

    Args:
        options: limits; 0 disables one.
        now: seconds of a monotonic clock.
    """

    __slots__ = (
        "_idle_since",
        "_opened_at",
        "_options",
        "_ping_sent_at",
        "_requests",
        "drain_began_at",
    )

    def __init__(self, options: Options, now: float) -> None:
        self._options = options
        self._opened_at = now
        # Time of the last PING if nothing was received since, else None.
        self._ping_sent_at: float | None = None
        # Since when there has been no call, as observed by ticks.
        self._idle_since = now
        self._requests = 0
        # Start of a drain whose final GOAWAY is still to be sent.
        self.drain_began_at: float | None = None

    def tick(
        self,
        now: float,
        *,
        settled: bool,
        last_frame_at: float,
        block_since: float | None,
        running: int,
        requests: int,
    ) -> Due:
        """The action that is due now; one at a time.

        Args:
            now: seconds of the same clock.
            settled: both sides know each other's settings.
            last_frame_at: time of the last complete frame.
            block_since: time at which the open header block began, None if there is none.
            running: active calls.
            requests: any counter that grows with the number of calls.
        """
        options = self._options
        if not settled and _over(now, self._opened_at, options.handshake_s):
            return Due.HANDSHAKE_TIMEOUT
        if _over(now, block_since, options.header_block_s):
            return Due.HEADER_BLOCK_TIMEOUT
        if _over(now, self.drain_began_at, options.drain_ping_s):
            return Due.DRAIN_TIMEOUT
        if running or requests != self._requests:
            self._idle_since, self._requests = now, requests
        elif _over(now, self._idle_since, options.idle_s):
            return Due.IDLE
        return self._keepalive(now, last_frame_at)

    def _keepalive(self, now: float, last_frame_at: float) -> Due:
        if self._ping_sent_at is not None and last_frame_at >= self._ping_sent_at:
            self._ping_sent_at = None
        if self._ping_sent_at is not None:
            return (
                Due.DEAD if _over(now, self._ping_sent_at, self._options.keepalive_timeout_s) else Due.NOTHING
            )
        if _over(now, last_frame_at, self._options.keepalive_s):
            self._ping_sent_at = now
            return Due.PING
        return Due.NOTHING


def _over(now: float, since: float | None, limit_s: float) -> bool:
    return since is not None and limit_s > 0 and now - since >= limit_s
