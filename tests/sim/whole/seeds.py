"""Runs a seed, and minimizes the faults of a failing one."""

from collections.abc import Collection

from tests.sim.cluster.failure import ClusterFailure
from tests.sim.outcome import Outcome
from tests.sim.shrinking import needless
from tests.sim.whole.simulation import Simulation
from tests.sim.whole.swarm import Focus

__all__ = ["failure_of", "run_seed"]


def run_seed(seed: int) -> Outcome:
    """Run one seed.

    Raises:
        ClusterFailure: a promise was broken. The message has the seed, the faults needed to
            reproduce it, and the last events.
    """
    simulation = Simulation(seed)
    try:
        return simulation.run()
    except ClusterFailure as failure:
        numbers = [fault.number for fault in simulation.faults]
        skipped = needless(numbers, lambda skipped: failure_of(seed, skipped) is not None)
        raise ClusterFailure(f"seed {seed}: {_report(seed, skipped, failure)}") from None


def failure_of(seed: int, skipped: Collection[int] = (), focus: Focus | None = None) -> ClusterFailure | None:
    """The failure of a seed, None if it has none."""
    try:
        Simulation(seed, skipped, focus=focus).run()
    except ClusterFailure as failure:
        return failure
    return None


def _report(seed: int, skipped: set[int], failure: ClusterFailure) -> str:
    simulation = Simulation(seed, skipped)
    try:
        simulation.run()
    except ClusterFailure as cause:
        failure = cause
    faults = "\n".join([f"{fault.at:8.3f} {fault.kind.text}" for fault in simulation.faults])
    return (
        f"{failure}\nfaults that are needed:\n{faults or '  none'}\n"
        f"the last events with only these:\n{simulation.transcript()}"
    )
