"""Simulation of a raft group on virtual time, with faults, from a single seed.

python -m tests.sim.raft --seeds N --from S
"""

from tests.sim.raft.checks import RaftFailure
from tests.sim.raft.seeds import run_seed
from tests.sim.raft.simulation import Outcome, Simulation

__all__ = ["Outcome", "RaftFailure", "Simulation", "run_seed"]
