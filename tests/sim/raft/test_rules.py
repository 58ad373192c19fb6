"""The simulator is not blind: with any one rule of Raft disabled it soon detects a violation."""

import pytest

from tests.sim.raft import RaftFailure, Simulation
from tests.sim.raft.rules import RULES, switched_off


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_disabled_rule_is_detected(rule: str) -> None:
    with switched_off(rule):
        for seed in (RULES[rule].seed, *range(1, 101)):
            try:
                Simulation(seed, profile=RULES[rule].profile).run()
            except RaftFailure:
                return
    pytest.fail(f"a hundred seeds did not notice that it does not hold that {rule}")
