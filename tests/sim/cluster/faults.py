"""Faults and operator actions, drawn from the seed before a run begins.

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
    CRASH_AT = "crash at an operation of the disk", 6
    CRASH_NEAR = "crash near a decisive operation of the disk", 4
    CRASH_ALL = "crash of all", 2
    STOP = "orderly stop", 2
    SPLIT = "split", 3
    ONE_WAY = "one-way cut", 2
    ISOLATE_LEADER = "leader cut off", 4
    FIGURE_8 = "the story of figure 8", 2
    STORM = "packets lost, late and twice", 3
    SLOW_DISK = "slow disk", 3
    FULL_DISK = "full disk", 2
    FAILING_DISK = "failing call on the disk", 2
    FAILING_READ = "failing read of the disk", 1
    TRANSFER = "leadership transfer", 3
    MEMBERSHIP = "membership change", 3
    BURST = "many requests at once", 4
    LAGGARD = "a node cut off for long, many requests", 3
    OLDER_SELF = "a node put back from a backup", 1

    def __init__(self, text: str, weight: int) -> None:
        self.text = text
        self.weight = weight


class Fault(NamedTuple):
    """A scheduled fault or operator action.

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


def draw_faults(rng: Random, kinds: dict[FaultKind, int], count: int, duration_s: float) -> list[Fault]:
    """A schedule."""
    drawn = rng.choices(list(kinds), list(kinds.values()), k=count)
    times = sorted(rng.uniform(1.0, duration_s) for _ in drawn)
    return [
        Fault(number, at, kind, rng.getrandbits(32))
        for number, (at, kind) in enumerate(zip(times, drawn, strict=True))
    ]
