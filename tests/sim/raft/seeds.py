"""Runs a seed, and minimizes the faults of a failing one."""

from tests.sim.raft.checks import RaftFailure
from tests.sim.raft.simulation import Outcome, Simulation
from tests.sim.shrinking import needless


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
    """The run with only the faults that it needs to fail."""

    def fails(skipped: set[int]) -> bool:
        try:
            Simulation(seed, skipped).run()
        except RaftFailure:
            return True
        return False

    numbers = [fault.number for fault in Simulation(seed).faults]
    simulation = Simulation(seed, needless(numbers, fails))
    try:
        simulation.run()
    except RaftFailure as cause:
        return simulation, cause
    return simulation, failure
