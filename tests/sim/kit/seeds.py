"""Runs a seed, and minimizes the faults of a failing one."""

from collections.abc import Callable, Collection
from typing import TypeVar

from tests.sim.kit.failure import ClusterFailure
from tests.sim.kit.run import Run
from tests.sim.outcome import Outcome
from tests.sim.shrinking import needless

_Swarm = TypeVar("_Swarm")


def run_seed(
    simulation: type[Run[_Swarm]], seed: int, focus: Callable[[_Swarm], _Swarm] | None = None
) -> Outcome:
    """Run one seed.

    Args:
        focus: see `Run`.

    Raises:
        ClusterFailure: a promise was broken. The message has the seed, the faults needed to
            reproduce it, and the last events.
    """
    run = simulation(seed, focus=focus)
    try:
        return run.run()
    except ClusterFailure as failure:
        numbers = [fault.number for fault in run.faults]
        skipped = needless(numbers, lambda skipped: failure_of(simulation, seed, skipped, focus) is not None)
        shrunk = simulation(seed, skipped, focus=focus)
        raise ClusterFailure(f"seed {seed}: {_report(shrunk, failure)}") from None


def failure_of(
    simulation: type[Run[_Swarm]],
    seed: int,
    skipped: Collection[int] = (),
    focus: Callable[[_Swarm], _Swarm] | None = None,
) -> ClusterFailure | None:
    """The failure of a seed, None if it has none."""
    try:
        simulation(seed, skipped, focus=focus).run()
    except ClusterFailure as failure:
        return failure
    return None


def _report(run: Run[_Swarm], failure: ClusterFailure) -> str:
    try:
        run.run()
    except ClusterFailure as cause:
        failure = cause
    faults = "\n".join([f"{fault.at:8.3f} {fault.kind.text}" for fault in run.faults])
    return (
        f"{failure}\nfaults that are needed:\n{faults or '  none'}\n"
        f"the last events with only these:\n{run.transcript()}"
    )
