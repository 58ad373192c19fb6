"""Terms of the entries of a log that exist, as runs of consecutive entries of one term. Pure."""

from bisect import bisect_right

TermRun = tuple[int, int]
"""Run of entries: index of its first one, and its term. It goes on to the next run's first one."""


def joined(runs: list[TermRun], further: list[TermRun]) -> list[TermRun]:
    """Runs followed by further ones; two of one term at the joint become one."""
    if runs and further and runs[-1][1] == further[0][1]:
        return runs + further[1:]
    return runs + further


class TermRuns:
    """Existing entries of a log, in which there may be holes."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        # First index, last index and term. Invariant: ascending and disjoint.
        self._runs: list[tuple[int, int, int]] = []

    @property
    def last(self) -> int:
        """Highest index, 0 if there is no entry."""
        return self._runs[-1][1] if self._runs else 0

    def add(self, index: int, term: int) -> None:
        """Add an entry; no effect if one of that index is there."""
        runs = self._runs
        if index == self.last + 1 and runs and runs[-1][2] == term:
            runs[-1] = (runs[-1][0], index, term)
            return
        at = bisect_right(runs, index, key=lambda run: run[0])
        if not at or runs[at - 1][1] < index:
            runs.insert(at, (index, index, term))

    def drop(self, index: int) -> None:
        """Remove the entries up to `index`."""
        self._runs = [(max(first, index + 1), last, term) for first, last, term in self._runs if last > index]

    def ending_with(self, index: int) -> list[TermRun]:
        """Runs of the entries without holes that end with entry `index`; none if it is missing."""
        found: list[TermRun] = []
        for first, last, term in reversed(self._runs):
            if last < index:
                break
            if first <= index:
                found = joined([(first, term)], found)
                index = first - 1
        return found
