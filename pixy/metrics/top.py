"""The names that have series of their own: those with most to count. The rest is `OTHER`.

Clients choose the names of topics and consumer groups, so without a bound they choose how much
memory Prometheus takes. A name keeps its series until one without has counted twice as much lately,
so that names of equal weight do not take turns.

Sums over all series stay true: the series of a name begins at 0 when the name gets it, and what it
has counted before stays in `OTHER`; so no record is counted in two series, and `OTHER` never
decreases.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import heappush, heappushpop
from typing import Generic, TypeVar

OTHER = "other"
"""Value of the labels of all names that have no series of their own."""

_KEPT = 2
_FADING = 0.5
"""Part of the activity up to the last look that still counts."""

K = TypeVar("K", bound=Hashable)


class TopCounts(Generic[K]):
    """Counters by name, at most `limit` of them with series of their own.

    Args:
        limit: number of names.
        width: counters of a name.

    Attributes:
        series: counts of the names that have a series, since they have it.
        other: counts of all others.
    """

    def __init__(self, limit: int, width: int) -> None:
        self._limit = limit
        self._zero = (0,) * width
        self.series: Mapping[K, Sequence[int]] = {}
        self.other: Sequence[int] = self._zero
        # Counts at the last look, and what was counted lately, by name.
        self._seen: dict[K, Sequence[int]] = {}
        self._activity: dict[K, float] = {}
        # Counts of each name with a series when it got it.
        self._begun: dict[K, Sequence[int]] = {}

    def look(self, counts: Mapping[K, Sequence[int]]) -> Iterator[None]:
        """Take over present counts, one name per step. A name that is missing is gone, and its
        series with it.
        """
        grown: dict[K, Sequence[int]] = {}
        activity: dict[K, float] = {}
        for name, now in counts.items():
            grown[name] = _growth(self._seen.get(name, self._zero), now)
            activity[name] = self._activity.get(name, 0.0) * _FADING + sum(grown[name])
            yield
        weights = ((each * (_KEPT if name in self._begun else 1), name) for name, each in activity.items())
        chosen: list[K] = []
        yield from largest(weights, self._limit, chosen)
        begun = {name: self._begin(name, counts[name]) for name in chosen}
        other = list(self.other)
        for name, more in grown.items():
            # Also of a name whose series has just begun, unless it is new.
            if begun.get(name, counts[name]) is counts[name]:
                other = [total + added for total, added in zip(other, more, strict=True)]
            yield
        self.series = {
            name: [now - before for now, before in zip(counts[name], at, strict=True)]
            for name, at in begun.items()
        }
        self.other, self._begun, self._seen, self._activity = other, begun, dict(counts), activity

    def _begin(self, name: K, now: Sequence[int]) -> Sequence[int]:
        """Counts at which the series of a name began, or begins: all of a new one is in it."""
        begun = self._begun.get(name)
        if begun is not None:
            # Counts that are lower have begun anew.
            return begun if all(new >= old for new, old in zip(now, begun, strict=True)) else self._zero
        return now if name in self._seen else self._zero


def _growth(before: Sequence[int], now: Sequence[int]) -> Sequence[int]:
    """Counted meanwhile. Counts that are lower have begun anew."""
    if any(new < old for new, old in zip(now, before, strict=True)):
        return now
    return [new - old for new, old in zip(now, before, strict=True)]


def largest(weights: Iterable[tuple[float, K]], limit: int, into: list[K]) -> Iterator[None]:
    """Append the names of most weight to a list, at most `limit`, the heaviest first; one name per
    step.
    """
    heap: list[tuple[float, int, K]] = []
    for at, (weight, name) in enumerate(weights):
        entry = (weight, -at, name)
        if len(heap) < limit:
            heappush(heap, entry)
        elif limit:
            heappushpop(heap, entry)
        yield
    into += [name for _, _, name in sorted(heap, reverse=True)]
