"""Minimizes the faults of a failing run."""

from collections.abc import Callable, Iterable


def needless(numbers: Iterable[int], fails: Callable[[set[int]], bool]) -> set[int]:
    """Numbers of faults that a failure does not need: they are left out one by one, as long as the
    run still fails.

    Args:
        numbers: of the faults of the run.
        fails: True if the run fails without these faults.
    """
    skipped: set[int] = set()
    for number in reversed(list(numbers)):
        if fails(skipped | {number}):
            skipped.add(number)
    return skipped
