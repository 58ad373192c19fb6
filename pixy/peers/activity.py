"""Silence of connections, and pauses of the process, as pure decisions about time.

A process that was stopped, or whose event loop was busy, finds a full inbox and timers that are
overdue. The inbox counts first: the first late check decides nothing, so the loop reads what has
come meanwhile, and a late check adds no more to a silence than one in time. A loop that is always
late still finds out, after as many checks as a punctual one.
"""

from enum import Enum, auto

LATE_S = 0.5
"""A check that is later than this follows a pause of the process."""


class CheckResult(Enum):
    """Result of a check."""

    NOTHING = auto()
    ALIVE = auto()
    """The connection has sent nothing for a while: send a frame."""
    SILENT = auto()
    """The connection has received nothing for too long: end it."""


class Activity:
    """Silence of one connection in either direction.

    Args:
        alive_s: see `PeerOptions`.
        silence_s: see `PeerOptions`.

    Attributes:
        heard: number of chunks that were received.
        sent: something was sent since the last check, other than what a check has asked for.
    """

    __slots__ = ("_alive_s", "_heard_before", "_idle_s", "_silence_s", "_silent_s", "heard", "sent")

    def __init__(self, alive_s: float, silence_s: float) -> None:
        self._alive_s = alive_s
        self._silence_s = silence_s
        # Seconds, by the checks, since something was sent and received.
        self._idle_s = 0.0
        self._silent_s = 0.0
        # `heard` at the last check.
        self._heard_before = -1
        self.heard = 0
        self.sent = True

    @property
    def silent_s(self) -> float:
        """Seconds since something was received, as far as checks have counted them."""
        return self._silent_s if self.heard == self._heard_before else 0.0

    def check(self, elapsed: float) -> CheckResult:
        """Decide, `elapsed` seconds after the last check."""
        if self.heard != self._heard_before:
            self._heard_before = self.heard
            self._silent_s = 0.0
        else:
            self._silent_s += elapsed
            if self._silent_s >= self._silence_s:
                return CheckResult.SILENT
        if self.sent:
            self.sent = False
            self._idle_s = 0.0
        else:
            self._idle_s += elapsed
            if self._idle_s >= self._alive_s:
                self._idle_s = 0.0
                return CheckResult.ALIVE
        return CheckResult.NOTHING


class PauseDetector:
    """Times of checks that are to happen at regular intervals.

    Args:
        interval: seconds between checks.
        now: time of the first.
    """

    __slots__ = ("_due", "_interval", "_was_late")

    def __init__(self, interval: float, now: float) -> None:
        self._interval = interval
        self._due = now + interval
        # The last check followed a pause, and decided nothing.
        self._was_late = False

    def elapsed(self, now: float) -> float | None:
        """Seconds that a check at this time may count; None: it follows a pause and must not decide
        anything.
        """
        late = now - self._due
        self._due = now + self._interval
        self._was_late = late > LATE_S and not self._was_late
        if self._was_late:
            return None
        return min(self._interval + max(0.0, late), 2 * self._interval)
