"""python -m tests.sim.whole: see `tests.sim.kit.command_line`."""

import sys

from tests.sim.kit.command_line import main
from tests.sim.whole.rules import RULES
from tests.sim.whole.simulation import Simulation
from tests.sim.whole.swarm import moving, still

_TRIED = 100

sys.exit(main("tests.sim.whole", Simulation, RULES, _TRIED, {"moving": moving, "still": still}))
