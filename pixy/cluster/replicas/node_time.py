"""A node's clock: its wall clock, as far as a majority of the nodes agrees with it.

What a node stamps, and what it lets expire, follows from here. The time that is agreed on is the
median of the clocks of the nodes, if a majority of all nodes is within a minute of it:

    a majority       this node's clock      the time that it stamps with
    ---------------  ---------------------  --------------------------------------------------------
    agrees           is within a minute     its clock's
    agrees           is off                 what it was before its clock was off, advanced by
                                            monotonic time; at first, the one that is agreed on
    does not agree                          the same; of a node that never knew an agreed one of
                                            several nodes, the latest of the clocks that it has
                                            known and of the time that it had before its start

A time that is too late keeps data for longer, one that is too early has it removed: hence the
latest. Nothing expires without a majority, nor by a node whose own clock is off.

All clocks can be wrong together, for instance by their common time server, and that of a lone node
is all that there is. So a jump of the agreed time by more than a minute counts after an hour, which
monotonic time measures, and in which a majority agrees throughout. Until then stamps have the later
of both times, and ages are measured by the earlier one.

So it is with the first agreed time after a start, compared with the last one that counted:

    a node                                    compares with
    ----------------------------------------  ------------------------------------------------------
    that had one before its start             that one (`NodeTime.resume`)
    that has joined, or lost what it noted    the earliest one of the nodes that agree, or that
                                              any node has told before they agreed. Nothing
                                              expires before it is told, all nodes are known and
                                              none has told any, or an hour has passed
    without others                            nothing: its clock counts at once

One node may tell a wrong time. Too early, it only keeps data, for that hour. Too late, it would put
stamps ahead, so it does not outlast an earlier one that another node tells within a minute, and a
start waits for the others to be heard. Ages are never later than the agreed time, whatever is told.
"""

import statistics
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import NamedTuple

import structlog

from pixy.clock import Clock

log = structlog.get_logger(__name__)

CLOCK_OFF_MS = 60_000
"""Difference to the agreed time from which on a clock is off."""
_TRUSTED_AFTER_S = 3600.0
_TELLING_S = 60.0
"""Time from the first told time in which an earlier one counts: that in which nodes connect."""


class OtherClocks(NamedTuple):
    """The clocks of the other nodes, as far as this one knows them.

    Attributes:
        nodes: number of nodes that there are, with this one; 0 while that is not known.
        ahead_ms: clocks of the others.
        steady: clock and `NodeTime.steady_ms` of each one that tells the latter.

    All times are less the monotonic time of this node.
    """

    nodes: int
    ahead_ms: Sequence[int] = ()
    steady: Sequence[tuple[int, int]] = ()


def agreed_time(clocks: Sequence[int], nodes: int) -> int | None:
    """Median of clocks, None unless a majority of that many nodes is within a minute of it."""
    median = round(statistics.median(clocks))
    near = sum(_is_near(clock, median) for clock in clocks)
    return median if near > nodes // 2 and nodes else None


def _is_near(one: int, other: int) -> bool:
    return abs(one - other) <= CLOCK_OFF_MS


