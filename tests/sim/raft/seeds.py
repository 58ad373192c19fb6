"""Runs a seed, and minimizes the faults of a failing one."""

from tests.sim.raft.checks import RaftFailure
from tests.sim.raft.simulation import Outcome, Simulation

__all__ = ["run_seed"]


def run_seed(seed: int) -> Outcome:
    """Run one seed.

    Raises:
        RaftFailure: a safety property was violated. The message has the seed, the faults needed to
            reproduce it, and the last events.
    """
    try:
        return Simulation(seed).run()
    except RaftFailure as failure:
        simulation, cause = _shrink(seed, failure)
        faults = "\n".join([f"{fault.at:6d} {fault.kind.value}" for fault in simulation.faults])
        raise RaftFailure(
            f"seed {seed}: {cause}\nfaults that are needed:\n{faults or '  none'}\n"
            f"the last events with only these:\n{simulation.transcript()}"
        ) from None


def _shrink(seed: int, failure: RaftFailure) -> tuple[Simulation, RaftFailure]:
    """Drop faults one by one as long as the run still fails."""
    skipped: set[int] = set()
    for fault in reversed(Simulation(seed).faults):
        try:
            Simulation(seed, skipped | {fault.number}).run()
        except RaftFailure:
            skipped.add(fault.number)
    simulation = Simulation(seed, skipped)
    try:
        simulation.run()
    except RaftFailure as cause:
        return simulation, cause
    return simulation, failure
