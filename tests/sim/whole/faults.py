"""Faults and actions of operators, drawn from the seed before a run begins.

Each has its own time and seed, so that one can be left out without a change of the others.
"""

from enum import Enum
from random import Random
from typing import NamedTuple

__all__ = ["Fault", "FaultKind", "draw_faults"]


class FaultKind(Enum):
    """The value is for readers, and the weight in a draw."""

    CRASH = "crash", 6
    CRASH_LEADER = "crash of a leader", 4
    CRASH_AT = "crash at an operation of the disk", 5
    CRASH_NEAR = "crash near a decisive operation of the disk", 4
    CRASH_ALL = "crash of all", 2
    CRASH_STARTS = "crash of all, and of their starts", 6
    STOP = "orderly stop", 3
    PAUSE = "pause of a process", 5
    SPLIT = "split", 3
    ONE_WAY = "one-way cut", 3
    ONE_LINK = "one link cut", 3
    ISOLATE_LEADER = "leader cut off", 4
    STORM = "packets late and lost", 3
    SLOW_LINK = "slow link", 2
    RESET = "connections reset", 2
    DAMAGE = "bytes changed on their way", 1
    SLOW_DISK = "slow disk", 3
    STALLED_DISK = "stalled disk", 2
    FULL_DISK = "full disk", 2
    FAILING_DISK = "failing call on the disk", 3
    FAILING_READ = "failing read of the disk", 1
    CLOCK = "wall clock set", 2
    DRIFT = "wall clock drifts", 2
    BURST = "many appends at once", 3
    LAGGARD = "a node cut off for long", 3
    JOIN = "a new node joins", 3
    REMOVE = "a node removed", 1
    OLDER_SELF = "a node put back from a backup", 1
    TWIN = "two nodes with one id", 1
    LOST_DISK = "a lost disk", 1
    DAMAGED_FLUSH = "the newest flush damaged", 1

    def __init__(self, text: str, weight: int) -> None:
        self.text = text
        self.weight = weight


class Fault(NamedTuple):
    """A scheduled fault or action.

    Attributes:
        number: its position in the schedule.
        at: virtual time.
        kind: kind of fault.
        seed: seed of its choices.
    """

    number: int
    at: float
    kind: FaultKind
    seed: int


def draw_faults(
    rng: Random, kinds: dict[FaultKind, int], count: int, begin_s: float, end_s: float
) -> list[Fault]:
    """A schedule between two times."""
    drawn = rng.choices(list(kinds), list(kinds.values()), k=count) if kinds else []
    times = sorted(rng.uniform(begin_s, end_s) for _ in drawn)
    return [
        Fault(number, at, kind, rng.getrandbits(32))
        for number, (at, kind) in enumerate(zip(times, drawn, strict=True))
    ]
