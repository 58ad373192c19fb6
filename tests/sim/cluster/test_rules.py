"""The simulator is not blind: with any one rule disabled it detects a violation, in a seed that is
fine otherwise.
"""

import pytest

from tests.sim.cluster.rules import RULES
from tests.sim.cluster.simulation import Simulation
from tests.sim.kit.rules import switched_off
from tests.sim.kit.seeds import failure_of
from tests.sim.sample import sample


@pytest.mark.slow
@pytest.mark.parametrize("rule", sample(RULES, 3))
def test_a_disabled_rule_is_detected(rule: str) -> None:
    seed, focus = RULES[rule].seed, RULES[rule].focus
    with switched_off(RULES[rule]):
        failure = failure_of(Simulation, seed, focus=focus)
    assert failure is not None, f"seed {seed} is outdated: python -m tests.sim.cluster --find {rule!r}"
    assert failure_of(Simulation, seed, focus=focus) is None
