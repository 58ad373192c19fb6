"""Faults and actions of operators, drawn from the seed before a run begins.

Each has its own time and seed, so that one can be left out without a change of the others.
"""

from collections.abc import Mapping
from enum import Enum
from random import Random
from typing import Generic, NamedTuple, TypeVar


class FaultKinds(Enum):
    """Kinds of faults of a simulation. A value is for readers, and the weight in a draw."""

    def __init__(self, text: str, weight: int) -> None:
        self.text = text
        self.weight = weight


_Kind = TypeVar("_Kind", bound=FaultKinds)


class Fault(NamedTuple, Generic[_Kind]):
    """A scheduled fault or action.

    Attributes:
        number: its position in the schedule.
        at: virtual time.
        kind: kind of fault.
        seed: seed of its choices.
    """

    number: int
    at: float
    kind: _Kind
    seed: int


def draw_faults(
    rng: Random, kinds: Mapping[_Kind, int], count: int, begin_s: float, end_s: float
) -> list[Fault[_Kind]]:
    """A schedule between two times."""
    drawn = rng.choices(list(kinds), list(kinds.values()), k=count) if kinds else []
    times = sorted(rng.uniform(begin_s, end_s) for _ in drawn)
    return [
        Fault(number, at, kind, rng.getrandbits(32))
        for number, (at, kind) in enumerate(zip(times, drawn, strict=True))
    ]
