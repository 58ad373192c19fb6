"""Result of a run of a simulated cluster, the same whenever its seed runs."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple


class Outcome(NamedTuple):
    """Result of a run: numbers of events by kind, and the hash of all events."""

    seed: int
    counts: Counter[str]
    trace_hash: int


def run_twice(
    seeds: Iterable[int], run: Callable[[int], Outcome], again: Callable[[int], Outcome]
) -> Counter[str]:
    """Numbers of events by kind; `again` repeats a run of `run` event by event."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        outcome = run(seed)
        assert outcome == again(seed), f"seed {seed} does not repeat itself"
        counts += outcome.counts
    return counts