class NodeTime:
    """A `Clock` whose wall clock is corrected as in the module's table, from the first `refresh`
    on.

    Args:
        clock: of the machine.
        has_peers: False for a node that never has any, whose clock is the only one.

    Attributes:
        others: tells the clocks of the other nodes.
    """

    def __init__(self, clock: Clock, *, has_peers: bool = False) -> None:
        self._clock = clock
        self.monotonic = clock.monotonic
        self.monotonic_ns = clock.monotonic_ns
        self.others: Callable[[], OtherClocks] = lambda: OtherClocks(0 if has_peers else 1)
        # All of these are less monotonic time: what it adds to them makes a time. The steady one is
        # of the last clocks that counted, None while that is not known.
        self._steady: int | None = None
        self._agreed: int | None = None
        self._latest = self._earliest = self.own_ahead_ms
        self._latest_ns = self._latest * 1_000_000
        self._own_is_off = False
        # An agreed time was known before, and one of several nodes.
        self._was_agreed = self._had_others = False
        # While the steady time is not known: the earliest that was told, with its teller's clock.
        self._told: Sequence[tuple[int, int]] = ()
        # Monotonic time since which the steady time is one that was told; None: it is not.
        self._told_at: float | None = None
        # Time that does not count yet, and monotonic time since which it has been shown.
        self._jumped_to: int | None = None
        self._jumped_at = 0.0

    def _monotonic_ms(self) -> int:
        return self.monotonic_ns() // 1_000_000

    # --- the time ---------------------------------------------------------------------------------

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch, to stamp with."""
        return self.monotonic_ns() + self._latest_ns

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch, to stamp with."""
        return self._latest + self._monotonic_ms()

    def file_time_ms(self) -> int | None:
        """Time of a write to a file, None if the machine's clock, which files have their time of,
        tells it to a minute. On any thread.
        """
        return None if _is_near(self.own_ahead_ms, self._latest) else self.wall_ms()

    def age_ms(self) -> int | None:
        """Time to measure ages by, None while nothing is to expire."""
        self.refresh()
        if self._agreed is None or self._own_is_off or self._steady is None:
            return None
        return self._earliest + self._monotonic_ms()

    def steady_ms(self) -> int | None:
        """The time of the last clocks that counted, None while that is not known."""
        return None if self._steady is None else self._steady + self._monotonic_ms()

    @property
    def own_ahead_ms(self) -> int:
        """The clock of this node, less its monotonic time."""
        return self._clock.wall_ms() - self._monotonic_ms()

    @property
    def is_settled(self) -> bool:
        """True once there has been an agreed time, with none told that is later, or every node is
        known.
        """
        self.refresh()
        others = self.others()
        is_told_later = self._told_at is not None and (self.off_ms(self._latest) or 0) > CLOCK_OFF_MS
        return (self._was_agreed and not is_told_later) or 0 < others.nodes <= len(others.ahead_ms) + 1

    def off_ms(self, ahead_ms: int) -> int | None:
        """Difference of a clock to the agreed time, None while there is none.

        Args:
            ahead_ms: the clock, less the monotonic time of this node.
        """
        return None if self._agreed is None else ahead_ms - self._agreed

    def is_off(self, ahead_ms: int) -> bool:
        """True for a clock that is more than a minute from the agreed time; see `off_ms`."""
        return abs(self.off_ms(ahead_ms) or 0) > CLOCK_OFF_MS

    # --- following the clocks ---------------------------------------------------------------------

    def resume(self, noted_ms: int) -> None:
        """Go on from the last known `steady_ms` of the node before its start."""
        self._steady = noted_ms - self._monotonic_ms()
        self._set_latest(max(self._latest, self._steady))

    def refresh(self) -> None:
        """Look at the clocks, in steps of less than a second."""
        own, others = self.own_ahead_ms, self.others()
        if self._steady is None:
            # Whoever tells it may be lost before a majority agrees.
            self._told = sorted([*self._told, *others.steady], key=itemgetter(1))[:1]
        clocks = [own, *others.ahead_ms]
        agreed = agreed_time(clocks, others.nodes)
        if agreed is not None:
            self._agree(own, agreed, others)
            return
        self._agreed, self._own_is_off, self._jumped_at = None, False, self.monotonic()
        if not (self._had_others if others.nodes > 1 else self._was_agreed):
            self._set_latest(max(self._latest, *clocks))

    def _agree(self, own: int, agreed: int, others: OtherClocks) -> None:
        is_off = not _is_near(own, agreed)
        if is_off and not self._own_is_off:
            log.warning(
                "the clock of this machine is off: a majority of the nodes has another time, which counts",
                ahead_s=(own - agreed) // 1000,
            )
        self._agreed, self._own_is_off = agreed, is_off
        self._listen(agreed, others)
        # Clocks of others are known as exactly as beats are quick: they are not followed closely.
        shown = own
        if is_off:
            shown = agreed if self._steady is None or not _is_near(self._steady, agreed) else self._steady
        was_alone = self._was_agreed and not self._had_others and others.nodes > 1
        self._was_agreed, self._had_others = True, self._had_others or others.nodes > 1
        if self._counts(shown, others, is_corrected=was_alone and is_off):
            self._steady, self._jumped_to, self._told_at = shown, None, None
        times = [shown] if self._steady is None else [shown, self._steady]
        self._earliest = min(times)
        self._set_latest(max(times))

    def _listen(self, agreed: int, others: OtherClocks) -> None:
        """Take over the earliest steady time that others tell, while none is known for sure."""
        now = self.monotonic()
        if self._steady is not None and (self._told_at is None or now - self._told_at >= _TELLING_S):
            return
        told = _earliest_steady(agreed, [*self._told, *others.steady])
        if told is None:
            return
        if self._steady is None:
            self._steady, self._told_at = told, now
        self._steady = min(self._steady, told)

    def _counts(self, shown: int, others: OtherClocks, *, is_corrected: bool) -> bool:
        """True for a time that becomes the steady one.

        Args:
            is_corrected: the first others have another time than this node, which was alone. A
                later one than its own counts after an hour all the same.
        """
        if self._steady is None:
            counts_at_once = len(others.ahead_ms) + 1 >= others.nodes
        else:
            counts_at_once = _is_near(shown, self._steady) or (is_corrected and shown < self._steady)
        return counts_at_once or self._has_stayed(shown)

    def _has_stayed(self, shown: int) -> bool:
        """True if a time that does not count yet has been shown for an hour."""
        now = self.monotonic()
        if self._jumped_to is None or not _is_near(shown, self._jumped_to):
            self._jumped_to, self._jumped_at = shown, now
            if self._steady is not None:
                log.warning(
                    "the clocks have jumped, or this node was down for long; if they stay so for an hour, the "
                    "age of records follows them",
                    ahead_s=(shown - self._steady) // 1000,
                )
        return now - self._jumped_at >= _TRUSTED_AFTER_S

    def _set_latest(self, latest: int) -> None:
        self._latest, self._latest_ns = latest, latest * 1_000_000


def _earliest_steady(agreed: int, told: Sequence[tuple[int, int]]) -> int | None:
    """The earliest steady time that others have told, None if nobody has told one.

    A node whose own clock is off may have founded the cluster with it: a later time of it does not
    count.
    """
    return min((steady for clock, steady in told if _is_near(clock, agreed) or steady < agreed), default=None)
