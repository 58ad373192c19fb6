"""The map from offsets of the source to those of the target, of one partition. Pure.

A run is a number of records that follow each other in both clusters. Between two embedded logs
there is one run for ever; a cluster of Kafka begins a new one at each transaction, whose marker
takes an offset. So many are thinned out, the old ones more than the new ones: an offset in a run
that is missing becomes that of a record before it, never behind it.

Invariant: runs ascend by both offsets, and do not overlap.
"""

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

RUNS_MAX = 128
_NEWEST = 32
"""Runs that are never thinned out."""

_SOURCE = attrgetter("source")


class Run(NamedTuple):
    """Records from `source` on, which are at the target from `target` on."""

    source: int
    target: int
    records: int


def add_run(runs: list[Run], run: Run) -> None:
    """Add a run behind the others."""
    if runs:
        last = runs[-1]
        if last.source + last.records == run.source and last.target + last.records == run.target:
            runs[-1] = last._replace(records=last.records + run.records)
            return
    runs.append(run)
    if len(runs) > RUNS_MAX:
        old = len(runs) - _NEWEST
        runs[:old] = runs[:old:2]  # the first stays: nothing below it was copied


def translated(runs: Sequence[Run], offset: int) -> int | None:
    """The offset at the target of the first record that is not below an offset of the source, or
    one before it; None if nothing was copied.
    """
    at = bisect_right(runs, offset, key=_SOURCE) - 1
    if at < 0:
        return runs[0].target if runs else None
    run = runs[at]
    return run.target + min(offset - run.source, run.records)
