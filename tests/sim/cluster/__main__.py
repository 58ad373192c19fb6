"""python -m tests.sim.cluster: see `tests.sim.kit.command_line`."""

import sys

from tests.sim.cluster.rules import RULES
from tests.sim.cluster.simulation import Simulation
from tests.sim.kit.command_line import main

_TRIED = 300

sys.exit(main("tests.sim.cluster", Simulation, RULES, _TRIED))
