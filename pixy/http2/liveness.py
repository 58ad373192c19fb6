"""What a connection owes its peer in time, and the peer us. Pure: time is an argument.

    the client                                                                     then
    -----------------------------------------------------------------------------  ---------------------------
    has not sent preface and SETTINGS, or not acknowledged ours, in handshake_s    it is closed, SETTINGS_TIMEOUT
    leaves a header block open for header_block_s                                  it is closed, ENHANCE_YOUR_CALM
    sends no whole frame for keepalive_s                                           it is sent a PING
    sends none for keepalive_timeout_s more                                        it is closed, NO_ERROR
    has no call for idle_s                                                         it is drained
    does not answer the PING of a drain in drain_ping_s                            the drain goes on without

A peer that sends single bytes of a frame now and then is as silent as one that sends nothing.
"""

from enum import Enum, auto

from pixy.http2.options import Options

__all__ = ["Due", "Liveness"]


class Due(Enum):
    """What is to be done."""

    NOTHING = auto()
    HANDSHAKE_TIMEOUT = auto()
    HEADER_BLOCK_TIMEOUT = auto()
    PING = auto()
    DEAD = auto()
    IDLE = auto()
    DRAIN_TIMEOUT = auto()


class Liveness:
    """The times of one connection.

    Args:
        options: limits; 0 switches one off.
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
        # When a PING was sent that nothing followed, None if there is none.
        self._ping_sent_at: float | None = None
        # Since when there is no call, as far as ticks have seen.
        self._idle_since = now
        self._requests = 0
        # When a drain began whose final GOAWAY is still to come.
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
        """What is to be done now; one thing at a time.

        Args:
            now: seconds of the same clock.
            settled: both sides have the other's settings.
            heard_at: when the last whole frame came.
            block_since: when the header block began that is open, None if none is.
            running: calls that are not complete.
            requests: calls so far, in any count that grows with them.
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
