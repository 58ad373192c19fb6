"""The simulation is not blind: with any one rule disabled it detects a violation, in a seed that is
fine otherwise.
"""

import pytest

from tests.sim.sample import sample
from tests.sim.whole.rules import RULES, switched_off
from tests.sim.whole.seeds import failure_of

OTHER_SEEDS = range(1, 25)
"""Tried if the recorded one is outdated."""


@pytest.mark.slow
@pytest.mark.parametrize("rule", sample(RULES, 4))
def test_a_disabled_rule_is_detected(rule: str) -> None:
    focus = RULES[rule].focus
    for seed in (RULES[rule].seed, *OTHER_SEEDS):
        with switched_off(rule):
            failure = failure_of(seed, focus=focus)
        if failure is not None:
            assert failure_of(seed, focus=focus) is None
            return
    pytest.fail(f"no seed notices that this rule does not hold: {rule}")
